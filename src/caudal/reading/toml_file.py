"""Configuration files in TOML: what is wrong with one is said with its line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from caudal.errors import ConfigurationError
from caudal.reading.fields import closest

MAX_BYTES = 2**20

_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


class TomlTable(BaseModel):
    """A table with known keys, and no conversions between types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


K = TypeVar("K", bound=TomlTable)


class TomlFile:
    """A file, read.

    Args:
        path: Where it is.

    Attributes:
        data: What it says.

    Raises:
        ConfigurationError: It can't be read, or isn't TOML.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
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
        except tomllib.TOMLDecodeError as error:
            message = str(error)
            found = _PLACE.search(message)
            line = int(found[1]) if found and found[1] else self._text.count("\n") + 1
            reason = message[: found.start()] if found else message
            raise ConfigurationError(f"{path}, line {line}", reason) from error

    def read(self, kind: type[K]) -> K:
        """What it says, as an object.

        Raises:
            ConfigurationError: A key is unknown, missing or of another type.
        """
        try:
            return kind.model_validate(self.data)
        except ValidationError as errors:
            # Of a union every branch reports; the one that got furthest is the one that was meant.
            error = max(errors.errors(), key=lambda each: len(self._known(each["loc"])))
            location = self._known(error["loc"])
            if error["type"] == "missing":
                location = [*location, error["loc"][-1]]
            reason = _reason(error, location, kind)
            raise ConfigurationError(self.place(location), reason) from None

    def place(self, location: Sequence[str | int]) -> str:
        """Where it says something: the file, and the line on which its statement begins.

        A document that is cut off between two statements is one too, so the statement is that with
        which its prefix first says it.
        """
        lines = self._text.split("\n")
        while location and not _says(self.data, location):
            location = location[:-1]
        if not location:
            return str(self._path)
        begin = 0
        for end in range(1, len(lines) + 1):
            try:
                data = tomllib.loads("\n".join(lines[:end]))
            except tomllib.TOMLDecodeError:
                continue
            if _says(data, location):
                while begin < end - 1 and lines[begin].strip()[:1] in ("", "#"):
                    begin += 1
                return f"{self._path}, line {begin + 1}"
            begin = end
        raise AssertionError("the whole of it says all that it says")

    def _known(self, location: Sequence[str | int]) -> list[str | int]:
        """A location without pydantic's names for the branches of unions."""
        path: list[str | int] = []
        for part in location:
            if _says(self.data, [*path, part]):
                path.append(part)
        return path


def _says(data: Any, location: Sequence[str | int]) -> bool:
    for part in location:
        in_table = isinstance(part, str) and isinstance(data, Mapping) and part in data
        in_list = isinstance(part, int) and isinstance(data, list) and part < len(data)
        if not in_table and not in_list:
            return False
        data = data[part]
    return True


def dotted(location: Sequence[str | int]) -> str:
    """A place in a file as it would be written: `routes.auto.models[1]`."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = re.fullmatch(r"[A-Za-z0-9_-]+", part)
            text += ("." if text else "") + (part if bare else f'"{part}"')
    return text


def _reason(error: Any, location: Sequence[str | int], kind: type[TomlTable]) -> str:
    name = dotted(location)
    match error["type"]:
        case "missing":
            return f"{name} is missing"
        case "extra_forbidden":
            meant = closest(str(location[-1]), _keys(kind))
            hint = "" if meant is None else f"; did you mean {meant}?"
            return f"there is no key {name}{hint}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"{name} must be a table"
        case _:
            message: str = error["msg"].removeprefix("Value error, ")
            return f"{name}: {message[:1].lower()}{message[1:]}"


def _keys(kind: type[BaseModel]) -> frozenset[str]:
    """All keys of a table and of those in it."""
    names: set[str] = set()

    def add(model: type[BaseModel]) -> None:
        for name, field in model.model_fields.items():
            names.add(name)
            below(field.annotation)

    def below(annotation: Any) -> None:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            add(annotation)
        for each in getattr(annotation, "__args__", ()):
            below(each)

    add(kind)
    return frozenset(names)
