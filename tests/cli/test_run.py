from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import caudal.loading.load
from caudal import SamplingParams
from caudal.chat.conversation import Conversation, Message
from caudal.chat.events import ContentDelta
from caudal.cli import pull_display
from caudal.cli import run as run_module
from caudal.cli.app import app
from caudal.cli.partners import PLAIN_MAX_TOKENS, LocalPartner
from caudal.errors import ContextOverflowError
from caudal.loading.options import LoadOptions
from caudal.sampling_params import NO_RECOMMENDATION
from caudal.service import model_service
from caudal.service.answers import ChatDelta
from caudal.service.generation import Delta
from caudal.service.model_service import ModelService
from caudal.service.parts import ServiceParts
from caudal.service.work import ChatWork, CompletionWork
from support.fake_model import ByteTokenizer, ScriptedExecutor, changed, serve_fake
from support.fake_template import tool_chat


@dataclass
class FakeGeneration:
    """Repeats what it is told, one word at a time."""

    text: str
    interrupt_after: int | None
    ignored: Sequence[str] = ()

    async def _words(self) -> AsyncGenerator[str]:
        for number, word in enumerate(self.text.split()):
            if number == self.interrupt_after:
                raise KeyboardInterrupt
            yield f"<{word}>"


class FakeCompletion(FakeGeneration):
    async def deltas(self) -> AsyncGenerator[list[Delta]]:
        async for word in self._words():
            yield [Delta(0, word)]


class FakeChat(FakeGeneration):
    async def deltas(self) -> AsyncGenerator[list[ChatDelta]]:
        async for word in self._words():
            yield [ChatDelta(0, [ContentDelta(word)])]


class FakeService:
    """A model that repeats what it is told."""

    made: FakeService
    has_chat_template = True
    adapters = ()
    max_model_len = 1000
    facts = SimpleNamespace(loaded=SimpleNamespace(sampling=NO_RECOMMENDATION))

    def __init__(self) -> None:
        FakeService.made = self
        self.options: Any = None
        self.asked: list[Any] = []
        self.params: SamplingParams | None = None
        self.interrupt_after: int | None = None
        self.closed = False

    def check_task(self, task: str) -> None:
        assert task == "generate"

    async def tokenize(self, text: str) -> SimpleNamespace:
        return SimpleNamespace(ids=ByteTokenizer().encode(text))

    async def complete(self, work: CompletionWork) -> list[FakeCompletion]:
        [prompt] = work.prompts
        assert isinstance(prompt, str)
        self.asked.append(prompt)
        self.params = work.params
        return [FakeCompletion(prompt, self.interrupt_after)]

    async def chat(self, work: ChatWork) -> FakeChat:
        messages = work.conversation.messages
        self.asked.append(messages)
        self.params = work.params
        text = messages[-1].content
        assert isinstance(text, str)
        if "long" in text:
            raise ContextOverflowError("messages", 10, 20)
        ignored = ["reasoning_effort"] if work.conversation.reasoning_effort == "high" else []
        return FakeChat(text, self.interrupt_after, ignored)

    async def shutdown(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def fake_service(monkeypatch: pytest.MonkeyPatch) -> type[FakeService]:
    def serve(options: LoadOptions) -> FakeService:
        service = FakeService()
        service.options = options
        return service

    monkeypatch.setattr(caudal.loading.load, "load_model", lambda name, options, adapters: options)
    monkeypatch.setattr(ServiceParts, "from_loaded", lambda options, **_: options)
    monkeypatch.setattr(model_service, "ModelService", serve)
    monkeypatch.setattr(pull_display, "ensure_with_display", lambda store, model: None)
    monkeypatch.setattr(FakeService, "has_chat_template", True)
    return FakeService


def test_a_chat_template_from_a_file(tmp_path: Path):
    file = tmp_path / "own.jinja"
    file.write_text("{{ messages }}")
    result = CliRunner().invoke(app, ["run", "tiny", "hi", "--chat-template", str(file)])
    assert result.exit_code == 0
    assert FakeService.made.options.chat_template == "{{ messages }}"


def test_one_question():
    result = CliRunner().invoke(app, ["run", "tiny", "what is it?", "--temperature", "0.2"])
    assert result.exit_code == 0
    assert result.stdout == "<what><is><it?>\n"
    assert FakeService.made.asked == [[user("what is it?")]]
    assert FakeService.made.params is not None
    assert FakeService.made.params.temperature == 0.2
    assert FakeService.made.params.max_tokens is None
    assert FakeService.made.closed


def test_piped_bytes_that_are_no_text():
    result = CliRunner().invoke(app, ["run", "tiny"], input=b"a\xffb")
    assert result.exit_code == 0, result.output
    assert FakeService.made.asked == [[user("a\ufffdb")]]


def test_a_closed_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr("sys.stdin", None)
    run_module.run("tiny", "hello there")
    assert capsys.readouterr().out == "<hello><there>\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full device")
