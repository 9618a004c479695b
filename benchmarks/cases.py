"""What is measured.

The rates of a case count *tokens computed*: those that went through the model, each prompt token
once and each generated token once it was fed back. Everyone's passes are the same then, whether a
program times passes (llama.cpp's) or generated tokens (one more, as a prompt's pass yields the
first).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from caudal.bench.speculation import TEXTS

Metric = Literal["all", "prompt", "output", "alone", "guessed"]
"""Which tokens a rate counts, and over which time: all over all, or one phase by itself; or the
output of a server that guesses tokens or doesn't."""

KVType = Literal["f16", "q8"]
"""How keys and values are kept: in 16 bits, or in 8, in whatever form each program has."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds until every sequence had its first token, and until all were done."""

    first: float
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCase:
    """Unrelated sequences that start together, without HTTP.

    Attributes:
        name: For the command line.
        title: For the report.
        sequences: How many.
        prompt_tokens: Of each.
        steps: Tokens of each that are fed back, one pass each, after the prompt's.
        metrics: Rates to report.
        kv_type: How keys and values are kept.
    """

    name: str
    title: str
    sequences: int
    prompt_tokens: int
    steps: int
    metrics: Sequence[Metric] = ("all",)
    kv_type: KVType = "f16"

    @property
    def generated(self) -> int:
        """Tokens that each sequence generates: one per pass over its end."""
        return self.steps + 1

    @property
    def max_len(self) -> int:
        """Tokens of a whole sequence."""
        return self.prompt_tokens + self.generated

    def tokens(self, metric: Metric) -> int:
        """Tokens that a rate counts."""
        prompt = self.sequences * self.prompt_tokens
        output = self.sequences * self.steps
        counts: Mapping[Metric, int]
        counts = {"all": prompt + output, "prompt": prompt, "output": output}
        return counts[metric]

    def rates(self, timing: Timing) -> Mapping[Metric, float]:
        """Tokens per second by metric."""
        seconds: Mapping[Metric, float] = {
            "all": timing.total,
            "prompt": timing.first,
            "output": timing.total - timing.first,
        }
        return {metric: self.tokens(metric) / seconds[metric] for metric in self.metrics}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCase:
    """Streamed completions from a server; see `caudal.bench.serving.settings.LoadSettings`.

    Attributes:
        name: For the command line.
        title: For the report.
        requests: How many, all due at once.
        concurrency: Most of them under way.
        prompt_tokens: Random tokens of each prompt, besides its prefix.
        output_tokens: Tokens that each generates.
        prefixes: Different prefixes, in turn; 0 for none.
        prefix_tokens: Length of a prefix.
    """

    name: str
    title: str
    requests: int = 48
    concurrency: int = 16
    prompt_tokens: int
    output_tokens: int
    prefixes: int = 0
    prefix_tokens: int = 0

    @property
    def max_len(self) -> int:
        """Tokens of a whole sequence."""
        return self.prefix_tokens + self.prompt_tokens + self.output_tokens

    @property
    def metrics(self) -> Sequence[Metric]:
        """A server's rate is of all tokens."""
        return ("all",)

    def tokens(self, metric: Metric) -> int:
        """Tokens that the rate counts: prompts whole, cached or not, and outputs."""
        return self.requests * self.max_len


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessCase:
    """Answers of a server that guesses tokens, and of one that doesn't, once prompts are computed.

    Attributes:
        name: For the command line.
        title: For the report.
        text: What is generated; see `caudal.bench.speculation.TEXTS`.
        sequences: How many answers at once, each to a prompt of its own.
    """

    name: str
    title: str
    text: str
    sequences: int
    max_len: int = 1024
    """Tokens of a whole sequence; prompts are 320 to 680."""

    @property
    def temperature(self) -> float:
        """Random text is drawn; texts that repeat their prompts are generated greedily."""
        return 1.0 if self.text == "random" else 0.0


Case = EngineCase | HttpCase | GuessCase


def _batch(sequences: int) -> EngineCase:
    return EngineCase(
        name=f"batch-{sequences}",
        title=f"{sequences} x (128 + 64)",
        sequences=sequences,
        prompt_tokens=128,
        steps=64,
    )


def _long(name: str, title: str, kv_type: KVType) -> EngineCase:
    return EngineCase(
        name=name,
        title=title,
        sequences=1,
        prompt_tokens=4096,
        steps=64,
        metrics=("prompt", "output"),
        kv_type=kv_type,
    )


GUESS_CASES: Sequence[GuessCase] = tuple(
    GuessCase(
        name=f"guess-{text.split()[0].lower()}-{sequences}",
        title=f"{text}, {sequences} at once",
        text=text,
        sequences=sequences,
    )
    for text in TEXTS
    for sequences in (1, 8)
)

CASES: Sequence[Case] = (
    EngineCase(name="prefill", title="prefill 512", sequences=1, prompt_tokens=512, steps=0),
    EngineCase(name="decode", title="decode 128, 1 seq", sequences=1, prompt_tokens=1, steps=127),
    _batch(8),
    _batch(16),
    _batch(32),
    _long("long", "4096 + 64", "f16"),
    _long("long-q8", "4096 + 64, keys and values in 8 bits", "q8"),
    HttpCase(
        name="http-random",
        title="HTTP, random 128/64, 16 at once",
        prompt_tokens=128,
        output_tokens=64,
    ),
    HttpCase(
        name="http-prefix",
        title="HTTP, 2 prefixes of 512 + 32/32, 16 at once",
        prompt_tokens=32,
        output_tokens=32,
        prefixes=2,
        prefix_tokens=512,
    ),
    *GUESS_CASES,
)
"""All cases, in the order of the report."""

QUICK = ("prefill", "decode", "batch-16", "http-random")
"""The cases measured unless more are asked for."""
