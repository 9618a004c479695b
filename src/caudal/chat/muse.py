"""Muse Glimmer's format: each message of an answer is addressed to somebody.

`to=self<|message|>…<|eom|>` thinks, `to=user` answers, as a message to nobody does, and a message
to a tool calls it, with a tag for each argument: strings stand as they are. Several calls are a
message each. The turn ends with `<|eot|>`. So the model's own template writes it, and so llama.cpp
reads it (`common/parsers/muse-glimmer.cpp`).
"""

from __future__ import annotations

import re

from caudal.chat.calls.formats import CallSyntax
from caudal.chat.calls.invoke_calls import invoked
from caudal.chat.member_grammar import MemberSyntax, TextSyntax
from caudal.chat.message_format import MESSAGE, START, MessageFormat

_EOM = "<|eom|>"
_TAGS = "atem:"
_BLOCK = f"{_TAGS}function_calls"
_PARAMETER_END = f"</{_TAGS}parameter>"

_NEXT = f"{_EOM}{START}assistant"
"""Between two messages of an answer."""

_ADDRESS = r"(?:(?!to=[^\s<])[\s\S])*to="
"""Matches a header up to the recipient, of whom the first counts."""

MUSE_GLIMMER = MessageFormat(
    name="muse_glimmer",
    signs=(MESSAGE, _EOM),
    ends=(_EOM, "<|eot|>"),
    markers=(
        START,
        MESSAGE,
        _EOM,
        "<|eot|>",
        f"<{_BLOCK}>",
        f"</{_BLOCK}>",
        f"<{_TAGS}invoke",
        f"</{_TAGS}invoke>",
        f"<{_TAGS}parameter",
        _PARAMETER_END,
    ),
    header_begins=(START, MESSAGE, "to="),
    call=re.compile(rf"{_ADDRESS}(?!(?:self|user)(?![^\s<]))([^\s<]+)"),
    thought=re.compile(rf"{_ADDRESS}self(?![^\s<])"),
    calls_begin=f"<{_BLOCK}>",
    read=invoked(_TAGS, (_BLOCK,)),
    syntax=CallSyntax(
        head=f' to=NAME{MESSAGE}<{_BLOCK}>\n<{_TAGS}invoke name="NAME">\n',
        tail=f"</{_TAGS}invoke>\n</{_BLOCK}>",
        separator=_NEXT,
        members=MemberSyntax(
            head=f'<{_TAGS}parameter name="KEY">',
            tail=f"{_PARAMETER_END}\n",
            text=TextSyntax(begin="", end=_PARAMETER_END, tail="\n"),
        ),
    ),
    json_syntax=CallSyntax(
        head=f" to=NAME{MESSAGE}", tail="", separator=_NEXT, text_head=f" to=NAME{MESSAGE}"
    ),
    thought_begin=f" to=self{MESSAGE}",
    thought_end=_NEXT,
    answer_begin=f" to=user{MESSAGE}",
    recipients=frozenset(("self", "user")),
    efforts=("low", "medium", "high", "xhigh"),
)
