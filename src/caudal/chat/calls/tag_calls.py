"""Calls whose arguments are not JSON: tags as Qwen3-Coder's, and Gemma's `call:name{key:value}`."""

from __future__ import annotations

from typing import Any

from caudal.chat.calls.json_calls import MAX_DEPTH, parse_json, read_call, read_json, whole_call
from caudal.chat.calls.reading import BrokenCallError, CallContext, Chars, Reader, Reading
from caudal.chat.calls.typed_values import value_of

FUNCTION = "<function="
PARAMETER = "<parameter="
FUNCTION_END = "</function>"
PARAMETER_END = "</parameter>"
MAX_VALUE = 4 * 2**20
"""Longest argument."""


def function_tags(end: str) -> Reader:
    """Reads `<function=f>` with a `<parameter=a>` for each argument, then an end tag.

    Models forget end tags: a value also ends where the next begins, or the call ends. Not where a
    grammar has seen to the end tags: there a value may hold whatever else it likes.
    """

    def read(chars: Chars, context: CallContext) -> Reading[None]:
        value_ends = (PARAMETER_END,) if context.live else (PARAMETER_END, PARAMETER, FUNCTION_END)
        if context.marker != FUNCTION:
            if (yield from chars.space()) == "{":  # sometimes these models fall back to JSON
                yield from read_call(chars, context)
                yield from chars.optional(end)
                return
            yield from chars.literal(FUNCTION)
        name = context.check_name((yield from chars.until(">")).strip())
        schemas = context.schemas_of(name)
        arguments: dict[str, Any] = {}
        tag = PARAMETER_END
        while tag != FUNCTION_END:
            if tag != PARAMETER:
                yield from chars.space()
                yield from chars.literal("<")
                if (yield from chars.peek()) == "/":
                    yield from chars.literal(FUNCTION_END[1:])
                    break
                yield from chars.literal(PARAMETER[1:])
            key = (yield from chars.until(">")).strip()
            value, tag = yield from chars.until_one_of(value_ends, MAX_VALUE)
            arguments[key] = value_of(value.removeprefix("\n").removesuffix("\n"), schemas.get(key))
        yield from whole_call(name, arguments)
        yield from chars.optional(end)

    return read


def gemma(quote: str, end: str) -> Reader:
    """`call:name{key:value,…}` with strings between two of `quote`, then an end tag."""

    def read(chars: Chars, context: CallContext) -> Reading[None]:
        yield from chars.space()
        yield from chars.literal("call:")
        name = context.check_name((yield from chars.until("{")).strip())
        arguments = yield from _read_members(chars, quote, 1)
        yield from whole_call(name, arguments)
        yield from chars.optional(end)

    return read


def _read_members(chars: Chars, quote: str, depth: int) -> Reading[dict[str, Any]]:
    """The members of an object whose brace has been taken, and its closing brace."""
    members: dict[str, Any] = {}
    if (yield from chars.space()) == "}":
        yield from chars.take()
        return members
    while True:
        first = yield from chars.space()
        if first in ('"', quote[0]):
            key = str((yield from _read_value(chars, quote, depth)))
            yield from chars.space()
            yield from chars.literal(":")
        else:
            key = (yield from chars.until(":")).strip()
        members[key] = yield from _read_value(chars, quote, depth)
        if not (yield from chars.another("}")):
            return members


def _read_value(chars: Chars, quote: str, depth: int) -> Reading[Any]:
    if depth > MAX_DEPTH:
        raise BrokenCallError
    first = yield from chars.space()
    if first == quote[0]:
        yield from chars.literal(quote)
        return (yield from chars.until(quote, MAX_VALUE))
    if first == '"':
        return parse_json((yield from read_json(chars)), strict=False)
    if first == "{":
        yield from chars.take()
        return (yield from _read_members(chars, quote, depth + 1))
    if first == "[":
        yield from chars.take()
        return (yield from _read_items(chars, quote, depth + 1))
    word: list[str] = []
    while (char := (yield from chars.peek())) and char not in ",}]":
        if len(word) > MAX_VALUE:
            raise BrokenCallError
        word.append((yield from chars.take()))
    text = "".join(word).strip()
    try:
        return parse_json(text)
    except BrokenCallError:
        return text


def _read_items(chars: Chars, quote: str, depth: int) -> Reading[list[Any]]:
    items: list[Any] = []
    if (yield from chars.space()) == "]":
        yield from chars.take()
        return items
    while True:
        items.append((yield from _read_value(chars, quote, depth)))
        if not (yield from chars.another("]")):
            return items
