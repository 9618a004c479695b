"""Calls that are written as JSON: `{"name": …, "arguments": {…}}`, alone, in lists, in tags."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from caudal.chat.calls.reading import (
    BrokenCallError,
    CallArguments,
    CallContext,
    CallDone,
    CallName,
    Chars,
    Reader,
    Reading,
)
from caudal.chat.text_input import TEXT_BEGIN

MAX_DEPTH = 64
"""Levels of nesting that arguments may have, as in messages."""

ARGUMENT_KEYS = ("arguments", "parameters")
NAME_KEYS = ("name", "tool_name")
_OTHER_KEYS = ("id", "type")

_WORD_CHARACTERS = frozenset("-+.0123456789Eaeflnrstu")  # of numbers, true, false and null

_CLOSERS = {"{": "}", "[": "]"}


def read_json(chars: Chars, *, stream: bool = False) -> Reading[str]:
    """Take one JSON value and return its text; whether it is valid is up to `parse_json`.

    With `stream`, yields its characters as arguments too.
    """
    taken: list[str] = []
    closers: list[str] = []
    in_string = False
    while True:
        char = yield from chars.take()
        if not char:
            raise BrokenCallError
        taken.append(char)
        if stream:
            yield CallArguments(char)
        if in_string:
            if char == "\\":
                char = yield from chars.take()
                taken.append(char)
                if stream and char:
                    yield CallArguments(char)
            elif char == '"':
                in_string = False
        elif char == '"':
            in_string = True
        elif char in _CLOSERS:
            closers.append(_CLOSERS[char])
            if len(closers) > MAX_DEPTH:
                raise BrokenCallError
        elif char in "}]":
            if not closers or closers.pop() != char:
                raise BrokenCallError
        elif not closers:  # a number or word goes on to the next delimiter
            if char not in _WORD_CHARACTERS:
                raise BrokenCallError
            following = yield from chars.peek()
            if not following or following in ",}]" or following.isspace():
                return "".join(taken)
            continue
        if not closers and not in_string:
            return "".join(taken)


def parse_json(text: str, *, strict: bool = True) -> Any:
    """The value of a JSON text; without `strict`, strings may have line breaks.

    Raises:
        BrokenCallError: The text isn't JSON.
    """
    try:
        return json.loads(text, strict=strict, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BrokenCallError from error


def write_json(value: Any) -> str:
    """JSON in the style of all JSON here.

    Raises:
        BrokenCallError: The value has something that JSON has not.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BrokenCallError from error


def whole_call(name: str, arguments: Mapping[str, Any]) -> Reading[None]:
    """Yield a call of which everything is known, and end it."""
    yield CallName(name)
    yield CallArguments(write_json(arguments))
    yield CallDone()


def arguments_of(text: str) -> str:
    """A JSON object as text, from what a model wrote in its place.

    That is the text as it is where it is an object. Line breaks in strings are escaped, null means
    no arguments, and a string may hold the object.

    Raises:
        BrokenCallError: It is nothing of the kind.
    """
    try:
        value = parse_json(text)
    except BrokenCallError:
        value = parse_json(text, strict=False)
        text = write_json(value)
    if isinstance(value, str):
        text = value.strip() or "{}"
        value = parse_json(text)
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise BrokenCallError
    return text


def read_plain_text(chars: Chars) -> Reading[None]:
    """Take a custom tool's text, which goes to the end of all text, and end the call."""
    yield from chars.literal(TEXT_BEGIN)
    chars.to_end = True
    while char := (yield from chars.take()):
        yield CallArguments(char)
    yield CallDone()


def read_arguments(chars: Chars, context: CallContext, name: str) -> Reading[None]:
    """Take a JSON object, yield it as a call's arguments, and end the call."""
    if context.takes_plain_text(name):
        yield from read_plain_text(chars)
        return
    if context.live and (yield from chars.peek()) == "{":
        yield from read_json(chars, stream=True)
    else:
        yield CallArguments(arguments_of((yield from read_json(chars))))
    yield CallDone()


