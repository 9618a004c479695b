"""Changing files of keys, so that all else in them stays as somebody has written it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from caudal.errors import ConfigurationError
from caudal.reading.toml_file import MAX_BYTES, TomlFile
from caudal.store.disk import exclusive_lock, write_atomically
from caudal.store.layout import default_home
from caudal.tenants.key_file import HASH, KeysTables, KeyTable
from caudal.tenants.keys import digest_of, new_key

FILE_MODE = 0o600


def default_key_file() -> Path:
    """Where keys are kept where nobody says otherwise."""
    return default_home() / "keys.toml"


def read_keys(path: Path) -> Mapping[str, KeyTable]:
    """The keys of a file, by their names; none where there is no file.

    Raises:
        ConfigurationError: It says what can't be.
    """
    return TomlFile(path).read(KeysTables).keys if path.exists() else {}


def add_key(path: Path, name: str, rules: Mapping[str, Any]) -> str:
    """Make a key, and note its hash; the file is made where there is none.

    Args:
        path: The file.
        name: Whose key it is; see `checked_name`.
        rules: What is said of it; fields of `KeyTable`.

    Returns:
        The key, which nobody keeps.

    Raises:
        ConfigurationError: There is such a key already, or the file can't be changed.
        StoreError: Its file system has no locks.
    """
    key = new_key()
    table = {
        "hash": f"{HASH}{digest_of(key.encode()).hex()}",
        "created": datetime.now(UTC).replace(microsecond=0),
        **rules,
    }

    def added(text: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        keys = data.setdefault("keys", {})
        if name in keys:
            raise ConfigurationError(
                str(path), f"there is a key {name!r} already; revoke it, or choose another name"
            )
        keys[name] = table
        lines = [f"[keys.{json.dumps(name) if '.' in name else name}]"]
        lines += [f"{field} = {_written(value)}" for field, value in table.items()]
        before = text.rstrip("\n")
        return f"{before}\n\n" * bool(before) + "\n".join(lines) + "\n", data

    _change(path, added)
    return key


def revoke_key(path: Path, name: str) -> None:
    """Take a key out of its file.

    Raises:
        ConfigurationError: There is no such key, or the file can't be changed.
        StoreError: Its file system has no locks.
    """

    def removed(text: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if name not in data.get("keys", {}):
            names = ", ".join(data.get("keys", {})) or "none"
            raise ConfigurationError(str(path), f"there is no key {name!r}; there are: {names}")
        del data["keys"][name]
        if not data["keys"]:
            del data["keys"]
        return _without_table(text.split("\n"), name), data

    _change(path, removed)


def _change(
    path: Path, change: Callable[[str, dict[str, Any]], tuple[str, dict[str, Any]]]
) -> None:
    """Write a file as `change` would have it.

    Args:
        path: The file.
        change: Makes its new text, and what that is to say, of what it is now.
    """
    try:
        path = path.resolve()  # what a link leads to is what servers read
        path.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(path.with_name(f".{path.name}.lock"), lambda: None):
            text, mode, owner = "", FILE_MODE, None
            if path.exists():
                TomlFile(path).read(KeysTables)
                text = path.read_text(encoding="utf-8")
                status = path.stat()
                mode, owner = status.st_mode & 0o777, (status.st_uid, status.st_gid)
            changed, wanted = change(text, tomllib.loads(text))
            if _read(changed) != wanted:
                raise ConfigurationError(
                    str(path), "is written so that it can't be changed here; edit it by hand"
                )
            content = changed.encode()
            if len(content) > MAX_BYTES:
                raise ConfigurationError(
                    str(path), f"would be larger than {MAX_BYTES >> 20} MiB, which servers read"
                )
            write_atomically(path, content, mode=mode, owner=owner)
    except OSError as error:
        raise ConfigurationError(
            str(path), f"can't be changed: {error.strerror or error}"
        ) from error


def _read(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _without_table(lines: Sequence[str], name: str) -> str:
    """A file without the table of a key; comments over the next one stay."""
    headers = [place for place, line in enumerate(lines) if line.lstrip().startswith("[")]
    wanted: dict[str, Any] = {"keys": {name: {}}}
    begin = next((place for place in headers if _read(lines[place]) == wanted), None)
    if begin is None:
        return "\n".join(lines)
    end = next((place for place in headers if place > begin), len(lines))
    while end > begin + 1 and lines[end - 1].strip()[:1] in ("", "#"):
        end -= 1
    rest = [*lines[:begin], *lines[end:]]
    # Never empty: servers take what is for a file that somebody is about to write.
    return "\n".join(rest).rstrip("\n") + "\n"


def _written(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    return json.dumps(value)  # text, numbers and truth are written alike
