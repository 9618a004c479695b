"""Calls with a tag for each argument: GLM's, and the `invoke` of MiniMax and DeepSeek."""

from __future__ import annotations

import re
from typing import Any

from caudal.chat.calls.json_calls import whole_call
from caudal.chat.calls.reading import BrokenCallError, CallContext, Chars, Reader, Reading
from caudal.chat.calls.tag_calls import MAX_VALUE
from caudal.chat.calls.typed_values import value_of

DSML = "｜DSML｜"

_NAME = re.compile(r'\sname="([^"]*)"')
_IS_TEXT = re.compile(r'\sstring="(true|false)"')


def read_glm(chars: Chars, context: CallContext) -> Reading[None]:
    """Behind `<tool_call>`: a name, then `<arg_key>` and `<arg_value>` by turns."""
    name = context.check_name((yield from chars.until_space_or("<")).strip())
    schemas = context.schemas_of(name)
    arguments: dict[str, Any] = {}
    while True:
        if (yield from chars.space()) == "":
            raise BrokenCallError
        yield from chars.literal("<")
        if (yield from chars.peek()) == "/":
            yield from chars.literal("/tool_call>")
            break
        yield from chars.literal("arg_key>")
        key = (yield from chars.until("</arg_key>")).strip()
        yield from chars.space()
        yield from chars.literal("<arg_value>")
        value = yield from chars.until("</arg_value>", MAX_VALUE)
        arguments[key] = value_of(value, schemas.get(key))
    yield from whole_call(name, arguments)


def invoked(prefix: str, blocks: tuple[str, ...]) -> Reader:
    """Reads `<invoke name="f">` with a `<parameter name="a">` for each argument, up to an end tag.

    Args:
        prefix: What stands before the names of these tags.
        blocks: Names of tags around all calls; the end tag may be missing.
    """
    call, call_end = f"{prefix}invoke", f"</{prefix}invoke>"
    parameter, parameter_end = f"{prefix}parameter", f"</{prefix}parameter>"

    def read(chars: Chars, context: CallContext) -> Reading[None]:
        while True:
            yield from chars.space()
            yield from chars.literal("<")
            if (yield from chars.peek()) == "/":
                if (yield from chars.until(">"))[1:] not in blocks:
                    raise BrokenCallError
                return
            yield from chars.literal(call)
            name = context.check_name(_name_in((yield from chars.until(">"))))
            schemas = context.schemas_of(name)
            arguments: dict[str, Any] = {}
            while True:
                yield from chars.space()
                yield from chars.literal("<")
                if (yield from chars.peek()) == "/":
                    yield from chars.literal(call_end[1:])
                    break
                yield from chars.literal(parameter)
                attributes = yield from chars.until(">")
                value = yield from chars.until(parameter_end, MAX_VALUE)
                is_text = _IS_TEXT.search(attributes)
                key = _name_in(attributes)
                if is_text is None:
                    arguments[key] = value_of(value, schemas.get(key))
                else:
                    schema = {"type": "string"} if is_text[1] == "true" else None
                    arguments[key] = value_of(value, schema)
            yield from whole_call(name, arguments)
            if (yield from chars.space()) != "<":
                return  # the end tag is missing

    return read


def _name_in(attributes: str) -> str:
    found = _NAME.search(attributes)
    if found is None:
        raise BrokenCallError
    return found[1]
