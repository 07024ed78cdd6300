"""GET /v1/token: what the caller's own token is for."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from service import __version__
from tests.conftest import MakeApi
from tests.support.api import Api


async def test_a_token_describes_itself_without_its_text(make_api: MakeApi) -> None:
    expires = datetime(2100, 1, 31, 12, tzinfo=UTC)
    api = await make_api(scopes=["write", "read"], label="nightly crawl", expires=expires)
    response = await api.get("/v1/token")
    assert response.status == 200
    assert {**response.json, "id": "", "create_date": ""} == {
        "id": "",
        "organization_id": api.organization_id,
        "scopes": ["read", "write"],
        "label": "nightly crawl",
        "create_date": "",
        "expires": "2100-01-31T12:00:00.000Z",
        "server": {"version": __version__, "encoder": "one_pass"},
    }
    assert api.token not in response.body.decode()


async def test_a_token_without_an_end_has_none(api: Api) -> None:
    assert (await api.ok("/v1/token"))["expires"] is None


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_it_can_only_be_read(api: Api, method: str) -> None:
    assert (await api.request(method, "/v1/token")).status == 405
