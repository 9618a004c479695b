"""Cuts a Go template into tokens: text, and what is within its actions.

Trim markers are done with here: `{{- ` takes the white space before it away, and ` -}}` that
behind it. Comments leave no token.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from typing import NamedTuple

SPACES = " \t\r\n"
_SPACE_SET = frozenset(SPACES)
_TERMINATORS = frozenset((*SPACES, "", *".,|:)("))
KEYWORDS = frozenset(
    ("block", "break", "continue", "define", "else", "end", "if", "range", "template", "with")
)

_NUMBER = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F_]*(?:\.[0-9a-fA-F_]*)?(?:[pP][+-]?[0-9_]*)?"
    r"|0[oO][0-7_]*(?:\.[0-7_]*)?"
    r"|0[bB][01_]*(?:\.[01_]*)?"
    r"|[0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9_]*)?)i?"
)


class Kind(enum.Enum):
    """What a token is."""

    TEXT = enum.auto()
    LEFT = enum.auto()
    RIGHT = enum.auto()
    SPACE = enum.auto()
    KEYWORD = enum.auto()
    IDENTIFIER = enum.auto()
    FIELD = enum.auto()
    VARIABLE = enum.auto()
    DOT = enum.auto()
    NIL = enum.auto()
    BOOL = enum.auto()
    STRING = enum.auto()
    RAW_STRING = enum.auto()
    RUNE = enum.auto()
    NUMBER = enum.auto()
    COMPLEX = enum.auto()
    ASSIGN = enum.auto()
    DECLARE = enum.auto()
    PIPE = enum.auto()
    OPEN = enum.auto()
    CLOSE = enum.auto()
    CHARACTER = enum.auto()
    ERROR = enum.auto()
    END = enum.auto()


class Token(NamedTuple):
    """A token.

    Attributes:
        kind: What it is.
        text: As it is written; what is wrong, for an error.
        position: Where it begins, in characters.
    """

    kind: Kind
    text: str
    position: int


class _Stop(Exception):  # noqa: N818 - it ends the tokens, in which it is the last
    def __init__(self, words: str, position: int) -> None:
        self.token = Token(Kind.ERROR, words, position)


def tokenize(source: str) -> list[Token]:
    """All tokens; the last is an end, or an error that the parser may come to."""
    tokens: list[Token] = []
    try:
        for token in _Lexer(source).tokens():
            tokens.append(token)  # those before what can't be read are to stay
    except _Stop as stop:
        tokens.append(stop.token)
    return tokens


class _Lexer:
    """Goes through one template."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._place = 0

    def tokens(self) -> Iterator[Token]:
        source = self._source
        while (found := source.find("{{", self._place)) >= 0:
            text = source[self._place : found]
            inside = found + 2
            if source.startswith("-", inside) and source[inside + 1 : inside + 2] in _SPACE_SET:
                text = text.rstrip(SPACES)
                inside += 2
            if text:
                yield Token(Kind.TEXT, text, self._place)
            if source.startswith("/*", inside):
                self._comment(inside)
                continue
            yield Token(Kind.LEFT, "{{", found)
            self._place = inside
            yield from self._action()
        if self._place < len(source):
            yield Token(Kind.TEXT, source[self._place :], self._place)
        yield Token(Kind.END, "", len(source))

    def _comment(self, start: int) -> None:
        end = self._source.find("*/", start + 2)
        if end < 0:
            raise _Stop("unclosed comment", start)
        self._place = end + 2
        if self._right_delimiter() is None:
            raise _Stop("comment ends before closing delimiter", start)
        self._close()

    def _right_delimiter(self) -> bool | None:
        """Whether what closes the action here trims; None where nothing closes it."""
        source, place = self._source, self._place
        if source[place : place + 1] in _SPACE_SET and source.startswith("-}}", place + 1):
            return True
        return False if source.startswith("}}", place) else None

    def _close(self) -> None:
        trims = self._right_delimiter()
        self._place += 4 if trims else 2
        if trims:
            while self._place < len(self._source) and self._source[self._place] in _SPACE_SET:
                self._place += 1

    def _action(self) -> Iterator[Token]:
        depth = 0
        source = self._source
        while True:
            place = self._place
            if self._right_delimiter() is not None:
                if depth:
                    raise _Stop("unclosed left paren", place)
                self._close()
                yield Token(Kind.RIGHT, "}}", place)
                return
            if place >= len(source):
                raise _Stop("unclosed action", place)
            kind = self._next(source[place])
            if kind is Kind.OPEN:
                depth += 1
            elif kind is Kind.CLOSE:
                depth -= 1
                if depth < 0:
                    raise _Stop("unexpected right paren", place)
            yield Token(kind, source[place : self._place], place)

    def _next(self, first: str) -> Kind:
        """Step over one token; returns its kind."""
        source, place = self._source, self._place
        single = {"=": Kind.ASSIGN, "|": Kind.PIPE, "(": Kind.OPEN, ")": Kind.CLOSE}.get(first)
        if single is not None:
            self._place += 1
            return single
        if first in SPACES:
            while source[self._place : self._place + 1] in _SPACE_SET:
                if self._right_delimiter() is not None:
                    break
                self._place += 1
            return Kind.SPACE
        if first == ":":
            if not source.startswith(":=", place):
                raise _Stop("expected :=", place)
            self._place += 2
            return Kind.DECLARE
        if first in "\"'":
            return self._quoted(first)
        if first == "`":
            end = source.find("`", place + 1)
            if end < 0:
                raise _Stop("unterminated raw quoted string", place)
            self._place = end + 1
            return Kind.RAW_STRING
        if first == "$":
            self._place += 1
            return self._name(Kind.VARIABLE)
        if first == "." and not "0" <= source[place + 1 : place + 2] <= "9":
            self._place += 1
            return Kind.DOT if self._at_terminator() else self._name(Kind.FIELD)
        if first in ".+-" or "0" <= first <= "9":
            return self._number()
        if _is_alphanumeric(first):
            return self._word()
        if first.isascii() and first.isprintable():
            self._place += 1
            return Kind.CHARACTER
        raise _Stop(f"unrecognized character in action: {first!r}", place)

    def _quoted(self, quote: str) -> Kind:
        what = "quoted string" if quote == '"' else "character constant"
        place = self._place + 1
        while (character := self._source[place : place + 1]) != quote:
            if character == "\\":
                place += 1
                character = self._source[place : place + 1]
            if character in ("", "\n"):
                raise _Stop(f"unterminated {what}", self._place)
            place += 1
        self._place = place + 1
        return Kind.STRING if quote == '"' else Kind.RUNE

    def _number(self) -> Kind:
        start = self._place
        self._scan_number(start)
        if self._source[self._place : self._place + 1] in ("+", "-"):
            self._scan_number(start)
            if self._source[self._place - 1] != "i":
                raise _Stop(f"bad number syntax: {self._source[start : self._place]!r}", start)
            return Kind.COMPLEX
        return Kind.NUMBER

    def _scan_number(self, start: int) -> None:
        found = _NUMBER.match(self._source, self._place)
        assert found is not None  # it may be empty
        self._place = found.end()
        following = self._source[self._place : self._place + 1]
        if following and _is_alphanumeric(following):
            raise _Stop(f"bad number syntax: {self._source[start : self._place + 1]!r}", start)

    def _name(self, kind: Kind) -> Kind:
        """Step over a name; what begins it, `.` or `$`, is behind."""
        while self._place < len(self._source) and _is_alphanumeric(self._source[self._place]):
            self._place += 1
        if not self._at_terminator():
            raise _Stop(f"bad character {self._source[self._place]!r}", self._place)
        return kind

    def _word(self) -> Kind:
        start = self._place
        self._name(Kind.IDENTIFIER)
        word = self._source[start : self._place]
        if word in KEYWORDS:
            return Kind.KEYWORD
        if word in ("true", "false"):
            return Kind.BOOL
        return Kind.NIL if word == "nil" else Kind.IDENTIFIER

    def _at_terminator(self) -> bool:
        """Whether a name may end here."""
        following = self._source[self._place : self._place + 1]
        return following in _TERMINATORS or self._source.startswith("}}", self._place)


def _is_alphanumeric(character: str) -> bool:
    return character == "_" or character.isalpha() or character.isdecimal()
