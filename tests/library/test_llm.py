from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import caudal.library.llm
from caudal import LLM, SamplingParams
from caudal.errors import (
    ContextOverflowError,
    EngineDeadError,
    ParameterError,
    TemplateError,
)
from caudal.grammars.compiler import GrammarCompiler
from caudal.library.running import run
from caudal.models.pooling import Pooling
from caudal.store.package import NO_PACKAGE
from support.fake_executor import pooled_states
from support.fake_facts import fake_facts
from support.fake_model import (
    END,
    ByteTokenizer,
    RoleTemplate,
    ScriptedExecutor,
    start_engine,
    word,
)
from support.tiny_adapter import read_tiny_adapter

GREEDY = SamplingParams(temperature=0, max_tokens=50)


@pytest.fixture
def executor() -> ScriptedExecutor:
    return ScriptedExecutor(script=[*b"Hi, ", word("día"), *b"!"], by_prompt={b"b": b"bee"})


def load_fakes(
    monkeypatch: pytest.MonkeyPatch, executor: ScriptedExecutor, template: object
) -> None:
    """Let every model be a fake one."""
    tokenizer: Any = ByteTokenizer()
    loaded = SimpleNamespace(
        package=NO_PACKAGE,
        name="fake",
        tokenizer=tokenizer,
        chat_template=template,
        grammars=GrammarCompiler(tokenizer),
        facts=fake_facts(),
        max_model_len=512,
        read_adapter=read_tiny_adapter,
        start_engine=lambda turns: start_engine(executor, max_queue=2, max_num_seqs=2),
        program=SimpleNamespace(
            pooling=Pooling(kind="mean", normalize=False), state=SimpleNamespace(width=1)
        ),
    )
    monkeypatch.setattr(caudal.library.llm, "load_model", lambda name, options, adapters: loaded)


@pytest.fixture
def llm(executor: ScriptedExecutor, monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    load_fakes(monkeypatch, executor, RoleTemplate())
    with LLM("fake", max_model_len=64) as llm:
        yield llm


def test_embedding(llm: LLM):
    results = llm.embed(["Hello", {"prompt_token_ids": [1, 2, 3]}])
    assert [result.prompt_token_ids for result in results] == [list(b"Hello"), [1, 2, 3]]
    means = [
        pooled_states(result.prompt_token_ids, "mean") / len(result.prompt_token_ids)
        for result in results
    ]
    assert [result.outputs.embedding for result in results] == [
        [pytest.approx(mean)] for mean in means
    ]
    assert llm.encode("Hello")[0].outputs == results[0].outputs
    with pytest.raises(ParameterError, match=r"prompts\[1\] is empty"):
        llm.embed(["Hello", ""])
    with pytest.raises(ParameterError, match=r"prompts\[2\] is empty"):
        llm.embed(["Hello", {"prompt": "x", "cache_salt": "mine"}, ""])
    with pytest.raises(ParameterError, match="truncate_prompt_tokens"):
        llm.embed("x" * 1000)
    with pytest.raises(ParameterError, match=r"prompts\[1\] token ids must be integers"):
        llm.embed(["x", {"prompt_token_ids": [1.5]}])  # type: ignore[list-item]
    with pytest.raises(ParameterError, match="token ids must be integers"):
        llm.embed({"prompt_token_ids": [True]})


def test_scores(llm: LLM):
    assert [pair.outputs.score for pair in llm.score("a", ["a", "b"])] == [
        pytest.approx(1.0),
        pytest.approx(1.0),
    ]  # vectors of one component all point the same way
    with pytest.raises(ParameterError, match=r"^text_2 has 3 texts for 2 on"):
        llm.score(["a", "b"], ["a", "b", "c"])
    with pytest.raises(ParameterError, match=r"text_2\[1\] is empty"):
        llm.score("a", ["b", ""])
    for texts in (5, None, [5], {"a": 1}):
        with pytest.raises(ParameterError, match="text_1 must be text"):
            llm.score(texts, "a")  # type: ignore[arg-type]


def test_one_prompt(llm: LLM):
    [result] = llm.generate("Say hi", GREEDY)
    assert result.prompt == "Say hi"
    assert result.prompt_token_ids == list(b"Say hi")
    assert result.finished
    assert result.prompt_logprobs is None
    [output] = result.outputs
    assert output.text == "Hi, día!"
    assert output.token_ids == [*b"Hi, ", word("día"), ord("!"), END]
    assert output.finish_reason == "stop"
    assert output.stop_reason is None
    assert output.logprobs is None
    assert output.cumulative_logprob is None


@pytest.mark.parametrize(
    ("prompts", "param"),
    [
        (None, "prompts"),
        (5, "prompts"),
        ([1, 2], "prompts[0]"),
        (["x", 5], "prompts[1]"),
        (["x", {"prompt": "x", "cache_salt": 5}], "prompts[1]"),
        (b"x", "prompts"),
        ({"prompt": 5}, "prompts"),
        ({"prompt_token_ids": None}, "prompts"),
        ({"prompt_token_ids": "ab"}, "prompts"),
        (["x", {"prompt_token_ids": []}], "prompts[1]"),
        ({"prompt": "x", "cache_salt": 5}, "prompts"),
        ({"prompt": "x", "prompt_token_ids": [1]}, "prompts"),
    ],
)
def test_what_is_no_prompt(llm: LLM, prompts: Any, param: str):
    with pytest.raises(ParameterError) as caught:
        llm.generate(prompts, GREEDY)
    assert caught.value.param == param


def test_an_interrupted_notebook_waits_for_nothing(llm: LLM):
    ended: list[str] = []

    async def long() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            ended.append("work")
            raise

    async def cell() -> None:
        threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            run(long())
        ended.append("cell")

    loop = asyncio.new_event_loop()  # `asyncio.run` would keep the signal to itself
    try:
        loop.run_until_complete(cell())
    finally:
        loop.close()
    assert ended == ["work", "cell"]


def test_a_closed_model_answers_no_more(llm: LLM):
    llm.close()
    llm.close()
    message = {"role": "user", "content": "x"}
    for ask in (lambda: llm.generate("x"), lambda: llm.chat([message]), lambda: llm.embed("x")):
        with pytest.raises(EngineDeadError) as caught:
            ask()
        assert "server" not in str(caught.value)


@pytest.mark.parametrize("messages", [None, 5, "hi", [5], {"role": "user", "content": "x"}])
def test_what_is_no_conversation(llm: LLM, messages: Any):
    with pytest.raises(ParameterError, match="messages must be a list"):
        llm.chat(messages, GREEDY)


@pytest.mark.parametrize("params", ["x", {"n": 1}, 5, [None]])
def test_what_are_no_sampling_params(llm: LLM, params: Any):
    with pytest.raises(ParameterError, match="must be SamplingParams"):
        llm.generate(["a"], params)


@pytest.mark.parametrize("model", [None, 5, b"x"])
def test_what_is_no_model(model: Any):
    with pytest.raises(ParameterError, match="model must be a name or a path"):
        LLM(model)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("kv_memory", "1GiB"),
        ("kv_memory", 1e9),
        ("threads", "2"),
        ("max_model_len", True),
        ("max_num_seqs", 1.5),
        ("kv_type", "f64"),
        ("activations", "int4"),
        ("schedule", "lifo"),
        ("batching", None),
        ("prefix_cache", "no"),
    ],
)
def test_options_of_a_wrong_kind(option: str, value: Any):
    with pytest.raises(ParameterError, match=option) as caught:
        LLM("fake", **{option: value})
    assert caught.value.param == option


