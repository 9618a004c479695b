"""Configuration files in TOML: all that is wrong with one is said, each with its line."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from caudal.errors import ConfigurationError, all_of
from caudal.reading.fields import closest
from caudal.reading.toml_lines import Location, TomlLines, canonical

MAX_BYTES = 2**20

_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


class TomlTable(BaseModel):
    """A table with known keys, written with dashes or underscores; types aren't converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _by_names_of_fields(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        names: dict[str, str] = {}
        for name in data:
            field = canonical(name)
            field = field if field in cls.model_fields else name
            if field in names:
                raise ValueError(f"{names[field]} and {name} are the same")
            names[field] = name
        return {field: data[name] for field, name in names.items()}


K = TypeVar("K", bound=TomlTable)


class TomlFile:
    """A file, read.

    Args:
        path: Where it is.

    Attributes:
        path: Where it is.
        data: What it says.

    Raises:
        ConfigurationError: It can't be read, or isn't TOML.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb", opener=_open_at_once) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # it is read more than once
                    raise ConfigurationError(str(path), "isn't a regular file")
                raw = file.read(MAX_BYTES + 1)
            if len(raw) > MAX_BYTES:
                raise ConfigurationError(str(path), f"is larger than {MAX_BYTES >> 20} MiB")
            self._text = raw.decode().replace("\r\n", "\n")
            self.data: dict[str, Any] = tomllib.loads(self._text)
        except OSError as error:
            raise ConfigurationError(str(path), f"can't be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise ConfigurationError(f"{path}, line {line}", "isn't UTF-8") from error
        except RecursionError as error:
            raise ConfigurationError(str(path), "is nested too deeply") from error
        except tomllib.TOMLDecodeError as error:
            message = str(error)
            found = _PLACE.search(message)
            line = int(found[1]) if found and found[1] else self._text.count("\n") + 1
            reason = message[: found.start()] if found else message
            raise ConfigurationError(f"{path}, line {line}", reason) from error
        except ValueError as error:
            raise ConfigurationError(str(path), "has a number with too many digits") from error

    def read(self, kind: type[K]) -> K:
        """What it says, as an object.

        Raises:
            ConfigurationError: A key is unknown, missing or of another type; tells of all of them.
        """
        try:
            return kind.model_validate(self.data)
        except ValidationError as errors:
            found: dict[tuple[str | int, ...], Any] = {}
            for error in errors.errors():
                location = self._known(error["loc"])
                if error["type"] in ("missing", "extra_forbidden"):
                    last = error["loc"][-1]
                    if error["type"] == "missing" or location[-1:] != [last]:
                        location = [*location, last]
                # Of a union every branch reports; the one that got furthest is the one that was
                # meant, and what we say ourselves is said best.
                if error["type"] == "value_error":
                    found[tuple(location)] = error
                found.setdefault(tuple(location), error)
            said = [
                (location, error)
                for location, error in found.items()
                if not any(
                    len(other) > len(location) and other[: len(location)] == location
                    for other in found
                )
            ]
            raise all_of(
                [
                    ConfigurationError(self.place(location), _reason(error, location, kind))
                    for location, error in sorted(said, key=lambda each: self._line(each[0]))
                ]
            ) from None

    def place(self, location: Location) -> str:
        """Where it says something: the file, and the line on which its statement begins."""
        line = self._line(location)
        return f"{self.path}, line {line}" if line else str(self.path)

    def name(self, location: Location) -> str:
        """What it says somewhere, as it spells that: `server.max-connections`."""
        return dotted(self._known(location))

    @cached_property
    def _lines(self) -> TomlLines:
        return TomlLines(self._text)

    def _line(self, location: Location) -> int:
        """The line on which something, or what it is missing from, is said; 0 for none."""
        while location:
            if (line := self._lines.line_of(location)) is not None:
                return line
            location = location[:-1]
        return 0

    def _known(self, location: Location) -> list[str | int]:
        """A location without pydantic's names for the branches of unions."""
        data: Any = self.data
        path: list[str | int] = []
        for part in location:
            if isinstance(part, int):
                if isinstance(data, list) and part < len(data):
                    data = data[part]
                    path.append(part)
            elif isinstance(data, Mapping):
                names = [part, *(name for name in data if canonical(name) == part)]
                found = next((name for name in names if name in data), None)
                if found is not None:
                    data = data[found]
                    path.append(found)
        return path


def _open_at_once(path: str, flags: int) -> int:
    """Open a file, and wait for nobody who would write to a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def dotted(location: Location) -> str:
    """A place in a file as it would be written: `routes.auto.models[1]`."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = re.fullmatch(r"[A-Za-z0-9_-]+", part)
            text += ("." if text else "") + (part if bare else f'"{part}"')
    return text


def _reason(error: Any, location: Location, kind: type[TomlTable]) -> str:
    name = dotted(location)
    match error["type"]:
        case "missing":
            return f"{name} is missing"
        case "extra_forbidden":
            return f"there is no key {name}{_hint(str(location[-1]), location[:-1], kind)}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"{name} must be a table"
        case _:
            message: str = error["msg"].removeprefix("Value error, ").removesuffix(".")
            return f"{name}: {message[:1].lower()}{message[1:]}" if name else message


def _hint(name: str, table: Location, kind: type[TomlTable]) -> str:
    """What may be meant by a key that there isn't: one of its table, or another table's."""
    fields = dict(_fields(kind))
    tables = tuple("*" if isinstance(part, int) else canonical(part) for part in table)
    for field in fields:
        if field[-1] == canonical(name) and len(field) > 1 and "*" not in field:
            return f"; it belongs in [{dotted([_spelled(part, name) for part in field[:-1]])}]"
    here = sorted(field[-1] for field in fields if _matches(field[:-1], tables))
    same = [field for field in here if name == _initials(field) or _stem(name) == _stem(field)]
    if near := same or get_close_matches(canonical(name), here, 1):
        return f"; did you mean {_spelled(near[0], name)}?"
    if (meant := closest(name, frozenset(field[-1] for field in fields))) is not None:
        return f"; did you mean {_spelled(meant, name)}?"
    return ""


def _spelled(field: str, like: str) -> str:
    """A field's name, as somebody writes who writes another so."""
    return field if "_" in like else field.replace("_", "-")


def _initials(field: str) -> str:
    """What options are called that say the same in short: rpm."""
    return "".join(part[:1] for part in field.split("_"))


def _stem(word: str) -> str:
    """A word without its ending: `log` of `logs` and of `logging`."""
    return re.sub(r"(?:(\w)\1)?ing$|s$", r"\1", word)


def _matches(pattern: Sequence[str], path: Sequence[str]) -> bool:
    return len(pattern) == len(path) and all(
        each in (part, "*") for each, part in zip(pattern, path, strict=True)
    )


def _fields(kind: type[BaseModel]) -> dict[tuple[str, ...], None]:
    """All keys of a table and of those in it, with the tables that they are in; `*` for any."""
    fields: dict[tuple[str, ...], None] = {}

    def add(model: type[BaseModel], place: tuple[str, ...]) -> None:
        for name, field in model.model_fields.items():
            fields[*place, name] = None
            below(field.annotation, (*place, name))

    def below(annotation: Any, place: tuple[str, ...]) -> None:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            add(annotation, place)
        many = getattr(annotation, "__origin__", None) in (list, dict)
        for each in getattr(annotation, "__args__", ()):
            below(each, (*place, "*") if many else place)

    add(kind, ())
    return fields
