"""Calls of DeepSeek's V3 and R1 (a fenced block of JSON) and V3.1 (bare JSON), and of Kimi K2."""

from __future__ import annotations

from caudal.chat.calls.json_calls import read_arguments
from caudal.chat.calls.reading import BrokenCallError, CallContext, CallName, Chars, Reading

CALLS_BEGIN = "<｜tool▁calls▁begin｜>"
CALLS_END = "<｜tool▁calls▁end｜>"
CALL_BEGIN = "<｜tool▁call▁begin｜>"
CALL_END = "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"

KIMI_CALLS_BEGIN = "<|tool_calls_section_begin|>"
KIMI_CALLS_END = "<|tool_calls_section_end|>"
KIMI_CALL_BEGIN = "<|tool_call_begin|>"
KIMI_ARGUMENTS = "<|tool_call_argument_begin|>"
KIMI_CALL_END = "<|tool_call_end|>"

_FENCE = "```"


def read_deepseek(chars: Chars, context: CallContext) -> Reading[None]:
    """Calls up to the end of the block; the block's own markers may be missing."""
    in_call = context.marker == CALL_BEGIN
    while in_call or (yield from _begins_call(chars, CALL_BEGIN, CALLS_END)):
        in_call = False
        name = yield from chars.until(SEPARATOR)
        if name.strip() == "function":
            name = yield from chars.until("\n")
        tool = context.check_name(name.strip())
        yield CallName(tool)
        if (yield from chars.space()) == "`":
            yield from chars.literal(_FENCE + "json")
            yield from chars.space()
        yield from read_arguments(chars, context, tool)
        yield from chars.optional(_FENCE)
        yield from chars.optional(CALL_END)


def read_kimi(chars: Chars, context: CallContext) -> Reading[None]:
    """Calls of Kimi K2, whose names stand in ids: `functions.NAME:0`."""
    in_call = context.marker == KIMI_CALL_BEGIN
    while in_call or (yield from _begins_call(chars, KIMI_CALL_BEGIN, KIMI_CALLS_END)):
        in_call = False
        identity = (yield from chars.until(KIMI_ARGUMENTS)).strip()
        name, _, number = identity.removeprefix("functions.").rpartition(":")
        name = context.check_name(name if number.isdigit() else identity)
        yield CallName(name)
        yield from chars.space()
        yield from read_arguments(chars, context, name)
        yield from chars.optional(KIMI_CALL_END)


def _begins_call(chars: Chars, begin: str, end: str) -> Reading[bool]:
    """Take what begins the next call of a block, or ends the block; returns whether a call follows.

    What ends the block may be missing.
    """
    if (yield from chars.space()) != "<":
        return False
    tag = (yield from chars.until(">")) + ">"
    if tag not in (begin, end):
        raise BrokenCallError
    return tag == begin
