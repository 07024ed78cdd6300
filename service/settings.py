"""Every setting: name, default, help. The only reader of the environment."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self


class SettingsError(Exception):
    """Raised when a setting has a value that cannot be used."""


def _setting(default: Any, help: str, *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"help": help, "secret": secret})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one process; each is an environment variable of the same name in capitals."""

    host: str = _setting("127.0.0.1", "Address to listen on.")
    port: int = _setting(8080, "Port to listen on; 0 takes a free one.")
    workers: int = _setting(1, "Processes that share the port and the database.")
    base_url: str = _setting(
        "", "Start of next_url and Link, such as https://data.example.com. Empty: scheme and host of the request."
    )
    tls_cert: str = _setting("", "Certificate file (PEM); with tls_key, serves HTTPS directly.")
    tls_key: str = _setting("", "Private key file (PEM).")
    mongo_url: str = _setting("", "MongoDB to use. Empty: find or start one on this machine.", secret=True)
    mongo_database: str = _setting("scraping", "Database name.")
    mongo_timeout: float = _setting(5.0, "Seconds of database time per request; beyond it the response is 503.")
    mongo_pool: int = _setting(64, "Connections (and threads) to the database, per process.")
    data_dir: str = _setting(".data", "Folder of the database started on this machine.")
    local_mongo_cache_gb: float = _setting(0.25, "Cache of the database started on this machine, in GB; at least 0.25.")
    secret_keys: str = _setting(
        "",
        "Keys that encrypt cookie and local-storage values and webhook secrets: id:base64 of 32 bytes, separated "
        "by commas. The first encrypts, all decrypt.",
        secret=True,
    )
    sealed_only: bool = _setting(
        False, "Refuse stored values that are not sealed with their record. Set it once `secrets rotate` is done."
    )
    token_cache_seconds: float = _setting(
        3.0, "Seconds after which the database is asked about a token again; at most 4."
    )
    max_body_bytes: int = _setting(16 * 1024 * 1024, "Maximum bytes of a body, after decompression.")
    max_records: int = _setting(1000, "Maximum number of records in one body.")
    max_item_bytes: int = _setting(1024 * 1024, "Maximum bytes of an output item, as canonical JSON.")
    max_page_bytes: int = _setting(
        64 * 1024 * 1024, "Bytes of items after which a page of outputs ends early; next_cursor continues it."
    )
    max_depth: int = _setting(64, "Maximum nesting of a field's value; at most 150.")
    max_values: int = _setting(1_500_000, "Maximum number of values in one body, nested ones included.")
    max_files: int = _setting(10_000, "Maximum number of files of all output items in one body.")
    one_pass: bool = _setting(
        True,
        "Encode the items of a body in one pass, with the compiled extension, where it is installed; false: in Python. "
        "Only the CPU time differs.",
    )
    max_bytes_in_flight: int = _setting(
        256 * 1024 * 1024,
        "Bytes that requests may hold, per process: a quarter for bodies being received, half for work, a quarter for "
        "responses being sent. Requests wait for them in turn, and get 503 with Retry-After if that takes too long. A "
        "token gets at most 5/8 of each part, an organization 3/4. At least 16 MiB, and four times MAX_BODY_BYTES.",
    )
    rate_limit: float = _setting(0.0, "Requests per second for each token, per process; 0 is off.")
    receive_timeout: float = _setting(20.0, "Seconds a client may take to send one request.")
    min_send_rate: int = _setting(
        1000,
        "Bytes per second that a client must take of its response, on average over 3 times RECEIVE_TIMEOUT; "
        "slower ones are disconnected.",
    )
    keepalive_timeout: float = _setting(75.0, "Seconds an idle connection is kept.")
    drain_seconds: float = _setting(
        0.0, "Seconds to serve on after SIGTERM, with /readyz at 503, so that a load balancer takes the process out."
    )
    shutdown_timeout: float = _setting(25.0, "Seconds accepted requests have to finish on stop, after DRAIN_SECONDS.")
    lease_seconds: float = _setting(15.0, "Seconds after which another process ends a write that has not finished.")
    deleted_days: int = _setting(30, "Days after which the record of a deletion is removed; at most 36500.")
    history_days: int = _setting(
        30, "Days for which a group keeps earlier versions of its items unless it sets its own; 0: none; at most 365."
    )
    webhook_private: bool = _setting(
        False, "Let webhooks use http and addresses inside the network. Leave it off where tenants are strangers."
    )
    cors_origins: str = _setting("", "Origins whose pages may call from a browser, separated by commas; * for all.")
    log_level: str = _setting("INFO", "DEBUG, INFO, WARNING or ERROR.")
    log_format: str = _setting(
        "auto", "json: one object per line; text: short lines; auto: text on a terminal, else json."
    )
    tracing: bool = _setting(
        False, "Send OpenTelemetry traces, as the OTEL_ variables of its SDK say; needs the extra otel."
    )
    access_log: float = _setting(
        1.0, "Share of requests with a log line: 1 all, 0.01 one in a hundred and every status from 500, 0 none."
    )

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """Return the settings of the environment, with `overrides` that are not None on top."""
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for item in dataclasses.fields(cls):
            raw = overrides.get(item.name)
            if raw is None:
                raw = _from_environ(item, environ)
            if raw is not None and raw != "":
                values[item.name] = _parse(item, raw)
        return cls(**values)._checked()

    @classmethod
    def table(cls) -> list[tuple[str, str, str]]:
        """Return name, default and help of each setting, as the command line and docs/settings.md show them."""
        return [(item.name.upper(), _written(item.default), _help(item)) for item in dataclasses.fields(cls)]

    def environ(self) -> dict[str, str]:
        """Return the environment that gives another process the same settings."""
        values = {item.name.upper(): str(getattr(self, item.name)) for item in dataclasses.fields(self)}
        # The value is passed on: an inherited NAME_FILE would set it twice.
        files = {f"{item.name.upper()}_FILE": "" for item in dataclasses.fields(self) if item.metadata["secret"]}
        return values | files

    @property
    def data_path(self) -> Path:
        return Path(self.data_dir).resolve()

    def _checked(self) -> Self:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            least = 0 if item.name in _MAY_BE_ZERO else _LEAST.get(type(value))
            if least is not None and not (value >= least and math.isfinite(value)):
                raise SettingsError(f"{item.name.upper()} must be at least {least}.")
        if self.port > 65535:
            raise SettingsError("PORT must be at most 65535.")
        if self.deleted_days > _MAX_DAYS:
            raise SettingsError(f"DELETED_DAYS must be at most {_MAX_DAYS}.")
        if self.history_days > _MAX_HISTORY_DAYS:
            raise SettingsError(f"HISTORY_DAYS must be at most {_MAX_HISTORY_DAYS}.")
        if self.max_bytes_in_flight < max(4 * self.max_body_bytes, _LEAST_IN_FLIGHT):
            raise SettingsError("MAX_BYTES_IN_FLIGHT must be at least 16 MiB, and four times MAX_BODY_BYTES.")
        if self.max_depth > _MAX_DEPTH:
            raise SettingsError(f"MAX_DEPTH must be at most {_MAX_DEPTH}: the database holds 180 levels.")
        if self.lease_seconds <= self.mongo_timeout:
            raise SettingsError("LEASE_SECONDS must be greater than MONGO_TIMEOUT.")
        if not 0 < self.token_cache_seconds <= 4:
            raise SettingsError("TOKEN_CACHE_SECONDS must be over 0 and at most 4.")
        if self.access_log > 1:
            raise SettingsError("ACCESS_LOG must be from 0 to 1.")
        if self.local_mongo_cache_gb < 0.25:
            raise SettingsError("LOCAL_MONGO_CACHE_GB must be at least 0.25.")
        if self.base_url and not re.fullmatch(r"https?://[^\s/?#]+[^\s?#]*", self.base_url):
            raise SettingsError("BASE_URL must be like https://data.example.com.")
        if self.mongo_url and not re.match(r"mongodb(\+srv)?://.", self.mongo_url):
            raise SettingsError("MONGO_URL must begin with mongodb:// or mongodb+srv://.")
        if not re.fullmatch(r'[^\s."$/\\\0]{1,63}', self.mongo_database):
            raise SettingsError("MONGO_DATABASE must be a database name.")
        if self.log_level.upper() not in _LOG_LEVELS:
            raise SettingsError(f"LOG_LEVEL must be one of {', '.join(_LOG_LEVELS)}.")
        if self.log_format not in _LOG_FORMATS:
            raise SettingsError(f"LOG_FORMAT must be one of {', '.join(_LOG_FORMATS)}.")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise SettingsError("TLS_CERT and TLS_KEY go together.")
        for name in ("tls_cert", "tls_key"):
            path = getattr(self, name)
            if path and not os.access(path, os.R_OK):
                raise SettingsError(f"{name.upper()} names a file that cannot be read: {path}")
        return self


