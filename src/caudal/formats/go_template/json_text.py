r"""JSON as Go's encoding/json writes it: no spaces, keys of maps in order, `<` as `\u003c`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from caudal.formats.go_template.numbers import plain, shortest_digits
from caudal.formats.go_template.values import NIL, GoList, GoMap, GoStruct

_ESCAPED = re.compile('[\x00-\x1f"\\\\<>&\u2028\u2029\ud800-\udfff]')
_SHORT = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}


def to_json(value: Any) -> str:
    """A value as JSON."""
    return "".join(_parts(value))


def _parts(value: Any) -> Iterator[str]:
    if isinstance(value, GoList | GoMap | GoStruct):
        made = value.to_json()
        if made is not value:
            yield from _parts(made)
            return
    if isinstance(value, str):
        yield _quoted(value)
    elif isinstance(value, bool):
        yield "true" if value else "false"
    elif isinstance(value, int):
        yield str(value)
    elif isinstance(value, float):
        yield _number(value)
    elif value is None or value is NIL or getattr(value, "is_nil", False):
        yield "null"
    elif isinstance(value, Mapping):
        yield "{"
        items = value.ordered() if isinstance(value, GoMap) else value.items()
        for index, (key, item) in enumerate(items):
            yield f"{',' if index else ''}{_quoted(key)}:"
            yield from _parts(item)
        yield "}"
    else:
        yield "["
        for index, item in enumerate(value):
            if index:
                yield ","
            yield from _parts(item)
        yield "]"


def _quoted(text: str) -> str:
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    if "\ud800" <= character <= "\udfff":  # a byte that is no UTF-8
        return "\\ufffd"
    return _SHORT.get(character) or f"\\u{ord(character):04x}"


def _number(value: float) -> str:
    """A float as JavaScript writes it; null for those that JSON doesn't have."""
    if not math.isfinite(value):
        return "null"
    size = abs(value)
    if size and (size < 1e-6 or size >= 1e21):
        sign, digits, exponent = shortest_digits(value)
        rest = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{rest}e{exponent:+}".replace("e-0", "e-")
    return plain(value)
