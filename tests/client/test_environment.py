"""A client that is given no address or token takes those of the environment."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sds_client import AccessError, AsyncClient, Client, ClientError
from tests.support.processes import ServiceProcess, free_port


@pytest.mark.usefixtures("environment")
def test_a_client_without_arguments_takes_those_of_the_environment(running: ServiceProcess, organization: int) -> None:
    async def owner() -> int:
        async with AsyncClient() as client:
            return (await client.token())["organization_id"]

    with Client() as client:
        assert client.url == running.url
        assert client.token()["organization_id"] == asyncio.run(owner()) == organization


def test_an_address_that_nobody_gave_is_named_when_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SDS_URL", raising=False)
    monkeypatch.setattr("sds_client.environment.DEFAULT_URL", f"http://127.0.0.1:{(port := free_port())}")
    with Client(token="t", patience=0) as client, pytest.raises(ClientError) as caught:
        client.token()
    assert str(caught.value) == f"cannot connect to 127.0.0.1:{port}, the default: SDS_URL names another address"


@pytest.mark.parametrize("end", ["/v1", "/v1/", "/"])
def test_an_address_may_end_in_v1(running: ServiceProcess, token: str, organization: int, end: str) -> None:
    with Client(running.url + end, token) as client:
        assert client.token()["organization_id"] == organization


def test_a_file_may_hold_the_token(
    running: ServiceProcess, token: str, organization: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SDS_TOKEN", raising=False)
    (tmp_path / "token").write_text(f"{token}\n")
    monkeypatch.setenv("SDS_TOKEN_FILE", str(tmp_path / "token"))
    with Client(running.url) as client:
        assert client.token()["organization_id"] == organization
    monkeypatch.setenv("SDS_TOKEN", token)
    with pytest.raises(AccessError, match="not both"):
        Client(running.url)


@pytest.mark.parametrize("given", [None, ""])
def test_a_client_without_a_token_says_how_to_get_one(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SDS_TOKEN", "SDS_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    for kind in (Client, AsyncClient):
        with pytest.raises(AccessError, match=r"set SDS_TOKEN, .*`scraping-data-service token create"):
            kind("http://127.0.0.1:1", given)
