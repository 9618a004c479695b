"""How conversations reach a template, and what is refused on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from caudal.chat.conversation import Conversation, Message, Tool, ToolCall, ToolChoice
from caudal.chat.dialect import choose_dialect
from caudal.chat.events import ContentDelta, ToolCallBegin
from caudal.chat.preparer import MAX_TEMPLATE, ChatPreparer
from caudal.errors import ParameterError, TemplateError
from caudal.formats.chat_template import ChatTemplate
from caudal.formats.tokenizer import Tokenizer
from support.dialects import MODELS, SmallModel
from support.template_workers import shared_workers

TURNS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<{{ call.id }} {{ call.function.name }} "
    "{{ call.function.arguments | tojson }}>{% endfor %}"
    "{% if m.tool_call_id %}({{ m.tool_call_id }} {{ m.name }}){% endif %}{{ '\n' }}{% endfor %}"
)
WEATHER = Tool(name="weather", description="Of a city")
ASK = Message(role="user", content="Hi")
CALLED = [
    ASK,
    Message(
        role="assistant",
        content="Let me see.",
        tool_calls=[ToolCall(id="call_1", name="weather", arguments='{"city": "Rome"}')],
    ),
    Message(role="tool", content="Rain", tool_call_id="call_1"),
]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return SmallModel(["<|im_end|>"], "").tokenizer(tmp_path)


def prompt_of(tokenizer: Tokenizer, source: str, messages: list[Message], **more: Any) -> str:
    chat = ChatPreparer(
        ChatTemplate(source, tokenizer, workers=shared_workers()),
        tokenizer,
        request_templates=shared_workers(),
    )
    prompt = chat.prepare(Conversation(messages=messages, **more))
    return tokenizer.decode(prompt.tokens, skip_special_tokens=False)


def test_tools_calls_and_results_go_through_a_template_that_knows_them(tokenizer: Tokenizer):
    template = "{{ tools | tojson }}{{ '\n' }}" + TURNS
    text = prompt_of(tokenizer, template, CALLED, tools=[WEATHER])
    tools, *lines = text.splitlines()
    assert json.loads(tools) == [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "Of a city",
                "parameters": {"type": "object", "properties": {}},
            },
        }
    ]
    assert lines == [
        "[user]Hi",
        '[assistant]Let me see.<call_1 weather {"city": "Rome"}>',
        "[tool]Rain(call_1 weather)",
    ]


def test_a_template_without_tools_is_told_in_hermes_format(tokenizer: Tokenizer):
    messages = [Message(role="system", content="Be brief."), *CALLED]
    text = prompt_of(tokenizer, TURNS, messages, tools=[WEATHER])
    assert text.startswith("[system]Be brief.\n\nYou can call functions")
    signature = {"name": "weather", "description": "Of a city"}
    schema = {"parameters": {"type": "object", "properties": {}}}
    assert f"<tools>\n{json.dumps(signature | schema)}\n</tools>" in text
    assert text.endswith(
        "[user]Hi\n[assistant]Let me see.\n<tool_call>\n"
        '{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
        "[user]<tool_response>\nRain\n</tool_response>\n"
    )


def test_results_and_what_the_user_says_then_are_one_message(tokenizer: Tokenizer):
    """Templates that insist on alternating roles see them alternate."""
    more = Message(role="tool", content="Wind", tool_call_id="call_2")
    text = prompt_of(tokenizer, TURNS, [*CALLED, more, Message(role="user", content="And?")])
    assert text.endswith(
        "[user]<tool_response>\nRain\n</tool_response>\n<tool_response>\nWind\n</tool_response>\n"
        "And?\n"
    )


def test_without_a_system_message_the_first_user_message_tells_of_tools(tokenizer: Tokenizer):
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('No system') }}{% endif %}"
    text = prompt_of(tokenizer, refuses + TURNS, [ASK], tools=[WEATHER])
    assert text.startswith("[user]You can call functions")
    assert text.endswith("\n\nHi\n")


def test_tools_that_may_not_be_called_are_not_told(tokenizer: Tokenizer):
    tools = [WEATHER, Tool(name="now")]
    none = prompt_of(tokenizer, TURNS, [ASK], tools=tools, tool_choice=ToolChoice(mode="none"))
    assert none == "[user]Hi\n"
    some = prompt_of(
        tokenizer, TURNS, [ASK], tools=tools, tool_choice=ToolChoice(mode="auto", names=["now"])
    )
    assert '"now"' in some
    assert '"weather"' not in some


def test_developer_is_system_unless_the_template_knows_it(tokenizer: Tokenizer):
    messages = [Message(role="developer", content="Be kind."), ASK]
    assert prompt_of(tokenizer, TURNS, messages).startswith("[system]Be kind.")
    knows = TURNS + "{% if messages[0].role == 'developer' %}{% endif %}"
    assert prompt_of(tokenizer, knows, messages).startswith("[developer]Be kind.")


def test_ids_are_as_mistrals_templates_want_them(tokenizer: Tokenizer):
    template = (
        "{% for m in messages %}{% for call in m.tool_calls or [] %}{% if call.id | length != 9 %}"
        "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}"
        "{% endif %}{% endfor %}{% endfor %}{{ tools }}" + TURNS
    )
    lines = prompt_of(tokenizer, template, CALLED).splitlines()
    called = lines[1].partition("<")[2].split()[0]
    assert lines[2] == f"[tool]Rain({called} weather)"


@pytest.mark.parametrize("join", ["+", "~"])
def test_a_template_may_join_arguments_to_other_texts(tokenizer: Tokenizer, join: str):
    template = (
        "{{ tools }}{% for m in messages %}{% for call in m.tool_calls or [] %}"
        f"{{{{ '<' {join} call['function']['arguments'] {join} '>' }}}}"
        "{% endfor %}{% endfor %}"
    )
    assert prompt_of(tokenizer, template, CALLED).endswith('<{"city": "Rome"}>')


def test_a_template_refuses_in_its_own_words(tokenizer: Tokenizer):
    with pytest.raises(TemplateError, match=r"^Roles must alternate$"):
        prompt_of(tokenizer, "{{ raise_exception('Roles must alternate') }}", [ASK])


def test_reasoning_goes_back_to_the_template(tokenizer: Tokenizer):
    template = "{% for m in messages %}{{ m.reasoning_content }}{% endfor %}"
    messages = [ASK, Message(role="assistant", content="4", reasoning="2 + 2")]
    assert prompt_of(tokenizer, template, messages) == "2 + 2"


@pytest.mark.parametrize(
    ("reads", "effort", "written"),
    [
        ("reasoning_effort", "high", "high"),
        ("reasoning_effort", "none", "none"),
        ("enable_thinking", "none", "False"),
        ("thinking", "none", "False"),
        ("enable_thinking", "minimal", ""),
        ("enable_thinking", "low", "True"),
        ("thinking", "max", "True"),
        ("nothing", "none", ""),
    ],
)
def test_reasoning_effort(tokenizer: Tokenizer, reads: str, effort: Any, written: str):
    template = f"{{{{ {reads} }}}}"
    assert prompt_of(tokenizer, template, [ASK], reasoning_effort=effort) == written


PICKY = (
    "{% if reasoning_effort not in ['no_think', 'low', 'high'] %}"
    "{{ raise_exception('should be no_think, low or high') }}{% endif %}{{ reasoning_effort }}"
)
BOTH = "{{ thinking }} {{ reasoning_effort }}"
IN_TEXT = "{% if '/no_think' in messages[0].content %}off{% else %}on{% endif %}"


@pytest.mark.parametrize(
    ("template", "effort", "written"),
    [
        (PICKY, "none", "no_think"),
        (PICKY, "minimal", "low"),
        (PICKY, "low", "low"),
        (PICKY, "medium", "high"),
        (PICKY, "max", "high"),
        ("{{ 1 if reasoning_effort == 'low' else reasoning_effort }}", "medium", "medium"),
        ("{{ reasoning_effort }}", "max", "high"),
        ("{{ reasoning_effort }}{# not 'max' #}", "xhigh", "high"),
        ('{% set known = ["xhigh"] %}{{ reasoning_effort }}', "max", "xhigh"),
        ("{% set known = ['xhigh', 'max'] %}{{ reasoning_effort }}", "max", "max"),
        (BOTH, "none", "False none"),
        (BOTH, "minimal", "True minimal"),
        ("{{ reasoning_strength }}", "high", "high"),
        ("{{ thinking_budget }}", "none", "0"),
        ("{{ thinking_budget }}", "high", ""),
        (IN_TEXT, "none", "off"),
        (IN_TEXT, "high", "on"),
        ("{% if '<|channel|><|message|>' %}{% endif %}{{ reasoning_effort }}", "none", "low"),
        ("{% if '<|channel|><|message|>' %}{% endif %}{{ reasoning_effort }}", "max", "high"),
    ],
)
def test_reasoning_effort_in_the_templates_own_words(
    tokenizer: Tokenizer, template: str, effort: Any, written: str
):
    assert prompt_of(tokenizer, template, [ASK], reasoning_effort=effort) == written
    system = Message(role="system", content="Be brief.")
    assert prompt_of(tokenizer, template, [system, ASK], reasoning_effort=effort) == written


@pytest.mark.parametrize(
    ("template", "effort", "ignored"),
    [
        ("{{ reasoning_effort }}", "high", ()),
        ("{{ enable_thinking }}", "high", ()),
        ("{{ messages }}", "high", ("reasoning_effort",)),
        ("{{ enable_thinking }}", "minimal", ("reasoning_effort",)),
        ("{{ messages }}", "none", ()),  # it never thinks anyway
        ("{{ messages }}<think></think>", "none", ("reasoning_effort",)),
        ("{{ messages }}", None, ()),
    ],
)
def test_effort_without_effect_is_said(
    tokenizer: Tokenizer, template: str, effort: Any, ignored: tuple[str, ...]
):
    model = ChatPreparer(ChatTemplate(template, tokenizer), tokenizer)
    asked = Conversation(messages=[ASK], reasoning_effort=effort)
    assert model.prepare(asked).ignored == ignored


def test_a_request_may_bring_its_own_template(tokenizer: Tokenizer):
    template = "{{ messages[0].content | upper }} {{ mood }}"
    text = prompt_of(tokenizer, TURNS, [ASK], template=template, template_kwargs={"mood": ":)"})
    assert text == "HI :)"
    with pytest.raises(TemplateError, match="line 1"):
        prompt_of(tokenizer, TURNS, [ASK], template="{% if %}")
    with pytest.raises(TemplateError):
        prompt_of(tokenizer, TURNS, [ASK], template="{{ messages.__class__.__mro__ }}")
    with pytest.raises(ParameterError, match="characters") as refused:
        prompt_of(tokenizer, TURNS, [ASK], template="x" * (MAX_TEMPLATE + 1))
    assert refused.value.param == "chat_template"


@pytest.mark.parametrize(
    ("prefill", "answer", "reasoning", "content"),
    [
        ("<think>Hm", " 4?</think>4", "4?", "4"),
        ("<think>Hm</think>It is", " <think>", "", " <think>"),
        ("It is", "<think>4</think>", "", "<think>4</think>"),
        ("", "<think>Hm</think>4", "Hm", "4"),
    ],
)
def test_a_continued_message_may_be_within_its_reasoning(
    tmp_path: Path, prefill: str, answer: str, reasoning: str, content: str
):
    chat, _ = MODELS["qwen3"].load(tmp_path)
    messages = [ASK, Message(role="assistant", content=prefill)]
    prompt = chat.prepare(
        Conversation(messages=messages, add_generation_prompt=False, continue_final_message=True)
    )
    parser = prompt.new_parser()
    events = [*parser.push(answer), *parser.finish()]
    texts = {type(event).__name__: event.text for event in events}  # type: ignore[union-attr]
    assert texts.get("ReasoningDelta", "") == reasoning
    assert texts.get("ContentDelta", "") == content


def test_a_user_who_types_a_marker_begins_no_reasoning(tmp_path: Path):
    chat, _ = MODELS["qwen3"].load(tmp_path)
    prompt = chat.prepare(Conversation(messages=[Message(role="user", content="What is <think>")]))
    parser = prompt.new_parser()
    assert parser.push("A tag.")[0].__class__.__name__ == "ContentDelta"


def test_a_harmony_message_can_be_continued(tmp_path: Path):
    model = SmallModel(
        MODELS["gpt-oss"].control,
        "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}"
        "<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
    )
    chat, _ = model.load(tmp_path)
    messages = [ASK, Message(role="assistant", content="It is")]
    prompt = chat.prepare(
        Conversation(messages=messages, add_generation_prompt=False, continue_final_message=True)
    )
    parser = prompt.new_parser()
    assert [event.text for event in parser.push(" 4.")] == [" 4."]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "tools", "reasoning"),
    [
        ("hermes", "hermes", "none"),
        ("qwen3", "hermes", "think"),
        ("deepseek_r1", "deepseek_v3", "think"),
        ("qwen3_coder", "qwen3_coder", "none"),
        ("llama3", "llama3_json", "none"),
        ("mistral", "mistral", "none"),
        ("magistral", "mistral_args", "mistral"),
        ("granite", "granite", "none"),
        ("functiongemma", "functiongemma", "none"),
        ("gpt-oss", "openai", "openai"),
        ("muse", "muse_glimmer", "muse_glimmer"),
        ("plain", "hermes", "none"),
        ("lfm2", "lfm2", "none"),
        ("lfm2 by its tokens", "lfm2", "none"),
        ("lfm2 by its list of tools", "lfm2", "none"),
        ("glm", "glm45", "think"),
        ("kimi", "kimi_k2", "none"),
        ("minimax", "minimax_m2", "none"),
        ("deepseek_v32", "deepseek_v32", "none"),
        ("seed", "seed_oss", "none"),
        ("command-r", "cohere", "none"),
        ("nemotron", "nemotron", "none"),
        ("apriel", "apriel", "none"),
        ("functionary", "functionary", "none"),
        ("unknown", "none known", "none"),
        ("qwen3.5", "qwen3_coder", "think"),
        ("glm47", "glm47", "think"),
        ("deepseek_v4", "deepseek_v4", "think"),
        ("phi4_mini", "phi4_mini", "none"),
        ("gemma4", "gemma4", "gemma4"),
    ],
)
def test_the_template_shows_the_dialect(tmp_path: Path, name: str, tools: str, reasoning: str):
    chat, _ = MODELS[name].load(tmp_path)
    assert chat.dialect.tool_parser == tools
    assert chat.dialect.reasoning_parser == reasoning


def test_users_may_name_the_dialect():
    chosen = choose_dialect(
        "<tool_call></think>",
        template_takes_tools=True,
        tool_parser="llama4_pythonic",
        reasoning_parser="none",
    )
    assert (chosen.tool_parser, chosen.reasoning_parser) == ("pythonic", "none")
    chosen = choose_dialect("", template_takes_tools=True, tool_parser="openai")
    assert (chosen.tool_parser, chosen.reasoning_parser) == ("openai", "none")
    with pytest.raises(ParameterError, match="tool_parser must be one of auto, none, openai"):
        choose_dialect("", template_takes_tools=True, tool_parser="magic")


def test_a_model_whose_format_nobody_knows_calls_only_where_it_must(tmp_path: Path):
    chat, _ = MODELS["unknown"].load(tmp_path)
    text = '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'
    free = chat.prepare(Conversation(messages=[ASK], tools=[WEATHER]))
    assert free.structured_outputs is None
    parser = free.new_parser()
    assert [*parser.push(text), *parser.finish()] == [ContentDelta(text)]
    must = Conversation(messages=[ASK], tools=[WEATHER], tool_choice=ToolChoice(mode="required"))
    prompt = chat.prepare(must)
    assert prompt.structured_outputs is not None
    parser = prompt.new_parser()
    events = [*parser.push(text), *parser.finish()]
    assert [event.name for event in events if isinstance(event, ToolCallBegin)] == ["weather"]


def test_only_markers_become_visible(tmp_path: Path):
    chat, tokenizer = MODELS["mistral"].load(tmp_path)
    prompt = chat.prepare(Conversation(messages=[ASK], tools=[WEATHER]))
    assert prompt.visible_tokens == {tokenizer.special_tokens["[TOOL_CALLS]"]}
    assert chat.prepare(Conversation(messages=[ASK])).visible_tokens == frozenset()


def test_without_a_tool_parser_calls_cannot_be_enforced(tmp_path: Path):
    chat, _ = MODELS["mistral"].load(tmp_path, tool_parser="none")
    chat.prepare(Conversation(messages=[ASK], tools=[WEATHER]))
    with pytest.raises(ParameterError, match="reads no tool calls"):
        chat.prepare(
            Conversation(messages=[ASK], tools=[WEATHER], tool_choice=ToolChoice(mode="required"))
        )
