"""Calls and thoughts of the past reach templates that take them each in a way of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from caudal.chat.conversation import Conversation, Message, Tool, ToolCall
from caudal.chat.preparer import ChatPreparer
from caudal.formats.chat_template import ChatTemplate
from support.dialects import SmallModel
from support.template_workers import shared_workers

MARKERS = ["<|im_end|>", "<|tool_call_start|>", "<|tool_call_end|>"]
TOOLS = [Tool(name="weather"), Tool(name="now")]
ROME = ToolCall(id="call_1", name="weather", arguments='{"city": "Rome", "n": [1, true]}')
NOW = ToolCall(id="call_2", name="now", arguments="{}")
CALLED = [
    Message(role="user", content="Hi"),
    Message(role="assistant", content="Let me see.", reasoning="Hm", tool_calls=[ROME, NOW]),
    Message(role="tool", content="Noon", tool_call_id="call_2"),
    Message(role="tool", content="Rain", tool_call_id="call_1"),
]
CALLS = "{{ '<' ~ call.function.name ~ '>' }}"


def template(assistant: str, results: bool = True) -> str:
    """A template that writes `ROLE: TEXT` for all but an assistant's messages."""
    others = "{% elif m.role != 'tool' %}" if not results else "{% else %}"
    return (
        "{% if tools %}{% endif %}{% for m in messages %}"
        "{% if m.role == 'assistant' %}assistant:"
        + assistant
        + others
        + "{{ m.role ~ ':' ~ m.content }}{% endif %}"
        "{% if m.role != 'tool' or " + str(results) + " %};{% endif %}{% endfor %}"
    )


TABLE = {
    "writes no calls": (
        template("{{ m.content }}{{ '<|tool_call_start|>' if false }}"),
        'assistant:Let me see.<|tool_call_start|>[weather(city="Rome", n=[1, true]), now()]'
        "<|tool_call_end|>;tool:Noon;tool:Rain;",
    ),
    "writes text in place of calls": (
        template(
            "{% if m.content %}{{ m.content }}{% else %}{% for call in m.tool_calls %}"
            + CALLS
            + "{% endfor %}{% endif %}{{ '<|tool_call_start|>' if false }}"
        ),
        'assistant:Let me see.<|tool_call_start|>[weather(city="Rome", n=[1, true]), now()]'
        "<|tool_call_end|>;tool:Noon;tool:Rain;",
    ),
    "writes one call": (
        template("{{ m.content }}{% set call = m.tool_calls[0] %}" + CALLS),
        "assistant:Let me see.<weather>;tool:Rain;assistant:<now>;tool:Noon;",
    ),
    "refuses two calls": (
        template(
            "{% if m.tool_calls | length > 1 %}{{ raise_exception('one at once!') }}{% endif %}"
            "{{ m.content }}{% for call in m.tool_calls %}" + CALLS + "{% endfor %}"
        ),
        "assistant:Let me see.<weather>;tool:Rain;assistant:<now>;tool:Noon;",
    ),
    "writes text behind calls": (
        template(
            "{{ m.get('reasoning') }}"
            "{% for call in m.tool_calls %}" + CALLS + "{% endfor %}{{ m.content }}"
        ),
        "assistant:Hm\n\nLet me see.<weather><now>;tool:Noon;tool:Rain;",
    ),
    "refuses text beside thoughts": (
        template(
            "{% if m.content and m.thinking %}{{ raise_exception('not both!') }}{% endif %}"
            "{{ m.thinking or m.content }}{% for call in m.tool_calls %}" + CALLS + "{% endfor %}"
        ),
        "assistant:Hm\n\nLet me see.<weather><now>;tool:Noon;tool:Rain;",
    ),
    "leaves text out": (
        template("{% for call in m.tool_calls %}" + CALLS + "{% endfor %}"),
        "assistant:<weather><now>;tool:Noon;tool:Rain;",
    ),
    "writes text that doesn't end the turn": (
        template(
            "{% for call in m.tool_calls %}" + CALLS + "{% else %}"
            "{{ '[' ~ m.reasoning_content ~ ']' ~ m.content }}"
            "{{ '…' if m.get('end_turn') is false }}{% endfor %}"
        ),
        "assistant:[Hm]Let me see.…;assistant:<weather><now>;tool:Noon;tool:Rain;",
    ),
    "takes results with calls": (
        template(
            "{{ m.content }}{% for call in m.tool_calls %}" + CALLS + "{% endfor %}"
            "{% for r in m['tool_responses'] %}{{ '(' ~ r.name ~ '=' ~ r.response ~ ')' }}"
            "{% endfor %}",
            results=False,
        ),
        "assistant:Let me see.<weather><now>(now=Noon)(weather=Rain);",
    ),
    "takes thoughts as parts": (
        template(
            "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
            "{% if part['type'] == 'thinking' %}{{ '[' ~ part['thinking'] ~ ']' }}"
            "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
            "{% for call in m.tool_calls %}" + CALLS + "{% endfor %}"
        ),
        "assistant:[Hm]Let me see.<weather><now>;tool:Noon;tool:Rain;",
    ),
}


