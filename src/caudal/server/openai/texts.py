"""Fields that hold a text, texts, token ids, or lists of token ids."""

from __future__ import annotations

from typing import Any

from caudal.errors import ParameterError


def read_texts_or_tokens(field: str, value: Any) -> list[str] | list[list[int]]:
    """The texts, or lists of token ids, of a field; a single one as a list of one.

    Not a type for pydantic: its messages for a union of four nested lists name everything but the
    mistake.

    Raises:
        ParameterError: The field is of another shape, or a list in it is empty.
    """
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return value
        if _is_token_list(value):
            return [value]
        if all(isinstance(item, list) and item and _is_token_list(item) for item in value):
            return value
    raise ParameterError(
        field,
        f"{field} must be a string, a non-empty list of strings, a non-empty list of token ids, "
        "or a non-empty list of such lists.",
    )


def _is_token_list(value: list[Any]) -> bool:
    return all(type(item) is int for item in value)
