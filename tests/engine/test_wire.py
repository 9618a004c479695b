"""Requests, updates and errors cross to another process and back, and nothing is lost."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

import caudal.errors
from caudal.engine.config import EngineConfig
from caudal.engine.engine import Engine
from caudal.engine.request import FinishReason, Generate, Pool, Request, SequenceUpdate
from caudal.engine.thinking import ThinkingLimit, ThinkingMarkers, ThinkingMessages
from caudal.engine.wire import ErrorData, pack, unpack
from caudal.errors import (
    CaudalError,
    ContextOverflowError,
    InputTooLongError,
    LimitError,
    ModelLoadError,
    ParameterError,
    QueueFullError,
    RequestTimeoutError,
    TemplateError,
    UnknownModelError,
    UnsupportedTaskError,
)
from caudal.grammars.compiler import GrammarCompiler
from caudal.grammars.requests import RequestGrammars
from caudal.sampling_params import SamplingParams
from caudal.structured_outputs import StructuredOutputsParams
from support.engine_harness import Clock
from support.fake_executor import FakeExecutor
from support.fake_model import END, ByteTokenizer
from support.tiny_adapter import tiny_adapter

PROMPT = list(b"What is a messenger?")
LATE = "late"
MARKERS = ThinkingMarkers(begins=("<think>", "<t>"), end="</think>", open_already=True)
MESSAGES = ThinkingMessages(
    start="<s>",
    body="<m>",
    ends=("<e>",),
    header_begins=("<c>",),
    max_header=99,
    pattern="<c>think",
    ending="<e><s>",
    begun="<c>think<m>",
)


def generate(thinking: ThinkingLimit | None = None, **params: Any) -> Generate:
    return Generate(SamplingParams(**{"seed": 7, "max_tokens": 12, **params}), thinking)


def form(**fields: Any) -> Generate:
    return generate(structured_outputs=StructuredOutputsParams(**fields))


def limit(syntax: ThinkingMarkers | ThinkingMessages) -> ThinkingLimit:
    return ThinkingLimit(max_tokens=3, syntax=syntax, visible_tokens=frozenset({END}))


REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several answers": {"work": generate(n=3)},
    "a seed of 64 bits": {"work": generate(seed=2**64 - 1)},
    "a negative seed": {"work": generate(seed=-(2**63))},
    "a greedy one, with an integer": {"work": generate(temperature=0, top_p=1, min_p=0.1)},
    "every way to sample": {
        "work": generate(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, typical_p=0.8)
    },
    "stop tokens": {"work": generate(stop_token_ids=list(range(0, 250, 3)))},
    "stop strings": {"work": generate(stop=("a", "é🦙"), include_stop_str_in_output=True)},
    "a stop string that is no text": {"work": generate(stop=["a\ud800"])},
    "no end": {"work": generate(ignore_eos=True, skip_special_tokens=False)},
    "no limit": {"work": generate(max_tokens=None)},
    "nothing to generate": {"work": generate(max_tokens=0, prompt_logprobs=1)},
    "a least length": {"work": generate(min_tokens=5, stop_token_ids=list(range(99)))},
    "log-probabilities": {"work": generate(logprobs=3, prompt_logprobs=2)},
    "biases": {"work": generate(logit_bias={0: 1, 65: -99.5})},
    "penalties": {
        "work": generate(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=-0.5)
    },
    "a JSON schema": {
        "work": form(json={"type": "object", "properties": {"a": {"type": "boolean"}}})
    },
    "any JSON": {"work": form(json_object=True)},
    "a pattern": {"work": form(regex="[a-c]{1,9}!")},
    "a choice": {"work": form(choice=("yes, of course", "no"))},
    "a grammar": {"work": form(grammar='start: "a" /[xyz]+/ "b"')},
    "a schema that lists all": {
        "work": form(json={"properties": {"b": {}}}, disable_additional_properties=True)
    },
    "words to leave out": {"work": generate(bad_words=["an", "\u00e9", "the one"])},
    "tokens to keep to": {"work": generate(allowed_token_ids=list(b"abcdef"))},
    "thinking between markers": {"work": generate(limit(MARKERS))},
    "thinking in messages": {"work": generate(limit(MESSAGES))},
    "all that takes a grammar": {
        "work": generate(limit(MARKERS), allowed_token_ids=list(b"<>/think"), bad_words=["hi"])
    },
    "the mean of a text": {"work": Pool("mean")},
    "a text's first token": {"work": Pool("cls")},
    "a text's last token": {"work": Pool("last")},
    "a pair of texts": {"work": Pool("cls", 9)},
    "a salt": {"cache_salt": "x" * 99},
    "a salt that is no text": {"cache_salt": "\udcff", "work": Pool("mean")},
    "an adapter": {"adapter": 0},
    "an importance": {"priority": -3},
    "one that arrived before": {"arrived": 999.5},
    "deadlines": {"first_token_timeout": 1.5, "timeout": 99.5},
    LATE: {"work": generate(max_tokens=40), "timeout": 2.5},
}


def request(name: str) -> Request:
    return Request(**{"request_id": name, "prompt": PROMPT, "work": generate(), **REQUESTS[name]})


def plain(message: object) -> Any:
    """A message as data that can be compared: messages don't tell tuples from lists."""

    def as_lists(data: Any) -> Any:
        if isinstance(data, dict):
            return {key: as_lists(value) for key, value in data.items()}
        return list(map(as_lists, data)) if isinstance(data, list | tuple) else data

    return as_lists(msgspec.to_builtins(message, enc_hook=lambda array: array.tolist()))


