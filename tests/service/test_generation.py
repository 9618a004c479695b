from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caudal.backends.executor import Batch, SampledToken
from caudal.engine.request import FinishReason, Generate, Request, SequenceUpdate
from caudal.errors import EngineDeadError, RequestFailedError
from caudal.sampling_params import SamplingParams
from caudal.service.answers import Delta
from caudal.service.generation import Generation, SequenceText
from support.fake_model import (
    END,
    ByteTokenizer,
    ScriptedExecutor,
    start_engine,
    word,
)
from support.text_search import search

TOKENIZER = ByteTokenizer()

tokens = st.lists(
    st.one_of(st.sampled_from(list("abñ🦙".encode())), st.integers(0, TOKENIZER.vocab_size - 1)),
    max_size=40,
)
stops = st.lists(st.text(alphabet="abñ🦙\ufffd", min_size=1, max_size=4), max_size=3)


def run_text(
    ids: list[int], params: SamplingParams, chunk: int = 1, *, stop_token: bool = False
) -> tuple[list[Delta], SequenceText]:
    """Feeds tokens in chunks, the last with the end, as an engine does."""
    sequence = SequenceText(TOKENIZER, params)
    deltas = []
    chunks = [ids[i : i + chunk] for i in range(0, len(ids), chunk)] or [[]]
    for number, part in enumerate(chunks):
        last = number == len(chunks) - 1
        finish = FinishReason.STOP if stop_token else FinishReason.LENGTH
        update = SequenceUpdate(
            request_id="r",
            index=0,
            tokens=[SampledToken(token) for token in part],
            finish_reason=finish if last else None,
            stop_token=part[-1] if last and stop_token else None,
        )
        if delta := sequence.push(update):
            deltas.append(delta)
    return deltas, sequence


@given(tokens, stops, st.integers(1, 7), st.booleans(), st.booleans())
def test_streamed_text_is_what_a_search_of_the_whole_text_gives(ids, stop, chunk, include, skip):
    params = SamplingParams(stop=stop, include_stop_str_in_output=include, skip_special_tokens=skip)
    deltas, sequence = run_text(ids, params, chunk)
    whole = TOKENIZER.decode(ids, skip_special_tokens=skip)
    match = search(whole, stop)
    if match is None:
        expected, reason, stop_reason = whole, "length", None
    else:
        end, stop_reason = match
        expected, reason = whole[: end if include else end - len(stop_reason)], "stop"
    assert "".join(delta.text for delta in deltas) == expected
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [reason]
    assert deltas[-1].stop_reason == stop_reason
    assert sequence.finished


@given(tokens, stops, st.integers(1, 7))
def test_each_token_is_reported_once_with_its_place_in_the_text(ids, stop, chunk):
    deltas, sequence = run_text(ids, SamplingParams(stop=stop), chunk)
    reported = [token for delta in deltas for token in delta.tokens]
    assert [token.id for token in reported] == ids[: len(reported)]
    assert len(reported) == sequence.num_tokens
    text = "".join(delta.text for delta in deltas)
    is_cut = deltas[-1].stop_reason is not None
    if not is_cut:
        assert len(reported) == len(ids)
    for number, token in enumerate(reported):
        assert token.in_text == (not is_cut or token.offset < len(text))
        # The tokens before it, as text: the same up to a character that is not complete yet.
        before = TOKENIZER.decode(ids[:number])
        assert before.rstrip("\ufffd").startswith(text[: token.offset].rstrip("\ufffd"))


def test_a_stop_string_spread_over_tokens_is_left_out():
    ids = [*b"M N ", *b"O", *b" P", *b" Q R"]
    deltas, sequence = run_text(ids, SamplingParams(stop=["O P Q"]))
    assert "".join(delta.text for delta in deltas) == "M N "
    assert deltas[-1].finish_reason == "stop"
    assert sequence.num_tokens == len("M N O P Q")


def test_a_stop_string_that_ends_inside_a_token_cuts_it():
    deltas, _ = run_text([*b"he", word("llo wor"), *b"ld"], SamplingParams(stop=["lo"]))
    assert "".join(delta.text for delta in deltas) == "hel"
    assert [token.in_text for token in deltas[-1].tokens] == [True]


def test_a_partial_match_is_released_when_it_fails_and_at_the_end():
    deltas, _ = run_text(list(b"a STOx ST"), SamplingParams(stop=["STOP"]))
    assert [delta.text for delta in deltas] == ["a", " ", "STOx", " ", "ST"]
    assert deltas[-1].finish_reason == "length"


