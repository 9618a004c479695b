"""What form a request wants its answer to have; names are those of vLLM's class."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from caudal.errors import ParameterError
from caudal.subschemas import closed

MAX_CHOICES = 1024
MAX_CHARS = 256 * 1024
"""Most characters of a schema, pattern or grammar, and of all choices together."""

JSON_STYLE: Mapping[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": 'nrbtf\\"',
}
"""JSON is written on one line, as `json.dumps` does: a model can't go on with white space for ever,
and what is certain needs no computing. Characters aren't written by their numbers, so that no key
is a listed one in disguise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The form of an answer: exactly one of the fields is set. Immutable and hashable.

    Whether it can be enforced is found out when it is compiled (see `GrammarCompiler`).

    Attributes:
        json: A JSON schema, as an object or as text.
        regex: A pattern that the whole answer matches (see `rust_pattern`).
        choice: Texts, one of which is the answer.
        grammar: A context-free grammar in llguidance's dialect of Lark, or in llama.cpp's GBNF.
            Lark may embed schemas (`json_rule`) and special tokens (`lark_literal`).
        json_object: True for any JSON object.
        disable_additional_properties: Whether objects of a JSON schema that lists their properties
            have no others, unless it says that they have.

    Raises:
        ParameterError: `structured_outputs`, where not exactly one field is set, or one is not of
            its type.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_additional_properties: bool = False

    def __post_init__(self) -> None:
        if self.json_object is False:
            object.__setattr__(self, "json_object", None)
        names = ("json", "regex", "choice", "grammar", "json_object")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise _error(
                "structured_outputs needs exactly one of json, regex, choice, grammar and "
                f"json_object, but has {' and '.join(given) or 'none'}."
            )
        if isinstance(self.json, Mapping):
            object.__setattr__(self, "json", _schema_text(self.json))
        for name, what in (("json", "A schema"), ("regex", "A pattern"), ("grammar", "A grammar")):
            value = getattr(self, name)
            if value is not None:
                _check_text(what, value)
        if self.disable_additional_properties and isinstance(self.json, str):
            object.__setattr__(self, "json", _closed(self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", _checked_choices(self.choice))
        if self.json_object is not None and self.json_object is not True:
            raise _error("json_object must be true or false.")

    @property
    def kind(self) -> str:
        """The name of the field that is set."""
        names = ("json", "regex", "choice", "grammar")
        return next((name for name in names if getattr(self, name) is not None), "json_object")


def json_rule(schema: Mapping[str, Any]) -> str:
    """What matches JSON of a schema in a Lark grammar, in the style of all JSON here.

    It must be the whole right side of a rule: `arguments: %json {…}`.
    """
    # Numbers that can't be are found where it is compiled, which says whose schema it is.
    text = _schema_text({**schema, "x-guidance": dict(JSON_STYLE)}, allow_nan=True)
    return f"%json {text}"


def lark_literal(text: str, special_tokens: Mapping[str, int] = MappingProxyType({})) -> str:
    """What matches exactly this text in a Lark grammar; "" for an empty one.

    Args:
        text: The text.
        special_tokens: Ids by text: these match as tokens. Text in a grammar never matches a
            control token, nor does any pattern, so one marks where free text ends.
    """
    if not text:
        return '""'
    if not special_tokens:
        return json.dumps(text, ensure_ascii=False)
    pattern = "|".join(re.escape(name) for name in sorted(special_tokens, key=len, reverse=True))
    pieces = re.split(f"({pattern})", text)
    return " ".join(
        f"<[{special_tokens[piece]}]>" if place % 2 else json.dumps(piece, ensure_ascii=False)
        for place, piece in enumerate(pieces)
        if piece
    )


def _schema_text(schema: Any, *, allow_nan: bool = False) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=allow_nan)
    except (TypeError, ValueError, RecursionError) as error:
        raise _error(f"A schema must be a JSON object: {error}.") from error


def _closed(text: str) -> str:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return text  # whoever compiles it says what is wrong with it
    return _schema_text(closed(schema))


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise _error(f"{what} must be text, not {type(value).__name__}.")
    if not value:
        raise _error(f"{what} must not be empty.")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise _error(f"{what} must not have half of a surrogate pair.")
    if len(value) > MAX_CHARS:
        raise _error(f"{what} may have {MAX_CHARS} characters, but has {len(value)}.")


def _checked_choices(choices: object) -> tuple[str, ...]:
    if isinstance(choices, str) or not isinstance(choices, Sequence):
        raise _error("Choices must be a list of texts.")
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise _error(f"There must be 1 to {MAX_CHOICES} choices, not {len(choices)}.")
    for text in choices:
        _check_text("A choice", text)
    if sum(map(len, choices)) > MAX_CHARS:
        raise _error(f"Choices may have {MAX_CHARS} characters together.")
    return tuple(choices)


def _error(message: str) -> ParameterError:
    return ParameterError("structured_outputs", message)
