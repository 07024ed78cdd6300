"""`python -m service healthcheck`: right port, TLS, and cheap."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ServiceProcess, refused_port, run_process
from tests.support.tls import make_certificate

ANY = "0.0.0.0"  # noqa: S104


@pytest.mark.slow
def test_a_service_that_listens_is_healthy_and_ready(mongo_url: str) -> None:
    with ServiceProcess(mongo_url, host=ANY) as service:
        service.wait_until_ready()
        for flags in ([], ["--ready"]):
            done = run_process("", "healthcheck", *flags, PORT=str(service.port), HOST=ANY)
            assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_service_with_tls_is_healthy(mongo_url: str, tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    with ServiceProcess(mongo_url, tls_cert=cert, tls_key=key) as service:
        service.wait_until_listening()
        done = run_process("", "healthcheck", PORT=str(service.port), TLS_CERT=str(cert), TLS_KEY=str(key))
        assert (done.returncode, done.stderr) == (0, "")
        # Asked without TLS, it responds with nothing that is HTTP, or not at all.
        done = run_process("", "healthcheck", PORT=str(service.port))
        assert (done.returncode, "Traceback" in done.stderr) == (1, False)


@pytest.mark.slow
def test_a_service_without_its_database_is_alive_but_not_ready() -> None:
    with refused_port() as port, ServiceProcess(f"mongodb://127.0.0.1:{port}", mongo_timeout=1) as service:
        service.wait_until_listening()
        assert run_process("", "healthcheck", PORT=str(service.port)).returncode == 0
        done = run_process("", "healthcheck", "--ready", PORT=str(service.port))
        assert (done.returncode, done.stderr) == (1, "error: the service responds with 503\n")


def test_no_service_is_one_clear_line() -> None:
    with refused_port() as port:
        done = run_process("", "healthcheck", PORT=str(port))
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: no response from 127.0.0.1:{port}: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("flag", "code", "said"), [("--help", 0, "--ready"), ("--fast", 2, "--help explains")])
def test_the_command_explains_itself(flag: str, code: int, said: str) -> None:
    done = run_process("", "healthcheck", flag)
    assert done.returncode == code
    assert said in done.stdout + done.stderr


def test_the_check_loads_neither_the_server_nor_the_driver() -> None:
    code = "import sys; sys.argv = ['', 'healthcheck']; from service.__main__ import main; main(); print(*sys.modules)"
    with refused_port() as port:
        environ = {**os.environ, "PORT": str(port)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    loaded = done.stdout.split()
    assert "service.runtime.healthcheck" in loaded
    assert not {"aiohttp", "pymongo", "motor", "marshmallow", "argparse", "http.client", "ssl", "asyncio"} & set(loaded)
