"""API keys: who may do what. Only digests are held, and comparing takes the same time whatever is presented."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from enum import IntEnum

from scopegate.domain import Invalid

_PRINTABLE = re.compile(r"[!-~]+")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


class Role(IntEnum):
    """What a key may do; each includes those before it."""

    CHECK = 1
    WRITE = 2
    ADMIN = 3


class Keys:
    """The keys of a service, each a SHA-256 digest and a role. Without any, the service is open."""

    def __init__(self, keys: Sequence[tuple[bytes, Role]]) -> None:
        self._keys = tuple(keys)

    @property
    def open(self) -> bool:
        """Whether everybody may do everything."""
        return not self._keys

    def role(self, presented: str) -> Role | None:
        """The role of the key presented, None where it is none of ours.

        Every key is compared, so that the time taken tells nothing about which one matched.
        """
        digest = hashlib.sha256(presented.encode()).digest()
        found = None
        for known, role in self._keys:
            if hmac.compare_digest(known, digest):
                found = role
        return found

    @classmethod
    def parse(cls, setting: str) -> Keys:
        """Reads a comma-separated list of ROLE:KEY, ROLE:sha256:HEX, or KEY alone, which is an admin's.

        Raises Invalid, which names the entry by its position and never quotes it.
        """
        if not setting.strip():
            return cls(())
        keys: dict[bytes, Role] = {}
        for position, entry in enumerate(setting.split(","), 1):
            digest, role = _entry(entry.strip(), position)
            if digest in keys:
                raise Invalid(f"SCOPEGATE_API_KEYS: entry {position} repeats the key of an earlier one")
            keys[digest] = role
        return cls(tuple(keys.items()))


def _entry(entry: str, position: int) -> tuple[bytes, Role]:
    name, colon, key = entry.partition(":")
    if not colon:
        name, key = "admin", entry
    if name.upper() not in Role.__members__:
        raise Invalid(f"SCOPEGATE_API_KEYS: the role of entry {position} is none of check, write, admin")
    role = Role[name.upper()]
    if key.startswith("sha256:"):
        digest = key.removeprefix("sha256:")
        if not _DIGEST.fullmatch(digest):
            raise Invalid(f"SCOPEGATE_API_KEYS: the digest of entry {position} is not 64 hexadecimal digits")
        return bytes.fromhex(digest), role
    if not _PRINTABLE.fullmatch(key):
        raise Invalid(f"SCOPEGATE_API_KEYS: the key of entry {position} is empty or has characters other than ! to ~")
    return hashlib.sha256(key.encode()).digest(), role
