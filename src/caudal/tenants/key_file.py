"""Files of keys, which may be edited by hand: TOML, with a table for each key.

[defaults]
requests_per_minute = 600

[keys.alice]
hash = "sha256:9f86d081…"
models = ["qwen3*"]
expires = 2027-06-30T00:00:00Z
"""

from __future__ import annotations

import io
import os
import time
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

from caudal.errors import ConfigurationError
from caudal.reading.toml_file import TomlFile, TomlTable
from caudal.tenants.keys import Key, Keys, KeySource, checked_name

HASH = "sha256:"

_MOST = 2**53


def checked_hash(text: str) -> str:
    """The hash of a key, as it is written.

    Raises:
        ValueError: It is none.
    """
    digits = text.removeprefix(HASH)
    if not text.startswith(HASH) or len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise ValueError("must be sha256: and 64 hexadecimal digits: the SHA-256 hash of the key")
    return text


def _moment(value: Any) -> Any:
    """A time in UTC; of a day, its begin."""
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


_Moment = Annotated[datetime, BeforeValidator(_moment)]


def _word(text: str) -> str:
    return checked_name(text) if text else text


_Count = Annotated[int, Field(ge=1, le=_MOST)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Pattern = Annotated[str, Field(min_length=1, max_length=256)]


class RulesTable(TomlTable):
    """What may be said of a key, or of all: see `KeyRules`."""

    models: list[_Pattern] | None = None
    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None
    concurrent_requests: _Count | None = None
    max_waiting: _Count | None = None
    max_prompt_tokens: _Count | None = None
    max_n: _Count | None = None
    max_output_tokens: _Count | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    weight: Annotated[float, Field(ge=0.001, le=1000, allow_inf_nan=False)] | None = None
    share_prefixes: Annotated[str, AfterValidator(_word)] | None = None
    first_token_timeout: _Seconds | None = None
    timeout: _Seconds | None = None
    admin: bool | None = None

    def said(self) -> dict[str, Any]:
        """Fields of `KeyRules`, those of which something is said."""
        said = {
            name: value
            for name in RulesTable.model_fields
            if (value := getattr(self, name)) is not None
        }
        if "models" in said:
            said["models"] = tuple(said["models"])
        return said


class DatedRules(RulesTable):
    """What may be said of one key."""

    created: _Moment | None = None
    expires: _Moment | None = None

    def key_of(self, name: str, digest: bytes, place: str) -> Key:
        """It, as others are given."""
        return Key(
            name=name,
            digest=digest,
            rules=self.said(),
            expires=None if self.expires is None else self.expires.timestamp(),
            place=place,
        )


class KeyTable(DatedRules):
    """A key."""

    hash: Annotated[str, AfterValidator(checked_hash)]

    def key(self, name: str, place: str) -> Key:
        """It, as others are given."""
        return self.key_of(name, digest_in(self.hash), place)


def digest_in(text: str) -> bytes:
    """What a hash stands for, as it is written."""
    return bytes.fromhex(text.removeprefix(HASH))


class KeysTables(TomlTable):
    """What a file says of keys."""

    defaults: RulesTable = RulesTable()
    keys: dict[Annotated[str, AfterValidator(checked_name)], KeyTable] = Field(default_factory=dict)

    def said(self, place: str) -> Keys:
        """The keys of a file."""
        keys = [table.key(name, f"{place}, [keys.{name}]") for name, table in self.keys.items()]
        return Keys(keys, self.defaults.said())


class _State(NamedTuple):
    """What can be seen of a file without reading it.

    Attributes:
        number: The file's, in its file system; 0 where it can't be seen.
        size: Bytes.
        written: When that was last, in nanoseconds of Unix time.
        trouble: Why it can't be seen.
    """

    number: int = 0
    size: int = 0
    written: int = 0
    trouble: str = ""

    @classmethod
    def of(cls, path: Path) -> _State:
        """That of a file now."""
        try:
            stat = path.stat()
        except OSError as error:
            return cls(trouble=type(error).__name__)
        return cls(stat.st_ino, stat.st_size, stat.st_mtime_ns)

    def is_unfinished(self, before: _State) -> bool:
        """Whether it is being written in the place of what it was, and not moved there whole."""
        resting = time.time_ns() - self.written
        return self.number == before.number != 0 and 0 <= resting < _WRITING_NS


_WRITING_NS = 400_000_000
"""How long a file that is written in its place has to rest before it counts as written."""


class KeyFile(KeySource):
    """A file of keys.

    Args:
        path: Where it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._before = self._seen = _State()
        self._held: io.FileIO | None = None

    def changed(self) -> bool:
        """Whether it is another one since it was read or asked about.

        One that is being written in its place isn't yet: half of the keys would be gone.
        """
        state = _State.of(self.path)
        if state == self._seen or state.is_unfinished(self._seen):
            return False
        self._note(state)
        return True

    def read(self) -> Keys:
        """What it says now.

        Raises:
            ConfigurationError: It isn't there, says what can't be, or has been emptied, as those
                do first who write a file in its place.
        """
        self._note(_State.of(self.path))
        if self._seen.size == 0 < self._before.size and self._seen.number == self._before.number:
            raise ConfigurationError(str(self.path), "has become empty")
        return TomlFile(self.path).read(KeysTables).said(str(self.path))

    def _note(self, state: _State) -> None:
        if state != self._seen:
            self._before, self._seen = self._seen, state
            self._held = _held(self.path)


def _held(path: Path) -> io.FileIO | None:
    """A file kept open, so that no other one gets its number; None where it can't be."""

    def without_waiting(name: str, flags: int) -> int:  # for whoever writes to a pipe
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    try:
        return io.FileIO(path, opener=without_waiting)
    except OSError:
        return None