def test_a_character_appears_when_its_last_byte_has():
    deltas, _ = run_text(list("é!".encode()), SamplingParams())
    assert [delta.text for delta in deltas] == ["é", "!"]
    assert [len(delta.tokens) for delta in deltas] == [2, 1]


def test_the_token_that_ends_an_answer_is_reported_but_not_text():
    deltas, sequence = run_text([*b"hi", END], SamplingParams(), stop_token=True)
    assert "".join(delta.text for delta in deltas) == "hi"
    assert deltas[-1].tokens[-1].id == END
    assert not deltas[-1].tokens[-1].in_text
    assert sequence.num_tokens == 3
    assert deltas[-1].stop_reason is None


def test_a_stop_token_id_is_the_stop_reason():
    params = SamplingParams(stop_token_ids=[ord("!")])
    deltas, _ = run_text(list(b"hi!"), params, stop_token=True)
    assert "".join(delta.text for delta in deltas) == "hi"
    assert deltas[-1].stop_reason == ord("!")


async def collect(generation: Generation) -> list[Delta]:
    async with contextlib.aclosing(generation.deltas()) as stream:
        return [delta async for deltas in stream for delta in deltas]


def generate(executor: ScriptedExecutor, params: SamplingParams) -> tuple[list[Delta], Generation]:
    async def main() -> tuple[list[Delta], Generation]:
        engine = start_engine(executor)
        request = Request(request_id="r", prompt=list(b"prompt"), work=Generate(params))
        generation = Generation(request, await engine.submit(request), TOKENIZER)
        try:
            return await collect(generation), generation
        finally:
            await engine.shutdown()

    return asyncio.run(main())


class PacedExecutor(ScriptedExecutor):
    """Takes as long for a token as a model does, so that others get their turn, if late."""

    def collect(self) -> Any:
        time.sleep(0.02)
        return super().collect()


def test_a_stop_string_ends_the_request_in_the_engine():
    executor = PacedExecutor(script=list(b"abcSTOP" + b"x" * 400))
    deltas, generation = generate(executor, SamplingParams(stop=["STOP"], max_tokens=400))
    assert "".join(delta.text for delta in deltas) == "abc"
    assert generation.num_output_tokens == 7
    assert generation.outcome == "stop"
    assert sum(map(sum, executor.batches)) < 200


def test_choices_end_one_by_one():
    executor = ScriptedExecutor(script=list(b"abcSTOPdef"))
    deltas, generation = generate(executor, SamplingParams(n=3, stop=["STOP"], max_tokens=50))
    for index in range(3):
        own = [delta for delta in deltas if delta.index == index]
        assert "".join(delta.text for delta in own) == "abc"
        assert own[-1].finish_reason == "stop"
    assert generation.outcome == "stop"


def test_an_executor_failure_is_the_requests_failure():
    def fail(batch: Batch) -> None:
        raise RuntimeError("out of luck")

    executor = ScriptedExecutor(fail=fail)
    with pytest.raises(RequestFailedError, match="out of luck"):
        generate(executor, SamplingParams())


def test_shutting_the_engine_down_ends_the_stream_with_an_error():
    async def main() -> str | None:
        engine = start_engine(PacedExecutor(script=[ord("x")] * 500))
        request = Request(request_id="r", prompt=[1], work=Generate(SamplingParams(max_tokens=500)))
        generation = Generation(request, await engine.submit(request), TOKENIZER)
        async with contextlib.aclosing(generation.deltas()) as stream:
            await anext(stream)
            await engine.shutdown()
            with pytest.raises(EngineDeadError):
                async for _ in stream:
                    pass
        return generation.outcome

    assert asyncio.run(main()) == "failed"


def test_giving_a_request_up_before_reading_it_cancels_it():
    async def main() -> tuple[str | None, int]:
        engine = start_engine(PacedExecutor(script=[ord("x")] * 500))
        request = Request(request_id="r", prompt=[1], work=Generate(SamplingParams(max_tokens=500)))
        generation = Generation(request, await engine.submit(request), TOKENIZER)
        await generation.aclose()
        await engine.shutdown()
        return generation.outcome, engine.stats().generated_tokens

    outcome, generated = asyncio.run(main())
    assert outcome == "cancelled"
    assert generated < 500