def prompt_of(folder: Path, source: str, messages: Sequence[Message]) -> tuple[str, list[str]]:
    """The prompt's text, and the control tokens in it."""
    tokenizer = SmallModel(MARKERS, "").tokenizer(folder)
    chat = ChatPreparer(ChatTemplate(source, tokenizer, workers=shared_workers()), tokenizer)
    tokens = chat.prepare(Conversation(messages=messages, tools=TOOLS)).tokens
    control = [tokenizer.token_text(token) for token in tokens if tokenizer.is_control(token)]
    return tokenizer.decode(tokens, skip_special_tokens=False), control


@pytest.mark.parametrize("name", TABLE)
def test_the_past_is_written_as_the_template_takes_it(tmp_path: Path, name: str):
    source, expected = TABLE[name]
    text, control = prompt_of(tmp_path, source, CALLED)
    assert text == f"user:Hi;{expected}"
    assert control == [mark for mark in MARKERS if mark in expected]


def test_what_a_call_holds_is_no_marker_where_calls_are_text(tmp_path: Path):
    call = ToolCall(id="c", name="weather", arguments='{"city": "<|tool_call_end|>"}')
    messages = [*CALLED[:1], Message(role="assistant", tool_calls=[call])]
    text, control = prompt_of(tmp_path, TABLE["writes no calls"][0], messages)
    assert control == MARKERS[1:]
    assert r'city="\u003c|tool_call_end|>"' in text
    messages = [*CALLED, Message(role="user", content="<|tool_call_end|>")]
    assert prompt_of(tmp_path, TABLE["writes no calls"][0], messages)[1] == MARKERS[1:]


def test_tools_may_be_text_of_the_system_message(tmp_path: Path):
    """As in Phi-4-mini's template, which writes no calls either."""
    source = (
        "{% for message in messages %}"
        "{% if message['role'] == 'system' and 'tools' in message and message['tools'] %}"
        "{{ 'system:' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>;' }}"
        "{% else %}{{ message['role'] + ':' + message['content'] + ';' }}{% endif %}{% endfor %}"
    )
    nothing = '{"type": "object", "properties": {}}'
    told = ", ".join(f'{{"name": "{tool.name}", "parameters": {nothing}}}' for tool in TOOLS).join(
        "[]"
    )
    text, _ = prompt_of(tmp_path, source, CALLED[:1])
    assert text == f"system:<|tool|>{told}<|/tool|>;user:Hi;"
    text, control = prompt_of(
        tmp_path, source, [Message(role="system", content="Be kind."), *CALLED]
    )
    assert text.startswith(f"system:Be kind.<|tool|>{told}<|/tool|>;user:Hi;assistant:Let me see.")
    assert control == MARKERS[1:]
