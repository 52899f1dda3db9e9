"""API keys: how the setting is read, and how a key is compared."""

from __future__ import annotations

import hashlib
import hmac
from unittest.mock import patch

import pytest

from scopegate.api.keys import Keys, Role
from scopegate.domain import Invalid


def test_no_keys_is_open() -> None:
    assert Keys.parse("").open
    assert Keys.parse("  ").open
    assert not Keys.parse("k").open


def test_reads_every_form() -> None:
    digest = hashlib.sha256(b"hashed").hexdigest()
    keys = Keys.parse(f"check:asker, write:writer ,admin:a:b,bare,check:sha256:{digest.upper()}")
    assert keys.role("asker") is Role.CHECK
    assert keys.role("writer") is Role.WRITE
    assert keys.role("a:b") is Role.ADMIN
    assert keys.role("bare") is Role.ADMIN
    assert keys.role("hashed") is Role.CHECK
    assert keys.role(digest) is None
    assert keys.role("") is None
    assert keys.role("schlüssel") is None


@pytest.mark.parametrize(
    "setting",
    ["owner:s3cret", "check:", "good,", ",", "check:sha256:abc", "check:sha256:" + "g" * 64, "s3cret x", "s3crét"],
)
def test_malformed_setting_is_refused_without_quoting_it(setting: str) -> None:
    with pytest.raises(Invalid, match=r"SCOPEGATE_API_KEYS: .*entry \d") as raised:
        Keys.parse(setting)
    assert "s3cr" not in str(raised.value)


def test_repeated_key_is_refused() -> None:
    with pytest.raises(Invalid, match="entry 2 repeats"):
        Keys.parse("check:same,admin:same")


def test_holds_digests_alone() -> None:
    keys = Keys.parse("check:visible-secret")
    assert "visible-secret" not in repr(vars(keys))


@pytest.mark.parametrize("presented", ["first", "second", "third", "none of them"])
def test_compares_every_key_in_constant_time(presented: str) -> None:
    keys = Keys.parse("check:first,write:second,admin:third")
    with patch("scopegate.api.keys.hmac.compare_digest", wraps=hmac.compare_digest) as compare:
        keys.role(presented)
    known = {hashlib.sha256(key.encode()).digest() for key in ("first", "second", "third")}
    assert {call.args[0] for call in compare.call_args_list} == known
    assert {call.args[1] for call in compare.call_args_list} == {hashlib.sha256(presented.encode()).digest()}
