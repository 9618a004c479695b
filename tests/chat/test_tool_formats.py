"""Every format of tool calls: what it looks like, whatever the chunking, and when it is broken."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caudal.chat.calls.formats import TOOL_FORMATS
from caudal.chat.calls.json_calls import MAX_DEPTH
from caudal.chat.calls.typed_values import value_of
from caudal.chat.conversation import Tool
from caudal.chat.events import ContentDelta, ToolCallArgumentsDelta, ToolCallBegin, ToolCallEnd
from support.answers import answer_of, cut, events_of, joined, new_parser

Call = tuple[str, dict[str, Any]]

PARIS: Call = ("weather", {"city": "París 🌧", "days": 3})
NOW: Call = ("now", {})


def python(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def gemma(value: Any, quote: str) -> str:
    match value:
        case str():
            return f"{quote}{value}{quote}"
        case dict():
            members = ",".join(f"{key}:{gemma(item, quote)}" for key, item in value.items())
            return f"{{{members}}}"
        case list():
            return f"[{','.join(gemma(item, quote) for item in value)}]"
        case _:
            return json.dumps(value)


def named(key: str, calls: list[Call]) -> list[str]:
    return [json.dumps({"name": name, key: args}, ensure_ascii=False) for name, args in calls]


def write(tool_format: str, calls: list[Call]) -> str:
    """Calls as a model of this format writes them."""
    bodies = named("arguments", calls)
    match tool_format:
        case "hermes":
            return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
        case "qwen3_coder":
            return "\n".join(
                f"<tool_call>\n<function={name}>\n"
                + "".join(
                    f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}"
                    "\n</parameter>\n"
                    for key, value in args.items()
                )
                + "</function>\n</tool_call>"
                for name, args in calls
            )
        case "llama3_json":
            return "; ".join(named("parameters", calls))
        case "pythonic":
            return f"[{', '.join(python(*call) for call in calls)}]"
        case "lfm2":
            inner = ", ".join(python(*call) for call in calls)
            return f"<|tool_call_start|>[{inner}]<|tool_call_end|>"
        case "mistral":
            return f"[TOOL_CALLS][{', '.join(bodies)}]"
        case "mistral_args":
            return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(args)}" for name, args in calls)
        case "deepseek_v3":
            inner = "\n".join(
                f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(args)}\n```"
                "<｜tool▁call▁end｜>"
                for name, args in calls
            )
            return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"
        case "deepseek_v31":
            inner = "".join(
                f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(args)}<｜tool▁call▁end｜>"
                for name, args in calls
            )
            return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"
        case "granite":
            return f"<|tool_call|>[{', '.join(bodies)}]"
        case "gemma":
            inner = "\n".join(f"print({python(*call)})" for call in calls)
            return f"```tool_code\n{inner}\n```"
        case "functiongemma":
            return "".join(
                f"<start_function_call>call:{name}{gemma(args, '<escape>')}<end_function_call>"
                for name, args in calls
            )
        case "gemma4":
            quote = '<|"|>'
            return "".join(
                f"<|tool_call>call:{name}{gemma(args, quote)}<tool_call|>" for name, args in calls
            )
        case "seed_oss":
            return "\n".join(
                f"<seed:tool_call>\n<function={name}>\n"
                + "".join(
                    f"<parameter={key}>{value if isinstance(value, str) else json.dumps(value)}"
                    "</parameter>\n"
                    for key, value in args.items()
                )
                + "</function>\n</seed:tool_call>"
                for name, args in calls
            )
        case "functionary":
            return "\n".join(
                f"<function={name}>{json.dumps(args)}</function>" for name, args in calls
            )
        case "glm45" | "glm47":
            line = "\n" if tool_format == "glm45" else ""
            return line.join(
                f"<tool_call>{name}{line}"
                + "".join(
                    f"<arg_key>{key}</arg_key>{line}<arg_value>"
                    f"{value if isinstance(value, str) else json.dumps(value)}</arg_value>{line}"
                    for key, value in args.items()
                )
                + "</tool_call>"
                for name, args in calls
            )
        case "minimax_m2" | "deepseek_v32" | "deepseek_v4":
            dsml = "" if tool_format == "minimax_m2" else "｜DSML｜"
            block = {
                "minimax_m2": "minimax:tool_call",
                "deepseek_v32": "｜DSML｜function_calls",
                "deepseek_v4": "｜DSML｜tool_calls",
            }[tool_format]

            def parameter(key: str, value: Any) -> str:
                text = isinstance(value, str)
                kind = f' string="{str(text).lower()}"' if dsml else ""
                written = value if text else json.dumps(value)
                return f'<{dsml}parameter name="{key}"{kind}>{written}</{dsml}parameter>\n'

            inner = "\n".join(
                f'<{dsml}invoke name="{name}">\n'
                + "".join(parameter(key, value) for key, value in args.items())
                + f"</{dsml}invoke>"
                for name, args in calls
            )
            return f"<{block}>\n{inner}\n</{block}>"
        case "kimi_k2":
            inner = "".join(
                f"<|tool_call_begin|>functions.{name}:{place}<|tool_call_argument_begin|>"
                f"{json.dumps(args)}<|tool_call_end|>"
                for place, (name, args) in enumerate(calls)
            )
            return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"
        case "cohere":
            inner = ",\n".join(
                json.dumps({"tool_call_id": str(place), "tool_name": name, "parameters": args})
                for place, (name, args) in enumerate(calls)
            )
            return f"<|START_ACTION|>[\n{inner}\n]<|END_ACTION|>"
        case "phi4_mini":
            return f"<|tool_call|>[{', '.join(bodies)}]<|/tool_call|>"
        case "nemotron":
            return f"<TOOLCALL>[{', '.join(bodies)}]</TOOLCALL>"
        case "apriel":
            return f"<tool_calls>[{', '.join(bodies)}]</tool_calls>"
    raise AssertionError(tool_format)


# Formats that don't quote what a string holds can't hold their own marks.
plain_text = st.text(alphabet=st.sampled_from("aé🦙 0-.,:\n"), max_size=8).map(str.strip)
quoted_text = st.text(max_size=8).filter(
    lambda text: not any(mark in text for mark in ("<", "｜", "[", "`"))
)
UNQUOTED = (
    "qwen3_coder", "functiongemma", "gemma4", "seed_oss", "glm45", "glm47", "minimax_m2",
    "deepseek_v32", "deepseek_v4",
)  # fmt: skip


def arguments_for(tool_format: str) -> st.SearchStrategy[dict[str, Any]]:
    text = plain_text if tool_format in UNQUOTED else quoted_text
    return st.fixed_dictionaries(
        {},
        optional={
            "city": text,
            "days": st.integers(),
            "hourly": st.booleans(),
            "where": st.dictionaries(st.sampled_from("ab"), st.integers() | text, max_size=2),
            "tags": st.lists(st.integers() | text, max_size=2),
        },
    )


lengths = st.lists(st.integers(1, 9), min_size=1, max_size=5)
EXAMPLES = 40
"""For each of the many formats, and others in every run."""

FORMATS = sorted(TOOL_FORMATS)
MARKED = [name for name in FORMATS if not TOOL_FORMATS[name].bare]


def assert_calls(events: list[Any], calls: list[Call]) -> None:
    found = answer_of(events).tool_calls
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls
    assert [call.id for call in found] == [f"call_{index}" for index in range(len(calls))]


@pytest.mark.parametrize("tool_format", FORMATS)
def test_calls_are_read(tool_format: str):
    text = write(tool_format, [PARIS, NOW])
    events = events_of(new_parser(tool_format), [text])
    assert_calls(events, [PARIS, NOW])
    assert answer_of(events).content == ""
    assert [type(event) for event in joined(events)] == [
        ToolCallBegin,
        ToolCallArgumentsDelta,
        ToolCallEnd,
    ] * 2


@pytest.mark.parametrize("tool_format", FORMATS)
def test_a_call_without_arguments_has_an_empty_object(tool_format: str):
    [call] = answer_of(events_of(new_parser(tool_format), [write(tool_format, [NOW])])).tool_calls
    assert (call.name, call.arguments) == ("now", "{}")


@pytest.mark.parametrize("tool_format", FORMATS)
@settings(max_examples=EXAMPLES)
@given(data=st.data(), pieces=lengths, live=st.booleans())
def test_any_chunking_gives_the_same_events(
    tool_format: str, data: st.DataObject, pieces: list[int], live: bool
):
    argument_lists = data.draw(st.lists(arguments_for(tool_format), min_size=1, max_size=3))
    calls = [("weather", arguments) for arguments in argument_lists]
    text = write(tool_format, calls)
    if tool_format in MARKED:
        text = data.draw(st.sampled_from(["", "Let me look. ", "¿Sí?\n"])) + text
    whole = events_of(new_parser(tool_format, live=live), [text])
    assert_calls(whole, calls)
    assert joined(events_of(new_parser(tool_format, live=live), cut(text, pieces))) == joined(whole)


# Texts of which many begin like a call and are none.
fragments = st.lists(
    st.sampled_from(
        [
            *sorted(
                {mark for item in TOOL_FORMATS.values() for mark in (*item.begins, *item.markers)}
            ),
            '{"name": "weather", "arguments": {}}',
            '{"name": "now"',
            '"arguments": {"a": "',
            "call:now{a:",
            "<function=now>",
            "now(a=1)]",
            "function",
            *'{}[]",:\\ \n<|x',
        ]
    ),
    max_size=12,
).map("".join)


@pytest.mark.parametrize("tool_format", FORMATS)
@settings(max_examples=EXAMPLES)
@given(text=fragments, pieces=lengths, live=st.booleans())
def test_any_chunking_of_anything_gives_the_same_events(
    tool_format: str, text: str, pieces: list[int], live: bool
):
    whole = events_of(new_parser(tool_format, live=live), [text])
    assert joined(events_of(new_parser(tool_format, live=live), cut(text, pieces))) == joined(whole)
    if not any(isinstance(event, ToolCallBegin) for event in whole):
        content = answer_of(whole).content
        # Where a grammar vouches for calls, the beginning of one at the end was cut short.
        assert text.startswith(content) if live else content == text
    if not live:
        for call in answer_of(whole).tool_calls:
            assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize("tool_format", FORMATS)
def test_a_call_that_is_cut_short_is_content(tool_format: str):
    text = write(tool_format, [PARIS])
    end = text.index("3") if tool_format != "qwen3_coder" else text.index("</function>")
    for length in range(1, end):
        events = events_of(new_parser(tool_format), [text[:length]])
        assert events == [ContentDelta(text[:length])]


@pytest.mark.parametrize("tool_format", MARKED)
def test_text_around_calls_stays_content(tool_format: str):
    text = f"Let me look.\n{write(tool_format, [NOW])}\nThere it is."
    events = joined(events_of(new_parser(tool_format), [text]))
    assert events[0] == ContentDelta("Let me look.")
    assert events[-1] == ContentDelta("There it is.")
    assert_calls(events, [NOW])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>not json</tool_call>",
        '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": 01}}</tool_call>',
        f'<tool_call>{{"name": "now", "arguments": {{"a": {"9" * 5000}}}}}</tool_call>',
        f'<tool_call>{{"name": "now", "arguments": {{"a": {"[" * (MAX_DEPTH + 1)}',
        '<tool_call>{"name": "now" "arguments": {}}</tool_call>',
        "<tool_call>",
    ],
)
def test_a_broken_call_is_content_and_the_next_one_is_read(text: str):
    events = events_of(new_parser("hermes"), [text])
    assert joined(events) == [ContentDelta(text)]
    if text.endswith("</tool_call>"):
        more = events_of(new_parser("hermes"), [f"{text} {write('hermes', [NOW])}"])
        assert answer_of(more).content == text
        assert_calls(more, [NOW])


def test_a_call_in_place_of_the_end_of_another_is_read():
    events = events_of(new_parser("hermes"), ['<tool_call>{"name": <tool_call>{"name": "now"}'])
    assert answer_of(events).content == '<tool_call>{"name":'
    assert_calls(events, [NOW])


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"arguments": {"a": 1}, "name": "now"}', '{"a": 1}'),
        ('{"name": "now", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"name": "now", "arguments": null}', "{}"),
        ('{"name": "now", "arguments": ""}', "{}"),
        ('{"name": "now", "parameters": {"a":1}}', '{"a":1}'),
        ('{"id": "7", "type": "function", "name": "now"}', "{}"),
        ('{"name": "now", "arguments": {"a": "two\nlines"}}', '{"a": "two\\nlines"}'),
        ('{"name": "now", "arguments": {"a": "}</tool_call>"}}', '{"a": "}</tool_call>"}'),
        ('{"name": "now", "arguments": {"a": 1}}}', '{"a": 1}'),
        ('\n{"name": "now", "arguments": {"a": 1}}\n}]}\n', '{"a": 1}'),
    ],
)
def test_what_models_make_of_json(body: str, arguments: str):
    events = events_of(new_parser("hermes"), [f"<tool_call>{body}</tool_call>"])
    [call] = answer_of(events).tool_calls
    assert (call.name, call.arguments) == ("now", arguments)
    assert answer_of(events).content == ""


def test_braces_behind_a_call_are_content_where_no_end_follows():
    call = '<tool_call>{"name": "now", "arguments": {}}'
    answer = answer_of(events_of(new_parser("hermes"), [call + " } is a brace."]))
    assert [found.name for found in answer.tool_calls] == ["now"]
    assert answer.content == "} is a brace."


@pytest.mark.parametrize("live", [False, True])
def test_an_end_tag_that_is_cut_short_is_no_content(live: bool):
    whole = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for end in range(whole.index("}}") + 2, len(whole) + 1):
        parser = new_parser("hermes", live=live)
        answer = answer_of([*parser.push(whole[:end]), *parser.finish(cut=True)])
        assert (answer.content, [call.arguments for call in answer.tool_calls]) == ("", ["{}"])


@pytest.mark.parametrize(
    "text",
    [
        "<parameter=city>\nRome\n<parameter=days>\n3\n</parameter>\n",
        "<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n",
        "<parameter=city>\nRome\n<parameter=days>\n3\n",
        "<parameter=city>Rome<parameter=days>3",
    ],
)
@given(pieces=lengths)
def test_a_parameter_ends_where_the_next_begins_or_the_call_ends(text: str, pieces: list[int]):
    text = f"<tool_call>\n<function=weather>\n{text}</function>\n</tool_call>"
    events = events_of(new_parser("qwen3_coder"), cut(text, pieces))
    assert_calls(events, [("weather", {"city": "Rome", "days": 3})])


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "3", "3"),
        ({"type": ["string", "null"]}, "3", "3"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, '"3"', "3"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "3", "3"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "3", 3),
        ({"anyOf": [{"type": "array"}, {}]}, "3", 3),
        ({"enum": ["3", "4"]}, "3", "3"),
        ({"allOf": [{"const": "3"}], "title": "N"}, "3", "3"),
        ({"$ref": "#/$defs/N"}, "3", "3"),
        ({"type": "object"}, '{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        ({"type": "object"}, "{'a': [1, True, None]}", {"a": [1, True, None]}),
        ({"type": "boolean"}, "False", False),
        ({"type": "array"}, "[__import__('os')]", "[__import__('os')]"),
        ({}, "True", "True"),
        ({}, "3", 3),
    ],
)
def test_schemas_say_what_an_unquoted_argument_is(schema: Any, text: str, value: Any):
    parameters = {
        "type": "object",
        "properties": {"x": schema},
        "$defs": {"N": {"type": "string"}},
    }
    tool = Tool(name="f", parameters=parameters)
    assert value_of(text, tool.properties["x"]) == value


def test_an_enforced_parameter_may_hold_what_begins_another():
    value = "<parameter=days> and </function>"
    text = f"<function=weather>\n<parameter=city>\n{value}\n</parameter>\n</function>"
    events = events_of(new_parser("qwen3_coder", live=True), [text])
    assert_calls(events, [("weather", {"city": value})])


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        ("llama3_json", '{"name": "Ana", "parameters": {}}'),
        ("llama3_json", '{"city": "París"} is the answer.'),
        ("llama3_json", "  {"),
        ("pythonic", "[1] says that [2] is wrong."),
        ("pythonic", "[unknown(a=1)]"),
        ("pythonic", "[weather(city=open('/etc/passwd'))]"),
        ("pythonic", "[weather(**{})]"),
        ("pythonic", "[weather(1, 2, 3, 4, 5, 6)]"),
        ("pythonic", "[now(), 7]"),
    ],
)
def test_an_answer_that_only_looks_like_a_call_is_content(tool_format: str, text: str):
    assert joined(events_of(new_parser(tool_format), [text])) == [ContentDelta(text)]


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        ("llama3_json", '<|python_tag|>{"name": "weather", "parameters": {"city": "Rome"}}'),
        ("pythonic", '<|python_start|>[weather("Rome")]<|python_end|>'),
        (
            "lfm2",
            '<|tool_call_start|>[{"name": "weather", "arguments": {"city": "Rome"}}]'
            "<|tool_call_end|>",
        ),
        ("mistral_args", '[TOOL_CALLS]weather[CALL_ID]abc123def[ARGS]{"city": "Rome"}'),
        ("mistral_args", '[TOOL_CALLS]weather{"city": "Rome"}'),
        ("mistral", '[TOOL_CALLS]{"name": "weather", "arguments": {"city": "Rome"}}'),
        ("deepseek_v3", '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Rome"}'),
        ("qwen3_coder", "<function=weather><parameter=city>Rome</parameter></function>"),
        ("qwen3_coder", '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}'),
        (
            "glm45",
            "<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>",
        ),
        ("cohere", '<|START_ACTION|>{"tool_name": "weather", "parameters": {"city": "Rome"}}'),
        ("kimi_k2", '<|tool_call_begin|>weather<|tool_call_argument_begin|>{"city": "Rome"}'),
        (
            "deepseek_v32",
            '<｜DSML｜tool_calls><｜DSML｜invoke name="weather"><｜DSML｜parameter name="city">Rome'
            "</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>",
        ),
        ("gemma", '```tool_code\n{"name": "weather", "parameters": {"city": "Rome"}}\n```'),
        ("gemma", '```tool_code\nx = weather(city="Rome")\n```'),
    ],
)
def test_variants(tool_format: str, text: str):
    assert_calls(events_of(new_parser(tool_format), [text]), [("weather", {"city": "Rome"})])


def test_arguments_stream_as_they_come_where_a_grammar_vouches_for_them():
    parser = new_parser("hermes", live=True)
    assert parser.push('<tool_call>\n{"name": "weather"') == [ToolCallBegin(0, "call_0", "weather")]
    assert parser.push(', "arguments": {"ci') == [ToolCallArgumentsDelta(0, '{"ci')]
    assert parser.push('ty": "R') == [ToolCallArgumentsDelta(0, 'ty": "R')]
    assert parser.push('ome"}}') == [ToolCallArgumentsDelta(0, 'ome"}'), ToolCallEnd(0)]
    assert parser.push("\n</tool_call>") == []
    assert parser.finish() == []


def test_reading_takes_time_in_proportion_to_the_text():
    text = '<tool_call>{"name": "now", "arguments": {"a": "' * 20_000
    begin = time.process_time()
    events = events_of(new_parser("hermes"), cut(text, [4]))
    assert time.process_time() - begin < 10
    assert answer_of(events).content == text
