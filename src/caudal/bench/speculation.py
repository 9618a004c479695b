"""What guessing tokens brings, and what it costs where nothing can be guessed:
`caudal bench engine --speculation`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from caudal.bench.repeating import NAMES, REPEATING
from caudal.engine.config import EngineConfig
from caudal.engine.drafting.speculation import Speculation
from caudal.engine.engine import Engine
from caudal.engine.request import Generate, Request
from caudal.loading.load import LoadedModel
from caudal.sampling_params import SamplingParams

OUTPUT_TOKENS = 128
BATCHES = (1, 8)
RANDOM_BATCHES = (1, 2, 4, 8, 16, 32)
DRAWN = "random"
"""The text that is drawn, and of which nothing can be guessed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationResult:
    """A case.

    Attributes:
        text: What is generated.
        sequences: How many at once.
        plain: Tokens per second without guesses, of each run.
        guessed: With them, of each run.
        perfect: With guesses that are all right, of each run: what is left of guessing better.
        accepted: The share of the tokens guessed that were right.
    """

    text: str
    sequences: int
    plain: Sequence[float]
    guessed: Sequence[float]
    perfect: Sequence[float]
    accepted: float

    @property
    def ratio(self) -> float:
        """How many times faster answers are with guesses: the median of the runs' own ratios."""
        return _median_ratio(self.guessed, self.plain)

    @property
    def bound(self) -> float | None:
        """The same for guesses that are all right."""
        return _median_ratio(self.perfect, self.plain) if self.perfect else None


def _median_ratio(rates: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(rate / other for rate, other in zip(rates, others, strict=True))


def random_prompt(number: int) -> str:
    """Says what a text is about that is then drawn at random."""
    return f"{number}. A story about a {NAMES[number % len(NAMES)]}, unlike any other:\n\n"


TEXTS: Mapping[str, Callable[[int], str]] = {**REPEATING, DRAWN: random_prompt}
"""Texts that are generated, by name: those that repeat their prompts greedily, the last drawn."""


def measure_speculation(
    model: LoadedModel,
    speculation: Speculation,
    *,
    runs: int,
    progress: Callable[[str], None],
    texts: Sequence[str] = tuple(TEXTS),
    batches: Sequence[int] | None = None,
) -> Iterator[SpeculationResult]:
    """Measure each text at each batch's size, in turn within each run: without guesses, with them,
    and with guesses that are all right.

    Args:
        model: It.
        speculation: How tokens are guessed.
        runs: How often each case is measured, after one run to warm up.
        progress: Told what is being measured.
        texts: Which of `TEXTS`.
        batches: How many sequences at once; None: `BATCHES`, or of what is drawn `RANDOM_BATCHES`.
    """
    for text in texts:
        drawn = text == DRAWN
        for sequences in batches or (RANDOM_BATCHES if drawn else BATCHES):
            progress(f"{text}, {sequences} at once")
            case = _Case(model, speculation, text, sequences)
            plain, guessed, perfect = [], [], []
            for run in range(runs + 1):
                rate = case.run(case.plain)
                other_rate = case.run(case.guessing)
                bound = None if drawn else case.run(case.guessing, knows=True)
                if run:
                    plain.append(rate)
                    guessed.append(other_rate)
                    if bound is not None:
                        perfect.append(bound)
            yield SpeculationResult(
                text=text,
                sequences=sequences,
                plain=plain,
                guessed=guessed,
                perfect=perfect,
                accepted=case.accepted,
            )


class _Case:
    """Answers to be timed.

    Engines are those of a server that has been at it for a while: what guesses cost, and how often
    they are right, they know from the runs before.

    Args:
        model: It.
        speculation: How tokens are guessed.
        text: Which of `TEXTS`.
        sequences: How many at once.

    Attributes:
        plain: An engine that doesn't guess.
        guessing: One that does.
        accepted: The share of its guesses that were right in the latest run in which it wasn't told
            the answers.
    """

    def __init__(
        self, model: LoadedModel, speculation: Speculation, text: str, sequences: int
    ) -> None:
        self._text = text
        self._prompts = [model.tokenizer.encode(TEXTS[text](n)) for n in range(sequences)]
        self._answers: list[list[int]] = []
        config = EngineConfig(
            max_model_len=max(map(len, self._prompts)) + OUTPUT_TOKENS,
            max_num_seqs=max(sequences, 2),
            max_num_batched_tokens=model.engine_config.max_num_batched_tokens,
            prefix_cache=False,
        )
        self.plain = Engine(model.executor, config, frozenset())
        self.guessing = Engine(
            model.executor, replace(config, speculative=speculation), frozenset()
        )
        self.accepted = 0.0

    def run(self, engine: Engine, *, knows: bool = False) -> float:
        """Tokens per second once all prompts are computed.

        Args:
            engine: Which of both answers.
            knows: It is told beforehand what it will answer.

        Raises:
            AssertionError: It doesn't answer as before.
        """
        params = SamplingParams(
            temperature=1.0 if self._text == DRAWN else 0.0,
            max_tokens=OUTPUT_TOKENS,
            ignore_eos=True,
            seed=1,
        )
        answers: list[list[int]] = [[] for _ in self._prompts]
        for number, prompt in enumerate(self._prompts):
            prediction = self._answers[number] if knows else ()
            request = Request(
                request_id=str(number),
                prompt=prompt,
                work=Generate(params, prediction=prediction),
            )
            engine.submit(request)

        def step() -> None:
            for update in engine.step():
                answers[int(update.request_id)] += [sampled.token for sampled in update.tokens]

        counts = engine.stats().drafts
        while not all(answers):
            step()
        before = sum(map(len, answers))
        start = time.perf_counter()
        while engine.has_work:
            step()
        seconds = time.perf_counter() - start
        if answers != (self._answers or answers):
            raise AssertionError(f"guesses have changed an answer: {self._text}")
        self._answers = answers
        if engine is self.guessing and not knows:
            now = engine.stats().drafts
            proposed = now.proposed - counts.proposed
            self.accepted = (now.accepted - counts.accepted) / proposed if proposed else 0.0
        return (sum(map(len, answers)) - before) / seconds
