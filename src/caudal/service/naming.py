"""What the fields that errors blame are called by whoever asked.

Everything below speaks of fields by one set of names (see `caudal.service.work`). Each API has its
own, and translates where errors, and what had no effect, leave it: there and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from caudal.errors import ParameterError, TemplateError

E = TypeVar("E", bound=ParameterError | TemplateError)

_PATH = re.compile(r"([^.\[]+)(.*)", re.DOTALL)
_TOOL_FIELD = re.compile(r"tools\[(\d+)\]\.(parameters|format)")


class FieldNames:
    """An API's names.

    Args:
        names: Its names, or paths, by ours, where they differ.
        tool_field: Where in the request the `parameters` or the `format` of the conversation's
            n-th tool is.
    """

    def __init__(
        self,
        names: Mapping[str, str] | None = None,
        tool_field: Callable[[int, str], str] | None = None,
    ) -> None:
        self._names = names or {}
        self._tool_field = tool_field

    def of(self, field: str) -> str:
        """The API's name of a field, or of a place in one: `input[3]` follows `input`."""
        if field in self._names:
            return self._names[field]
        if self._tool_field is not None and (tool := _TOOL_FIELD.fullmatch(field)) is not None:
            return self._tool_field(int(tool[1]), tool[2])
        path = _PATH.fullmatch(field)
        if path is None or path[1] not in self._names:
            return field
        return self._names[path[1]] + path[2]

    def message(self, error: ParameterError | TemplateError) -> str:
        """What an error says: messages begin with the field that they are about."""
        message, ours, theirs = str(error), error.param, self.of(error.param)
        if ours == theirs or not message.startswith(ours):
            return message
        return theirs + message.removeprefix(ours)


OUR_NAMES = FieldNames()


def renamed(error: E, names: FieldNames) -> E:
    """The same error, in an API's names."""
    message, param = names.message(error), names.of(error.param)
    error.args, error.param = (message,), param
    return error
