"""Templates of models as Ollama's packages bring them: the prompts that Ollama makes, and dialects.

The templates are written for this test, with the control tokens and in the manner of those
packages; what Ollama's own code made of them is in rendered.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from caudal.chat.calls.scanner import ToolScanner
from caudal.chat.conversation import Conversation, Message, Tool, ToolCall
from caudal.chat.event_writer import EventWriter
from caudal.chat.parser import MarkedAnswerParser
from caudal.chat.preparer import ChatPreparer
from caudal.chat.template_habits import learn_habits
from caudal.errors import TemplateError
from caudal.formats.chat_messages import normalize_messages
from caudal.formats.chat_template import ChatTemplate
from caudal.formats.go_template.ollama import OllamaTemplate
from caudal.formats.tokenizer import Tokenizer
from support.answers import answer_of, events_of
from support.template_workers import shared_workers
from support.vocabularies import bpe_metadata, make_tokenizer

FOLDER = Path(__file__).parents[1] / "data/ollama_templates"
RECORDED = json.loads((FOLDER / "rendered.json").read_text())
VALUES = json.loads((FOLDER.parent / "ollama_values.json").read_text())

DIALECTS = {
    "command-r": ("json", "none"),
    "command-r7b": ("cohere", "cohere"),
    "deepseek-r1": ("deepseek_v3", "think"),
    "deepseek-v3.1": ("deepseek_v31", "think"),
    "firefunction": ("json", "none"),
    "gpt-oss": ("openai", "openai"),
    "granite3": ("granite", "none"),
    "hermes3": ("hermes", "none"),
    "llama3.1": ("llama3_json", "none"),
    "llama4": ("pythonic", "none"),
    "magistral": ("mistral_args", "think"),
    "mistral": ("mistral", "none"),
    "mistral-small": ("mistral", "none"),
    "nemotron-mini": ("json", "none"),
    "phi4-mini": ("phi4_mini", "none"),
    "qwen2.5": ("hermes", "none"),
    "qwen3": ("hermes", "think"),
    "smollm2": ("hermes", "none"),
}
"""How the models of templates that take tools write calls and thoughts."""


def source_of(name: str) -> str:
    return (FOLDER / f"{name}.gotmpl").read_text()


def variables_of(case: Mapping[str, Any]) -> dict[str, Any]:
    """What a template is told, of a request to Ollama."""
    if "suffix" in case:
        return {"prompt": case["prompt"], "suffix": case["suffix"]}
    messages = normalize_messages(case["messages"], takes_parts=False, takes_text=True)
    think = case.get("think")
    key = "reasoning_effort" if isinstance(think, str) else "enable_thinking"
    return {"messages": messages, "tools": case.get("tools"), key: think}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("ollama"), bpe_metadata())


@pytest.mark.parametrize("name", RECORDED["rendered"])
def test_what_ollama_writes(name: str) -> None:
    expected = RECORDED["rendered"][name]
    template = OllamaTemplate.compile(source_of(name))
    assert sorted(template.names) == expected["names"]
    tags = tuple(expected["tags"])
    assert template.facts.thinking_tags == (tags if all(tags) else None)
    assert [template.render(variables_of(case)) for case in RECORDED["cases"]] == expected["texts"]


def outcome(source: str, case: Mapping[str, Any]) -> Any:
    """What a template writes, or when it is found that it writes nothing."""
    try:
        template = OllamaTemplate.compile(source)
    except TemplateError:
        return {"fails": "parse"}
    try:
        return template.render(variables_of(case))
    except TemplateError:
        return {"fails": "execute"}


def test_the_values_of_templates() -> None:
    """How tools, calls and their types print, what they have, and what a turn ends with."""
    wrong = {
        source: made
        for source, *expected in VALUES["templates"]
        if (made := [outcome(source, case) for case in VALUES["cases"]]) != expected
    }
    assert wrong == {}


def test_all_templates_have_been_recorded() -> None:
    names = {path.stem for path in FOLDER.glob("*.gotmpl")}
    assert names == RECORDED["rendered"].keys()
    with_tools = {n for n in names if "tools" in OllamaTemplate.compile(source_of(n)).names}
    assert with_tools == DIALECTS.keys()


@pytest.mark.parametrize("name", DIALECTS)
def test_dialects(name: str, tokenizer: Tokenizer) -> None:
    template = ChatTemplate(source_of(name), tokenizer, workers=shared_workers())
    preparer = ChatPreparer(template, tokenizer)
    dialect = preparer.dialect
    assert (dialect.tool_parser, dialect.reasoning_parser) == DIALECTS[name]
    assert learn_habits(template).writes_calls
    called = [ToolCall(id="call_1", name="weather", arguments='{"city": "Rome"}')]
    said = [
        Message(role="system", content="Be brief."),
        Message(role="user", content="Weather?"),
        Message(role="assistant", content="Let me see.", tool_calls=called),
        Message(role="tool", content="Rainy", tool_call_id="call_1"),
    ]
    tools = [Tool(name="weather"), Tool(name="now")]
    prompt = preparer.render(Conversation(messages=said, tools=tools))
    # Half of these templates leave the calls of a message out that has text, two the text.
    for text in ("Weather?", "weather", "Rome", "Rainy"):
        assert text in prompt
    assert ("Let me see." in prompt) == (name not in ("llama3.1", "nemotron-mini"))


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("command-r", 'Action: ```json\n[\n  {"tool_name": "now", "parameters": {"a": 1}}\n]```'),
        ("firefunction", 'functools[{"name": "now", "arguments": {"a": 1}}]'),
        ("nemotron-mini", '<toolcall> {"name": "now", "arguments": {"a": 1}} </toolcall>'),
    ],
)
def test_calls_that_a_template_shows_are_read(
    name: str, written: str, tokenizer: Tokenizer
) -> None:
    template = ChatTemplate(source_of(name), tokenizer, workers=shared_workers())
    dialect = ChatPreparer(template, tokenizer).dialect
    assert dialect.tools is not None
    writer = EventWriter(lambda: "id", live=False)
    scanner = ToolScanner(dialect.tools, {"now": Tool(name="now")}, writer, live=False)
    answer = answer_of(events_of(MarkedAnswerParser(None, scanner, writer), written))
    assert [(call.name, json.loads(call.arguments)) for call in answer.tool_calls] == [
        ("now", {"a": 1})
    ]
    assert not answer.content
    enforced = dialect.tools.syntax
    head = enforced.begin + enforced.head.replace("NAME", "now")
    call = f'{head}{{"a": 1}}{enforced.tail}{enforced.end}'
    assert "".join(written.split()) == "".join(call.split())


def test_what_begins_an_answer_is_always_written(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(source_of("qwen3"), tokenizer, workers=shared_workers())
    said = Conversation(messages=[Message(role="user", content="x")], add_generation_prompt=False)
    prompt = ChatPreparer(template, tokenizer).prepare(said)
    assert prompt.ignored == ("add_generation_prompt",)
