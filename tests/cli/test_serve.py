from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from caudal.backends.backend import MemoryKinds, PagedKV
from caudal.backends.facts import ExecutorFacts
from caudal.cli import pull_display
from caudal.cli.app import app
from caudal.configuration.ollama_host import read_ollama_host
from caudal.fleet.durations import FOREVER
from caudal.grammars.compiler import GrammarCompiler
from caudal.loading.options import LoadOptions
from caudal.models.pooling import Pooling
from caudal.server import serving
from caudal.server.limits import ServerLimits
from caudal.store import Store, StoredModel
from caudal.store.package import NO_PACKAGE
from caudal.workers import in_process, worker_launcher
from support.fake_facts import fake_facts
from support.fake_model import ByteTokenizer, RoleTemplate, ScriptedExecutor, start_engine

FACTS = fake_facts(
    model="tiny",
    architecture="llama",
    matrices={"Q4_1": 210, "Q8_0": 1},
    tokenizer="gpt2 (smollm)",
    vocab_size=49152,
    pooling=Pooling(kind="last", normalize=True),
    embedding_width=576,
    executor=ExecutorFacts(
        backend="native",
        instruction_set="avx2",
        threads=2,
        activations="auto",
        kv_type="f16",
        weight_bytes=1,
    ),
    chat_template="from the model file",
    memory=MemoryKinds(kv=PagedKV(num_blocks=512, block_size=16, bytes_per_token=23040)),
)
TABLE = """
  model          tiny: llama, Q4_1 x210, Q8_0 x1
  served as      tiny
  tokenizer      gpt2 (smollm), 49152 tokens
  computes with  native (avx2), 2 threads, activations auto, keys and values f16
  embeddings     last, normalised, 576 dimensions
  chat template  from the model file
  reads          tool calls as hermes, reasoning as none
  KV memory      189 MB: 8192 tokens, or 16.0 sequences of the longest, 512
"""


