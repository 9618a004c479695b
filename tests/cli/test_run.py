from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import caudal.library.llm
from caudal import SamplingParams
from caudal.cli import pull_display
from caudal.cli import run as run_module
from caudal.cli.app import app
from caudal.errors import ContextOverflowError
from caudal.library.results import CompletionOutput
from support.fake_model import ByteTokenizer


class FakeLLM:
    """Repeats what it is told, one word at a time."""

    made: FakeLLM
    has_chat_template = True
    max_model_len = 1000

    def __init__(self, model: str, **options: Any) -> None:
        FakeLLM.made = self
        self.options = options
        self.asked: list[Any] = []
        self.params: SamplingParams | None = None
        self.interrupt_after: int | None = None
        self.closed = False

    def __enter__(self) -> FakeLLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def get_tokenizer(self) -> ByteTokenizer:
        return ByteTokenizer()

    async def _words(self, text: str, params: SamplingParams) -> AsyncGenerator[CompletionOutput]:
        self.params = params
        for number, word in enumerate(text.split()):
            if number == self.interrupt_after:
                raise KeyboardInterrupt
            yield CompletionOutput(0, f"<{word}>")

    def stream(self, prompt: str, params: SamplingParams) -> AsyncGenerator[CompletionOutput]:
        self.asked.append(prompt)
        return self._words(prompt, params)

    def stream_chat(
        self, messages: Sequence[dict[str, str]], params: SamplingParams
    ) -> AsyncGenerator[CompletionOutput]:
        self.asked.append(messages)
        if "long" in messages[-1]["content"]:
            raise ContextOverflowError("messages", 10, 20)
        return self._words(messages[-1]["content"], params)


@pytest.fixture(autouse=True)
def fake_llm(monkeypatch: pytest.MonkeyPatch) -> type[FakeLLM]:
    monkeypatch.setattr(caudal.library.llm, "LLM", FakeLLM)
    monkeypatch.setattr(pull_display, "ensure_with_display", lambda store, model: None)
    monkeypatch.setattr(FakeLLM, "has_chat_template", True)
    return FakeLLM


def test_a_chat_template_from_a_file(tmp_path: Path):
    file = tmp_path / "own.jinja"
    file.write_text("{{ messages }}")
    result = CliRunner().invoke(app, ["run", "tiny", "hi", "--chat-template", str(file)])
    assert result.exit_code == 0
    assert FakeLLM.made.options["chat_template"] == "{{ messages }}"


def test_one_question():
    result = CliRunner().invoke(app, ["run", "tiny", "what is it?", "--temperature", "0.2"])
    assert result.exit_code == 0
    assert result.stdout == "<what><is><it?>\n"
    assert FakeLLM.made.asked == [[{"role": "user", "content": "what is it?"}]]
    assert FakeLLM.made.params is not None
    assert FakeLLM.made.params.temperature == 0.2
    assert FakeLLM.made.params.max_tokens is None
    assert FakeLLM.made.closed


def test_piped_bytes_that_are_no_text():
    result = CliRunner().invoke(app, ["run", "tiny"], input=b"a\xffb")
    assert result.exit_code == 0, result.output
    assert FakeLLM.made.asked == [[{"role": "user", "content": "a\ufffdb"}]]


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


def test_a_base_model_continues_text(fake_llm: type[FakeLLM]):
    fake_llm.has_chat_template = False
    result = CliRunner().invoke(app, ["run", "tiny", "Once upon"])
    assert result.stdout == "<Once><upon>\n"
    assert FakeLLM.made.asked == ["Once upon"]
    assert FakeLLM.made.params is not None
    assert FakeLLM.made.params.max_tokens == run_module.PLAIN_MAX_TOKENS


def test_a_base_model_stops_where_the_context_ends(
    fake_llm: type[FakeLLM], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fake_llm, "has_chat_template", False)
    monkeypatch.setattr(fake_llm, "max_model_len", 128)
    for prompt, expected in (("x" * 28, 100), ("x" * 128, 1)):
        result = CliRunner().invoke(app, ["run", "tiny", prompt, "--max-model-len", "128"])
        assert result.exit_code == 0, result.output
        assert FakeLLM.made.params is not None
        assert FakeLLM.made.params.max_tokens == expected


def test_a_refused_question_is_one_line_on_stderr():
    result = CliRunner().invoke(app, ["run", "tiny", "too long"])
    assert result.exit_code == 1
    assert result.stderr.startswith("caudal: This model's maximum context length is 10 tokens")


def converse(monkeypatch: pytest.MonkeyPatch, *lines: str) -> tuple[FakeLLM, run_module._Chat]:
    llm = FakeLLM("tiny")
    chat = run_module._Chat(llm, 0.7)  # type: ignore[arg-type]
    monkeypatch.setattr(run_module, "_lines", lambda: iter(lines))
    run_module._converse(chat, "tiny")
    return llm, chat


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_a_chat_remembers_and_forgets(monkeypatch: pytest.MonkeyPatch):
    llm, _ = converse(monkeypatch, "one", "", "two", "/clear", "three", "/bye", "four")
    assert llm.asked == [
        [user("one")],
        [user("one"), assistant("<one>"), user("two")],
        [user("three")],
    ]


def test_what_was_refused_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    llm, _ = converse(monkeypatch, "one", "too long", "/dance now", "two")
    assert llm.asked[-1] == [user("one"), assistant("<one>"), user("two")]
    captured = capsys.readouterr()
    assert "maximum context length" in captured.err
    assert "no command /dance" in captured.out


def test_ctrl_c_stops_the_answer_and_not_the_program(monkeypatch: pytest.MonkeyPatch):
    llm = FakeLLM("tiny")
    chat = run_module._Chat(llm, 0.7)  # type: ignore[arg-type]
    llm.interrupt_after = 2

    def lines():
        yield "say many words"
        llm.interrupt_after = None
        yield "go on"

    monkeypatch.setattr(run_module, "_lines", lines)
    run_module._converse(chat, "tiny")
    assert llm.asked[-1] == [user("say many words"), assistant("<say><many>"), user("go on")]
