"""What Go's fmt makes of values: `print`, `println`, and the layouts of `printf`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from caudal.formats.go_template.errors import GoError
from caudal.formats.go_template.numbers import general
from caudal.formats.go_template.values import NIL, GoList, GoMap, GoStruct, encoded, type_name

MAX_WIDTH = 1_000_000
"""Widths above it are wrong ones, as in Go."""

_POINTER = "0xc000000000"
"""In place of addresses, which Go writes for pointers within other values."""

_LAYOUT = re.compile(r"%([+\-# 0]*)(\*|[0-9]*)(?:\.(\*|[0-9]*))?(.?)", re.DOTALL)
_SHORT = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_SHORT |= {"\v": "\\v", '"': '\\"', "\\": "\\\\"}
_BASES = {"d": "d", "v": "d", "b": "b", "o": "o", "x": "x", "X": "X"}
_PREFIXES = {"b": "0b", "o": "0", "x": "0x", "X": "0X"}


def printed(value: Any) -> str:
    """A value as an action prints it."""
    if isinstance(value, str):
        return value
    if value is None or value is NIL:
        return "<no value>"
    if isinstance(value, GoStruct) and value.to_text() is None:
        return _struct(value, _PLAIN, 0)  # also of a pointer: what it points to
    return _text(value, _PLAIN, 0)


def joined(values: Sequence[Any]) -> str:
    """What `print` makes: a space between two values of which neither is a string."""
    parts: list[str] = []
    for index, value in enumerate(values):
        if index and not isinstance(value, str) and not isinstance(values[index - 1], str):
            parts.append(" ")
        parts.append(_text(value, _PLAIN, 0))
    return "".join(parts)


def line(values: Sequence[Any]) -> str:
    """What `println` makes."""
    return " ".join(_text(value, _PLAIN, 0) for value in values) + "\n"


def formatted(layout: str, values: Sequence[Any]) -> str:
    """What `printf` makes. What doesn't fit the layout is told in the text, as Go does it.

    Raises:
        GoError: The layout has something that isn't supported.
    """
    return "".join(_Formatter(layout, values).parts())


@dataclass(frozen=True, slots=True)
class _Verb:
    """How one value is to be formatted.

    Attributes:
        letter: The verb.
        flags: Of `+-# 0`.
        width: Characters at least.
        precision: Digits or characters; None where nothing is said.
    """

    letter: str
    flags: str = ""
    width: int = 0
    precision: int | None = None

    def pad(self, text: str) -> str:
        """The text, as wide as it has to be."""
        if "-" in self.flags:
            return text.ljust(self.width)
        if "0" not in self.flags:
            return text.rjust(self.width)
        sign = text[:1] if text[:1] in ("+", "-", " ") else ""
        return sign + text[len(sign) :].rjust(self.width - len(sign), "0")


_PLAIN = _Verb("v")


class _Formatter:
    def __init__(self, layout: str, values: Sequence[Any]) -> None:
        self._layout = layout
        self._values = values
        self._used = 0

    def parts(self) -> Iterator[str]:
        place = 0
        for found in _LAYOUT.finditer(self._layout):
            yield self._layout[place : found.start()]
            place = found.end()
            yield from self._directive(*found.groups())
        yield self._layout[place:]
        if self._used < len(self._values):
            rest = ", ".join(
                "<nil>" if _is_nil(value) else f"{type_name(value)}={_text(value, _PLAIN, 0)}"
                for value in self._values[self._used :]
            )
            yield f"%!(EXTRA {rest})"

    def _directive(
        self, flags: str, width: str, precision: str | None, letter: str
    ) -> Iterator[str]:
        if letter == "[":
            raise GoError("printf: numbers of arguments, as in %[1]d, are not supported")
        wide, bad = self._number(width)
        if bad:
            yield "%!(BADWIDTH)"
        if wide < 0:
            flags, wide = flags + "-", -wide
        precise: int | None = None
        if precision is not None:
            precise, bad = self._number(precision)
            if bad or precise < 0:
                precise = None
                yield "%!(BADPREC)" if bad or precision == "*" else ""
        if not letter:
            yield "%!(NOVERB)"
            return
        if letter == "%":
            yield "%"
            return
        if self._used >= len(self._values):
            yield f"%!{letter}(MISSING)"
            return
        value = self._values[self._used]
        self._used += 1
        if letter == "v" and "#" in flags:
            raise GoError("printf: %#v is not supported")
        if "-" in flags:
            flags = flags.replace("0", "")
        yield _text(value, _Verb(letter, flags, wide, precise), 0)

    def _number(self, written: str) -> tuple[int, bool]:
        """A width or precision, and whether it is a wrong one."""
        if written != "*":
            number = int(written[:9] or 0)
            return (0, True) if number > MAX_WIDTH else (number, False)
        if self._used >= len(self._values):
            return 0, True
        value = self._values[self._used]
        self._used += 1
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_WIDTH:
            return value, False
        return 0, True


def _is_nil(value: Any) -> bool:
    return value is None or value is NIL


def _text(value: Any, verb: _Verb, depth: int) -> str:
    """One value, within `depth` others."""
    letter = verb.letter
    if letter == "T":
        return verb.pad(type_name(value))
    if isinstance(value, str):
        return _string(value, verb)
    if _is_nil(value):
        return verb.pad("<nil>") if letter == "v" or depth else f"%!{letter}(<nil>)"
    if isinstance(value, bool):
        return verb.pad(str(value).lower()) if letter in "tv" else _bad(value, verb)
    if isinstance(value, int):
        return _integer(value, verb)
    if isinstance(value, float):
        return _float(value, verb)
    if letter in "vsxXq" and (text := value.to_text()) is not None:
        return _string(text, verb)
    inner = depth + 1
    if isinstance(value, GoMap):
        items = (f"{_text(k, verb, inner)}:{_text(v, verb, inner)}" for k, v in value.ordered())
        return f"map[{' '.join(items)}]"
    if isinstance(value, GoList):
        return f"[{' '.join(_text(item, verb, inner) for item in value)}]"
    assert isinstance(value, GoStruct)
    if value.is_pointer and depth:
        return _POINTER
    return ("&" if value.is_pointer else "") + _struct(value, verb, depth)


def _struct(value: GoStruct, verb: _Verb, depth: int) -> str:
    texts = (
        (f"{name}:" if "+" in verb.flags else "") + _text(item, verb, depth + 1)
        for name, item in value.fields.items()
    )
    return f"{{{' '.join(texts)}}}"


def _bad(value: Any, verb: _Verb) -> str:
    letter = "g" if isinstance(value, float) else "d" if type(value) is int else "v"
    plain = _Verb(letter, verb.flags, verb.width, verb.precision)
    return f"%!{verb.letter}({type_name(value)}={_text(value, plain, 0)})"


def _string(text: str, verb: _Verb) -> str:
    if verb.letter in "xX":
        data = encoded(text)
        data = data if verb.precision is None else data[: verb.precision]
        digits = data.hex(" ") if " " in verb.flags else data.hex()
        return verb.pad(digits.upper() if verb.letter == "X" else digits)
    if verb.precision is not None:
        text = text[: verb.precision]
    if verb.letter == "q":
        if "#" in verb.flags and "`" not in text and text.isprintable():
            return verb.pad(f"`{text}`")
        return verb.pad(quoted(text))
    return verb.pad(text) if verb.letter in "vs" else _bad(text, verb)


def _integer(value: int, verb: _Verb) -> str:
    letter = verb.letter
    if letter in _BASES:
        flags = "" if letter == "v" else verb.flags
        digits = format(abs(value), _BASES[letter])
        zeros = verb.precision
        if zeros is None and "0" in verb.flags and "-" not in verb.flags:
            signed = value < 0 or "+" in flags or " " in flags
            zeros = verb.width - signed
        digits = digits.rjust(zeros or 0, "0")
        if "#" in flags:
            digits = _PREFIXES.get(letter, "") + digits
        sign = "-" if value < 0 else "+" if "+" in flags else " " if " " in flags else ""
        return _Verb("v", verb.flags.replace("0", ""), verb.width).pad(sign + digits)
    if letter in "cqU" and 0 <= value <= 0x10FFFF and not 0xD800 <= value < 0xE000:
        if letter == "U":
            return verb.pad(f"U+{value:04X}")
        return verb.pad(chr(value) if letter == "c" else _quoted_rune(chr(value)))
    return _bad(value, verb)


def _float(value: float, verb: _Verb) -> str:
    letter = verb.letter
    if letter in "bxX":
        raise GoError(f"printf: %{letter} of a float is not supported")
    if letter not in "vgGeEfF":
        return _bad(value, verb)
    if letter in "vgG" and verb.precision is None:
        text = general(value, upper=letter == "G")
    else:
        precision = 6 if verb.precision is None else verb.precision
        text = f"%.{precision}{letter.replace('v', 'g')}" % value
    if letter != "v" and value >= 0 and not text.startswith("+"):
        text = ("+" if "+" in verb.flags else " " if " " in verb.flags else "") + text
    return verb.pad(text)


def quoted(text: str) -> str:
    """A string with quotes, as Go's strconv writes it."""
    return f'"{"".join(map(_quoted_character, text))}"'


def _quoted_character(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if character.isprintable():
        return character
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _quoted_rune(character: str) -> str:
    if character in "'\"":
        return "'\\''" if character == "'" else "'\"'"
    return f"'{_quoted_character(character)}'"
