"""Real processes: workers, TLS, stopping, restarting, demo data, log lines."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from sds_client import Client
from sds_client.__main__ import main as sds
from service.settings import Settings
from tests.support.api import make_cookie, make_output
from tests.support.processes import SECONDS, ServiceProcess, make_token, run_command, wait_until
from tests.support.tls import make_certificate

pytestmark = pytest.mark.slow


def call(service: ServiceProcess, path: str, token: str = "", body: Any = None, **options: Any) -> Any:
    """Return the JSON of a response."""
    request = urllib.request.Request(
        service.url + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=SECONDS, **options) as response:
        return json.loads(response.read())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # also between opening and reading
        return False


def children(pid: int) -> list[int]:
    """Return all processes below a process."""
    try:
        below = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []
    return below + [further for child in below for further in children(child)]


# -- workers -----------------------------------------------------------------------------------


def test_workers_share_the_port_and_the_database(mongo_url: str, organization: int) -> None:
    token = make_token(mongo_url, organization)
    with ServiceProcess(mongo_url, workers=2) as service:
        pids = {line["pid"] for line in service.wait_for("listening", 2)}
        assert len(pids) == 2
        service.wait_until_ready()
        # Each request on a connection of its own: the kernel gives them to both workers.
        for n in range(20):
            call(service, "/v1/outputs/shared", token, [make_output(n)])
            assert len(call(service, "/v1/outputs/shared?limit=100", token)["items"]) == n + 1
        service.wait_for("request", 40)
        assert service.stop() == 0
        assert not any(alive(pid) for pid in pids)
        assert {line["pid"] for line in service.events("stopping")} == pids


def test_a_worker_that_dies_is_started_again(mongo_url: str) -> None:
    with ServiceProcess(mongo_url, workers=2) as service:
        first = service.wait_for("listening", 2)[0]["pid"]
        os.kill(first, signal.SIGKILL)
        assert service.wait_for("a worker died")[0]["pid"] == first
        assert len({line["pid"] for line in service.wait_for("listening", 3)}) == 3
        service.wait_until_ready()


def test_workers_end_with_a_supervisor_that_is_killed(mongo_url: str) -> None:
    with ServiceProcess(mongo_url, workers=2) as service:
        pids = [line["pid"] for line in service.wait_for("listening", 2)]
        service.kill()
        wait_until(lambda: not any(alive(pid) for pid in pids))


# -- TLS ---------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return make_certificate(tmp_path)


@pytest.mark.parametrize("workers", [1, 2])
def test_tls_is_served_directly(
    mongo_url: str, organization: int, certificate: tuple[Path, Path], workers: int, capsys: Any
) -> None:
    token = make_token(mongo_url, organization)
    cert, key = certificate
    context = ssl.create_default_context(cafile=str(cert))
    with ServiceProcess(mongo_url, tls_cert=cert, tls_key=key, workers=workers) as service:
        service.wait_until_ready(context)
        call(service, "/v1/outputs/tls", token, [make_output(1), make_output(2)], context=context)
        page = call(service, "/v1/outputs/tls?limit=1", token, context=context)
        assert page["metadata"]["next_url"].startswith(f"{service.url}/v1/outputs/tls?")
        assert service.url.startswith("https://")
        with Client(service.url, token, cacert=cert) as client:
            assert len(list(client.outputs("tls"))) == 2
        assert sds(["outputs", "list", "tls", "--url", service.url, "--token", token, "--cacert", str(cert)]) == 0
        assert sds(["outputs", "list", "tls", "--url", service.url, "--token", token]) == 1
        assert "; SDS_CACERT names a file with the certificates to trust" in capsys.readouterr().err
        # Plain HTTP gets nowhere.
        plain = http.client.HTTPConnection("127.0.0.1", service.port, timeout=SECONDS)
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.request("GET", "/healthz")
            plain.getresponse()
        assert service.stop() == 0


# -- stopping ----------------------------------------------------------------------------------


def begin_post(service: ServiceProcess, token: str, path: str, length: int) -> socket.socket:
    """Send the head of a request with a body; return when the service is at work on it and waits for the body."""
    connection = socket.create_connection(("127.0.0.1", service.port), timeout=SECONDS)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
    )
    connection.sendall(head.encode())
    assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    return connection


def is_refused(port: int) -> bool:
    """Return whether nobody listens on a port any more."""
    try:
        # A connection in the middle of the close is neither made nor refused: the next one is.
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


@pytest.mark.parametrize(("workers", "number"), [(1, signal.SIGTERM), (2, signal.SIGTERM), (1, signal.SIGINT)])
def test_a_request_that_was_accepted_completes_when_the_service_is_told_to_stop(
    mongo_url: str, organization: int, workers: int, number: signal.Signals
) -> None:
    token = make_token(mongo_url, organization)
    with ServiceProcess(mongo_url, workers=workers) as service:
        service.wait_until_ready()
        body = json.dumps([make_output(n) for n in range(10)]).encode()
        with begin_post(service, token, "/v1/outputs/g", len(body)) as connection:
            connection.sendall(body[:100])
            service.process.send_signal(number)
            service.wait_for("stopping", workers)
            wait_until(lambda: is_refused(service.port))
            connection.sendall(body[100:])
            response = b""
            while b"}]}" not in response:
                piece = connection.recv(65536)
                assert piece, response
                response += piece
        assert b"200 OK" in response
        assert b'"created":10' in response
        assert service.process.wait(SECONDS) == 0


def test_a_stopping_service_takes_no_new_connection(mongo_url: str, organization: int) -> None:
    token = make_token(mongo_url, organization)
    with ServiceProcess(mongo_url) as service:
        service.wait_until_ready()
        with begin_post(service, token, "/v1/cookies", 2) as connection:
            connection.sendall(b"[")
            service.process.terminate()
            wait_until(lambda: is_refused(service.port))
            assert service.process.poll() is None
            connection.sendall(b"]")
            assert b"200 OK" in connection.recv(65536)
        assert service.process.wait(SECONDS) == 0


def test_an_idle_connection_does_not_hold_up_a_stop(mongo_url: str) -> None:
    with ServiceProcess(mongo_url) as service:
        service.wait_until_ready()
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=SECONDS)
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        started = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - started < Settings().shutdown_timeout  # which a request that never ends gets
        connection.close()


# -- on a database of its own, with demo data --------------------------------------------------


class Demo:
    """`python -m service serve --demo` on a folder, as `make run` starts it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.service = ServiceProcess("", flags=["--demo"], data_dir=folder, mongo_database="scraping", **settings)

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *_: object) -> None:
        self.service.__exit__()

    def welcome(self) -> str:
        """Return what is printed for people, once all of it is there."""

        def said() -> bool:
            assert self.service.process.poll() is None, self.service.log()
            log = self.service.log().rpartition("\n")[0]
            return "export SDS_TOKEN=" in log and "\n  mongosh " in log

        wait_until(said, self.service.log, 4 * SECONDS)
        return "\n".join(line for line in self.service.log().splitlines() if not line.startswith("{"))

    def token(self) -> str:
        found = re.search(r"^  export SDS_TOKEN=(\S+)$", self.welcome(), re.MULTILINE)
        assert found
        return found[1]

    def analyst(self) -> str:
        found = re.search(r"^  mongosh '(mongodb://\S+)'$", self.welcome(), re.MULTILINE)
        assert found
        return found[1]

    def interrupt(self) -> int:
        """Press Ctrl-C: the signal goes to all of the terminal's processes."""
        os.killpg(self.service.process.pid, signal.SIGINT)
        return self.service.process.wait(SECONDS)


