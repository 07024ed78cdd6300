"""Encrypts the values of cookies and local storage before they reach the database."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from service.store.errors import StoreError

_NONCE = 12  # bytes, the length AES-GCM is made for


class VaultError(StoreError):
    """Raised when a value cannot be read with the keys at hand."""


class Vault:
    """AES-256-GCM with several keys: the first encrypts, all decrypt.

    A sealed value is bytes: length of the key id, key id, nonce, ciphertext. A plain one is a
    string, so the two cannot be taken for each other. What a value belongs to goes in as
    associated data: a value copied onto another record does not open.
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._ciphers = {id: AESGCM(key) for id, key in keys.items()}
        self._first = next(iter(self._ciphers), None)

    @classmethod
    def parse(cls, text: str) -> Vault:
        """Return the vault of a `SECRET_KEYS` setting. Raises ValueError without its content."""
        keys: dict[str, bytes] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            id, _, encoded = part.partition(":")
            try:
                key = base64.b64decode(encoded, validate=True)
            except ValueError:
                key = b""
            if not (id and len(id.encode()) < 256 and len(key) == 32) or id in keys:
                raise ValueError("SECRET_KEYS must be id:base64 of 32 bytes, comma between, each id once")
            keys[id] = key
        return cls(keys)

    @property
    def active(self) -> bool:
        return self._first is not None

    def seal(self, value: str, *belongs_to: str | int) -> str | bytes:
        """Return the value as it is to be stored."""
        if self._first is None:
            return value
        key_id, nonce = self._first.encode(), os.urandom(_NONCE)
        sealed = self._ciphers[self._first].encrypt(nonce, value.encode(), _context(belongs_to))
        return bytes([len(key_id)]) + key_id + nonce + sealed

    def open(self, stored: str | bytes, *belongs_to: str | int) -> str:
        """Return the value that was sealed."""
        if isinstance(stored, str):
            return stored
        cut = 1 + stored[0]
        cipher = self._ciphers.get(stored[1:cut].decode())
        if cipher is None:
            raise VaultError("a value is encrypted with a key that SECRET_KEYS does not have")
        try:
            opened = cipher.decrypt(stored[cut : cut + _NONCE], stored[cut + _NONCE :], _context(belongs_to))
        except InvalidTag:
            raise VaultError("a stored value does not belong to its record") from None
        return opened.decode()

    def is_current(self, stored: str | bytes) -> bool:
        """Return whether the value is as `seal` would store it now."""
        if self._first is None or isinstance(stored, str):
            return self._first is None
        return stored[1 : 1 + stored[0]].decode() == self._first


def _context(parts: tuple[str | int, ...]) -> bytes:
    # With the length of each part, no two lists of parts give the same bytes.
    return b"".join(b"%d:%b" % (len(p), p) for p in (str(part).encode() for part in parts))
