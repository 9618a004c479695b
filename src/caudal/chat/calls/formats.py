"""The formats of tool calls, by the names that vLLM's users know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from caudal.chat.calls.deepseek_calls import (
    CALL_BEGIN,
    CALL_END,
    CALLS_BEGIN,
    CALLS_END,
    SEPARATOR,
    read_deepseek,
)
from caudal.chat.calls.json_calls import read_calls, read_mistral, separated, tagged
from caudal.chat.calls.python_calls import read_marked_list, read_tool_code
from caudal.chat.calls.reading import Reader
from caudal.chat.calls.tag_calls import FUNCTION, gemma, read_qwen_coder


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """How calls with JSON arguments are written, for grammars and for prompts.

    A call is `head`, with `NAME` in place of the tool's name, then the arguments, then `tail`.

    Attributes:
        head: Before the arguments.
        tail: After them.
        begin: Before the first call.
        separator: Between calls; None where an answer has only one.
        end: After the last call.
    """

    head: str
    tail: str
    begin: str = ""
    separator: str | None = ""
    end: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """One way to write calls.

    Attributes:
        name: As in `--tool-parser`.
        read: Reads what follows one of `begins`, or text that begins with one of `bare`.
        begins: Markers that begin a call, or a block of calls; none is part of another.
        bare: Characters that may begin a call where they are an answer's first.
        markers: Texts that steer a reader; where they are control tokens, it has to see them.
        syntax: How an enforced call is written; None where arguments are not JSON, so that no
            schema can be enforced on them.
    """

    name: str
    read: Reader
    begins: tuple[str, ...] = ()
    bare: str = ""
    markers: tuple[str, ...] = ()
    syntax: CallSyntax | None = None


HERMES = ToolFormat(
    name="hermes",
    read=tagged("</tool_call>"),
    begins=("<tool_call>",),
    markers=("<tool_call>", "</tool_call>"),
    syntax=CallSyntax(
        head='<tool_call>\n{"name": "NAME", "arguments": ',
        tail="}\n</tool_call>",
        separator="\n",
    ),
)

_DEEPSEEK_MARKERS = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR)

_ALL = (
    HERMES,
    ToolFormat(
        name="qwen3_coder",
        read=read_qwen_coder,
        begins=("<tool_call>", FUNCTION),
        markers=("<tool_call>", "</tool_call>"),
    ),
    ToolFormat(
        name="llama3_json",
        read=separated(";"),
        begins=("<|python_tag|>",),
        bare="{",
        markers=("<|python_tag|>",),
        syntax=CallSyntax(
            head='{"name": "NAME", "parameters": ',
            tail="}",
            separator="; ",
        ),
    ),
    ToolFormat(
        name="pythonic",
        read=read_marked_list("<|python_end|>"),
        begins=("<|python_start|>",),
        bare="[",
        markers=("<|python_start|>", "<|python_end|>"),
    ),
    ToolFormat(
        name="lfm2",
        read=read_marked_list("<|tool_call_end|>"),
        begins=("<|tool_call_start|>",),
        markers=("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    ToolFormat(
        name="mistral",
        read=read_mistral,
        begins=("[TOOL_CALLS]",),
        markers=("[TOOL_CALLS]",),
        syntax=CallSyntax(
            begin="[TOOL_CALLS][",
            head='{"name": "NAME", "arguments": ',
            tail="}",
            separator=", ",
            end="]",
        ),
    ),
    ToolFormat(
        name="mistral_args",
        read=read_mistral,
        begins=("[TOOL_CALLS]",),
        markers=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
        syntax=CallSyntax(head="[TOOL_CALLS]NAME[ARGS]", tail=""),
    ),
    ToolFormat(
        name="deepseek_v3",
        read=read_deepseek,
        begins=(CALLS_BEGIN, CALL_BEGIN),
        markers=_DEEPSEEK_MARKERS,
        syntax=CallSyntax(
            begin=CALLS_BEGIN,
            head=f"{CALL_BEGIN}function{SEPARATOR}NAME\n```json\n",
            tail=f"\n```{CALL_END}",
            separator="\n",
            end=CALLS_END,
        ),
    ),
    ToolFormat(
        name="deepseek_v31",
        read=read_deepseek,
        begins=(CALLS_BEGIN, CALL_BEGIN),
        markers=_DEEPSEEK_MARKERS,
        syntax=CallSyntax(
            begin=CALLS_BEGIN,
            head=f"{CALL_BEGIN}NAME{SEPARATOR}",
            tail=CALL_END,
            separator="",
            end=CALLS_END,
        ),
    ),
    ToolFormat(
        name="granite",
        read=read_calls,
        begins=("<|tool_call|>", "<tool_call>"),
        markers=("<|tool_call|>", "<tool_call>"),
        syntax=CallSyntax(
            begin="<|tool_call|>[",
            head='{"name": "NAME", "arguments": ',
            tail="}",
            separator=", ",
            end="]",
        ),
    ),
    ToolFormat(
        name="gemma",
        read=read_tool_code,
        begins=("```tool_code\n",),
    ),
    ToolFormat(
        name="functiongemma",
        read=gemma("<escape>", "<end_function_call>"),
        begins=("<start_function_call>",),
        markers=("<start_function_call>", "<end_function_call>", "<escape>"),
    ),
    ToolFormat(
        name="gemma4",
        read=gemma('<|"|>', "<tool_call|>"),
        begins=("<|tool_call>",),
        markers=("<|tool_call>", "<tool_call|>", '<|"|>'),
    ),
)

TOOL_FORMATS: Mapping[str, ToolFormat] = {tool_format.name: tool_format for tool_format in _ALL}
"""All formats but gpt-oss's, in which calls can't be told from the rest of an answer: see
`caudal.chat.harmony`."""
