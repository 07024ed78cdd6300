"""The documented formats of Slack, Discord and Teams, checked as strictly as their receivers do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit


def check_slack(body: Mapping[str, Any]) -> str:
    """Check a message of an incoming webhook (text, blocks of the Block Kit); return what people see of it."""
    _only(body, {"text", "blocks"})
    _text(body["text"], 4000)
    assert 1 <= len(body["blocks"]) <= 50
    shown = [body["text"]]
    for block in body["blocks"]:
        assert block["type"] == "section"
        _only(block, {"type", "text", "fields"})
        shown.append(_mrkdwn(block["text"], 3000))
        assert len(block.get("fields", [])) <= 10
        shown += [_mrkdwn(field, 2000) for field in block.get("fields", [])]
    for text in shown:
        assert "<!" not in text and "<@" not in text, "a mention"
    return "\n".join(shown)


def _mrkdwn(value: Mapping[str, Any], length: int) -> str:
    _only(value, {"type", "text", "verbatim"})
    assert value["type"] == "mrkdwn"
    return _text(value["text"], length)


def check_discord(body: Mapping[str, Any]) -> str:
    """Check a message of Execute Webhook with embeds."""
    _only(body, {"embeds", "allowed_mentions"})
    assert body["allowed_mentions"] == {"parse": []}
    assert 1 <= len(body["embeds"]) <= 10
    shown = []
    for embed in body["embeds"]:
        _only(embed, {"title", "description", "url", "color", "fields"})
        assert type(embed["color"]) is int and 0 <= embed["color"] <= 0xFFFFFF
        shown.append(_text(embed["title"], 256))
        if "description" in embed:
            shown.append(_text(embed["description"], 4096))
        if "url" in embed:
            assert urlsplit(embed["url"]).scheme in ("http", "https")
        assert len(embed["fields"]) <= 25
        for field in embed["fields"]:
            _only(field, {"name", "value", "inline"})
            assert type(field["inline"]) is bool
            shown += [_text(field["name"], 256), _text(field["value"], 1024)]
    assert sum(map(len, shown)) <= 6000
    return "\n".join(shown)


def check_teams(body: Mapping[str, Any]) -> str:
    """Check a message of the Workflows webhook: one adaptive card of a version that Teams shows."""
    _only(body, {"type", "attachments"})
    assert body["type"] == "message" and len(json.dumps(body).encode()) <= 28 * 1024
    [attachment] = body["attachments"]
    _only(attachment, {"contentType", "contentUrl", "content"})
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    card = attachment["content"]
    _only(card, {"$schema", "type", "version", "body", "actions"})
    assert card["type"] == "AdaptiveCard" and card["version"] in ("1.2", "1.3", "1.4", "1.5")
    shown = []
    for element in card["body"]:
        if element["type"] == "TextBlock":
            _only(element, {"type", "text", "weight", "size", "color", "wrap"})
            assert element.get("color", "Default") in ("Default", "Good", "Attention", "Warning", "Accent")
            shown.append(_text(element["text"], 28 * 1024))
        else:
            assert element["type"] == "FactSet"
            for fact in element["facts"]:
                _only(fact, {"title", "value"})
                shown += [_text(fact["title"], 1000), _text(fact["value"], 1000)]
    for action in card.get("actions", []):
        _only(action, {"type", "title", "url"})
        assert action["type"] == "Action.OpenUrl" and urlsplit(action["url"]).scheme in ("http", "https")
    return "\n".join(shown)


def _text(value: Any, length: int) -> str:
    assert type(value) is str and 0 < len(value) <= length
    return value


def _only(value: Mapping[str, Any], names: set[str]) -> None:
    assert set(value) <= names, set(value) - names


CHECKS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "slack": check_slack,
    "discord": check_discord,
    "teams": check_teams,
}
# What the receivers respond with.
STATUS = {"slack": 200, "discord": 204, "teams": 202}
