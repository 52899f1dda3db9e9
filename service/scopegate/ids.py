"""Identifiers: opaque strings that sort by creation."""

from ulid import LaxMonotonicPolicy, ULIDGenerator

_ulids = ULIDGenerator(policy=LaxMonotonicPolicy())


def new_id() -> str:
    """A ULID, greater than every one that this process made before."""
    return str(_ulids.generate())