def everything(demo: Demo) -> list[Any]:
    token = demo.token()
    paths = ["/v1/outputs/demo-shop?limit=1000", "/v1/reviews/demo-shop", "/v1/cookies", "/v1/local-storage"]
    return [call(demo.service, path, token) for path in paths]


def test_make_run_shows_demo_data_keeps_it_over_a_restart_and_stops_all_it_started(tmp_path: Path) -> None:
    with Demo(tmp_path) as demo:
        welcome = demo.welcome()
        assert f"{demo.service.url}/docs" in welcome
        demo.service.wait_until_ready()
        # The lines to paste get data.
        pasted = "\n".join(re.findall(r"^  ((?:export|curl) .+)$", welcome, re.MULTILINE))
        shown = subprocess.run(
            ["bash", "-ec", pasted.replace("curl ", "echo; curl -sf ")], capture_output=True, check=True
        )
        written, lamps, demo_item = map(json.loads, shown.stdout.splitlines()[1:])
        assert written["created"] == 1
        assert [item["data"] for item in lamps["items"]] == [{"title": "Oak lamp"}]
        assert demo_item["items"][0]["data"]["title"] and demo_item["metadata"]["next_url"]
        assert f"{demo.service.url}/#token={demo.token()}" in welcome
        with urllib.request.urlopen(f"{demo.service.url}/docs", timeout=SECONDS) as page:
            assert b"swagger" in page.read()
        analyst = demo.analyst()
        with MongoClient[dict[str, Any]](analyst) as client:
            present = {"group_id": "demo-shop", "deleted": {"$ne": True}}
            assert client.get_default_database().outputs.count_documents(present) == 1000
        outputs, reviews, cookies, entries = first = everything(demo)
        assert len(outputs["items"]) == 1000
        assert reviews and cookies and entries
        token = demo.token()
        call(demo.service, "/v1/cookies", token, [make_cookie(name="mine")])
        below = children(demo.service.process.pid)
        assert below
        assert demo.interrupt() == 0
        assert not any(alive(pid) for pid in below)
    for name in ("demo-token", "demo-analyst"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600

    with Demo(tmp_path) as demo:
        assert demo.token() == token
        assert demo.analyst() == analyst
        outputs, reviews, cookies, entries = everything(demo)
        assert [outputs, reviews, entries] == [first[0], first[1], first[3]]
        assert len(cookies) == len(first[2]) + 1
        tokens = run_command("", "token", "list", DATA_DIR=str(tmp_path), MONGO_DATABASE="scraping")
        assert tokens.stdout.count("demo") == 1
        # A token and an analyst that no longer work are not shown.
        for words in (["token", "revoke", token], ["analyst", "remove", "analyst"]):
            done = run_command("", *words, DATA_DIR=str(tmp_path), MONGO_DATABASE="scraping")
            assert done.returncode == 0
        assert demo.service.stop() == 0

    with Demo(tmp_path) as demo:
        wait_until(lambda: "token create" in demo.service.log(), demo.service.log)
        assert token not in demo.service.log()
        assert "curl" not in demo.service.log()
        assert "mongodb://" not in demo.service.log()
        assert demo.interrupt() == 0


def test_demo_data_never_goes_into_a_database_that_was_given(mongo_url: str) -> None:
    with MongoClient[dict[str, Any]](mongo_url) as client:
        client.drop_database("given")
        with ServiceProcess(mongo_url, flags=["--demo"], mongo_database="given") as service:
            service.wait_until_ready()
            assert "MONGO_URL gets no demo data" in service.log()
            assert "curl" not in service.log()
            assert service.stop() == 0
        for name in ("outputs", "tokens", "cookies", "local_storage", "reviews"):
            assert client["given"][name].count_documents({}) == 0
        client.drop_database("given")


def test_without_demo_an_empty_database_stays_empty(tmp_path: Path) -> None:
    with ServiceProcess("", data_dir=tmp_path) as service:
        service.wait_until_ready()
        listed = run_command("", "token", "list", DATA_DIR=str(tmp_path))
        assert len(listed.stdout.splitlines()) == 1
        assert service.stop() == 0


# -- log lines ---------------------------------------------------------------------------------


def test_every_line_of_the_log_is_json_and_a_request_has_exactly_these_members(
    mongo_url: str, organization: int
) -> None:
    token = make_token(mongo_url, organization)
    with ServiceProcess(mongo_url) as service:
        service.wait_until_ready()
        call(service, "/v1/cookies", token, [make_cookie(value="v4lue")])
        request = urllib.request.Request(
            f"{service.url}/v1/outputs/gr0up?url=https://user:p4ss@shop.example",
            headers={"Authorization": f"Bearer {token}", "X-Request-ID": "id-1"},
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            assert response.headers["X-Request-ID"] == "id-1"
        assert service.stop() == 0
        (line,) = service.wait_for("request", request_id="id-1")
        log = service.log()
    members = ["time", "level", "event", "method", "route", "status", "ms", "organization", "request_id"]
    assert list(line) == members
    assert (line["route"], line["organization"]) == ("/v1/outputs/{group_id}", organization)
    for text in log.splitlines():
        assert {"time", "level", "event"} <= set(json.loads(text))
    for secret in (token, "v4lue", "p4ss", "gr0up"):
        assert secret not in log


def test_a_url_as_long_as_one_can_be_stored_can_be_asked_for(mongo_url: str, organization: int) -> None:
    token = make_token(mongo_url, organization)
    long = "https://shop.example/?" + "a=%20&" * 1361 + "1234"
    assert len(long) == 8192
    with ServiceProcess(mongo_url) as service:
        service.wait_until_ready()
        call(service, "/v1/outputs/g", token, [make_output(source_url=long)])
        quoted = urllib.parse.quote(long, safe="=:/?")
        assert len(call(service, f"/v1/outputs/g?url={quoted}", token)["items"]) == 1
