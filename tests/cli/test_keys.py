"""`caudal keys`, and the file that it and people write."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from caudal.cli.app import app
from caudal.errors import SettingError
from caudal.tenants.key_editing import add_key, read_keys
from caudal.tenants.key_file import KeyFile
from caudal.tenants.ring import KeyRing
from caudal.tenants.rules import KeyRules


def run(*words: str, fails: bool = False) -> Result:
    result = CliRunner().invoke(app, ["keys", *words])
    assert (result.exit_code != 0) == fails, result.output
    return result


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAUDAL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_key_is_made_shown_once_listed_and_revoked(home: Path):
    added = run(
        *(
            "add",
            "alice",
            "--models",
            "qwen3*",
            "--models",
            "small",
            "--rpm",
            "60",
            "--tpm",
            "9000",
        ),
        *("--concurrent", "4", "--max-waiting", "9", "--priority", "-1", "--weight", "2.5"),
        *("--share-prefixes", "team", "--timeout", "60", "--expires", "90d"),
    )
    key = added.stdout.strip()
    assert key.startswith("sk-caudal-")
    assert len(key) > 50
    file = home / "keys.toml"
    assert key not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    [tenant] = KeyRing([KeyFile(file)]).tenants
    found = KeyRing([KeyFile(file)]).lookup(key.encode())
    assert found is not None
    assert (found, found.name) == (tenant, "alice")
    assert found.rules == KeyRules(
        models=("qwen3*", "small"),
        requests_per_minute=60,
        tokens_per_minute=9000,
        concurrent_requests=4,
        max_waiting=9,
        priority=-1,
        weight=2.5,
        share_prefixes="team",
        timeout=60.0,
    )
    expires = read_keys(file)["alice"].expires
    assert expires is not None
    left = expires - datetime.now(UTC)
    assert timedelta(days=89.9) < left <= timedelta(days=90)
    listed = run("list").stdout
    assert "alice" in listed
    assert "60 requests a minute" in listed
    assert "already" in run("add", "alice", fails=True).stderr
    assert "revoked alice" in run("revoke", "alice").stdout
    assert KeyRing([KeyFile(file)]).lookup(key.encode()) is None
    assert "there is no key 'alice'; there are: none" in run("revoke", "alice", fails=True).stderr
    assert "No keys" in run("list").stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("a b",), "letters, digits"),
        (("nobody",), "without a key"),
        (("alice", "--rpm", "0"), "--rpm"),
        (("alice", "--weight", "-1"), "weight"),
        (("alice", "--share-prefixes", "a b"), "share_prefixes"),
        (("alice", "--expires", "soon"), "90d"),
        (("alice", "--expires", "999999w"), "90d"),
        (("alice", "--expires", "9999-12-31T23:59-05:00"), "90d"),
        (("alice", "--expires", "2020-01-01"), "over already"),
    ],
)
@pytest.mark.usefixtures("home")
def test_what_makes_no_sense_is_refused(words: tuple[str, ...], reason: str):
    assert reason in run("add", *words, fails=True).stderr
    assert "No keys" in run("list").stdout


WRITTEN = """\
# Ours.
[defaults]
max_n = 2   # enough

[keys.old]
hash = "sha256:{a}"
# of the old key
models = [
  "a", # [keys.new]
]

# Bob is on leave.
[keys."b.ob"]
hash = "sha256:{b}"
"""


def test_what_people_have_written_stays(tmp_path: Path):
    file = tmp_path / "keys.toml"
    text = WRITTEN.format(a="a" * 64, b="b" * 64)
    file.write_text(text)
    file.chmod(0o640)
    run("add", "x.y", "--admin", "--file", str(file))
    assert file.read_text().startswith(text)
    run("revoke", "x.y", "--file", str(file))
    assert file.read_text() == text
    run("revoke", "old", "--file", str(file))
    begin, end = text.index("[keys.old]"), text.index("\n# Bob")
    assert file.read_text() == text[:begin] + text[end:]
    run("revoke", "b.ob", "--file", str(file))
    assert file.read_text() == text[:begin] + text[end : text.index('[keys."')]
    assert file.stat().st_mode & 0o777 == 0o640


def test_what_cant_be_changed_safely_is_left_alone(tmp_path: Path):
    file = tmp_path / "keys.toml"
    for text, reason in (
        (f'keys = {{ old = {{ hash = "sha256:{"a" * 64}" }} }}\n', "by hand"),
        ("[keys.old]\nhash = 5\n", "line 2"),
        ("[keys.old\n", "line 1"),
    ):
        file.write_text(text)
        for words in (("add", "new"), ("revoke", "old")):
            assert reason in run(*words, "--file", str(file), fails=True).stderr
            assert file.read_text() == text


def test_a_file_stays_where_and_whose_it_is(tmp_path: Path):
    (tmp_path / "etc").mkdir()
    file, link = tmp_path / "etc" / "keys.toml", tmp_path / "keys.toml"
    link.symlink_to(file)
    run("add", "alice", "--file", str(link))
    if os.getuid() == 0:
        os.chown(file, 4711, 4712)
    before = file.stat()
    run("add", "bob", "--file", str(link))
    run("revoke", "alice", "--file", str(link))
    after = file.stat()
    assert link.is_symlink()
    assert set(read_keys(file)) == {"bob"}
    assert (before.st_uid, before.st_gid, before.st_mode) == (
        after.st_uid,
        after.st_gid,
        after.st_mode,
    )


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for words in (("add", "alice"), ("list",)):
        assert "regular" in run(*words, "--file", str(tmp_path / "pipe"), fails=True).stderr


def test_a_file_doesnt_grow_beyond_what_is_read(tmp_path: Path):
    file = tmp_path / "keys.toml"
    file.write_text("#" * (2**20 - 10) + "\n")
    assert "1 MiB" in run("add", "alice", "--file", str(file), fails=True).stderr
    assert "alice" not in file.read_text()


def test_many_hands_lose_no_key(tmp_path: Path):
    file = tmp_path / "keys.toml"
    threads = [
        threading.Thread(target=add_key, args=(file, f"key-{number}", {})) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(read_keys(file)) == {f"key-{number}" for number in range(8)}


def test_a_server_takes_keys_from_everywhere(tmp_path: Path):
    from caudal.configuration.effective import effective_settings
    from caudal.configuration.pieces import access_of

    file = tmp_path / "keys.toml"
    made = add_key(file, "alice", {"max_n": 2})
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CAUDAL_API_KEYS", "bob=b, nameless")
        environment.setenv("CAUDAL_API_KEYS_FILE", str(file))
        ring = access_of(effective_settings({"api_key": "sesame"}), ["127.0.0.1"]).ring()
    assert ring is not None
    names = {}
    for key in (made, "b", "nameless", "sesame", "other"):
        tenant = ring.lookup(key.encode())
        names[key] = tenant and (tenant.name, tenant.rules.admin)
    assert list(names.values()) == [
        *(("alice", False), ("bob", False), ("key-2", False), ("admin", True), None)
    ]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CAUDAL_API_KEYS", " ")
        with pytest.raises(SettingError, match="CAUDAL_API_KEYS"):
            access_of(effective_settings({}), ["127.0.0.1"])