def test_a_path_and_a_queue_without_bounds(monkeypatch: pytest.MonkeyPatch):
    seen: list[Any] = []

    def load_model(name: str, options: Any, adapters: object) -> None:
        seen.extend((name, options.max_queue))
        raise ParameterError("model", "enough seen")

    monkeypatch.setattr(caudal.library.llm, "load_model", load_model)
    with pytest.raises(ParameterError):
        LLM(Path("some") / "model.gguf")
    assert seen == [str(Path("some") / "model.gguf"), 2**31]


def test_all_shapes_of_prompts(llm: LLM):
    shapes = ["b", {"prompt": "b"}, {"prompt_token_ids": list(b"b")}]
    results = llm.generate(shapes, GREEDY)
    assert [result.outputs[0].text for result in results] == ["bee"] * 3
    assert [result.prompt for result in results] == ["b", "b", None]
    assert llm.generate({"prompt_token_ids": [ord("b")]}, GREEDY)[0].outputs[0].text == "bee"


@pytest.mark.parametrize(
    "prompt",
    [
        7,
        None,
        {},
        {"prompt": "a", "prompt_token_ids": [1]},
        {"prompt": "a", "suffix": "b"},
        ["a", 1],
    ],
)
def test_other_shapes_are_refused(llm: LLM, prompt: object):
    with pytest.raises(ParameterError):
        llm.generate(prompt, GREEDY)  # type: ignore[arg-type]


def test_many_more_prompts_than_the_queue_holds(llm: LLM):
    results = llm.generate([f"prompt {number}" for number in range(50)], GREEDY, use_tqdm=False)
    assert [result.prompt for result in results] == [f"prompt {number}" for number in range(50)]
    assert {result.outputs[0].text for result in results} == {"Hi, día!"}
    assert len({result.request_id for result in results}) == 50