def test_a_full_disk_is_said_in_a_line(tmp_path: Path):
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-c", "from caudal.cli import main; main()", "list"],
            env=os.environ | {"CAUDAL_HOME": str(tmp_path)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode == 1
    assert result.stderr == "caudal: cannot write: no space is left on the device\n"


def test_piped_text_is_added_to_the_question():
    result = CliRunner().invoke(app, ["run", "tiny", "Summarise:"], input="some notes\n")
    assert result.stdout == "<Summarise:><some><notes>\n"
    assert CliRunner().invoke(app, ["run", "tiny"], input="alone").stdout == "<alone>\n"


def test_no_question_at_all():
    result = CliRunner().invoke(app, ["run", "tiny"], input="")
    assert result.exit_code == 2
    assert "no question" in result.stderr


def test_a_base_model_continues_text(fake_service: type[FakeService]):
    fake_service.has_chat_template = False
    result = CliRunner().invoke(app, ["run", "tiny", "Once upon"])
    assert result.stdout == "<Once><upon>\n"
    assert FakeService.made.asked == ["Once upon"]
    assert FakeService.made.params is not None
    assert FakeService.made.params.max_tokens == PLAIN_MAX_TOKENS


def test_a_base_model_stops_where_the_context_ends(
    fake_service: type[FakeService], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fake_service, "has_chat_template", False)
    monkeypatch.setattr(fake_service, "max_model_len", 128)
    for prompt, expected in (("x" * 28, 100), ("x" * 128, 1)):
        result = CliRunner().invoke(app, ["run", "tiny", prompt, "--max-model-len", "128"])
        assert result.exit_code == 0, result.output
        assert FakeService.made.params is not None
        assert FakeService.made.params.max_tokens == expected


def test_a_refused_question_is_one_line_on_stderr():
    result = CliRunner().invoke(app, ["run", "tiny", "too long"])
    assert result.exit_code == 1
    assert result.stderr.startswith("caudal: This model's maximum context length is 10 tokens")


def converse(monkeypatch: pytest.MonkeyPatch, *lines: str) -> tuple[FakeService, run_module._Chat]:
    service = FakeService()
    chat = run_module._Chat(LocalPartner(service, 0.7))  # type: ignore[arg-type]
    monkeypatch.setattr(run_module, "_lines", lambda: iter(lines))
    run_module._converse(chat, "tiny")
    return service, chat


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str, reasoning: str | None = None) -> Message:
    return Message(role="assistant", content=text, reasoning=reasoning)


def test_a_chat_remembers_and_forgets(monkeypatch: pytest.MonkeyPatch):
    service, _ = converse(monkeypatch, "one", "", "two", "/clear", "three", "/bye", "four")
    assert service.asked == [
        [user("one")],
        [user("one"), assistant("<one>"), user("two")],
        [user("three")],
    ]


def test_what_was_refused_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    service, _ = converse(monkeypatch, "one", "too long", "/dance now", "two")
    assert service.asked[-1] == [user("one"), assistant("<one>"), user("two")]
    captured = capsys.readouterr()
    assert "maximum context length" in captured.err
    assert "no command /dance" in captured.out


def test_ctrl_c_stops_the_answer_and_not_the_program(monkeypatch: pytest.MonkeyPatch):
    service = FakeService()
    chat = run_module._Chat(LocalPartner(service, 0.7))  # type: ignore[arg-type]
    service.interrupt_after = 2

    def lines():
        yield "say many words"
        service.interrupt_after = None
        yield "go on"

    monkeypatch.setattr(run_module, "_lines", lines)
    run_module._converse(chat, "tiny")
    assert service.asked[-1] == [user("say many words"), assistant("<say><many>"), user("go on")]


THOUGHTFUL = "<think>Let me see.</think>\n\nHello!"


def thinker(script: str = THOUGHTFUL) -> ModelService:
    """A model that thinks before it answers, and listens to a switch."""
    return changed(serve_fake(ScriptedExecutor(script=script.encode())), chat=tool_chat())


def test_thinking_goes_beside_the_answer(monkeypatch: pytest.MonkeyPatch):
    for flags, thoughts in (([], "Let me see.\n\n"), (["--hide-thinking"], "")):
        model = thinker()
        monkeypatch.setattr(model_service, "ModelService", lambda _, model=model: model)
        result = CliRunner().invoke(app, ["run", "tiny", "hi", *flags])
        assert (result.stdout, result.stderr) == ("Hello!\n", thoughts)


def test_only_thinking_ends_its_line_too(monkeypatch: pytest.MonkeyPatch):
    model = thinker("<think>Let me")
    monkeypatch.setattr(model_service, "ModelService", lambda _: model)
    result = CliRunner().invoke(app, ["run", "tiny", "hi"])
    assert (result.stdout, result.stderr) == ("", "Let me\n\n")


def test_thinking_is_remembered_apart_and_can_be_turned_off(monkeypatch: pytest.MonkeyPatch):
    model = thinker()
    chat = run_module._Chat(LocalPartner(model, 0.0), think="none")
    seen = []
    prepare = model.parts.chat.prepare

    def watched(conversation: Conversation, *rest: Any) -> Any:
        seen.append(conversation)
        return prepare(conversation, *rest)

    monkeypatch.setattr(model.parts.chat, "prepare", watched)
    chat.say("one")
    chat.say("two")
    assert seen[-1].messages == [user("one"), assistant("Hello!", "Let me see."), user("two")]
    assert bytes(prepare(seen[-1]).tokens).endswith(b"enable_thinking=False\nassistant:")
    asyncio.run(model.shutdown())


def test_an_effort_without_effect_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    chat = run_module._Chat(LocalPartner(FakeService(), 0.7), think="high")  # type: ignore[arg-type]
    chat.say("one")
    chat.say("two")
    assert capsys.readouterr() == (
        "<one>\n<two>\n",
        "caudal: --think has no effect on this model\n",
    )
