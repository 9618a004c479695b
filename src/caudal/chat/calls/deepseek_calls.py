"""DeepSeek's calls, of V3 and R1 (a fenced block of JSON) and of V3.1 (bare JSON)."""

from __future__ import annotations

from caudal.chat.calls.json_calls import read_arguments
from caudal.chat.calls.reading import BrokenCallError, CallContext, CallName, Chars, Reading

CALLS_BEGIN = "<｜tool▁calls▁begin｜>"
CALLS_END = "<｜tool▁calls▁end｜>"
CALL_BEGIN = "<｜tool▁call▁begin｜>"
CALL_END = "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"

_FENCE = "```"


def read_deepseek(chars: Chars, context: CallContext) -> Reading[None]:
    """Calls up to the end of the block; the block's own markers may be missing."""
    in_call = context.marker == CALL_BEGIN
    while True:
        if not in_call:
            if (yield from chars.space()) != "<":
                return
            tag = (yield from chars.until(">")) + ">"
            if tag == CALLS_END:
                return
            if tag != CALL_BEGIN:
                raise BrokenCallError
        in_call = False
        name = yield from chars.until(SEPARATOR)
        if name.strip() == "function":
            name = yield from chars.until("\n")
        yield CallName(context.check_name(name.strip()))
        if (yield from chars.space()) == "`":
            yield from chars.literal(_FENCE + "json")
            yield from chars.space()
        yield from read_arguments(chars, context)
        yield from chars.optional(_FENCE)
        yield from chars.optional(CALL_END)
