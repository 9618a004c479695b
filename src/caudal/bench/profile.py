"""Where an iteration's time goes, stage by stage: `caudal bench engine --profile`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caudal.backends.executor import Batch
from caudal.backends.native.executor import NativeExecutor, StageCost
from caudal.bench.engine import PROMPT_TOKENS, random_prompt
from caudal.bench.steps import lone_step

LONG_CONTEXT = 4000
DECODE_CONTEXT = 128


@dataclass(frozen=True, slots=True)
class CaseProfile:
    """The cost of one kind of iteration.

    Attributes:
        name: E.g. `prefill`.
        tokens: Tokens that the iteration computes.
        stages: Each stage's cheapest run, the most expensive stage first.
    """

    name: str
    tokens: int
    stages: Sequence[StageCost]

    @property
    def thread_seconds(self) -> float:
        """Time that threads work in an iteration, summed over them."""
        return sum(stage.work_seconds for stage in self.stages)


def profile_cases(executor: NativeExecutor, runs: int) -> list[CaseProfile]:
    """Profile a prompt, and decoding of one and of 32 sequences and after a long context.

    Args:
        executor: Takes `PROMPT_TOKENS` tokens at once.
        runs: How often each iteration runs; the cheapest run of every stage counts, so that what
            else the machine does disturbs little.
    """
    info = executor.info
    size, vocabulary = info.block_size, info.vocab_size

    def decode(sequences: int, context: int) -> Batch:
        # Nobody computed these contexts, but what keys and values hold doesn't change their cost.
        blocks = -(-(context + 1) // size)
        return Batch(
            [
                lone_step(info, [1], context, blocks=range(s * blocks, (s + 1) * blocks), number=s)
                for s in range(sequences)
            ]
        )

    prompt = random_prompt(vocabulary, PROMPT_TOKENS)
    whole_prompt = -(-PROMPT_TOKENS // size)
    # Memory nobody has written is one page of zeros that stays in the cache: write all of it first.
    written = max(32 * (-(-(DECODE_CONTEXT + 1) // size)), -(-(LONG_CONTEXT + 1) // size))
    for first in range(0, written, whole_prompt):
        executor.execute(
            Batch([lone_step(info, prompt, 0, blocks=range(first, first + whole_prompt))])
        )
    cases = {
        f"prefill of {PROMPT_TOKENS} tokens": Batch(
            [lone_step(info, prompt, 0, blocks=range(whole_prompt))]
        ),
        f"decoding 1 sequence after {DECODE_CONTEXT} tokens": decode(1, DECODE_CONTEXT),
        f"decoding 32 sequences after {DECODE_CONTEXT} tokens": decode(32, DECODE_CONTEXT),
        f"decoding 1 sequence after {LONG_CONTEXT} tokens": decode(1, LONG_CONTEXT),
    }
    return [_profile(executor, name, batch, runs) for name, batch in cases.items()]


def _profile(executor: NativeExecutor, name: str, batch: Batch, runs: int) -> CaseProfile:
    cheapest: dict[str, StageCost] = {}
    for _ in range(runs + 1):  # the first warms up
        for stage in executor.profile(batch):
            known = cheapest.get(stage.name)
            if known is None or stage.work_seconds < known.work_seconds:
                cheapest[stage.name] = stage
    stages = sorted(cheapest.values(), key=lambda stage: -stage.work_seconds)
    return CaseProfile(name, batch.num_tokens, stages)
