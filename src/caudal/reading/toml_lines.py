"""Where a TOML document says what: the line on which a statement begins, for every value.

`tomllib` keeps no places. But a statement, a header or a key with its value, ends where a line
does, and lines from its first on are a document by themselves only once all of it is there: strings
and arrays of several lines aren't before they are closed. So statements are found by trying, a line
more each time, and what each says is read by `tomllib` itself.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Location = Sequence[str | int]
"""Keys, and numbers of elements of arrays, from the outermost in."""


def canonical(name: str) -> str:
    """A key, in one of its two spellings: `max-tokens` is `max_tokens`."""
    return name.replace("-", "_")


class TomlLines:
    """See the module.

    Args:
        text: A document that `tomllib` reads.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[str | int, ...], int] = {}
        self._lengths: dict[tuple[str | int, ...], int] = {}  # of the arrays of tables so far
        inside: tuple[str | int, ...] = ()
        for line, statement, said in _statements(text):
            if statement.startswith("["):
                inside = self._open(_names(said), line, is_array=statement.startswith("[["))
            else:
                self._note(inside, said, line)

    def line_of(self, location: Location) -> int | None:
        """The line on which something is said; None where that isn't."""
        return self._lines.get(_canonical(location))

    def _open(self, names: Sequence[str], line: int, *, is_array: bool) -> tuple[str | int, ...]:
        """A header's table."""
        place: tuple[str | int, ...] = ()
        for number, name in enumerate(names, 1):
            place = (*place, canonical(name))
            if number == len(names) and is_array:
                self._lengths[place] = self._lengths.get(place, 0) + 1
            self._lines.setdefault(place, line)
            if (length := self._lengths.get(place)) is not None:
                place = (*place, length - 1)
                self._lines.setdefault(place, line)
        return place

    def _note(self, inside: tuple[str | int, ...], said: Any, line: int) -> None:
        if inside:
            self._lines.setdefault(inside, line)
        parts: Iterator[tuple[str | int, Any]]
        if isinstance(said, Mapping):
            parts = ((canonical(name), value) for name, value in said.items())
        elif isinstance(said, list):
            parts = iter(enumerate(said))
        else:
            return
        for part, value in parts:
            self._note((*inside, part), value, line)


def _statements(text: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Each statement: the line on which it begins, its text, and what it says by itself."""
    statement, begin = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if not statement:
            if line.strip()[:1] in ("", "#"):
                continue
            begin = number
        statement += line + "\n"
        try:
            said = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        yield begin, statement.lstrip(), said
        statement = ""


def _names(said: Any) -> Sequence[str]:
    """The keys of a header."""
    names: list[str] = []
    while said:
        if isinstance(said, list):
            [said] = said
            continue
        [(name, said)] = said.items()
        names.append(name)
    return names


def _canonical(location: Location) -> tuple[str | int, ...]:
    return tuple(part if isinstance(part, int) else canonical(part) for part in location)