def answers(name: str, through: Callable[[Any, Any], Any]) -> list[Any]:
    """All updates of a request, where everything goes `through` something."""
    tokenizer: Any = ByteTokenizer()
    clock = Clock()
    engine = Engine(
        FakeExecutor(vocab_size=ByteTokenizer.vocab_size),
        EngineConfig(max_model_len=100, embedding_queue_delay=0.0),
        ByteTokenizer.eos_ids,
        RequestGrammars(tokenizer, GrammarCompiler(tokenizer)),
        clock=clock,
    )
    engine.adapters.load("an adapter", tiny_adapter("an adapter"))
    engine.submit(through(request(name), Request))
    updates: list[Any] = []
    while engine.has_work:
        clock.now += 1.0
        updates += through(engine.step(), list[SequenceUpdate])
    return updates


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_from_elsewhere_is_answered_alike(name: str) -> None:
    here, there = request(name), unpack(pack(request(name)), Request)
    assert plain(there) == plain(here)
    assert type(there.work) is type(here.work)
    near = answers(name, lambda message, kind: message)
    far = answers(name, lambda message, kind: unpack(pack(message), kind))
    assert plain(far) == plain(near)
    ends = [update.finish_reason for update in far if update.finish_reason is not None]
    assert len(ends) == here.work.num_sequences
    if name == LATE:
        assert ends == [FinishReason.TIMEOUT]
        assert "not complete" in far[-1].error
    elif isinstance(here.work, Pool):
        assert far[-1].pooled.dtype == np.float64
    else:
        assert set(ends) <= {FinishReason.STOP, FinishReason.LENGTH}


def test_arrays_keep_every_bit() -> None:
    pooled = np.array([0.1, -0.0, np.inf, 5e-324])
    update = SequenceUpdate(request_id="r", index=0, pooled=pooled)
    assert unpack(pack(update), SequenceUpdate).pooled.tobytes() == pooled.tobytes()  # type: ignore[union-attr]


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xc1", pack({"request_id": "r"}), pack("r")])
def test_what_is_no_request_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        unpack(data, Request)


def test_parameters_are_checked_again() -> None:
    data = plain(request("plain"))
    data["work"]["params"]["top_p"] = 2.0
    with pytest.raises(ParameterError, match="top_p"):
        unpack(pack(data), Request)


ERRORS = [
    ModelLoadError("a.gguf", "too short"),
    ParameterError("top_p", "top_p is \ud800."),
    ContextOverflowError("prompt", 100, 80, 40),
    ContextOverflowError("messages", 100, 999, at_least=True),
    InputTooLongError("input[3]", 100, characters=10**7),
    TemplateError("No system messages.", "chat_template"),
    QueueFullError(5, 2, "The server's queue"),
    LimitError("max_waiting", "Too much.", status=503, retry_after=4),
    RequestTimeoutError("Too late.", "first_token_timeout", 7),
    UnknownModelError("x\ud800", ["a", "b"]),
    UnsupportedTaskError("a", "embed", ["generate"]),
]
KINDS = [
    kind
    for _, kind in inspect.getmembers(caudal.errors, inspect.isclass)
    if issubclass(kind, CaudalError)
]
ERRORS += [kind.restored("What went wrong.", {"names": ("a", "b"), "limit": 3}) for kind in KINDS]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "send",
    [
        lambda error: pickle.loads(pickle.dumps(error)),
        copy.copy,
        lambda error: unpack(pack(ErrorData.of(error)), ErrorData).error(),
    ],
    ids=["pickle", "copy", "msgpack"],
)
def test_errors_arrive_with_all_that_they_say(
    error: CaudalError, send: Callable[[CaudalError], CaudalError]
) -> None:
    there = send(error)
    assert type(there) is type(error)
    assert str(there) == str(error)
    assert there.args == error.args
    assert vars(there) == vars(error)


def test_an_error_that_is_not_known_there_is_what_it_builds_on() -> None:
    data = ErrorData.of(QueueFullError(3, 5))
    assert data.bases == ("LimitError", "CaudalError")
    unknown = ErrorData("Elsewhere", "it is full", {"most": 3}, ("QueueFullError", "CaudalError"))
    there = unpack(pack(unknown), ErrorData).error()
    assert type(there) is QueueFullError
    assert (str(there), there.most) == ("it is full", 3)


def test_an_error_of_another_kind_is_none_of_ours() -> None:
    with pytest.raises(ValueError, match="KeyError"):
        ErrorData("KeyError", "x", {}).error()
