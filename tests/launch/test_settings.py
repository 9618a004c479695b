"""What `caudal launch` writes into agents' files, and takes out of them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from caudal.launch.settings import Journal, SettingsError
from caudal.launch.setup import SettingsFile

OURS = {("providers", "caudal"): {"baseUrl": "http://here/v1"}}


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "notes")


def settings(path: Path, entries: dict[tuple[str, ...], Any] = OURS) -> SettingsFile:
    return SettingsFile(path=path, entries=entries)


def test_a_file_that_was_not_there_goes_again(journal: Journal, tmp_path: Path):
    path = tmp_path / "home" / "agent" / "models.json"
    before, after = journal.preview("pi", settings(path))
    assert before == ""
    journal.write("pi", settings(path))
    assert path.read_text() == after
    assert path.stat().st_mode & 0o777 == 0o600
    assert journal.preview("pi", settings(path)) == (after, after)
    undone = journal.undo("pi")
    assert undone is not None
    assert undone.removed
    assert not path.exists()
    assert journal.undo("pi") is None


def test_what_else_is_in_a_file_stays(journal: Journal, tmp_path: Path):
    real = tmp_path / "dotfiles.json"
    theirs = {"theme": "dark", "providers": {"other": {"apiKey": "Ü"}, "caudal": {"own": 1}}}
    real.write_text(json.dumps(theirs))
    real.chmod(0o640)
    path = tmp_path / "models.json"
    path.symlink_to(real)
    journal.write("pi", settings(path))
    changed = json.loads(real.read_text())
    [ours] = OURS.values()
    assert changed == {"theme": "dark", "providers": {"other": {"apiKey": "Ü"}, "caudal": ours}}
    assert path.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    # Another model, and then back: what was there before us is what comes back.
    journal.write("pi", settings(path, {("providers", "caudal"): {"baseUrl": "http://there/v1"}}))
    assert json.loads(real.read_text())["providers"]["caudal"] == {"baseUrl": "http://there/v1"}
    journal.undo("pi")
    assert json.loads(real.read_text()) == theirs


def test_what_somebody_has_changed_since_stays(journal: Journal, tmp_path: Path):
    path = tmp_path / "models.json"
    journal.write("pi", settings(path, {**OURS, ("default",): "caudal"}))
    content = json.loads(path.read_text())
    content["providers"]["caudal"]["baseUrl"] = "http://mine/v1"
    path.write_text(json.dumps(content))
    undone = journal.undo("pi")
    assert undone is not None
    assert (undone.kept, undone.removed) == (("providers.caudal",), False)
    assert json.loads(path.read_text()) == {"providers": content["providers"]}


@pytest.mark.parametrize("theirs", [{}, {"providers": {}}, {"providers": {"other": 1}}])
def test_what_was_empty_before_stays(theirs: dict[str, Any], journal: Journal, tmp_path: Path):
    path = tmp_path / "models.json"
    path.write_text(json.dumps(theirs))
    journal.write("pi", settings(path))
    journal.undo("pi")
    assert json.loads(path.read_text()) == theirs


def test_a_file_that_somebody_has_deleted_does_not_come_back(journal: Journal, tmp_path: Path):
    path = tmp_path / "models.json"
    path.write_text("{}")
    journal.write("pi", settings(path))
    path.unlink()
    undone = journal.undo("pi")
    assert undone is not None
    assert undone.kept == ()
    assert not path.exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"// mine\n{}", "isn't JSON"),
        (b"[1]", "no JSON object"),
        (b'{"providers": 3}', "`providers` is no object"),
        (b"\xff\xfe", "is no text"),
    ],
)
def test_files_of_other_kinds_are_left_alone(
    text: bytes, why: str, journal: Journal, tmp_path: Path
):
    path = tmp_path / "models.json"
    path.write_bytes(text)
    for change in (journal.preview, journal.write):
        with pytest.raises(SettingsError, match=why):
            change("pi", settings(path))
    assert path.read_bytes() == text
    assert journal.undo("pi") is None
