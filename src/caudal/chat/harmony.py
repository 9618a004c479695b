"""gpt-oss's format, harmony: each message of an answer is for a channel.

`<|channel|>analysis<|message|>` thinks, `final` answers, and `commentary to=functions.NAME` calls.
"""

from __future__ import annotations

import re

from caudal.chat.calls.formats import CallSyntax
from caudal.chat.message_format import MESSAGE, START, MessageFormat

_CHANNEL = "<|channel|>"
_CONSTRAIN = "<|constrain|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")

_SYNTAX = CallSyntax(
    head=f"{_CHANNEL}commentary to=functions.NAME {_CONSTRAIN}json{MESSAGE}",
    tail="",
    separator=None,
    text_head=f"{_CHANNEL}commentary to=functions.NAME{MESSAGE}",
)

HARMONY = MessageFormat(
    name="openai",
    signs=(_CHANNEL, MESSAGE),
    ends=_ENDS,
    markers=(START, _CHANNEL, MESSAGE, _CONSTRAIN, *_ENDS),
    header_begins=(_CHANNEL, START, MESSAGE, "to=functions."),
    call=re.compile(r"[\s\S]*?to=functions\.([^\s<]+)"),
    thought=re.compile(
        rf"(?:(?!{re.escape(_CHANNEL)}\s*\w)[\s\S])*"  # the first channel that is named counts
        rf"{re.escape(_CHANNEL)}\s*analysis(?!\w)"
    ),
    syntax=_SYNTAX,
    json_syntax=_SYNTAX,
    thought_begin=f"{_CHANNEL}analysis{MESSAGE}",
    thought_end=f"<|end|>{START}assistant",
    answer_begin=f"{_CHANNEL}final{MESSAGE}",
    efforts=("low", "medium", "high"),
)
