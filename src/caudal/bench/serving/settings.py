"""What a load is: all that decides which bytes are sent when, so that it can be sent again."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from caudal.bench.serving.arrivals import Arrivals
from caudal.bench.serving.lengths import Lengths
from caudal.bench.serving.slo import Slo
from caudal.errors import ParameterError

Api = Literal["chat", "completions"]

WorkloadName = Literal[
    "random", "shared-prefix", "multi-turn", "agent", "json", "repeat", "dataset"
]

PhaseName = Literal["cold", "warm", "warm-prefix"]


class Wording(msgspec.Struct, frozen=True):
    """How many words make so many tokens, for a server's tokenizer and template.

    Attributes:
        tokens_per_word: Tokens of a word and the space before it.
        overhead: Tokens around a prompt of one message.
    """

    tokens_per_word: float = 1.0
    overhead: int = 0

    def words(self, tokens: int, *, framed: bool = True) -> int:
        """At least one word, for so many tokens; `framed`: with what is around a prompt."""
        text = tokens - self.overhead if framed else tokens
        return max(1, round(text / self.tokens_per_word))


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A load. What is None when it is written down is found out from the server (`settle`).

    Attributes:
        workload: What is asked for.
        api: How it is asked for.
        prompts: Token ids, where the server takes them, or text.
        requests: Conversations of a phase, each of `turns` requests.
        turns: Requests of a conversation; of a data set's, at most.
        duration: Seconds for which new ones begin, instead of a number of `requests`.
        prompt_tokens: Lengths of what is new in each prompt.
        output_tokens: Lengths of answers; None for a data set's own.
        prefixes: Different beginnings that prompts share, in turn; 0 for none.
        prefix_tokens: Length of such a beginning.
        tools: Functions that an agent has, as part of its beginning.
        vocab_size: Token ids are below this.
        wording: How long text is.
        dataset: The file of conversations.
        dataset_sha256: What was in it.
        think: Seconds between an answer and the next turn.
        rate: Arrivals a second; None for a closed loop.
        burstiness: See `Arrivals`.
        concurrency: See `Arrivals`.
        sweep: Rates to measure one after another; empty to find the greatest that keeps the SLOs.
            None for no sweep.
        slos: What is promised.
        phases: What is measured.
        warmup: Requests before that, which don't count.
        seed: The same seed sends the same.
        temperature: Of sampling; 0 takes the likeliest token.
        ignore_eos: Whether answers go on to exactly the length that is asked for.
        extra_body: Further fields of every request.
        timeout: Seconds without a byte after which a request has failed.
    """

    workload: WorkloadName = "random"
    api: Api | None = None
    prompts: Literal["ids", "text"] | None = None
    requests: int = 48
    turns: int = 1
    duration: float | None = None
    prompt_tokens: str = "128"
    output_tokens: str | None = "64"
    prefixes: int = 0
    prefix_tokens: int = 0
    tools: int = 0
    vocab_size: int | None = None
    wording: Wording | None = None
    dataset: str | None = None
    dataset_sha256: str | None = None
    think: float = 0.0
    rate: float | None = None
    burstiness: float = 1.0
    concurrency: int | None = None
    sweep: list[float] | None = None
    slos: list[str] = []
    phases: list[PhaseName] = msgspec.field(default_factory=lambda: ["warm"])
    warmup: int = 0
    seed: int = 0
    temperature: float = 0.0
    ignore_eos: bool | None = None
    extra_body: dict[str, Any] = {}
    timeout: float = 300.0

    def check(self) -> None:
        """See that it makes sense.

        Raises:
            ParameterError: It doesn't; names what.
        """
        for name in ("requests", "turns"):
            if getattr(self, name) < 1:
                raise ParameterError(name, f"{name} must be at least 1.")
        if self.vocab_size is not None and self.vocab_size < 1:
            raise ParameterError("vocab_size", "vocab_size must be at least 1.")
        for name in ("think", "warmup", "tools", "temperature"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ParameterError(name, f"{name} must be at least 0.")
        for name in ("duration", "timeout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ParameterError(name, f"{name} must be positive.")
        self._check_workload()
        self._check_sweep()
        if self.burstiness != 1 and self.rate is None and self.sweep is None:
            raise ParameterError("burstiness", "burstiness goes with a rate, or a sweep of rates.")
        for rate in (self.sweep or [1.0]) if self.sweep is not None else [self.rate]:
            _ = self.arrivals(rate)

    def _check_workload(self) -> None:
        for name, workloads in _HEEDED_BY.items():
            if self.workload not in workloads and getattr(self, name) != getattr(_PLAIN, name):
                raise ParameterError(
                    name,
                    f"{name} changes nothing of the workload {self.workload}, but of "
                    f"{', '.join(workloads)}.",
                )
        prompt = self.prompt_lengths
        _ = self.output_lengths
        if self.prefixes < 0 or (self.prefix_tokens < 1) != (self.prefixes == 0):
            raise ParameterError("prefixes", "prefixes and prefix_tokens go together.")
        if (self.workload == "dataset") != (self.dataset is not None):
            raise ParameterError("dataset", "a data set is the workload, or there is none.")
        if self.workload in ("multi-turn", "agent", "json") and self.api == "completions":
            raise ParameterError("api", f"{self.workload} is a workload of chats.")
        if self.workload == "agent" and self.prefix_tokens <= prompt.typical:
            raise ParameterError(
                "prefix_tokens", "an agent's beginning must be longer than what its tools say."
            )

    def _check_sweep(self) -> None:
        _ = self.promises
        if self.sweep is None:
            return
        if not all(0 < rate < math.inf for rate in self.sweep):
            raise ParameterError("sweep", "rates of a sweep must be positive.")
        if self.sweep and self.rate is not None:
            raise ParameterError("rate", "rate begins a sweep that finds rates; these are given.")
        if not self.sweep and not self.slos:
            raise ParameterError("slo", "a sweep that ends by itself needs an SLO that ends it.")
        if self.phases != ["warm"]:
            raise ParameterError("phases", "a sweep is of warm phases.")

    @classmethod
    def of_workload(cls, workload: WorkloadName) -> LoadSettings:
        """What a workload is like unless something else is asked for."""
        return _DEFAULTS.get(workload, cls(workload=workload))

    @property
    def prompt_lengths(self) -> Lengths:
        """Lengths of what is new in each prompt."""
        return Lengths.parse("prompt_tokens", self.prompt_tokens)

    @property
    def output_lengths(self) -> Lengths | None:
        """Lengths of answers."""
        if self.output_tokens is None:
            return None
        return Lengths.parse("output_tokens", self.output_tokens)

    def arrivals(self, rate: float | None) -> Arrivals:
        """When requests come, at a rate, which is `self.rate` except in a sweep."""
        return Arrivals(rate=rate, burstiness=self.burstiness, concurrency=self.concurrency)

    @property
    def promises(self) -> list[Slo]:
        """The SLOs."""
        return [Slo.parse(written) for written in self.slos]


_PLAIN = LoadSettings()

_CONVERSING: tuple[WorkloadName, ...] = ("multi-turn", "agent", "dataset")

_HEEDED_BY: dict[str, tuple[WorkloadName, ...]] = {
    "prompt_tokens": ("random", "shared-prefix", "multi-turn", "agent", "json"),
    "prefixes": ("random", "shared-prefix", "multi-turn", "agent"),
    "tools": ("agent",),
    "turns": _CONVERSING,
    "think": _CONVERSING,
}
"""Settings that not all workloads heed."""

_DEFAULTS: dict[WorkloadName, LoadSettings] = {
    each.workload: each
    for each in (
        LoadSettings(workload="shared-prefix", prefixes=4, prefix_tokens=512),
        LoadSettings(workload="multi-turn", requests=16, turns=4, prompt_tokens="64"),
        LoadSettings(
            workload="agent",
            requests=8,
            turns=8,
            prompt_tokens="lognormal:200:0.8",
            prefixes=1,
            prefix_tokens=10_000,
            tools=16,
        ),
        LoadSettings(workload="json", output_tokens="400"),
        LoadSettings(workload="repeat", output_tokens="128"),
        LoadSettings(workload="dataset", output_tokens=None, turns=16),
    )
}
