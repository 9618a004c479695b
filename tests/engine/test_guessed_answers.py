"""What a request may ask for, each by itself: its answer is the same where tokens are guessed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from caudal.backends.executor import SampledToken
from caudal.engine.config import EngineConfig
from caudal.engine.drafting.proposer import Asked, Proposer
from caudal.engine.drafting.speculation import Speculation
from caudal.engine.engine import Engine
from caudal.engine.request import BACKGROUND, FinishReason, Generate, Request
from caudal.engine.thinking import ThinkingLimit, ThinkingMarkers
from caudal.grammars.compiler import GrammarCompiler
from caudal.grammars.requests import RequestGrammars
from caudal.sampling_params import SamplingParams
from support.engine_harness import Harness
from support.fake_grammar import SlotGrammar
from support.fake_model import ByteTokenizer, ScriptedExecutor

PROMPT = [11, 12, 13, 14, 15]
VOCABULARY = 50
Answers = dict[tuple[str, int], tuple[list[SampledToken], FinishReason | None]]

KINDS: dict[str, dict[str, Any]] = {
    "adapter": {"adapter": True},
    "background": {"priority": BACKGROUND, "max_num_seqs": 2},
    "grammar": {"grammar": SlotGrammar([range(9, 40)] * 10 + [(7,)] * 4 + [range(50)] * 12)},
    "log-probabilities": {"logprobs": 3, "prompt_logprobs": 2},
    "min_tokens": {"min_tokens": 25},
    "n": {"n": 3, "max_num_seqs": 9},
    "penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": 0.1},
    "stop tokens": {"stop_token_ids": list(range(0, VOCABULARY, 12)), "max_tokens": 200},
}


class Told(Proposer):
    """Knows what was answered without it, and is wrong in every third place.

    Args:
        answers: Tokens by prompt and number of the answer.
    """

    def __init__(self, answers: dict[tuple[tuple[int, ...], int], list[int]]) -> None:
        self._answers = answers

    def propose(self, asked: Sequence[Asked]) -> Sequence[Sequence[int]]:
        return [self._guess(each) for each in asked]

    def ended(self, number: int) -> None:
        """It keeps nothing."""

    def close(self) -> None:
        """Nothing runs."""

    def _guess(self, asked: Asked) -> list[int]:
        tokens = list(asked.tokens)
        answer = self._answers[tuple(tokens[: asked.prompt]), asked.stream]
        done = len(tokens) - asked.prompt
        assert tokens[asked.prompt :] == answer[:done]
        return [
            (token + (place % 3 == 2)) % VOCABULARY
            for place, token in enumerate(answer[done : done + asked.most])
        ]


def run(proposer: Proposer | None, asks: dict[str, Any]) -> tuple[Harness, Answers]:
    """Answer two requests that ask for something, and one that doesn't."""
    asks = {"max_tokens": 30, "ignore_eos": "grammar" not in asks} | asks
    guesses = None if proposer is None else Speculation(adaptive=False, num_speculative_tokens=6)
    harness = Harness(
        num_blocks=200,
        max_model_len=300,
        max_num_seqs=asks.pop("max_num_seqs", 4),
        proposer=proposer,
        speculative=guesses,
    )
    if asks.get("adapter"):
        asks["adapter"] = harness.load_adapter()
    for number in range(2):
        harness.submit([*PROMPT, number], seed=number, **asks)
    harness.step()
    harness.submit(PROMPT, max_tokens=30)
    tokens: dict[tuple[str, int], list[SampledToken]] = {key: [] for key in harness.outputs}
    harness.run()
    for update in harness.updates:
        tokens[update.request_id, update.index] += update.tokens
    return harness, {key: (each, harness.reason(*key)) for key, each in tokens.items()}


@pytest.mark.parametrize("kind", list(KINDS))
def test_an_answer_is_the_same_whatever_is_asked_for(kind: str) -> None:
    plain, answers = run(None, KINDS[kind])
    told = Told(
        {
            (tuple(plain.requests[name].prompt), index): [each.token for each in tokens]
            for (name, index), (tokens, _) in answers.items()
        }
    )
    guessed, same = run(told, KINDS[kind])
    assert same == answers
    assert guessed.prompt_logprobs == plain.prompt_logprobs
    drafts = guessed.engine.stats().drafts
    assert drafts.failures == 0
    assert 5 < drafts.accepted < drafts.proposed
    assert len(guessed.executor.batches) < 0.8 * len(plain.executor.batches)


@pytest.mark.parametrize(
    ("predicted", "right"), [(b"<think>abcdefghijkl", 10), (b"abcdefgh", 1), (b"", 0)]
)
def test_thinking_ends_with_its_budget_where_it_was_predicted_to_go_on(
    predicted: bytes, right: int
) -> None:
    tokenizer: Any = ByteTokenizer()
    script = b"<think>abcdefghijkl</think>And so on."
    executor = ScriptedExecutor(script=script)
    engine = Engine(
        executor,
        EngineConfig(max_model_len=512, speculative=Speculation(adaptive=False)),
        ByteTokenizer.eos_ids,
        RequestGrammars(tokenizer, GrammarCompiler(tokenizer)),
    )
    markers = ThinkingMarkers(begins=("<think>",), end="</think>")
    work = Generate(
        SamplingParams(seed=1, max_tokens=25),
        ThinkingLimit(max_tokens=5, syntax=markers),
        list(predicted),
    )
    engine.submit(Request(request_id="r", prompt=list(b"Hi"), work=work))
    answer = b""
    while engine.has_work:
        for update in engine.step():
            answer += bytes(sampled.token for sampled in update.tokens)
    assert answer == b"<think>abcde</think>" + script[20:25]  # which knows of no budget
    assert executor.accepted >= right