class Elsewhere(in_process.InProcessLauncher):
    """Stands for processes of the models' own."""

    def __init__(self, *, log_prompts: bool = False) -> None:
        super().__init__()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Loads a fake model, and returns from serving as soon as it is ready."""
    seen: dict[str, Any] = {}

    def loaded(name: str, options: LoadOptions) -> SimpleNamespace:
        return SimpleNamespace(
            name=name,
            tokenizer=ByteTokenizer(),
            chat_template=RoleTemplate(),
            grammars=GrammarCompiler(ByteTokenizer()),  # type: ignore[arg-type]
            tasks=frozenset(("generate", "embed", "score")),
            program=SimpleNamespace(
                pooling=Pooling(kind="last", normalize=True), state=SimpleNamespace(width=576)
            ),
            start_engine=lambda turns: start_engine(
                ScriptedExecutor(),
                speculative=options.speculative,
                prefix_memory=options.prefix_memory or 0,
                prefix_store=options.prefix_store,
                prefix_store_size=options.prefix_store_size,
            ),
            read_adapter=None,
            max_model_len=512,
            facts=replace(FACTS, model=name),
            package=NO_PACKAGE,
            executor=SimpleNamespace(info=SimpleNamespace(facts=FACTS.executor)),
        )

    @contextlib.contextmanager
    def plan_model(name: str, options: LoadOptions, **more: object) -> Iterator[SimpleNamespace]:
        seen["options"] = replace(options, memory=None)  # which is the fleet's
        program = SimpleNamespace(
            is_encoder=False, tasks=frozenset(("generate",)), context_length=512
        )
        yield SimpleNamespace(
            draft=None,
            draft_memory=None,
            files=SimpleNamespace(
                program=program, weights=SimpleNamespace(architecture="llama", tensors={})
            ),
            run=SimpleNamespace(
                engine=SimpleNamespace(max_model_len=512, prefix_bytes=0),
                memory=SimpleNamespace(
                    kinds=FACTS.memory,
                    least=16,
                    workspace=0,
                    weights=SimpleNamespace(held=0, bytes=0),
                ),
            ),
            load=lambda memory, progress: loaded(name, options),
            adapters={},
        )

    def resolve(store: Store, name: str) -> StoredModel:
        return StoredModel(
            name, (Path(name),), (name,), 1, (), "", "", (), datetime.fromtimestamp(0, UTC)
        )

    def serve(sock: socket.socket, models: Any, start: Any, *, on_ready: Any, **more: Any) -> None:
        async def begin() -> None:
            await start()
            on_ready()
            await models.shutdown()

        with sock:
            seen.update(more, models=models)
            asyncio.run(begin())

    monkeypatch.setattr(pull_display, "ensure_with_display", lambda store, model: None)
    monkeypatch.setattr(Store, "resolve", resolve)
    monkeypatch.setattr(in_process, "plan_model", plan_model)
    monkeypatch.setattr(worker_launcher, "WorkerLauncher", Elsewhere)
    monkeypatch.setattr(serving, "serve", serve)
    return seen


def test_the_banner_says_what_is_served_and_how_to_ask(served: dict[str, Any]):
    result = CliRunner().invoke(app, ["serve", "tiny", "--port", "0"])
    assert result.exit_code == 0, result.output
    assert TABLE in result.stdout
    address = re.search(r"address +(http://127.0.0.1:\d+)/v1", result.stdout)
    assert address
    assert f"curl {address[1]}/v1/chat/completions" in result.stdout
    assert '"model": "tiny"' in result.stdout
    assert result.stdout.endswith("\nStopped.\n")
    assert served["options"] == LoadOptions()
    assert served["access"].api_key is None


def test_the_banner_says_what_places_for_prefixes_hold(served: dict[str, Any], tmp_path: Path):
    options = ("--prefix-memory", "23040000", "--prefix-store", str(tmp_path))
    result = CliRunner().invoke(
        app, ["serve", "tiny", "--port", "0", *options, "--prefix-store-size", "2304000000"]
    )
    assert result.exit_code == 0, result.output
    assert (
        f"  more prefixes  23.0 MB of memory for about 1000 tokens, 2.3 GB of {tmp_path} for about "
        "100000 tokens, where that is faster than computing\n"
    ) in result.stdout


def test_the_banner_says_what_guesses_tokens(served: dict[str, Any]):
    for options, said in (
        ((), "32 tokens at once"),
        (("--speculative-config", '{"num_speculative_tokens": 3}'), "up to 3 tokens at once"),
        (("--speculative", "off"), None),
    ):
        result = CliRunner().invoke(app, ["serve", "tiny", "--port", "0", *options])
        assert result.exit_code == 0, result.output
        lines = [line for line in result.stdout.splitlines() if line.startswith("  guesses by ")]
        assert len(lines) == (said is not None)
        assert said is None or lines[0].endswith(said)


@pytest.mark.parametrize(
    "arguments", ["--in-process", "one two --in-process", "one two --served-model-name x"]
)
def test_what_goes_with_one_model_is_refused_with_others(served: dict[str, Any], arguments: str):
    result = CliRunner().invoke(app, ["serve", *arguments.split()])
    assert result.exit_code == 2
    assert "goes with one MODEL" in result.output
    assert served == {}


def test_models_are_in_processes_of_their_own_unless_told_otherwise(
    served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    launcher, used = in_process.InProcessLauncher, []
    monkeypatch.setattr(launcher, "__init__", lambda self: used.append(type(self)))
    for options in ([], ["--in-process"]):
        result = CliRunner().invoke(app, ["serve", "tiny", "--port", "0", *options])
        assert result.exit_code == 0, result.output
    assert used == [Elsewhere, launcher]


@pytest.mark.parametrize("option", ["--api-key", "--served-model-name"])
def test_an_empty_key_or_name_is_refused(served: dict[str, Any], option: str):
    result = CliRunner().invoke(app, ["serve", "tiny", "--port", "0", option, ""])
    assert result.exit_code == 2
    assert option in result.output
    assert "must not be empty" in result.output


def test_an_empty_model_is_refused_as_what_it_is(served: dict[str, Any]):
    result = CliRunner().invoke(app, ["serve", "tiny", ""])
    assert result.exit_code == 2
    assert "MODEL" in result.stderr
    assert "--served-model-name" not in result.stderr
    assert served == {}


@pytest.mark.parametrize("key", ["", "   ", "\t"])
def test_a_key_that_was_meant_to_be_set_is_not_overlooked(served: dict[str, Any], key: str):
    environment = {"CAUDAL_API_KEY": key}
    result = CliRunner().invoke(app, ["serve", "tiny", "--port", "0"], env=environment)
    assert result.exit_code == 2
    assert "CAUDAL_API_KEY" in result.stderr
    assert "must not be empty" in result.stderr
    assert served == {}
    command = ["serve", "tiny", "--port", "0", "--api-key", "sesame"]
    assert CliRunner().invoke(app, command, env=environment).exit_code == 0
    assert served["access"].api_key == "sesame"


def test_hosts_and_origins_reach_the_server(served: dict[str, Any]):
    arguments = (
        "serve tiny --port 0 --allowed-host Example.org --allowed-host nas "
        "--allow-origin http://localhost:3000 --allow-origin https://page.example/ "
        "--max-connections 77 --drain-notice 4 --drain-timeout 2.5 "
        "--max-connections-per-address 9 --header-timeout 5 --body-timeout 6 --unread-timeout 7 "
        "--max-body 1GiB --max-prompt-tokens 8 --max-n 2 --max-output-tokens 3"
    )
    result = CliRunner().invoke(app, arguments.split())
    assert result.exit_code == 0, result.output
    access = served["access"]
    assert {"localhost", "127.0.0.1", "example.org", "nas"} <= access.host_names
    assert access.local_only
    assert access.origins == {"http://localhost:3000", "https://page.example"}
    assert served["limits"] == ServerLimits(
        max_connections=77,
        connections_per_address=9,
        header_seconds=5.0,
        body_seconds=6.0,
        unread_seconds=7.0,
        body_bytes=2**30,
        all_bodies_bytes=2**30,
        max_prompt_tokens=8,
        max_n=2,
        max_output_tokens=3,
        notice_seconds=4.0,
        drain_seconds=2.5,
    )


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ("", None),
        ("--no-store-changes", "--no-store-changes"),
        ("tiny", "the models that it was started with"),
        ("tiny --store-changes", "the models that it was started with"),
        ("--host 0.0.0.0", "Start it with --api-key"),
        ("--host 0.0.0.0 --api-key secret", None),
        ("--host 0.0.0.0 --store-changes", None),
    ],
)
def test_who_may_change_the_store(
    served: dict[str, Any], tmp_path: Path, arguments: str, refusal: str | None
):
    result = CliRunner().invoke(
        app, ["serve", "--port", "0", *arguments.split()], env={"CAUDAL_HOME": str(tmp_path)}
    )
    assert result.exit_code == 0, result.output
    said = served["store"].refusal
    assert said is None if refusal is None else refusal in said


def test_the_parsers_can_be_named(served: dict[str, Any]):
    command = ["serve", "tiny", "--port", "0"]
    result = CliRunner().invoke(app, command)
    assert "tool calls as hermes, reasoning as none" in result.stdout
    named = ["--tool-parser", "mistral", "--reasoning-parser", "deepseek_r1"]
    result = CliRunner().invoke(app, [*command, *named])
    assert "tool calls as mistral, reasoning as think" in result.stdout
    for option in ("--tool-parser", "--reasoning-parser"):
        result = CliRunner().invoke(app, [*command, option, "magic"])
        assert result.exit_code == 2
        assert option in result.output
        assert "hermes" in result.output or "deepseek_r1" in result.output


def test_options_reach_the_loader(served: dict[str, Any]):
    arguments = (
        "serve tiny --port 0 --max-model-len 100 --max-num-seqs 4 --max-num-batched-tokens 64 "
        "--kv-memory 2GiB --kv-type f32 --no-prefix-cache --schedule fcfs --batching dynamic "
        "--preferred-batch-size 5 --max-queue-delay 0.2 --ageing 3 --first-token-timeout 20 "
        "--request-timeout 90.5 --embedding-batch-size 3 --embedding-queue-delay 0.1 "
        "--max-queue 7 --threads 2 --activations f32 --api-key sesame --strict-fields "
        "--normalise-prompts pi --normalise-prompts claude-code "
        "--served-model-name a --served-model-name b"
    )
    result = CliRunner().invoke(app, arguments.split())
    assert result.exit_code == 0, result.output
    assert served["options"] == LoadOptions(
        max_model_len=100,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        kv_memory=2 * 2**30,
        kv_type="f32",
        prefix_cache=False,
        schedule="fcfs",
        ageing=3,
        batching="dynamic",
        preferred_batch_size=5,
        max_queue_delay=0.2,
        max_queue=7,
        first_token_timeout=20,
        request_timeout=90.5,
        embedding_batch_size=3,
        embedding_queue_delay=0.1,
        threads=2,
        activations="f32",
    )
    assert served["access"].api_key == "sesame"
    assert served["strict_fields"] is True
    assert served["normalise_prompts"] == ["pi", "claude-code"]
    assert '"model": "a"' in result.stdout
    assert "Authorization: Bearer" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--port", "70000"],
        ["--kv-memory", "lots"],
        ["--schedule", "lottery"],
        ["--batching", "never"],
        ["--kv-type", "f8"],
        ["--speculative", "draft:"],
        ["--speculative-config", "{}", "--speculative", "ngram"],
        ["--normalise-prompts", "claude"],
        ["--api-key", ""],
        ["--api-key", " key"],
        ["--allowed-host", "http://example.org"],
        ["--allow-origin", "example.org"],
        ["--max-connections", "0"],
        ["--drain-timeout", "-1"],
        ["--drain-timeout", "inf"],
        ["--request-timeout", "soon"],
        ["--max-num-seqs", "many"],
        ["--keep-alive", "soon"],
        ["--memory", "lots"],
        ["--max-loaded-models", "-1"],
    ],
)
def test_bad_options_are_refused_by_name(served: dict[str, Any], arguments: list[str]):
    result = CliRunner().invoke(app, ["serve", "tiny", "--port", "0", *arguments])
    assert result.exit_code == 2
    assert arguments[0] in result.stderr
    assert "Value error" not in result.stderr
    assert served == {}


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("q8_0", "take q8"),
        ("fp8", "take q8"),
        ("q4_0", "take q8, as there is nothing below 8 bits"),
        ("auto", "take f16"),
    ],
)
def test_what_to_take_for_types_of_other_programs(
    served: dict[str, Any], tmp_path: Path, name: str, remedy: str
):
    result = CliRunner().invoke(app, ["serve", "tiny", "--port", "0", "--kv-type", name])
    assert (result.exit_code, served) == (2, {})
    assert remedy in result.stderr
    file = tmp_path / "caudal.toml"
    file.write_text(f'[loading]\nkv-type = "{name}"\n')
    result = CliRunner().invoke(app, ["serve", "tiny", "--port", "0", "--config", str(file)])
    assert (result.exit_code, served) == (1, {})
    assert remedy in result.stderr


def test_a_chat_template_from_a_file(served: dict[str, Any], tmp_path: Path):
    file = tmp_path / "own.jinja"
    file.write_text("{{ messages }} é")
    command = ["serve", "tiny", "--port", "0", "--chat-template"]
    assert CliRunner().invoke(app, [*command, str(file)]).exit_code == 0
    assert served["options"] == LoadOptions(chat_template="{{ messages }} é")


@pytest.mark.parametrize("command", ["serve", "run"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot read"),
        (b"\xff", "not UTF-8 text"),
        (b" \n", "is empty"),
        (b"x" * (2**20 + 1), "more than 1048576 bytes"),
        (b"x\n{% if %}", "is wrong in line 2"),
        (b"{% if x %}" * 120 + b"{% endif %}" * 120, "is nested too deeply"),
    ],
    ids=["missing", "bytes", "empty", "large", "wrong", "deep"],
)
def test_a_chat_template_that_is_none(
    served: dict[str, Any], tmp_path: Path, command: str, content: bytes | None, words: str
):
    file = tmp_path / "t"
    if content is not None:
        file.write_bytes(content)
    result = CliRunner().invoke(
        app, [command, "tiny", "--chat-template", str(file)], env={"COLUMNS": "400"}
    )
    assert result.exit_code == 2
    assert "--chat-template" in result.stderr
    assert words in result.stderr
    assert served == {}


def test_a_port_in_use_is_one_line_on_stderr(served: dict[str, Any]):
    with serving.listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", "tiny", "--port", str(port)])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"caudal: cannot listen on 127.0.0.1:{port}: ")
    assert served == {}


def test_ollamas_place_as_well(served: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:0")
    result = CliRunner().invoke(app, ["serve", "tiny", "--port", "0", "--ollama"])
    assert result.exit_code == 0, result.output
    with served["ollama"] as sock:
        assert re.search(rf"as Ollama +http://127.0.0.1:{sock.getsockname()[1]}\n", result.stdout)
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{sock.getsockname()[1]}")
        taken = CliRunner().invoke(app, ["serve", "tiny", "--port", "0", "--ollama"])
    assert taken.exit_code == 1
    assert "choose one with OLLAMA_HOST, or stop Ollama" in taken.stderr
    monkeypatch.setenv("OLLAMA_HOST", "0.0.0.0:0")
    CliRunner().invoke(app, ["serve", "tiny", "--port", "0", "--ollama"])
    served["ollama"].close()
    assert served["access"].local_only is False
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:x")
    wrong = CliRunner().invoke(app, ["serve", "tiny", "--ollama"], env={"COLUMNS": "400"})
    assert wrong.exit_code == 2
    assert "OLLAMA_HOST" in wrong.stderr


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("example.org", "http://example.org:11434"),
        ("1.2.3.4:56", "http://1.2.3.4:56"),
        (":56", "http://127.0.0.1:56"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("http://example.org", "http://example.org:80"),
        ("https://example.org/path", "https://example.org:443"),
        ("https://example.org:1234/path", "https://example.org:1234"),
        ("::1", "http://[::1]:11434"),
        ("[::]:1", "http://[::1]:1"),
    ],
)
def test_ollamas_place_is_read_as_ollama_does(text: str, url: str):
    assert read_ollama_host(text).url == url


def test_help_teaches():
    result = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "120"})
    assert result.exit_code == 0
    for words in ("caudal serve smollm2", "--max-model-len", "/metrics", "CAUDAL_API_KEY"):
        assert words in result.stdout


def test_a_file_says_what_options_say_and_more(
    served: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "caudal.toml"
    file.write_text(
        """\
