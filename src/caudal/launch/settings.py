"""Entries in agents' own files: written with a note of what was there, and taken out again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caudal.errors import CaudalError
from caudal.launch.setup import SettingsFile
from caudal.store.disk import write_atomically

_ABSENT = object()
_MAX_BYTES = 16 << 20


class SettingsError(CaudalError):
    """An agent's file can't be changed, or put back."""


@dataclass(frozen=True, slots=True)
class Undone:
    """What taking entries out came to.

    Attributes:
        path: The file.
        kept: Entries that somebody has changed since, and that stay as they are.
        removed: Whether there is no file now: there was none before, or somebody has deleted it.
    """

    path: Path
    kept: tuple[str, ...]
    removed: bool


class Journal:
    """Remembers what was in an agent's file before.

    Args:
        folder: Where notes are kept, one for each agent.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def preview(self, agent: str, settings: SettingsFile) -> tuple[str, str]:
        """The file's text as it is, and as it will be; alike where nothing has to be written.

        Raises:
            SettingsError: The file isn't one that entries can be added to.
        """
        before, _ = self._read(settings.path)
        _, after = self._changed(agent, settings)
        return before, before if self._is_there(settings) else _text(after)

    def write(self, agent: str, settings: SettingsFile) -> None:
        """Write the entries, and note what they take the place of.

        Raises:
            SettingsError: The file can't be read or written.
        """
        if self._is_there(settings):
            return
        note, after = self._changed(agent, settings)
        path = settings.path.resolve()  # of what may be a link into somebody's dotfiles
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._note(agent), _text(note).encode())
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, _text(after))
        except OSError as error:
            raise SettingsError(f"can't write {settings.path}: {error.strerror}") from error

    def undo(self, agent: str) -> Undone | None:
        """Put back what was there. None where nothing was written.

        Raises:
            SettingsError: The file can't be read or written.
        """
        note = self._read_note(agent)
        if note is None:
            return None
        path = Path(note["path"])
        text, content = self._read(path)
        kept = []
        for change in note["changes"]:
            keys = tuple(change["keys"])
            if _get(content, keys) == change["after"]:
                _put(content, keys, change.get("before", _ABSENT), change["parents"])
            elif text:
                kept.append(".".join(keys))
        # Whoever has deleted it since doesn't want it back.
        removed = not text or (not content and not note["existed"])
        try:
            if removed:
                path.unlink(missing_ok=True)
            else:
                _replace(path.resolve(), _text(content))
            self._note(agent).unlink(missing_ok=True)
        except OSError as error:
            raise SettingsError(f"can't put back {path}: {error.strerror}") from error
        return Undone(path, tuple(kept), removed)

    def _changed(self, agent: str, settings: SettingsFile) -> tuple[dict[str, Any], dict[str, Any]]:
        """What to note down, and what the file then holds."""
        text, content = self._read(settings.path)
        earlier = self._read_note(agent)
        first: dict[tuple[str, ...], dict[str, Any]] = {}
        existed = bool(text)
        if earlier is not None and Path(earlier["path"]) == settings.path:
            existed = existed and bool(earlier["existed"])
            first = {tuple(change["keys"]): change for change in earlier["changes"]}
        changes = []
        for keys, value in settings.entries.items():
            before, parents = _get(content, keys), _depth(content, keys)
            if keys in first and first[keys]["after"] == before:  # ours is nobody's state before
                before, parents = first[keys].get("before", _ABSENT), first[keys]["parents"]
            change: dict[str, Any] = {"keys": list(keys), "after": value, "parents": parents}
            if before is not _ABSENT:
                change["before"] = before
            changes.append(change)
            _put(content, keys, value)
        return {"path": str(settings.path), "existed": existed, "changes": changes}, content

    def _is_there(self, settings: SettingsFile) -> bool:
        _, content = self._read(settings.path)
        return all(_get(content, keys) == value for keys, value in settings.entries.items())

    def _read(self, path: Path) -> tuple[str, dict[str, Any]]:
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise SettingsError(f"{path} is too large for a file of settings")
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return "", {}
        except OSError as error:
            raise SettingsError(f"can't read {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise SettingsError(f"{path} is no text") from error
        if not text.strip():
            return text, {}
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SettingsError(
                f"{path} isn't JSON ({error}), so nothing is added to it"
            ) from error
        if not isinstance(content, dict):
            raise SettingsError(f"{path} holds no JSON object, so nothing is added to it")
        return text, content

    def _read_note(self, agent: str) -> dict[str, Any] | None:
        path = self._note(agent)
        _, note = self._read(path)
        if not note:
            return None
        if not _is_note(note):
            raise SettingsError(
                f"{path}, the note of what was there before, is damaged; delete it once you have "
                "looked after the agent's own file"
            )
        return note

    def _note(self, agent: str) -> Path:
        return self._folder / f"{agent}.json"


def _is_note(note: Mapping[str, Any]) -> bool:
    changes = note.get("changes")
    return (
        isinstance(note.get("path"), str)
        and isinstance(note.get("existed"), bool)
        and isinstance(changes, list)
        and all(isinstance(each, dict) for each in changes)
        and all(isinstance(each.get("keys"), list) and each["keys"] for each in changes)
        and all("after" in each and isinstance(each.get("parents"), int) for each in changes)
    )


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _replace(path: Path, text: str) -> None:
    """Write a file as a whole; who may read it stays as it is, and of a new one is the user."""
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    write_atomically(path, text.encode(), mode=mode)


def _get(content: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        if not isinstance(content, dict) or key not in content:
            return _ABSENT
        content = content[key]
    return content


def _depth(content: Any, keys: tuple[str, ...]) -> int:
    """How many of the objects that lead to a value there are, below the outermost."""
    for depth, key in enumerate(keys[:-1]):
        if not isinstance(content, dict) or key not in content:
            return depth
        content = content[key]
    return len(keys) - 1


def _put(content: dict[str, Any], keys: tuple[str, ...], value: Any, parents: int = 0) -> None:
    """Set a value, or take it out.

    Objects on the way that hold nothing afterwards go too, but for the first `parents` of them.
    """
    if len(keys) == 1:
        if value is _ABSENT:
            content.pop(keys[0], None)
        else:
            content[keys[0]] = value
        return
    inner = content.get(keys[0])
    if not isinstance(inner, dict):
        if inner is not None:
            raise SettingsError(f"`{keys[0]}` is no object, so nothing is added to it")
        inner = {}
    _put(inner, keys[1:], value, parents - 1)
    if inner or value is not _ABSENT or parents > 0:
        content[keys[0]] = inner
    else:
        content.pop(keys[0], None)
