"""Keys: where they come from, whose they are, and when they aren't any more."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from caudal.errors import ConfigurationError
from caudal.service.context import RequestContext
from caudal.tenants import ring as ring_module
from caudal.tenants.key_file import KeyFile
from caudal.tenants.keys import GivenKeys, admin_key, given_keys
from caudal.tenants.ring import KeyRing
from caudal.tenants.rules import ANYONE, KeyRules, Tenant


def hash_of(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def table(name: str, key: str, *rules: str) -> str:
    return "\n".join([f"[keys.{name}]", f'hash = "{hash_of(key)}"', *rules, ""])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rings look at their sources each time."""
    monkeypatch.setattr(ring_module, "LOOK_SECONDS", 0.0)


def write(file: Path, text: str) -> None:
    """Replace a file as `caudal keys` does."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def test_a_key_is_found_by_its_hash_and_has_the_rules_of_all_where_it_says_nothing(tmp_path: Path):
    file = tmp_path / "keys.toml"
    file.write_text(
        "[defaults]\nrequests_per_minute = 60\nmax_n = 2\n"
        + table("alice", "alice's", 'models = ["qwen*"]', "max_n = 8")
        + table("bob", "bob's")
    )
    ring = KeyRing([GivenKeys([admin_key("sesame", "--api-key")]), KeyFile(file)])
    alice, bob, admin = (ring.lookup(key) for key in (b"alice's", b"bob's", b"sesame"))
    assert alice == Tenant(
        "alice", "alice", KeyRules(models=("qwen*",), requests_per_minute=60, max_n=8)
    )
    assert bob == Tenant("bob", "bob", KeyRules(requests_per_minute=60, max_n=2))
    assert admin == Tenant("admin", "admin", KeyRules(admin=True))
    for wrong in (b"", b"alice", b"alice's ", hash_of("bob's").encode(), b"\xff\xfe"):
        assert ring.lookup(wrong) is None


def test_a_new_key_is_one_at_once(tmp_path: Path):
    file = tmp_path / "keys.toml"
    write(file, table("alice", "1"))
    ring = KeyRing([KeyFile(file)])
    assert ring.lookup(b"1") is not None
    write(file, table("alice", "1") + table("bob", "2"))
    assert ring.lookup(b"2") is not None


def test_keys_of_the_environment_may_have_names():
    keys = given_keys("bob=one, two\nthree==,\n\n eve=b=c=", "CAUDAL_API_KEYS")
    ring = KeyRing([GivenKeys(keys)])
    found = {key: ring.lookup(key.encode()) for key in ("one", "two", "three==", "b=c=")}
    names = {key: tenant and tenant.name for key, tenant in found.items()}
    assert names == {"one": "bob", "two": "key-2", "three==": "key-3", "b=c=": "eve"}
    assert not any(tenant.rules.admin for tenant in ring.tenants)
    for text in ("", " , \n"):
        with pytest.raises(ValueError, match="must not be empty"):
            given_keys(text, "CAUDAL_API_KEYS")


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("[keys.a]\nhash = 'secret'", "line 2", "must be sha256"),
        ("[keys.a]\nrequests_per_minute = 5", "line 1", "keys.a.hash is missing"),
        (table("a", "1", "request_per_minute = 5"), "line 3", "did you mean requests_per_minute"),
        (table("a", "1", "weight = 0"), "line 3", "weight"),
        (table("a", "1", "max_n = 0"), "line 3", "max_n"),
        (table("a", "1", "max_n = true"), "line 3", "max_n"),
        (table("a", "1", "expires = 'soon'"), "line 3", "expires"),
        (table('"a b"', "1"), "keys.toml", "letters, digits"),
        (table("a", "1") + table("b", "1"), "keys.b", "the same key as that of 'a'"),
        (table("a", "1") + table("a", "2"), "line 3", "twice"),
        (table("admin", "1"), "keys.admin", "there is a key 'admin' already"),
        ("[default]\nmax_n = 1", "line 1", "did you mean defaults"),
        (f"[defaults]\nmax_n = {'9' * 5000}", "keys.toml", "too many digits"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_place(
    tmp_path: Path, text: str, place: str, reason: str
):
    file = tmp_path / "keys.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        KeyRing([GivenKeys([admin_key("sesame", "--api-key")]), KeyFile(file)])
    assert place in str(caught.value)
    assert reason in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.usefixtures("impatient")
def test_a_file_is_followed_and_who_is_gone_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    file = tmp_path / "keys.toml"
    write(file, table("alice", "1") + table("bob", "2"))
    ring = KeyRing([KeyFile(file)])
    revoked: list[str] = []
    ring.on_revoked.append(lambda tenant: revoked.append(tenant.name))
    write(file, table("alice", "1", "max_n = 3") + table("bob", "other"))
    alice = ring.lookup(b"1")
    assert alice is not None
    assert alice.rules.max_n == 3
    assert ring.lookup(b"2") is None
    assert ring.lookup(b"other") is not None
    assert revoked == ["bob"]
    # What can't be read changes nothing, and is said once.
    with caplog.at_level(logging.ERROR, "caudal.keys"):
        for broken in ("[keys", None):
            if broken is None:
                file.unlink()
            else:
                write(file, broken)
            assert ring.lookup(b"1") == ring.lookup(b"1") == alice
    assert sum(record.levelno == logging.ERROR for record in caplog.records) == 2
    write(file, "")
    assert ring.lookup(b"1") is None
    assert revoked == ["bob", "alice", "bob"]


@pytest.mark.usefixtures("impatient")
def test_keys_expire(tmp_path: Path):
    file = tmp_path / "keys.toml"
    file.write_text(table("alice", "1", "expires = 2030-01-01"))
    now = 1_893_456_000.0 - 1
    ring = KeyRing([KeyFile(file)], now=lambda: now)
    revoked: list[str] = []
    ring.on_revoked.append(lambda tenant: revoked.append(tenant.name))
    assert ring.lookup(b"1") is not None
    now += 1
    assert ring.lookup(b"1") is None
    assert revoked == ["alice"]
    now -= 10  # the clock was wrong
    ring.reload()
    assert ring.lookup(b"1") is not None


def of(rules: KeyRules, name: str = "alice") -> Callable[[RequestContext], RequestContext]:
    return Tenant(name, name, rules).applied


def test_rules_are_applied_to_what_travels_with_a_request():
    rules = KeyRules(priority=2, weight=3.0, max_waiting=4, timeout=60.0, first_token_timeout=10.0)
    asked = RequestContext(priority=-5, timeout=90.0, first_token_timeout=5.0, user="u")
    assert of(rules)(asked) == RequestContext(
        priority=2,
        weight=3.0,
        max_waiting=4,
        tenant="alice",
        user="u",
        cache_salt="key alice",
        timeout=60.0,
        first_token_timeout=5.0,
    )
    assert of(rules)(RequestContext(priority=5)).priority == 7
    assert of(KeyRules(priority=2, admin=True))(RequestContext(priority=-5)).priority == -3
    assert ANYONE.applied(asked) is asked


def test_prefixes_are_shared_with_those_of_the_same_word_only():
    asked = [RequestContext(), RequestContext(cache_salt="x"), RequestContext(cache_salt="key a")]
    spaces = [
        of(rules, name)
        for rules, name in (
            (KeyRules(), "a"),
            (KeyRules(), "b"),
            (KeyRules(share_prefixes="a"), "c"),
            (KeyRules(share_prefixes=""), "d"),
        )
    ]
    salts = {applied(context).cache_salt for applied in spaces for context in asked}
    assert len(salts) == len(spaces) * len(asked)
    together = [of(KeyRules(share_prefixes="team"), name)(asked[1]).cache_salt for name in "ab"]
    assert together[0] == together[1]


@pytest.mark.usefixtures("impatient")
def test_a_file_that_is_written_in_its_place_takes_no_key_from_anybody(tmp_path: Path):
    file = tmp_path / "keys.toml"
    write(file, table("alice", "1") + table("bob", "2"))
    ring = KeyRing([KeyFile(file)])

    def rests() -> None:
        os.utime(file, (time.time() - 1, time.time() - 1 - file.stat().st_size))

    file.write_text(table("alice", "1"))  # and the rest comes in a moment
    assert ring.lookup(b"2") is not None
    rests()
    assert ring.lookup(b"2") is None
    file.write_text("")
    rests()
    assert ring.lookup(b"1") is not None
    with pytest.raises(ConfigurationError, match="empty"):
        ring.reload()
    file.write_text(table("carol", "3"))
    rests()
    assert ring.lookup(b"3") is not None
    assert ring.names == ["carol"]


@pytest.mark.usefixtures("impatient")
def test_files_that_are_moved_there_one_after_another_are_read_at_once(tmp_path: Path):
    """File systems give the number of a file that is gone to the next one."""
    file = tmp_path / "keys.toml"
    write(file, table("a", "0"))
    ring = KeyRing([KeyFile(file)])
    for number in range(1, 20):
        write(file, table("a", str(number)))
        write(file, table("a", str(number)) + "\n" * number)
        assert ring.lookup(str(number).encode()) is not None
        assert ring.lookup(str(number - 1).encode()) is None