def test_parameters_per_prompt(llm: LLM):
    short = SamplingParams(max_tokens=2)
    results = llm.generate(["a", "b"], [GREEDY, short])
    assert [result.outputs[0].text for result in results] == ["Hi, día!", "be"]
    assert [result.outputs[0].finish_reason for result in results] == ["stop", "length"]
    with pytest.raises(ParameterError, match="2 prompts but 1"):
        llm.generate(["a", "b"], [GREEDY])


def test_the_default_is_sixteen_tokens(llm: LLM, executor: ScriptedExecutor):
    executor.script = b"x" * 100
    assert llm.generate("a")[0].outputs[0].text == "x" * 16


def test_log_probabilities_in_vllms_shape(llm: LLM):
    params = SamplingParams(logprobs=2, prompt_logprobs=1, max_tokens=3, n=2)
    [result] = llm.generate("abc", params)
    assert result.prompt_logprobs is not None
    assert result.prompt_logprobs[0] is None
    assert [ord(c) in entry for c, entry in zip("bc", result.prompt_logprobs[1:], strict=True)] == [
        True,
        True,
    ]
    assert len(result.outputs) == 2
    for output in result.outputs:
        assert output.logprobs is not None
        chosen = [
            entry[token] for token, entry in zip(output.token_ids, output.logprobs, strict=True)
        ]
        assert [logprob.decoded_token for logprob in chosen] == ["H", "i", ","]
        assert output.cumulative_logprob == pytest.approx(sum(item.logprob for item in chosen))


def test_stop_strings(llm: LLM):
    [result] = llm.generate("a", SamplingParams(stop=["dí"], max_tokens=50))
    assert result.outputs[0].text == "Hi, "
    assert result.outputs[0].finish_reason == "stop"
    assert result.outputs[0].stop_reason == "dí"
    assert result.outputs[0].token_ids == [*b"Hi, ", word("día")]


def test_chat_takes_one_conversation_or_several(llm: LLM):
    conversation = [{"role": "user", "content": "Hello"}]
    [one] = llm.chat(conversation, GREEDY)
    assert bytes(one.prompt_token_ids) == b"user:Hello\nassistant:"
    assert one.outputs[0].text == "Hi, día!"
    assert len(llm.chat([conversation, conversation], GREEDY)) == 2
    answer = [*conversation, {"role": "assistant", "content": "Well,"}]
    [continued] = llm.chat(answer, GREEDY, continue_final_message=True)
    assert bytes(continued.prompt_token_ids) == b"user:Hello\nassistant:Well,"
    with pytest.raises(TemplateError, match="System role"):
        llm.chat([{"role": "system", "content": "x"}], GREEDY)


def test_the_second_time_a_prompt_is_cached(llm: LLM):
    assert [llm.generate("x" * 40, GREEDY)[0].num_cached_tokens for _ in range(2)] == [0, 39]
    salted = {"prompt": "x" * 40, "cache_salt": "mine"}
    assert llm.generate(salted, GREEDY)[0].num_cached_tokens == 0  # type: ignore[arg-type]


def test_streaming_yields_what_is_new(llm: LLM):
    async def main() -> list[caudal.CompletionOutput]:
        params = SamplingParams(logprobs=0, max_tokens=50)
        return [output async for output in llm.stream("a", params)]

    outputs = asyncio.run(main())
    assert "".join(output.text for output in outputs) == "Hi, día!"
    assert [token for output in outputs for token in output.token_ids] == [
        *b"Hi, ",
        word("día"),
        ord("!"),
        END,
    ]
    assert [output.finished() for output in outputs] == [False] * (len(outputs) - 1) + [True]
    whole = llm.generate("a", SamplingParams(logprobs=0, max_tokens=50))[0].outputs[0]
    assert outputs[-1].cumulative_logprob == pytest.approx(whole.cumulative_logprob)


def test_streams_run_side_by_side(llm: LLM):
    async def read(prompt: str) -> str:
        return "".join([output.text async for output in llm.stream(prompt, GREEDY)])

    async def main() -> list[str]:
        return await asyncio.gather(read("a"), read("b"))

    assert asyncio.run(main()) == ["Hi, día!", "bee"]


def test_generate_works_where_an_event_loop_runs_already(llm: LLM):
    async def notebook_cell() -> str:
        return llm.generate("b", GREEDY)[0].outputs[0].text

    assert asyncio.run(notebook_cell()) == "bee"


def test_one_refused_prompt_refuses_the_call(llm: LLM):
    with pytest.raises(ContextOverflowError):
        llm.generate(["a", "x" * 1000, "b"], GREEDY)
    with pytest.raises(ParameterError, match="at least one token"):
        llm.generate("", GREEDY)
    assert llm.generate("b", GREEDY)[0].outputs[0].text == "bee"


def test_importing_caudal_is_light():
    code = (
        "import sys, caudal; print([m for m in ('numpy', 'fastapi', 'jinja2') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"
