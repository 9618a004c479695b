r"""Patterns mean the same here as where they were written, or are refused.

They are written in the dialect of ECMA-262 (JSON Schema's, in its Unicode mode) or in what Python
takes, and read by llguidance with Rust's regex parser, which understands some of them otherwise:
in its sets `&&`, `--`, `~~` and brackets stand for operations on sets, and it takes a second
quantifier after the first (`foo**`) and a backslash before any punctuation (`\!`). What the
dialects agree on is written so that Rust reads it as it was meant; the rest is refused.
"""

from __future__ import annotations

import re

_SYNTAX = "^$\\.*+?()[]{}|/"
# Written by Python's re.escape, which many patterns come from.
_HARMLESS = "-#&~ \t\n\r\v\f"

_QUANTIFIER = re.compile(r"(?:[*+?]|\{\d+(?:,\d*)?\})\??")
_POSIX = re.compile(r"\[:\^?[a-z]+:\]")
_SURROGATE = re.compile(r"u([dD][89abAB][0-9a-fA-F]{2})(?:\\u([dD][c-fC-F][0-9a-fA-F]{2}))?")
_CONTROL = re.compile(r"c([a-zA-Z])")
_SET_SYNTAX = "[]&~-^"
_LINE_ENDS = r"[^\n\r\u2028\u2029]"


def rust_pattern(pattern: str, *, ecma: bool = False) -> str:
    """A pattern as Rust's regex parser has to see it.

    Args:
        pattern: As its author wrote it.
        ecma: Whether `.` is ECMA-262's, which stops at more than line feeds.

    Raises:
        ValueError: Dialects disagree on it; names the pattern and the place.
    """
    return _Translation(pattern, _LINE_ENDS if ecma else ".").text()


class _Translation:
    def __init__(self, pattern: str, dot: str) -> None:
        self._pattern = pattern
        self._dot = dot
        self._place = 0

    def text(self) -> str:
        pieces: list[str] = []
        after_quantifier = False
        while (place := self._place) < len(self._pattern):
            quantifier = _QUANTIFIER.match(self._pattern, place)
            if quantifier is not None and after_quantifier:
                raise self._error(f"repeats a repetition at {place}: {_quoted(quantifier[0])}")
            after_quantifier = quantifier is not None
            char = self._pattern[place]
            if quantifier is not None:
                self._place = quantifier.end()
                pieces.append(quantifier[0])
            elif char == "\\":
                pieces.append(self._escape())
            elif char == "[":
                pieces.append(self._set())
            else:
                self._place += 1
                pieces.append(self._dot if char == "." else char)
        return "".join(pieces)

    def _escape(self, *, in_set: bool = False) -> str:
        """What stands for a backslash and what follows it."""
        start = self._place
        rest = self._pattern[start + 1 : start + 2]
        if not (rest == "" or rest.isalnum() or rest in _SYNTAX or rest in _HARMLESS):
            raise self._error(f"has an unknown escape at {start}: write {rest} instead of \\{rest}")
        if control := _CONTROL.match(self._pattern, start + 1):
            self._place = control.end()
            return f"\\x{ord(control[1]) % 32:02x}"
        if pair := _SURROGATE.match(self._pattern, start + 1):
            if pair[2] is None:
                raise self._error(f"has half of a surrogate pair at {start}")
            self._place = pair.end()
            high, low = int(pair[1], 16), int(pair[2], 16)
            return f"\\u{{{0x10000 + ((high - 0xD800) << 10) + low - 0xDC00:x}}}"
        self._place += 2
        if rest == "0" and not self._pattern[self._place : self._place + 1].isdigit():
            return "\\x00"
        if rest == "b" and in_set:
            return "\\x08"
        if rest in ("p", "P", "u", "x") and self._pattern.startswith("{", self._place):
            end = self._pattern.find("}", self._place)
            self._place = end + 1 if end >= 0 else len(self._pattern)
        return self._pattern[start : self._place]

    def _set(self) -> str:
        """What stands for a set such as `[^a-z]`."""
        start = self._place
        self._place += 1
        begin = "["
        if self._pattern.startswith("^", self._place):
            self._place += 1
            begin = "[^"
        items: list[str] = []
        if self._pattern.startswith("]", self._place):
            # Elsewhere than in ECMA-262, where it would end an empty set, it stands for itself.
            self._place += 1
            if not re.match(r"(?:\\.|[^\]\[\\])*\]", self._pattern[self._place :], re.DOTALL):
                return r"[^\s\S]" if begin == "[" else r"[\s\S]"
            items.append(r"\]")
        while self._place < len(self._pattern):
            if self._pattern[self._place] == "]":
                self._place += 1
                return f"{begin}{''.join(items)}]"
            first = self._item()
            if self._is_range():
                self._place += 1
                last = self._item()
                is_range = not (_is_set(first) or _is_set(last))
                items += [first, "-" if is_range else r"\-", last]
            else:
                items.append(first)
        return self._pattern[start:]  # it has no end, as Rust will say

    def _is_range(self) -> bool:
        return (
            self._pattern.startswith("-", self._place)
            and self._place + 1 < len(self._pattern)
            and self._pattern[self._place + 1] != "]"
        )

    def _item(self) -> str:
        char = self._pattern[self._place]
        if char == "\\":
            return self._escape(in_set=True)
        if posix := _POSIX.match(self._pattern, self._place):
            raise self._error(
                f"has {posix[0]} at {self._place}, which only some dialects know: write \\p{{…}}"
            )
        self._place += 1
        return f"\\{char}" if char in _SET_SYNTAX else char

    def _error(self, what: str) -> ValueError:
        return ValueError(f"pattern {_quoted(self._pattern)} {what}")


def _is_set(item: str) -> bool:
    return item[:2] in (r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\p", r"\P")


def _quoted(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"
