"""docker/monitoring: every rule and every panel asks for what the service tells, and every alert is explained."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from scripts.alerts import CASES, shortened
from service.http.metrics import FAMILIES
from tests.support.documentation import ROOT

FOLDER = ROOT / "docker/monitoring"
RULES = [rule for group in yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"] for rule in group["rules"]]
PANELS = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
ALERTS = [rule["alert"] for rule in RULES]
QUERIES = [rule["expr"] for rule in RULES] + [target["expr"] for panel in PANELS for target in panel["targets"]]
_METRIC = re.compile(r"\b(?:sds|process)_[a-z_]+")
# What Prometheus itself adds.
_OWN = {"up"}


def asked_for(query: str) -> set[str]:
    return set(_METRIC.findall(query))


def known(name: str) -> bool:
    histogram = re.sub(r"_(bucket|count|sum)$", "", name)
    return name in FAMILIES or (histogram in FAMILIES and FAMILIES[histogram].kind == "histogram")


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_names_metrics_that_exist(query: str) -> None:
    names = asked_for(query)
    assert names or _OWN & set(re.findall(r"\w+", query))
    assert [name for name in names if not known(name)] == []


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_uses_labels_that_its_metrics_have(query: str) -> None:
    labels = {label for name in asked_for(query) for label in _labels(name)} | {"le", "instance", "job"}
    used = set(re.findall(r'(\w+)!?=~?"', query))
    used |= {word.strip() for words in re.findall(r"by \(([^)]*)\)", query) for word in words.split(",")}
    assert used <= labels


def _labels(name: str) -> tuple[str, ...]:
    return FAMILIES[name if name in FAMILIES else re.sub(r"_(bucket|count|sum)$", "", name)].labels


def test_every_alert_has_a_test_that_it_fires_and_one_that_it_is_quiet() -> None:
    tests: list[dict[str, Any]] = yaml.safe_load((FOLDER / "rules.test.yaml").read_text())["tests"]
    assert {test["name"] for test in tests} >= {f"{alert} {does}" for alert in ALERTS for does in ("fires", "is quiet")}


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_paragraph_that_says_what_to_do(alert: str) -> None:
    assert f"**{alert}**" in (ROOT / "docs/operations.md").read_text()


def test_every_alert_can_be_fired_for_real() -> None:
    assert {alert for alerts, _ in CASES for alert in alerts} == set(ALERTS)


def test_for_that_only_durations_are_shortened() -> None:
    rule = "expr: rate(sds_x_total[15m]) > 60\nfor: 5m\n"
    assert shortened(rule) == "expr: rate(sds_x_total[30s]) > 60\nfor: 10s\n"
