"""What guessing tokens brings, and what it costs where nothing can be guessed:
`caudal bench engine --speculation`.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from caudal.engine.config import EngineConfig
from caudal.engine.drafting.speculation import Speculation
from caudal.engine.engine import Engine
from caudal.engine.request import Generate, Request
from caudal.loading.load import LoadedModel
from caudal.sampling_params import SamplingParams

OUTPUT_TOKENS = 128
BATCHES = (1, 8, 32)
NAMES = (
    *("order", "invoice", "customer", "parcel", "ticket", "account", "shipment", "product"),
    *("supplier", "contract", "payment", "branch", "vehicle", "machine", "sensor", "reading"),
)
"""What texts are about, so that no two are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationResult:
    """A case.

    Attributes:
        text: What is generated.
        sequences: How many at once.
        plain: Tokens per second without guesses, of each run.
        guessed: With them, of each run.
        accepted: The share of the tokens guessed that were right.
    """

    text: str
    sequences: int
    plain: Sequence[float]
    guessed: Sequence[float]
    accepted: float

    @property
    def ratio(self) -> float:
        """How many times faster answers are with guesses: the median of the runs' own ratios."""
        pairs = zip(self.guessed, self.plain, strict=True)
        return statistics.median(guessed / plain for guessed, plain in pairs)


def code_prompt(number: int) -> str:
    """Has a module repeated with a small change, as editors have."""
    generator = random.Random(number)
    names = generator.sample(NAMES, 6)
    functions = [
        f"def load_{name}({name}_id, connection):\n"
        f'    """Read the {name} with this id, or fail."""\n'
        f'    row = connection.execute("SELECT * FROM {name}s WHERE id = ?", ({name}_id,))\n'
        f"    if row is None:\n"
        f'        raise KeyError("no {name} has the id " + str({name}_id))\n'
        f"    return {name.capitalize()}(row, limit={generator.randrange(10, 99)})\n"
        for name in names
    ]
    module = "\n\n".join(functions)
    return (
        f"Before:\n\n```python\n{module}```\n\n"
        f"After the change of the first function:\n\n```python\n"
        f"{functions[0].replace('connection', 'database')}\n\n{functions[1]}\n"
    )


def quotes_prompt(number: int) -> str:
    """Has an article's sentences quoted."""
    generator = random.Random(number)
    names = generator.sample(NAMES, 8)
    sentences = [
        f"In {1900 + generator.randrange(99)} the town kept a {name} in every house, and nobody "
        f"would have thought of leaving it without somebody to look after it."
        for name in names
    ]
    quotes = "\n".join(f'> "{sentence}"' for sentence in sentences[:2])
    return f"{' '.join(sentences)}\n\nWhat the article says, quoted in full:\n\n{quotes}\n"


def json_prompt(number: int) -> str:
    """Has records written in a form that examples show."""
    generator = random.Random(number)
    records = [
        f'  {{"kind": "{name}", "identifier": {generator.randrange(1000, 9999)}, '
        f'"is_available": true, "number_of_copies": {generator.randrange(9)}}},\n'
        for name in generator.sample(NAMES, 8)
    ]
    return f"[\n{''.join(records)}]\n\nThe same again:\n\n[\n{''.join(records[:2])}"


def random_prompt(number: int) -> str:
    """Says what a text is about that is then drawn at random."""
    return f"{number}. A story about a {NAMES[number % len(NAMES)]}, unlike any other:\n\n"


TEXTS: Mapping[str, Callable[[int], str]] = {
    "code edit": code_prompt,
    "quotes": quotes_prompt,
    "JSON": json_prompt,
    "random": random_prompt,
}
"""Texts that are generated, by name: those that repeat their prompts greedily, the last drawn."""


def measure_speculation(
    model: LoadedModel,
    speculation: Speculation,
    *,
    runs: int,
    progress: Callable[[str], None],
    texts: Sequence[str] = tuple(TEXTS),
    batches: Sequence[int] = BATCHES,
) -> Iterator[SpeculationResult]:
    """Measure each text at each batch's size, with guesses and without in turn within each run.

    Args:
        model: It.
        speculation: How tokens are guessed.
        runs: How often each case is measured, after one run to warm up.
        progress: Told what is being measured.
        texts: Which of `TEXTS`.
        batches: How many sequences at once.
    """
    for text in texts:
        for sequences in batches:
            progress(f"{text}, {sequences} at once")
            prompts = [model.tokenizer.encode(TEXTS[text](n)) for n in range(sequences)]
            temperature = 1.0 if text == "random" else 0.0
            plain, guessed, accepted = [], [], 0.0
            for run in range(runs + 1):
                rate, answers, _ = _rate(model, prompts, temperature, None)
                other_rate, others, share = _rate(model, prompts, temperature, speculation)
                if answers != others:
                    raise AssertionError(f"guesses have changed an answer: {text}, {sequences}")
                if run:
                    plain.append(rate)
                    guessed.append(other_rate)
                    accepted = share
            yield SpeculationResult(
                text=text, sequences=sequences, plain=plain, guessed=guessed, accepted=accepted
            )


def _rate(
    model: LoadedModel,
    prompts: Sequence[list[int]],
    temperature: float,
    speculation: Speculation | None,
) -> tuple[float, Mapping[str, list[int]], float]:
    """Tokens per second once all prompts are computed, the answers, and the share accepted."""
    config = EngineConfig(
        max_model_len=max(map(len, prompts)) + OUTPUT_TOKENS,
        max_num_seqs=max(len(prompts), 2),
        max_num_batched_tokens=model.engine_config.max_num_batched_tokens,
        prefix_cache=False,
        speculative=speculation,
    )
    engine = Engine(model.executor, config, frozenset())
    params = SamplingParams(
        temperature=temperature, max_tokens=OUTPUT_TOKENS, ignore_eos=True, seed=1
    )
    answers: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    for number, prompt in enumerate(prompts):
        engine.submit(Request(request_id=str(number), prompt=prompt, work=Generate(params)))

    def step() -> None:
        for update in engine.step():
            answers[update.request_id] += [sampled.token for sampled in update.tokens]

    while not all(answers.values()):
        step()
    before = sum(map(len, answers.values()))
    start = time.perf_counter()
    while engine.has_work:
        step()
    seconds = time.perf_counter() - start
    counts = engine.stats().drafts
    share = counts.accepted / counts.proposed if counts.proposed else 0.0
    return (sum(map(len, answers.values())) - before) / seconds, answers, share
