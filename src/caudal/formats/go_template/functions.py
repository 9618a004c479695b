"""The functions that templates may call: Go's own, and those that Ollama adds."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any
from urllib.parse import quote_plus

from caudal.formats.go_template.errors import GoError
from caudal.formats.go_template.json_text import to_json
from caudal.formats.go_template.printing import formatted, joined, line, printed
from caudal.formats.go_template.values import (
    MARKS,
    NIL,
    GoList,
    GoMap,
    GoStruct,
    encoded,
    held,
    is_true,
    method_of,
    sliced,
    taken,
    type_name,
    unmarked,
)

ANY_NUMBER = 1 << 30

_HTML = {"\0": "�", '"': "&#34;", "'": "&#39;", "&": "&amp;", "<": "&lt;", ">": "&gt;"}
_SCRIPT = {"\\": "\\\\", "'": "\\'", '"': '\\"'}


@dataclass(frozen=True, slots=True)
class Function:
    """A function.

    Attributes:
        call: Takes the arguments; raises GoError.
        least: Arguments that it needs.
        most: Arguments that it takes.
        strings: How many of the first arguments have to be strings.
    """

    call: Callable[..., Any]
    least: int
    most: int
    strings: int = 0


def _number_of(value: Any) -> str:
    """What kind a value is when it is compared; empty for those that have no order."""
    if isinstance(value, bool):
        return "bool"
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind.__name__
    return ""


def _equal(first: Any, *others: Any) -> bool:
    if not others:
        raise GoError("missing argument for comparison")
    first = taken(first)
    return any(_pair_equal(first, taken(other)) for other in others)


def _pair_equal(first: Any, second: Any) -> bool:
    kind = _number_of(first)
    if kind != _number_of(second):
        if first is None or second is None:
            return False
        raise _incompatible(first, second)
    if kind == "str":
        return unmarked(first) == unmarked(second)
    if kind:
        return bool(first == second)
    if first is None or second is None:
        return _is_nil(first) and _is_nil(second)
    if _shape(first) is not _shape(second):
        raise GoError(f"non-comparable types {type_name(first)} and {type_name(second)}")
    if _is_nil(first) or _is_nil(second):
        return _is_nil(first) and _is_nil(second)
    if isinstance(first, GoStruct) and first.is_pointer:
        return first is second
    raise GoError(f"non-comparable type {type_name(first)}")


def _shape(value: Any) -> type:
    return next(shape for shape in (GoList, GoMap, GoStruct) if isinstance(value, shape))


def _is_nil(value: Any) -> bool:
    return value is None or getattr(value, "is_nil", False)


def _incompatible(first: Any, second: Any) -> GoError:
    return GoError(f"incompatible types for comparison: {type_name(first)} and {type_name(second)}")


def _compare(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compared(first: Any, second: Any) -> bool:
        first, second = taken(first), taken(second)
        kind, other = _number_of(first), _number_of(second)
        if not kind or not other:
            raise GoError("invalid type for comparison")
        if kind != other:
            raise _incompatible(first, second)
        if kind == "bool":
            raise GoError("invalid type for comparison")
        if kind == "str":
            return compare(encoded(first), encoded(second))
        return compare(first, second)

    return compared


def _place(index: Any, length: int) -> int:
    index = taken(index)
    if index is None:
        raise GoError("cannot index slice/array with nil")
    if not isinstance(index, int) or isinstance(index, bool):
        raise GoError(f"cannot index slice/array with type {type_name(index)}")
    if not 0 <= index <= length:
        raise GoError(f"index out of range: {index}")
    return index


def _index(item: Any, *indexes: Any) -> Any:
    if taken(item) is None:
        raise GoError("index of untyped nil")
    for index in indexes:
        if taken(item) is None:
            raise GoError("index of nil pointer")
        if isinstance(item, GoMap):
            key = taken(index)
            if not isinstance(key, str):
                raise GoError(f"value has type {type_name(key)}; should be string")
            item = held(item[key]) if key in item else item.missing()
        elif isinstance(item, GoList | str):
            sequence = encoded(item) if isinstance(item, str) else item
            place = _place(index, len(sequence))
            if place == len(sequence):
                raise GoError(f"index out of range: {place}")
            item = held(sequence[place])
        else:
            raise GoError(f"can't index item of type {type_name(item)}")
    return item


def _slice(item: Any, *indexes: Any) -> Any:
    if taken(item) is None:
        raise GoError("slice of untyped nil")
    if len(indexes) > 3:
        raise GoError(f"too many slice indexes: {len(indexes)}")
    if not isinstance(item, GoList | str):
        raise GoError(f"can't slice item of type {type_name(item)}")
    if isinstance(item, str) and len(indexes) == 3:
        raise GoError("cannot 3-index slice a string")
    sequence = encoded(item) if isinstance(item, str) else item
    places = [_place(index, len(sequence)) for index in indexes]
    start, end, *_ = (*places, *(0, len(sequence))[len(places) :])
    if any(before > after for before, after in zip([start, end], [end, *places[2:]], strict=False)):
        raise GoError(f"invalid slice index: {start} > {end}")
    if isinstance(item, str):
        return sliced(item, start, end)
    return type(item)(item[start:end])


def _length(item: Any) -> int:
    if item is NIL or item is None:
        raise GoError("len of nil pointer")
    if isinstance(item, str):
        return len(encoded(item))
    if isinstance(item, GoList | GoMap):
        return len(item)
    raise GoError(f"len of type {type_name(item)}")


def _plain_text(values: Sequence[Any]) -> str:
    """The text that `html` and the like work on."""
    shown = (value is None or value is NIL or isinstance(value, GoStruct) for value in values)
    return joined(
        [printed(v) if as_shown else v for v, as_shown in zip(values, shown, strict=True)]
    )


def _html(*values: Any) -> str:
    return re.sub("[\0\"'&<>]", lambda found: _HTML[found[0]], _plain_text(values))


def _script(*values: Any) -> str:
    return re.sub("[\\\\'\"<>&=]|[^ -~\ufdd0-\ufdef]", _script_escape, _plain_text(values))


def _script_escape(found: re.Match[str]) -> str:
    character = found[0]
    if character in _SCRIPT:
        return _SCRIPT[character]
    if not character.isascii() and character.isprintable():
        return character
    return f"\\u{ord(character):04X}"


def _url(*values: Any) -> str:
    text = _plain_text(values)
    pieces = (quote_plus(encoded(piece), safe="") for piece in MARKS.split(text))
    marks = [*MARKS.findall(text), ""]
    return "".join(piece + mark for piece, mark in zip(pieces, marks, strict=True))


def _day(back: int) -> Callable[..., str]:
    # Go's own layout may be given, and is ignored, in Ollama, too.
    return lambda *_: (date.today() - timedelta(days=back)).isoformat()


def _type_script(value: Any) -> str:
    method = method_of(taken(value), "ToTypeScriptType")
    return "any" if method is None else str(method(value))


def _no_function(function: Any, *_: Any) -> Any:
    raise GoError("call of nil" if taken(function) is None else "call of what is no function")


FUNCTIONS: Mapping[str, Function] = {
    "call": Function(_no_function, 1, ANY_NUMBER),
    "html": Function(_html, 0, ANY_NUMBER),
    "index": Function(_index, 1, ANY_NUMBER),
    "slice": Function(_slice, 1, ANY_NUMBER),
    "js": Function(_script, 0, ANY_NUMBER),
    "len": Function(_length, 1, 1),
    "not": Function(lambda value: not is_true(value), 1, 1),
    "print": Function(lambda *values: joined(values), 0, ANY_NUMBER),
    "printf": Function(lambda layout, *values: formatted(layout, values), 1, ANY_NUMBER, 1),
    "println": Function(lambda *values: line(values), 0, ANY_NUMBER),
    "urlquery": Function(_url, 0, ANY_NUMBER),
    "eq": Function(_equal, 1, ANY_NUMBER),
    "ne": Function(lambda first, second: not _equal(first, second), 2, 2),
    "lt": Function(_compare(operator.lt), 2, 2),
    "le": Function(_compare(operator.le), 2, 2),
    "gt": Function(_compare(operator.gt), 2, 2),
    "ge": Function(_compare(operator.ge), 2, 2),
    "json": Function(to_json, 1, 1),
    "currentDate": Function(_day(0), 0, ANY_NUMBER, ANY_NUMBER),
    "yesterdayDate": Function(_day(1), 0, ANY_NUMBER, ANY_NUMBER),
    "toTypeScriptType": Function(_type_script, 1, 1),
}
"""All but `and` and `or`, which don't compute all their arguments."""

SHORT_CIRCUITS = frozenset(("and", "or"))
NAMES = FUNCTIONS.keys() | SHORT_CIRCUITS
