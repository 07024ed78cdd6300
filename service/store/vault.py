"""Encrypts the values of cookies and local storage before they reach the database."""

from __future__ import annotations

import base64
import logging
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from service.command import command
from service.store.errors import StoreError

log = logging.getLogger("service.store")

_KEY = 32  # bytes
_NONCE = 12  # bytes, the length AES-GCM is made for
_LENGTH = 4  # bytes of the length of `extra`
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class VaultError(StoreError):
    """Raised when a value cannot be read with the keys at hand."""


class Sealed(NamedTuple):
    """The sealed part of a record: its value, and the members that only its client knows."""

    value: str
    extra: dict[str, Any]


class Vault:
    """AES-256-GCM with several keys: the first encrypts, all decrypt.

    A sealed value is bytes: the length of the key id, key id, nonce, ciphertext. A plain one is a
    string, so the two cannot be confused. The record's other fields are associated data: a value that was
    copied to another record, or whose record was changed, does not open.
    """

    def __init__(self, keys: Mapping[str, bytes], sealed_only: bool = False) -> None:
        self._ciphers = {id: AESGCM(key) for id, key in keys.items()}
        self._first = next(iter(self._ciphers), None)
        self._sealed_only = sealed_only

    @classmethod
    def parse(cls, text: str, sealed_only: bool = False) -> Vault:
        """Return the vault of the settings `SECRET_KEYS` and `SEALED_ONLY`. Raises ValueError without their content."""
        keys: dict[str, bytes] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            id, _, encoded = part.partition(":")
            try:
                key = base64.b64decode(encoded, validate=True)
            except ValueError:
                key = b""
            if not _KEY_ID.fullmatch(id) or len(key) != _KEY or id in keys:
                raise ValueError(
                    "SECRET_KEYS must be id:base64 of 32 bytes, separated by commas, no id twice; "
                    f"`{command('secrets new-key')}` makes one"
                )
            keys[id] = key
        if sealed_only and not keys:
            raise ValueError("SEALED_ONLY needs SECRET_KEYS: without a key nothing can be sealed")
        return cls(keys, sealed_only)

    @staticmethod
    def new_key(id: str) -> str:
        """Return a new entry for `SECRET_KEYS`."""
        if not _KEY_ID.fullmatch(id):
            raise ValueError("a key's id has 1 to 64 of A-Z a-z 0-9 . _ -")
        return f"{id}:{base64.b64encode(AESGCM.generate_key(8 * _KEY)).decode()}"

    @property
    def active(self) -> bool:
        return self._first is not None

    def seal(self, content: Sealed, *belongs_to: Any) -> bytes:
        """Return the content as it is to be stored. Needs a key: see `active`."""
        assert self._first is not None
        key_id, nonce = self._first.encode(), os.urandom(_NONCE)
        extra = orjson.dumps(content.extra)
        plain = len(extra).to_bytes(_LENGTH, "big") + extra + content.value.encode()
        sealed = self._ciphers[self._first].encrypt(nonce, plain, _context(belongs_to))
        return bytes([len(key_id)]) + key_id + nonce + sealed

    def open(self, stored: bytes, *belongs_to: Any) -> Sealed:
        """Return the sealed content. Raises VaultError, and logs what to check."""
        plain = self._decrypt(stored, belongs_to)
        start = _LENGTH + int.from_bytes(plain[:_LENGTH], "big")
        return Sealed(plain[start:].decode(), orjson.loads(plain[_LENGTH:start]))

    def check_plain(self, stored: str) -> str:
        """Return a value that is not sealed. Raises VaultError with `SEALED_ONLY`."""
        if self._sealed_only:
            log.error(f"a value is not sealed: run `{command('secrets rotate')}` without SEALED_ONLY")
            raise VaultError("a value is not sealed as SEALED_ONLY demands")
        return stored

    def is_current(self, stored: str | bytes) -> bool:
        """Return whether the value is as `seal` would store it now."""
        if self._first is None:
            return True
        return isinstance(stored, bytes) and _parts(stored)[0] == self._first

    def _decrypt(self, stored: bytes, belongs_to: tuple[Any, ...]) -> bytes:
        key_id, nonce, sealed = _parts(stored)
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            known = key_id if _KEY_ID.fullmatch(key_id) else ""
            log.error("a value is sealed with a key that SECRET_KEYS does not have", extra={"key_id": known})
            raise VaultError("a value is sealed with a key that SECRET_KEYS does not have")
        try:
            return cipher.decrypt(nonce, sealed, _context(belongs_to))
        except (InvalidTag, ValueError):
            log.error(
                "a sealed value does not open: its key in SECRET_KEYS is another one of the same id, "
                "or the record was changed or moved in the database",
                extra={"key_id": key_id},
            )
            raise VaultError("a sealed value does not open") from None


def _parts(stored: bytes) -> tuple[str, bytes, bytes]:
    """Return key id, nonce and ciphertext; bytes that were never sealed give parts that do not open."""
    cut = 1 + (stored[0] if stored else 0)
    return stored[1:cut].decode("ascii", "replace"), stored[cut : cut + _NONCE], stored[cut + _NONCE :]


def _context(parts: tuple[Any, ...]) -> bytes:
    # With the length of each part, no two lists of parts give the same bytes.
    return b"".join(b"%d:%b" % (len(p), p) for p in (str(part).encode() for part in parts))
