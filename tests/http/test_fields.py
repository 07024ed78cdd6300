"""The parameter `fields`: at most 100 paths, read in linear time."""

from __future__ import annotations

import time

import pytest
from marshmallow import ValidationError

from schemas.outputs import OutputsQuery, Paths
from tests.support.api import Api

FIELD = OutputsQuery().fields["kept"]


def test_as_many_deep_paths_as_fit_into_8_kb_take_milliseconds() -> None:
    """They took half a second when each was compared with each."""
    deep = ",".join(f"data.{n:02}." + ".".join("x" * 30) for n in range(100))[:8192]
    began = time.thread_time()
    FIELD.deserialize(deep.rpartition(",")[0])
    assert time.thread_time() - began < 0.2


def test_more_than_100_paths_are_refused() -> None:
    assert len(FIELD.deserialize(",".join(f"data.k{n}" for n in range(100)))) == 100
    with pytest.raises(ValidationError) as refused:
        FIELD.deserialize(",".join(f"data.k{n}" for n in range(101)))
    assert refused.value.messages[0]["type"] == "too_many"  # type: ignore[index]


def test_a_path_below_another_says_nothing_more() -> None:
    assert FIELD.deserialize("data.a.b,data.a,tags.x,data.ab,tags.x") == ("data.a", "tags.x", "data.ab")
    assert isinstance(FIELD, Paths)


async def test_a_path_below_a_field_without_members_is_refused(api: Api) -> None:
    for path in ["id.a", "source_url.x", "create_date.y", "is_approved.z", "data,id.a"]:
        response = await api.get("/v1/outputs/g", params={"fields": path})
        assert (response.status, response.problems()) == (422, [(["query", "fields"], "value_error")]), path
