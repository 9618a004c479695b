"""What is wrong with an object, in one sentence that names the field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel

from caudal.reading.fields import RequestObject, UnknownFieldError, UnsupportedFieldError

_INSTEAD = {
    "functions": "tools",
    "function_call": "tool_choice",
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
}
"""Fields that have gone out of use where they come from, and what took their place."""


def explain_errors(errors: Sequence[Any], *, by: str = "this server") -> tuple[str, str | None]:
    """Returns one sentence, and the field, for pydantic's list of errors.

    Args:
        errors: Of a `RequestObject`.
        by: Who doesn't support what isn't supported.
    """
    # A union reports every branch; the branch that got furthest is the one that was meant.
    error = max(errors, key=lambda item: len(_path(item["loc"])))
    path = _path(error["loc"])
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, UnsupportedFieldError):
        field = _join([*path, cause.field])
        instead = _INSTEAD.get(field)
        hint = "" if instead is None else f" Use {instead} instead."
        return f"{field} {cause.verdict} {by}.{hint}", field
    if isinstance(cause, UnknownFieldError):
        field = _join([*path, cause.field])
        meant = "" if cause.meant is None else f" Did you mean {_join([*path, cause.meant])}?"
        return f"Unknown field: {field:.200}.{meant}", field
    field = _join(path)
    match error["type"]:
        case "missing":
            if not field:
                return "The request needs a JSON body.", None
            return f"{field} is required.", field
        case _:
            alternatives = [_sentence(item) for item in errors if _path(item["loc"]) == path]
            what = " or ".join(dict.fromkeys(alternatives))
            end = "" if what.endswith((".", "?")) else "."
            return f"{field or 'body'}: {what}{end}", field or None


def _path(location: Sequence[str | int]) -> list[str | int]:
    """A location in the body, without pydantic's names for the branches of a union."""
    return [
        part
        for part in location
        if isinstance(part, int)
        or not (part in {"str", "int", "float", "bool"} or "[" in part or part in _objects())
    ]


@cache
def _objects() -> frozenset[str]:
    """The names of all kinds of objects, which are those of branches too."""

    def below(kind: type[BaseModel]) -> Iterator[str]:
        for each in kind.__subclasses__():
            yield each.__name__
            yield from below(each)

    return frozenset(below(RequestObject))


def _join(path: Sequence[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _sentence(error: Any) -> str:
    """What is wrong with a value, in words that know JSON and not Python."""
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "input should be an object"
    message: str = error["msg"].removeprefix("Value error, ").replace(" after validation,", ",")
    return message[:1].lower() + message[1:]