def read_call(chars: Chars, context: CallContext) -> Reading[None]:
    """One object with a name and arguments, in any order."""
    name: str | None = None
    arguments: str | None = None
    streamed = False
    yield from chars.literal("{")
    while True:
        if (yield from chars.space()) != '"':
            raise BrokenCallError
        key = parse_json((yield from read_json(chars)))
        yield from chars.space()
        yield from chars.literal(":")
        first = yield from chars.space()
        if key in NAME_KEYS and name is None:
            name = context.check_name(parse_json((yield from read_json(chars))))
            yield CallName(name)
        elif key in ARGUMENT_KEYS and first == "<" and context.takes_plain_text(name):
            yield from read_plain_text(chars)
            return
        elif key in ARGUMENT_KEYS and arguments is None:
            streamed = context.live and name is not None and first == "{"
            arguments = yield from read_json(chars, stream=streamed)
        elif key in _OTHER_KEYS or not context.bare:
            parse_json((yield from read_json(chars)), strict=False)
        else:
            raise BrokenCallError
        if not (yield from chars.another("}")):
            break
    if name is None:
        raise BrokenCallError
    if not streamed:
        yield CallArguments("{}" if arguments is None else arguments_of(arguments))
    yield CallDone()


def read_calls(chars: Chars, context: CallContext) -> Reading[None]:
    """One call, or a list of calls."""
    if (yield from chars.space()) != "[":
        yield from read_call(chars, context)
        return
    yield from chars.literal("[")
    if (yield from chars.space()) == "]":
        yield from chars.literal("]")
        return
    while True:
        yield from chars.space()
        yield from read_call(chars, context)
        if not (yield from chars.another("]")):
            return


def tagged(end: str) -> Reader:
    """Reads calls up to an end tag, which may be missing: models forget it.

    They also close a call more often than they opened it.
    """

    def read(chars: Chars, context: CallContext) -> Reading[None]:
        while True:
            yield from read_calls(chars, context)
            if (yield from chars.space()) != "{":
                break
        surplus = False
        while (char := (yield from chars.space())) and char in "}]":
            yield from chars.take()
            surplus = True
        if surplus and char and char != end[0]:
            raise BrokenCallError  # no surplus of this call, whose end tag is missing
        yield from chars.optional(end)

    return read


def read_function(chars: Chars, context: CallContext) -> Reading[None]:
    """Behind `<function=`: a name, `>`, and arguments; then an end tag that may be missing."""
    name = context.check_name((yield from chars.until(">")).strip())
    yield CallName(name)
    yield from chars.space()
    yield from read_arguments(chars, context, name)
    yield from chars.optional("</function>")


def separated(separators: Sequence[str]) -> Reader:
    """Reads calls with one of these characters between them."""

    def read(chars: Chars, context: CallContext) -> Reading[None]:
        while True:
            yield from read_calls(chars, context)
            if (yield from chars.space()) not in separators:
                return
            yield from chars.take()
            yield from chars.space()

    return read


def read_mistral(chars: Chars, context: CallContext) -> Reading[None]:
    """Behind `[TOOL_CALLS]`: a list of objects, or `name[ARGS]{…}` of newer models."""
    if (yield from chars.space()) in ("[", "{"):
        yield from read_calls(chars, context)
        return
    name: list[str] = []
    while (char := (yield from chars.peek())) not in ("[", "{"):
        if not char or len(name) > 256:
            raise BrokenCallError
        name.append((yield from chars.take()))
    while (yield from chars.space()) == "[":
        yield from chars.literal("[")
        if (yield from chars.until("]")) == "CALL_ID":
            yield from chars.until("[ARGS]")
            break
    tool = context.check_name("".join(name).strip())
    yield CallName(tool)
    yield from chars.space()
    yield from read_arguments(chars, context, tool)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
