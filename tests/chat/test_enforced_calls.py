"""Calls that a grammar enforces: whatever a model says, they parse and follow their schema."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from caudal.chat.calls.writing import write_calls
from caudal.chat.conversation import Conversation, Message, Tool, ToolCall, ToolChoice
from caudal.chat.events import Answer
from caudal.chat.preparer import ChatPreparer
from caudal.chat.prompt import ChatPrompt
from caudal.engine.grammar import MatcherError
from caudal.formats.detokenizer import IncrementalDetokenizer
from caudal.formats.tokenizer import Tokenizer
from caudal.grammars.compiler import GrammarCompiler, LLMatcher
from caudal.structured_outputs import StructuredOutputsParams
from support.dialects import MODELS

SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Rome", "París"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 20},
            "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "note": {"type": "string"},
        },
        "required": ["city", "days"],
    },
    "now": {"type": "object", "properties": {}},
}
TOOLS = [Tool(name=name, parameters=schema) for name, schema in SCHEMAS.items()]
REQUIRED = ToolChoice(mode="required")
ASK = [Message(role="user", content="Hi")]


class Harness:
    """A model that draws among the tokens that its grammar allows."""

    def __init__(self, name: str, folder: Path) -> None:
        self.chat: ChatPreparer
        self.tokenizer: Tokenizer
        self.chat, self.tokenizer = MODELS[name].load(folder)
        self.grammars = GrammarCompiler(self.tokenizer)

    def matcher(self, prompt: ChatPrompt) -> LLMatcher:
        assert prompt.structured_outputs is not None
        return self.grammars.compile_now(prompt.structured_outputs).matcher()

    def draw(self, prompt: ChatPrompt, seed: int, limit: int = 4000) -> list[int]:
        """The tokens of an answer, without the one that ends it."""
        matcher, draw = self.matcher(prompt), random.Random(seed)
        tokens: list[int] = []
        while not matcher.complete:
            assert len(tokens) < limit
            forced = list(matcher.forced())
            if not forced and draw.random() < 0.1:
                forced = self.nudge(matcher, draw)
            if not forced:
                allowed = [
                    token
                    for token in range(self.tokenizer.vocab_size)
                    if matcher.allowed()[token // 8] >> token % 8 & 1
                ]
                # Text could go on for ever: take what ends or marks something when there is.
                rare = [t for t in allowed if t >= 256 or t in self.tokenizer.eos_ids]
                forced = [draw.choice(rare if rare and draw.random() < 0.3 else allowed)]
            if forced[0] in self.tokenizer.eos_ids:
                break
            tokens += forced
            matcher.accept(forced)
        return tokens

    def nudge(self, matcher: LLMatcher, draw: random.Random) -> list[int]:
        """The end of an argument or a thought, which no chance would write."""
        ends = "\n</parameter>\n", "</｜DSML｜parameter>\n", "</atem:parameter>\n", "</think>"
        text = draw.choice(ends)
        matcher = matcher.fork()
        tokens = self.tokenizer.encode(text, add_special=False, parse_special=True)
        for token in tokens:
            if not matcher.allowed()[token // 8] >> token % 8 & 1:
                return []
            matcher.accept([token])
        return tokens

    def read(self, prompt: ChatPrompt, tokens: Sequence[int]) -> Answer:
        """The answer, as it is read token by token."""
        parser, answer = prompt.new_parser(), Answer()
        text = IncrementalDetokenizer(self.tokenizer, visible_tokens=prompt.visible_tokens)
        for token in tokens:
            answer.add(parser.push(text.push(token)))
        answer.add(parser.push(text.finish()))
        answer.add(parser.finish())
        return answer

    def accepts(self, prompt: ChatPrompt, text: str) -> bool:
        """Whether an answer of this text is allowed, with control tokens where it names them."""
        matcher = self.matcher(prompt)
        try:
            for token in self.tokenizer.encode(text, add_special=False, parse_special=True):
                if not matcher.allowed()[token // 8] >> token % 8 & 1:
                    return False
                matcher.accept([token])
        except MatcherError:
            return False
        ends = self.tokenizer.eos_ids
        return matcher.complete or any(matcher.allowed()[end // 8] >> end % 8 & 1 for end in ends)


@pytest.fixture(params=sorted(MODELS))
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Harness:
    return Harness(request.param, tmp_path)


def check(answer: Answer) -> None:
    for call in answer.tool_calls:
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


@pytest.mark.parametrize("parallel", [False, True])
def test_required_calls_follow_their_schema(model: Harness, parallel: bool):
    conversation = Conversation(
        messages=ASK, tools=TOOLS, tool_choice=REQUIRED, parallel_tool_calls=parallel
    )
    prompt = model.chat.prepare(conversation)
    for seed in range(6):
        answer = model.read(prompt, model.draw(prompt, seed))
        assert answer.tool_calls
        assert answer.content == ""
        assert parallel or len(answer.tool_calls) == 1
        check(answer)


def test_a_named_tool_is_the_only_one(model: Harness):
    choice = ToolChoice(mode="required", names=["now"])
    prompt = model.chat.prepare(Conversation(messages=ASK, tools=TOOLS, tool_choice=choice))
    for seed in range(3):
        answer = model.read(prompt, model.draw(prompt, seed))
        assert {(call.name, call.arguments) for call in answer.tool_calls} == {("now", "{}")}


def test_strict_tools_follow_their_schema_where_the_model_is_free(model: Harness):
    tools = [Tool(name=t.name, parameters=t.parameters, strict=True) for t in TOOLS]
    prompt = model.chat.prepare(Conversation(messages=ASK, tools=tools))
    for seed in range(12):
        check(model.read(prompt, model.draw(prompt, seed)))


def test_text_and_calls_where_the_model_is_free(tmp_path: Path):
    tools = [Tool(name=t.name, parameters=t.parameters, strict=True) for t in TOOLS]
    model = Harness("hermes", tmp_path)
    prompt = model.chat.prepare(Conversation(messages=ASK, tools=tools))
    good = (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>'
    )
    assert model.accepts(prompt, "Just text, {} or <b>.")
    assert model.accepts(prompt, good)
    assert model.accepts(prompt, f"Let me see.\n{good}")
    assert model.accepts(prompt, f"{good}\n{good}\nDone.")
    assert not model.accepts(prompt, good.replace("Rome", "Oslo"))
    assert not model.accepts(prompt, good.replace("weather", "whether"))
    assert not model.accepts(prompt, "a <tool_call>")


GPT_OSS_CALL = (
    "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city": "Rome", "days": 3}'
)
MUSE_CALL = (
    ' to=weather<|message|><atem:function_calls>\n<atem:invoke name="weather">\n'
    '<atem:parameter name="city">"Rome"</atem:parameter>\n'
    '<atem:parameter name="days">3</atem:parameter>\n'
    '<atem:parameter name="note"> a\n<b></atem:parameter>\n'
    "</atem:invoke>\n</atem:function_calls>"
)
MUSE_THOUGHT = " to=self<|message|>Hm<|eom|><|start|>assistant"
HERMES_CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
DEEPSEEK_CALL = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)


@pytest.mark.parametrize(
    ("name", "answer", "reasoning", "called"),
    [
        ("hermes", HERMES_CALL, "", "now"),
        ("hermes with control tokens", HERMES_CALL, "", "now"),
        ("qwen3", f"<think>\nHm\n</think>\n\n{HERMES_CALL}", "Hm", "now"),
        ("qwen3", HERMES_CALL, "", "now"),
        ("qwen3_coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>", "", "now"),
        (
            "qwen3_coder",
            '<tool_call>\n<function=weather>\n<parameter=city>\n"Rome"\n</parameter>\n'
            "<parameter=days>\n3\n</parameter>\n<parameter=note>\na\n<b>\n</parameter>\n"
            "</function>\n</tool_call>",
            "",
            "weather",
        ),
        (
            "functiongemma",
            '<start_function_call>call:weather{city:"Rome",days:3,unit:<escape>C<escape>,'
            "note:<escape>a, {b}<escape>}<end_function_call>",
            "",
            "weather",
        ),
        ("pythonic", '[weather(city="Rome", days=3, tags=[true], note="é"), now()]', "", "weather"),
        ("lfm2", "<|tool_call_start|>[now()]<|tool_call_end|>", "", "now"),
        ("gemma", "```tool_code\nnow()\n```", "", "now"),
        ("deepseek_r1", f"Hm\n</think>\n\n{DEEPSEEK_CALL}", "Hm", "now"),
        ("llama3", '{"name": "now", "parameters": {}}', "", "now"),
        ("mistral", '[TOOL_CALLS][{"name": "now", "arguments": {}}]', "", "now"),
        ("magistral", "[THINK]Hm[/THINK][TOOL_CALLS]now[ARGS]{}", "Hm", "now"),
        ("granite", '<|tool_call|>[{"name": "now", "arguments": {}}]', "", "now"),
        ("gpt-oss", GPT_OSS_CALL, "", "weather"),
        (
            "gpt-oss",
            f"<|channel|>analysis<|message|>Hm<|end|><|start|>assistant{GPT_OSS_CALL}",
            "Hm",
            "weather",
        ),
        ("muse", MUSE_CALL, "", "weather"),
        ("muse", MUSE_THOUGHT + MUSE_CALL, "Hm", "weather"),
        ("plain", HERMES_CALL, "", "now"),
        ("unknown", HERMES_CALL, "", "now"),
        (
            "glm",
            '<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>"Rome"</arg_value>\n'
            "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>note</arg_key>\n"
            "<arg_value>a <b></arg_value>\n</tool_call>",
            "",
            "weather",
        ),
        (
            "minimax",
            '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">"Rome"'
            '</parameter>\n<parameter name="days">3</parameter>\n'
            "</invoke>\n</minimax:tool_call>",
            "",
            "weather",
        ),
        (
            "deepseek_v32",
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name='
            '"city" string="false">"Rome"</｜DSML｜parameter>\n<｜DSML｜parameter name="days" '
            'string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
            "",
            "weather",
        ),
    ],
)
def test_enforced_calls_are_written_as_the_model_knows_them(
    name: str, answer: str, reasoning: str, called: str, tmp_path: Path
):
    model = Harness(name, tmp_path)
    prompt = model.chat.prepare(Conversation(messages=ASK, tools=TOOLS, tool_choice=REQUIRED))
    assert model.accepts(prompt, answer)
    tokens = model.tokenizer.encode(answer, add_special=False, parse_special=True)
    read = model.read(prompt, tokens)
    assert read.tool_calls[0].name == called
    check(read)
    assert read.reasoning == reasoning
    assert read.content == ""


QWEN_CALL = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
GEMMA_CALL = '<|tool_call>call:weather{city:"Rome",days:3,note:<|"|>a<|"|>}<tool_call|>'
GLM_CALL = (
    '<tool_call>weather<arg_key>city</arg_key><arg_value>"Rome"</arg_value>'
    "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
)
DSML_CALL = (
    '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="false">"Rome"</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="note" string="true">a < b</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)
FAMILIES = {  # how each thinks and calls, with thinking turned on and off
    "qwen3.5": ("Hm\n</think>\n\n", QWEN_CALL),
    "glm47": ("Hm</think>", GLM_CALL),
    "deepseek_v4": ("Hm</think>\n\n", DSML_CALL),
    "gemma4": ("<|channel>thought\nHm\n<channel|>", GEMMA_CALL),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("thinking", [True, False])
def test_calls_and_forms_are_enforced_behind_thinking_that_is_on_or_off(
    name: str, thinking: bool, tmp_path: Path
):
    model = Harness(name, tmp_path)
    thought, call = FAMILIES[name]
    thought = thought if thinking else ""
    strict = [Tool(name=t.name, parameters=t.parameters, strict=True) for t in TOOLS]
    form = StructuredOutputsParams(json={"enum": [7]})
    effort: Any = "high" if thinking else "none"
    asked = Conversation(messages=ASK, tools=strict, reasoning_effort=effort)
    required = replace(asked, tool_choice=REQUIRED)
    for prompt in (model.chat.prepare(required), model.chat.prepare(asked)):
        assert model.accepts(prompt, thought + call)
        assert not model.accepts(prompt, thought + call.replace("weather", "x").replace("now", "x"))
        tokens = model.tokenizer.encode(thought + call, add_special=False, parse_special=True)
        answer = model.read(prompt, tokens)
        assert [found.name for found in answer.tool_calls] == [
            "now" if "now" in call else "weather"
        ]
        assert (answer.reasoning, answer.content) == ("Hm" if thinking else "", "")
        check(answer)
    prompt = model.chat.prepare(replace(asked, tools=()), form)
    assert model.accepts(prompt, thought + "7")
    assert not model.accepts(prompt, thought + "8")


def test_a_schema_that_the_models_own_format_cannot_hold_is_enforced_in_hermes(tmp_path: Path):
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[0-9]+$"}}}
    tool = Tool(name="f", parameters=schema)
    model = Harness("qwen3_coder", tmp_path)
    prompt = model.chat.prepare(Conversation(messages=ASK, tools=[tool], tool_choice=REQUIRED))
    call = '<tool_call>\n{"name": "f", "arguments": {"a": "12"}}\n</tool_call>'
    assert model.accepts(prompt, call)
    assert not model.accepts(prompt, call.replace("12", "x"))
    tokens = model.tokenizer.encode(call, add_special=False)
    assert [found.arguments for found in model.read(prompt, tokens).tool_calls] == ['{"a": "12"}']


def test_messages_hold_what_tags_cannot_as_json_and_several_calls(tmp_path: Path):
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[0-9]+$"}}}
    model = Harness("muse", tmp_path)
    asked = Conversation(
        messages=ASK, tools=[Tool(name="f", parameters=schema)], tool_choice=REQUIRED
    )
    prompt = model.chat.prepare(asked)
    call = ' to=f<|message|>{"a": "12"}'
    text = f"{MUSE_THOUGHT}{call}<|eom|><|start|>assistant{call}"
    assert model.accepts(prompt, text)
    assert not model.accepts(prompt, call.replace("12", "x"))
    assert not model.accepts(model.chat.prepare(replace(asked, parallel_tool_calls=False)), text)
    tokens = model.tokenizer.encode(text, add_special=False, parse_special=True)
    read = model.read(prompt, tokens)
    assert [(found.name, found.arguments) for found in read.tool_calls] == [
        ("f", '{"a": "12"}')
    ] * 2
    assert (read.reasoning, read.content) == ("Hm", "")
    # Where nothing is enforced, the model writes its tags.
    tags = (
        ' to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n'
        '<atem:parameter name="a">12</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
    )
    tokens = model.tokenizer.encode(tags, add_special=False, parse_special=True)
    free = model.chat.prepare(Conversation(messages=ASK, tools=asked.tools))
    assert [found.arguments for found in model.read(free, tokens).tool_calls] == ['{"a": "12"}']


@pytest.mark.parametrize(
    ("name", "quote", "marks"),
    [
        ("gemma4", '<|"|>', ("<|tool_call>", "<tool_call|>")),
        ("functiongemma", "<escape>", ("<start_function_call>", "<end_function_call>")),
    ],
)
def test_strings_within_lists_and_objects_are_written_as_the_model_knows_them(
    tmp_path: Path, name: str, quote: str, marks: tuple[str, str]
):
    note = {"type": "string", "enum": ["a b", "c"]}
    entry = {"type": "object", "properties": {"note": note, "n": {"type": "integer"}}}
    schema = {
        "type": "object",
        "properties": {
            "lines": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
            "where": {"type": "array", "items": entry},
            "code": {"type": "array", "items": {"type": "string", "pattern": "^[0-9]$"}},
            "none": {"type": "array", "items": {"type": "string"}, "maxItems": 0},
        },
    }
    model = Harness(name, tmp_path)
    asked = Conversation(
        messages=ASK, tools=[Tool(name="f", parameters=schema)], tool_choice=REQUIRED
    )
    prompt = model.chat.prepare(asked)

    def call(members: str) -> str:
        return f"{marks[0]}call:f{{{members.replace('~', quote)}}}{marks[1]}"

    good = 'lines:[~x, "y"]~,~z~],where:[{note:~a b~,n:3},{}],code:["7"],none:[]'
    assert model.accepts(prompt, call(good))
    for bad in (
        "lines:[]",
        "lines:[~x~,~y~,~z~]",
        'lines:["x"]',
        "where:[{note:~b~}]",
        "code:[~7~]",
        "none:[~x~]",
    ):
        assert not model.accepts(prompt, call(bad))
    tokens = model.tokenizer.encode(call(good), add_special=False, parse_special=True)
    [found] = model.read(prompt, tokens).tool_calls
    value = {"lines": ['x, "y"]', "z"], "where": [{"note": "a b", "n": 3}, {}], "code": ["7"]}
    assert json.loads(found.arguments) == {**value, "none": []}
    for seed in range(4):
        [drawn] = model.read(prompt, model.draw(prompt, seed)).tool_calls[:1]
        jsonschema.validate(json.loads(drawn.arguments), schema)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("hermes", '{"a": 1}'),
        ("muse", ' to=user<|message|>{"a": 1}'),
        ("muse", MUSE_THOUGHT + ' to=user<|message|>{"a": 1}'),
        ("qwen3", '<think>\nHm\n</think>\n\n{"a": 1}'),
        ("qwen3", '{"a": 1}'),
        ("deepseek_r1", 'Hm\n</think>\n\n{"a": 1}'),
        ("gpt-oss", '<|channel|>final<|message|>{"a": 1}'),
        (
            "gpt-oss",
            "<|channel|>analysis<|message|>Hm<|end|>"
            '<|start|>assistant<|channel|>final<|message|>{"a": 1}',
        ),
    ],
)
@pytest.mark.parametrize("with_tools", [False, True])
def test_a_form_holds_for_the_content_alone(
    name: str, answer: str, with_tools: bool, tmp_path: Path
):
    model = Harness(name, tmp_path)
    wanted = StructuredOutputsParams(
        json={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    )
    conversation = Conversation(messages=ASK, tools=TOOLS if with_tools else ())
    prompt = model.chat.prepare(conversation, wanted)
    assert model.accepts(prompt, answer)
    assert not model.accepts(prompt, answer.replace("1", '"x"'))
    assert model.accepts(prompt, HERMES_CALL) == (with_tools and name in ("hermes", "qwen3"))
    tokens = model.tokenizer.encode(answer, add_special=False, parse_special=True)
    assert model.read(prompt, tokens).content == '{"a": 1}'


@pytest.mark.parametrize(
    ("name", "begin", "call", "separator", "end"),
    [
        (
            "kimi",
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>functions.now:%s<|tool_call_argument_begin|>{}<|tool_call_end|>",
            "",
            "<|tool_calls_section_end|>",
        ),
        (
            "command-r",
            "<|START_ACTION|>[\n",
            '    {"tool_call_id": "%s", "tool_name": "now", "parameters": {}}',
            ",\n",
            "\n]<|END_ACTION|>",
        ),
    ],
)
def test_models_that_number_their_calls_may(
    name: str, begin: str, call: str, separator: str, end: str, tmp_path: Path
) -> None:
    model = Harness(name, tmp_path)
    prompt = model.chat.prepare(Conversation(messages=ASK, tools=TOOLS, tool_choice=REQUIRED))
    answer = begin + separator.join(call % number for number in (0, 1, 12)) + end
    assert model.accepts(prompt, answer)
    assert not model.accepts(prompt, begin + call % "x" + end)
    tokens = model.tokenizer.encode(answer, add_special=False, parse_special=True)
    assert [each.name for each in model.read(prompt, tokens).tool_calls] == ["now"] * 3
    tool_format = model.chat.dialect.tools
    assert tool_format is not None
    calls = [ToolCall(id=text, name="now", arguments="{}") for text in "ab"]
    written = begin + separator.join(call % number for number in (0, 1)) + end
    assert write_calls(tool_format, calls) == written


def test_calls_as_text_mark_the_strings_within_lists_and_objects(tmp_path: Path):
    tool_format = MODELS["gemma4"].load(tmp_path)[0].dialect.tools
    assert tool_format is not None
    arguments = '{"a": ["x", {"b": "<|\\"|>y", "n": null}], "c": {"d-e": "z"}}'
    written = write_calls(tool_format, [ToolCall(id="a", name="f", arguments=arguments)])
    marked = 'a:[<|"|>x<|"|>,{b:<|"|>y<|"|>,n:null}],c:{"d-e": "z"}'
    assert written == f"<|tool_call>call:f{{{marked}}}<tool_call|>"
