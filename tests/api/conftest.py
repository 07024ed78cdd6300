"""Callers for tests of the API."""

from __future__ import annotations

import pytest

from tests.conftest import MakeApi
from tests.support.contract import HeldApi


@pytest.fixture
async def admin(make_api: MakeApi, organization: int) -> HeldApi:
    """A caller of the test's organization who may read, write and delete, and checks the form of every response."""
    api = await make_api(organization, ["read", "write", "delete", "state"])
    return HeldApi(api.client, api.token, api.organization_id)
