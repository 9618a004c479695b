"""Errors that name fields as the API does that a request came by."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence

from caudal.errors import ParameterError, TemplateError

_SCHEMA_FIELD = re.compile(r"(tools\[\d+\])\.function\.parameters")
_TOOL_FIELD = re.compile(r"tools\[(\d+)\]\.(?:function|custom)\.(parameters|format)")


@contextlib.contextmanager
def renamed_fields(names: Mapping[str, str], schema_field: str) -> Iterator[None]:
    """Rename the fields that errors raised within this context blame.

    Args:
        names: This API's names by those of OpenAI's chat API, which the rest of the server uses.
            What a template refuses is `messages`.
        schema_field: What the schema of a tool's arguments is called.
    """
    try:
        yield
    except TemplateError as error:
        raise ParameterError(names.get("messages", "messages"), str(error)) from error
    except ParameterError as error:
        error.param = names.get(error.param, error.param)
        own_name = rf"\1.{schema_field}"
        if _SCHEMA_FIELD.match(error.param):
            raise ParameterError(
                _SCHEMA_FIELD.sub(own_name, error.param), _SCHEMA_FIELD.sub(own_name, str(error))
            ) from error
        raise


@contextlib.contextmanager
def renamed_tools(places: Sequence[str]) -> Iterator[None]:
    """Rename the tools that errors raised within this context blame.

    Args:
        places: Where each of the conversation's tools is in the request.
    """
    try:
        yield
    except ParameterError as error:
        if (found := _TOOL_FIELD.match(error.param)) is None:
            raise
        own_name = f"{places[int(found[1])]}.{found[2]}"
        raise ParameterError(own_name, str(error).replace(found[0], own_name)) from error
