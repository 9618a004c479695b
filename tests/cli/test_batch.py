from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from caudal.cli import batch as batch_module
from caudal.cli import pull_display
from caudal.cli.app import app
from caudal.service.models import Models
from caudal.service.registry import ModelRegistry
from support.fake_model import ScriptedExecutor, serve_fake


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What models were started, instead of which a scripted one answers."""
    started: list[list[str]] = []

    @contextlib.asynccontextmanager
    async def running(named: list[str], *_: Any) -> AsyncIterator[Models]:
        started.append(named)
        models = ModelRegistry()
        models.add(serve_fake(ScriptedExecutor(script=b"Hello!"), names=named))
        yield models
        await models.shutdown()

    monkeypatch.setattr(batch_module, "running_models", running)
    monkeypatch.setattr(pull_display, "ensure_with_display", lambda store, name: SimpleNamespace())
    return started


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["batch", *map(str, arguments)])


def test_a_file_is_answered_and_failures_are_told(tmp_path: Path, started: list[list[str]]):
    file = tmp_path / "in.jsonl"
    lines: list[dict[str, Any]] = [
        {"prompt": "a", "max_tokens": 2},
        {"id": "chat", "messages": [{"role": "user", "content": "b"}]},
        {"id": 7, "input": "c"},
        {
            "custom_id": "theirs",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": "d", "model": "x"},
        },
        {"prompt": "e", "temperature": -1},
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    result = run(file, "--model", "fake")
    assert (result.exit_code, started) == (1, [["fake"]])
    assert "4 answers" in result.stderr
    assert "1 lines failed" in result.stderr
    done = [json.loads(line) for line in (tmp_path / "in.answers.jsonl").read_text().splitlines()]
    assert [each["custom_id"] for each in done] == ["1", "chat", "7", "theirs"]
    bodies = [each["response"]["body"] for each in done]
    assert bodies[0]["choices"][0]["text"] == "He"
    assert bodies[1]["choices"][0]["message"]["content"] == "Hello!"
    assert bodies[2]["data"][0]["embedding"]
    [failed] = (tmp_path / "in.errors.jsonl").read_text().splitlines()
    assert json.loads(failed)["response"]["status_code"] == 400
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "in.answers.jsonl",
        "in.errors.jsonl",
        "in.jsonl",
    ]
    assert run(file, "--model", "fake").exit_code == 2  # the answers are there


def test_it_goes_on_from_where_it_stopped(
    tmp_path: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
):
    file, output = tmp_path / "in.jsonl", tmp_path / "out"
    file.write_text("".join(f'{{"prompt": "{n}", "model": "fake"}}\n' for n in range(30)))
    real = batch_module.running_models

    @contextlib.asynccontextmanager
    async def dying(*arguments: Any) -> AsyncIterator[Models]:
        async with real(*arguments) as models:
            asked = 0
            find_now = models.find_now

            def find(*given: Any, **more: Any) -> Any:
                nonlocal asked
                asked += 1
                if asked == 20:
                    signal.raise_signal(signal.SIGINT)
                return find_now(*given, **more)

            monkeypatch.setattr(models, "find_now", find)
            yield models

    monkeypatch.setattr(batch_module, "running_models", dying)
    stopped = run(file, "--output", output, "--concurrency", 1)
    assert stopped.exit_code == 130
    assert re.search(r"stopped with (18|19|20) of 30 lines done", stopped.stderr)
    assert not output.exists()
    monkeypatch.setattr(batch_module, "running_models", real)
    assert run(file, "--output", output).exit_code == 0
    done = [json.loads(line)["custom_id"] for line in output.read_text().splitlines()]
    assert done == [str(number) for number in range(1, 31)]
    assert len(list(tmp_path.iterdir())) == 2


def test_an_input_that_changes_meanwhile_is_not_taken_for_the_one_that_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file, output = tmp_path / "in.jsonl", tmp_path / "out"
    lines = "".join(f'{{"prompt": "{n}", "model": "fake"}}\n' for n in range(9))
    file.write_text(lines)
    real = batch_module.running_models

    @contextlib.asynccontextmanager
    async def changing(*arguments: Any) -> AsyncIterator[Models]:
        async with real(*arguments) as models:
            file.write_text("\n" + lines)
            yield models

    with monkeypatch.context() as patched:
        patched.setattr(batch_module, "running_models", changing)
        result = run(file, "--output", output)
    assert result.exit_code == 1
    assert "has changed since it was read" in result.stderr
    assert not output.exists()
    assert run(file, "--output", output).exit_code == 0
    assert len(output.read_text().splitlines()) == 9


def test_what_is_no_file_is_neither_read_nor_replaced(tmp_path: Path, started: list[list[str]]):
    file, pipe = tmp_path / "in.jsonl", tmp_path / "pipe"
    file.write_text('{"prompt": "a"}\n')
    os.mkfifo(pipe)
    for arguments in ((pipe,), (file, "--output", pipe), (file, "--errors", pipe)):
        result = run(*arguments, "--model", "fake", "--overwrite")
        assert (result.exit_code, started) == (2, [])
        assert pipe.is_fifo()


def test_faulty_lines_are_named(tmp_path: Path, started: list[list[str]]):
    file = tmp_path / "in.jsonl"
    file.write_text(
        '{"prompt": "x", "model": "m"}\n{"prompt": \n{"id": 1, "model": "m"}\n{"prompt": ""}\n'
    )
    result = run(file)
    assert (result.exit_code, started) == (2, [])
    assert "in.jsonl:2: This line is no valid JSON" in result.stderr
    assert "in.jsonl:3: A line is one of OpenAI's" in result.stderr
    assert "in.jsonl:4: This line names no model." in result.stderr
    nowhere = run(file, "--output", tmp_path / "nowhere" / "out.jsonl")
    assert (nowhere.exit_code, started) == (2, [])
    assert "there is no directory" in nowhere.stderr
