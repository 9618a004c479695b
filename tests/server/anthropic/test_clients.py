"""What Claude Code and the official client's helpers rely on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anthropic
import pytest
from anthropic import beta_tool

from caudal.chat.preparer import ChatPreparer
from caudal.errors import TemplateError
from support.fake_model import ByteTokenizer, ScriptedExecutor, changed, serve_fake
from support.fake_template import ToolTemplate
from support.running_server import RunningServer, Serve, running_server

Converse = Callable[..., RunningServer]

USER = {"role": "user", "content": "Hi"}
TOOL = {"name": "weather", "input_schema": {"type": "object"}}
BASE: dict[str, Any] = {"model": "fake", "max_tokens": 9, "messages": [USER]}
CALL = {"type": "tool_use", "id": "t", "name": "find", "input": {}}


def count(server: RunningServer, **fields: Any) -> int:
    body = {"model": "fake", "messages": [USER]} | fields
    response = server.http.post("/v1/messages/count_tokens", json=body)
    assert response.status_code == 200, response.text
    tokens: int = response.json()["input_tokens"]
    return tokens


class SeenPrompts(ToolTemplate):
    """Keeps what it was asked to render."""

    sources = (*ToolTemplate.sources, "reasoning_effort")

    def __init__(self, *, late_system: bool = True) -> None:
        self.late_system = late_system
        self.messages: list[Any] = []
        self.tools: list[Any] = []
        self.kwargs: dict[str, Any] = {}

    def reads(self, variable: str) -> bool:
        return variable == "reasoning_effort" or super().reads(variable)

    def encode(self, messages: Any, *, tools: Any = None, **options: Any) -> list[int]:
        roles = [message["role"] for message in messages]
        if not self.late_system and "system" in roles[1:]:
            raise TemplateError("System message must be at the beginning.")
        self.messages = [dict(message) for message in messages]
        self.tools = [tool["function"] for tool in tools or ()]
        self.kwargs = dict(options.get("template_kwargs") or {})
        return super().encode(messages, tools=tools, **options)


@pytest.fixture
def seen() -> SeenPrompts:
    return SeenPrompts()


@pytest.fixture
def server(seen: SeenPrompts) -> Any:
    template: Any = seen
    tokenizer: Any = ByteTokenizer()
    model = serve_fake(ScriptedExecutor(script=b"Yes", num_blocks=2048), max_model_len=16384)
    with running_server(changed(model, chat=ChatPreparer(template, tokenizer))) as running:
        yield running


def ask(server: RunningServer, **fields: Any) -> tuple[dict[str, Any], str]:
    """An answer, and what of the request had no effect."""
    response = server.http.post("/v1/messages?beta=true", json=BASE | fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer, response.headers.get("x-caudal-ignored", "")


def test_names_of_anthropics_models_mean_the_one_that_is_served(server: RunningServer):
    answer, said = ask(server, model="claude-opus-5-5")
    assert (answer["model"], said) == ("fake", "model")
    assert server.http.post("/v1/messages", json=BASE | {"model": "gpt-5"}).status_code == 404


def test_strictness_refuses_what_would_have_no_effect(serve: Serve):
    server = serve(ScriptedExecutor(script=b"!"), strict_fields=True)
    for more, status, blamed in (
        ({"model": "claude-opus-5-5"}, 404, "claude-opus-5-5"),
        ({"thinking": {"type": "enabled"}}, 400, "thinking"),
        ({"output_config": {"effort": "low"}}, 400, "output_config.effort"),
        ({"speed": "fast"}, 400, "speed"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 400, "web_search"),
    ):
        response = server.http.post("/v1/messages", json=BASE | more)
        assert response.status_code == status
        assert blamed in response.json()["error"]["message"]


def test_the_billing_header_stays_out_of_the_prompt(server: RunningServer, seen: SeenPrompts):
    """It differs from request to request: nothing behind it would ever come from the cache."""
    header = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;"}
    rules = {"type": "text", "text": "Be kind. x-anthropic-billing-header: is a header."}
    ask(server, system=[header, rules])
    assert seen.messages[0] == {"role": "system", "content": [rules]}
    ask(server, system=[rules, header])
    assert seen.messages[0]["content"] == [rules, header]
    ask(server, system=[header])
    assert seen.messages[0]["role"] == "user"


def test_deferred_tools_are_offered_once_they_are_referred_to(
    server: RunningServer, seen: SeenPrompts
):
    tools = [TOOL | {"defer_loading": True}, TOOL | {"name": "find"}]
    ask(server, tools=tools)
    assert [tool["name"] for tool in seen.tools] == ["find"]
    reference = {"type": "tool_reference", "tool_name": "weather"}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [reference]}
    messages = [
        USER,
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [result]},
    ]
    _, said = ask(server, tools=tools, messages=messages)
    assert said == ""
    assert [tool["name"] for tool in seen.tools] == ["find", "weather"]
    assert "weather" in json.dumps(seen.messages[-1])


def test_deferred_tools_are_all_offered_where_nothing_can_search(
    server: RunningServer, seen: SeenPrompts
):
    search = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
    _, said = ask(server, tools=[search, TOOL | {"defer_loading": True}])
    assert said == "tools[].tool_search_tool_bm25_20251119"
    assert [tool["name"] for tool in seen.tools] == ["weather"]


def test_a_conversation_changes_the_tools(server: RunningServer, seen: SeenPrompts):
    def change(kind: str, **tool: Any) -> dict[str, Any]:
        return {"role": "system", "content": [{"type": f"tool_{kind}", "tool": tool}]}

    named = {"type": "tool_reference", "name": "weather"}
    gone = [USER, change("removal", **named)]
    ask(server, tools=[TOOL], messages=gone)
    assert seen.tools == []
    ask(server, tools=[TOOL], messages=[*gone, change("addition", **named)])
    assert [tool["name"] for tool in seen.tools] == ["weather"]
    defined = {"type": "tool_definition", "definition": TOOL | {"name": "x" * 128}}
    ask(server, messages=[USER, change("addition", **defined)])
    assert [tool["name"] for tool in seen.tools] == ["x" * 128]


def test_examples_of_inputs_reach_the_model(server: RunningServer, seen: SeenPrompts):
    examples = [{"city": "Jaén"}]
    tool = TOOL | {"input_examples": examples, "strict": True}
    ask(server, tools=[tool])
    assert seen.tools[0]["parameters"]["examples"] == examples


def test_tools_that_anthropic_defines_come_with_their_schemas(
    server: RunningServer, seen: SeenPrompts
):
    screen = {"display_width_px": 800, "display_height_px": 600, "enable_zoom": True}
    tools = [
        {"type": "bash_20250124", "name": "bash", "cache_control": {"type": "ephemeral"}},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "computer_20251124", "name": "computer"} | screen,
        {"type": "memory_20250818", "name": "memory", "strict": True},
    ]
    _, said = ask(server, tools=tools)
    assert said == ""
    bash, editor, computer, memory = seen.tools
    assert bash["parameters"]["properties"].keys() == {"command", "restart"}
    commands = editor["parameters"]["properties"]["command"]["enum"]
    assert commands == ["view", "create", "str_replace", "insert"]
    assert "800 by 600" in computer["description"]
    assert "zoom" in computer["parameters"]["properties"]["action"]["enum"]
    assert "rename" in memory["parameters"]["properties"]["command"]["enum"]


@pytest.mark.parametrize("stream", [False, True])
def test_system_messages_among_others_become_the_users_where_a_template_refuses_them(
    server: RunningServer, seen: SeenPrompts, stream: bool
):
    late = {"role": "system", "content": [{"type": "text", "text": "It is Monday."}]}
    answered = {"role": "assistant", "content": "Hello."}
    fields = {"system": "Be kind.", "messages": [USER, late, answered, late], "stream": stream}
    response = server.http.post("/v1/messages", json=BASE | fields)
    assert "x-caudal-ignored" not in response.headers
    assert [message["role"] for message in seen.messages] == [
        "system",
        "user",
        "system",
        "assistant",
        "system",
    ]
    seen.late_system = False
    response = server.http.post("/v1/messages", json=BASE | fields)
    assert response.status_code == 200
    assert response.headers["x-caudal-ignored"] == "messages[].role"
    texts = [{"type": "text", "text": text} for text in ("Hi", "It is Monday.")]
    assert [(message["role"], message["content"]) for message in seen.messages] == [
        ("system", "Be kind."),
        ("user", texts),
        ("assistant", "Hello."),
        ("user", "It is Monday."),
    ]


def test_system_messages_that_go_with_the_next_turn(server: RunningServer, seen: SeenPrompts):
    passing = {"role": "system", "content": "Hurry.", "clear_at": "next_user_message"}
    ask(server, messages=[USER, passing])
    assert [message["role"] for message in seen.messages] == ["user", "system"]
    ask(server, messages=[USER, passing, {"role": "assistant", "content": "Yes."}, USER])
    assert [message["role"] for message in seen.messages] == ["user", "assistant", "user"]


def test_effort_where_the_template_has_levels(server: RunningServer, seen: SeenPrompts):
    for wanted, level in (("low", "low"), ("max", "high")):
        _, said = ask(server, output_config={"effort": wanted})
        assert said == ""
        assert seen.kwargs["reasoning_effort"] == level
    off = {"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}}
    _, said = ask(server, **off)
    assert said == "output_config.effort"
    assert seen.kwargs["reasoning_effort"] == "none"


def test_thinking_between_tools_only(server: RunningServer, seen: SeenPrompts):
    thinking = {"type": "between_tools"}
    ask(server, thinking=thinking)
    assert seen.kwargs == {"enable_thinking": False, "reasoning_effort": "none"}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "5"}
    messages = [
        USER,
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [result]},
    ]
    ask(server, thinking=thinking, messages=messages)
    assert seen.kwargs == {"enable_thinking": True}


def test_reading_a_prompt_into_the_cache(server: RunningServer):
    answer, _ = ask(server, max_tokens=0)
    assert (answer["content"], answer["stop_reason"]) == ([], "max_tokens")
    assert answer["usage"]["output_tokens"] == 0
    answer, _ = ask(server)
    assert answer["usage"]["cache_read_input_tokens"] > 0


def test_as_many_tokens_as_there_is_room_for(server: RunningServer):
    answer, _ = ask(server, max_tokens=-1)
    assert (answer["content"][0]["text"], answer["stop_reason"]) == ("Yes", "end_turn")


def test_an_earlier_name_of_the_output_format(converse: Converse):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    answer, said = ask(
        converse('{"a": 7}'),
        max_tokens=40,
        output_format={"type": "json_schema", "schema": schema},
        thinking={"type": "disabled"},
    )
    assert said == ""
    assert isinstance(json.loads(answer["content"][0]["text"])["a"], int)


def test_an_earlier_name_of_the_output_format_beside_an_effort(converse: Converse):
    server = converse('{"a": 7}')
    form = {"type": "json_schema", "schema": {"enum": [{"b": 1}]}}
    effort = {"effort": "low"}
    answer, _ = ask(server, max_tokens=40, output_format=form, output_config=effort)
    assert json.loads(answer["content"][0]["text"]) == {"b": 1}
    form = {"type": "json_schema", "schema": {"type": 7}}
    body = BASE | {"output_format": form, "output_config": effort}
    error = server.http.post("/v1/messages", json=body).json()["error"]
    assert error["message"].startswith("output_format: ")


def test_overflow_in_the_words_that_clients_look_for(serve: Serve):
    server = serve(ScriptedExecutor(script=b"!"))
    long = {"messages": [{"role": "user", "content": "x" * 1000}]}
    prompt = count(server, **long)
    response = server.http.post("/v1/messages", json=BASE | long)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"] == f"prompt is too long: {prompt} tokens > 512 maximum"
    strict = serve(ScriptedExecutor(script=b"!"), strict_fields=True)
    response = strict.http.post("/v1/messages", json=BASE | {"max_tokens": 9000})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == (
        f"input length and `max_tokens` exceed context limit: {count(server)} + 9000 > 512, "
        "decrease input length or `max_tokens` and try again"
    )


def test_the_tool_runner_goes_on_without_threads(converse: Converse):
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Jaén"}}</tool_call>'
    server = converse(call)
    asked: list[str] = []

    @beta_tool
    def weather(city: str) -> str:
        """How it is outside.

        Args:
            city: Where.
        """
        asked.append(city)
        return "sunny"

    runner = server.anthropic().beta.messages.tool_runner(
        model="fake", max_tokens=200, tools=[weather], messages=[USER], max_iterations=4
    )
    answers = list(runner)
    assert len(answers) == 4
    assert asked[:3] == ["Jaén"] * 3


def test_claude_code_sees_that_there_is_a_server(serve: Serve):
    """It looks before it sends anything, and without its key."""
    server = serve(ScriptedExecutor(script=b"!"), api_key="secret")
    response = server.http.head("/api/hello")
    assert (response.status_code, response.content) == (200, b"")


def test_a_thread_cannot_be_continued(server: RunningServer):
    with pytest.raises(anthropic.NotFoundError) as caught:
        server.anthropic().beta.messages.create(
            **BASE, thread={"type": "continue", "previous_message_id": "msg_1"}
        )
    body: Any = caught.value.body
    assert body["error"]["details"] == {"error_code": "thread_not_found"}
    assert body["request_id"] == caught.value.request_id


def test_models_in_anthropics_shape(serve: Serve):
    served = serve_fake(ScriptedExecutor(script=b"!"))
    names = ("fake", "b", "org/c:x")
    with running_server(changed(served, names=names)) as server:
        client = server.anthropic()
        assert [model.id for model in client.models.list()] == list(names)
        assert [model.id for model in client.models.list(limit=1)] == list(names)
        page = client.models.list(limit=1, after_id="fake")
        assert (page.data[0].id, page.has_more, page.first_id, page.last_id) == (
            "b",
            True,
            "b",
            "b",
        )
        page = client.models.list(limit=1, before_id="org/c:x")
        assert (page.data[0].id, page.has_more) == ("b", True)
        assert client.models.list(after_id="org/c:x").data == []
        model = client.models.retrieve("org/c:x")
        assert (model.id, model.display_name, model.type) == ("org/c:x", "org/c:x", "model")
        assert int(model.created_at.timestamp()) == served.parts.created
        assert model.max_input_tokens == served.max_model_len
        with pytest.raises(anthropic.NotFoundError) as caught:
            client.models.retrieve("d")
        body: Any = caught.value.body
        assert body["error"]["type"] == "not_found_error"
        for query in ({"limit": "0"}, {"limit": "x"}, {"after_id": "d"}):
            headers = {"anthropic-version": "2023-06-01"}
            response = server.http.get("/v1/models", params=query, headers=headers)
            assert response.status_code == 400
            assert next(iter(query)) in response.json()["error"]["message"]
        assert server.http.get("/v1/models").json()["object"] == "list"