# The least value of a number by its type.
_LEAST: dict[type, float] = {int: 1, float: 0.001}
_MAX_DEPTH = 150
_MAX_DAYS = 36_500
_MAX_HISTORY_DAYS = 365
# A token has five eighths. A stream takes 7 MiB of them; a body is there twice, as text and as its encoded items.
_LEAST_IN_FLIGHT = 16 * 1024 * 1024
_MAY_BE_ZERO = {"access_log", "history_days", "port", "rate_limit", "drain_seconds"}
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_LOG_FORMATS = ("auto", "json", "text")


def _help(item: dataclasses.Field[Any]) -> str:
    text: str = item.metadata["help"]
    return f"{text} Or {item.name.upper()}_FILE: a file that holds it." if item.metadata["secret"] else text


def _from_environ(item: dataclasses.Field[Any], environ: Mapping[str, str]) -> str | None:
    """Return the text of a setting; a secret one may also stand in the file that NAME_FILE names."""
    name = item.name.upper()
    path = environ.get(f"{name}_FILE") if item.metadata["secret"] else None
    if not path:
        return environ.get(name)
    if environ.get(name):
        raise SettingsError(f"Set {name} or {name}_FILE, not both.")
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        raise SettingsError(f"{name}_FILE names a file that cannot be read: {path}") from None


def _written(default: Any) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


_KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


def _parse(item: dataclasses.Field[Any], raw: Any) -> Any:
    kind: Any = type(item.default)
    if isinstance(raw, kind):
        return raw
    try:
        if kind is bool:
            return {"1": True, "true": True, "0": False, "false": False}[str(raw).lower()]
        return kind(raw)
    except (ValueError, KeyError):
        raise SettingsError(f"{item.name.upper()} must be {_KINDS[kind]}.") from None