[server]
port = 0
host = "0.0.0.0"
[limits]
drain-timeout = 7
[[models]]
model = "tiny"
names = ["house"]
aliases = ["gpt"]
[[models]]
model = "other"
preload = false
"""
    )
    monkeypatch.setenv("CAUDAL_CONFIG", str(file))
    result = CliRunner().invoke(app, ["serve", "--host", "127.0.0.1"])
    assert result.exit_code == 0, result.output
    assert served["limits"].drain_seconds == 7
    assert served["access"].local_only
    assert list(served["models"].names) == ["house", "other", "gpt"]
    assert re.search(r"loaded +house\n", result.stdout)
    assert served["reloader"], "SIGHUP has the file be read anew"
    result = CliRunner().invoke(app, ["serve", "house"])
    assert result.exit_code == 0, result.output
    assert list(served["models"].names) == ["house", "gpt"]
    monkeypatch.delenv("CAUDAL_CONFIG")
    assert CliRunner().invoke(app, ["serve", "tiny", "--port", "0"]).exit_code == 0
    assert not served["reloader"]
    lost = CliRunner().invoke(app, ["serve", "--config", str(tmp_path / "lost.toml")])
    assert lost.exit_code == 1
    assert "lost.toml: can't be read: No such file" in lost.stderr


def test_examples_in_help_stand_on_lines_of_their_own():
    def commands(group: Any, *path: str) -> Iterator[tuple[tuple[str, ...], str]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from commands(command, *path, name)
            else:
                yield (*path, name), command.help

    found = list(commands(typer.main.get_command(app)))
    assert len(found) > 20
    for path, text in found:
        shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"}).stdout
        lines = [line.strip() for line in shown.splitlines()]
        examples = re.findall(r"^ {4}(\S.*)$", text, re.MULTILINE)
        assert examples or path == ("list",), path
        assert [line for line in examples if line.strip() not in lines] == []


def test_help_loads_nothing_that_runs_models_or_servers():
    heavy = ["numpy", "pydantic", "fastapi", "uvicorn", "caudal._native"]
    code = f"import sys, caudal.cli.app; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_the_environment_says_what_options_do_not(
    served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    for name, value in (
        ("OLLAMA_NUM_PARALLEL", "3"),
        ("CAUDAL_NUM_PARALLEL", "'5'"),
        ("OLLAMA_KEEP_ALIVE", "10m"),
        ("OLLAMA_MAX_LOADED_MODELS", "0"),
        ("OLLAMA_CONTEXT_LENGTH", " 256 "),
        ("CAUDAL_MAX_QUEUE", "7"),
        ("CAUDAL_MEMORY", "3GiB"),
        ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "true"),
        ("CAUDAL_ALLOW_RUNTIME_LORA_UPDATING", "1"),
    ):
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, ["serve", "one", "two", "--port", "0"])
    assert result.exit_code == 0, result.output
    assert served["options"] == LoadOptions(
        max_num_seqs=5, max_model_len=256, max_queue=7, for_all=True
    )
    options = served["models"].options
    assert (options.memory, options.max_loaded, options.max_waiting) == (3 * 2**30, None, 7)
    assert served["models"].keep_alive == options.keep_alive == 600
    assert served["allow_runtime_lora"] is True
    assert "models   one, two" in result.stdout
    assert "stay     10 m after the last request" in result.stdout
    command = ["serve", "one", "--port", "0", "--max-num-seqs", "2", "--keep-alive", "-1"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert served["options"].max_num_seqs == 2
    assert served["models"].keep_alive == FOREVER


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("CAUDAL_NUM_PARALLEL", "many", "at least 0, but is 'many'"),
        ("OLLAMA_MAX_LOADED_MODELS", "-1", "at least 0"),
        ("OLLAMA_CONTEXT_LENGTH", "4k", "at least 0"),
        ("CAUDAL_KEEP_ALIVE", "5 minutes", "a duration such as 5m"),
        ("CAUDAL_MEMORY", "all", "not a size"),
        ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "banana", "must be 1 (or true, yes)"),
    ],
)
def test_a_variable_that_makes_no_sense_is_refused_by_name(
    served: dict[str, Any], variable: str, value: str, words: str
):
    result = CliRunner().invoke(app, ["serve", "tiny"], env={variable: value, "COLUMNS": "300"})
    assert result.exit_code == 2
    assert variable in result.stderr
    assert words in result.stderr
    assert served == {}
