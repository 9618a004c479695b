"""What a model counts of its requests, for `GET /metrics`. All names begin with `caudal_`.

docs/metrics.md has them all. What is counted with every token takes a fraction of a microsecond.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from caudal.engine.async_engine import AsyncEngine
from caudal.engine.lost_prefixes import LostPrefix
from caudal.engine.request import SequenceUpdate
from caudal.formats.template_workers import TemplateProcesses
from caudal.service.context import RequestContext
from caudal.service.engine_collector import EngineCollector, HistogramCollector
from caudal.service.exposition import exposition
from caudal.service.generation import Generation
from caudal.service.words import shortened

logger = logging.getLogger("caudal.server")

MODEL = "model"
"""The label that all figures of a model have."""

MAX_USER = 128
"""Most characters of a user's name that the log has."""

MAX_LOGGED_POSITIONS = 64
"""Places of lost prefixes that the log tells of; they come from clients."""

_SECONDS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(30.0, 60.0, 120.0, 300.0, 600.0),
)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
_TOKENS = (*(2**power for power in range(18)), 2**20)


def logged_context(context: RequestContext) -> str:
    """How a log line ends that tells of a request."""
    adapter, user = context.adapter, context.user
    said = "" if adapter is None else f", adapter {shortened(adapter, MAX_USER)!r}"
    return said if user is None else f"{said}, user {shortened(user, MAX_USER)!r}"


class ServiceMetrics:
    """What Prometheus sees: times and ends of requests, and the engine's counts as they stand.

    Args:
        model: The model's name.
        engine: Its engine; asked once per scrape.
        templates: Tells how the processes that templates run in are doing; likewise.
    """

    def __init__(
        self, model: str, engine: AsyncEngine, templates: Callable[[], TemplateProcesses]
    ) -> None:
        self._model = model
        self._lost_at: set[int] = set()
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(engine))
        self._registry.register(_TemplateCollector(templates))
        self._requests = Counter(
            "caudal_requests_finished",
            "Requests that ended, by reason.",
            ["reason"],
            registry=self._registry,
        )
        for reason in ("stop", "length", "cancelled", "timeout", "failed"):
            self._requests.labels(reason)  # a series that exists from the start can be alerted on
        self.queue_time = self._histogram(
            "request_queue_time_seconds", "Arrival to first computation.", _SECONDS
        )
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "Arrival to first token.", _SECONDS
        )
        self.inter_token = self._histogram(
            "inter_token_latency_seconds", "Between two tokens of a sequence.", _TOKEN_SECONDS
        )
        self.end_to_end = self._histogram(
            "e2e_request_latency_seconds", "Arrival to end.", _SECONDS
        )
        self.prefill_time = self._histogram(
            "request_prefill_time_seconds", "First computation to first token.", _SECONDS
        )
        self.decode_time = self._histogram(
            "request_decode_time_seconds", "First token to last token.", _SECONDS
        )
        self.time_per_token = self._histogram(
            "request_time_per_output_token_seconds",
            "Mean time between the tokens of a request with one answer.",
            _TOKEN_SECONDS,
        )
        self.prompt_tokens = self._histogram(
            "request_prompt_tokens", "Prompt tokens of a request.", _TOKENS
        )
        self.output_tokens = self._histogram(
            "request_output_tokens", "Generated tokens of a request.", _TOKENS
        )

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> HistogramCollector:
        made = HistogramCollector(f"caudal_{name}", text, bounds)
        self._registry.register(made)
        return made

    def observer(self, context: RequestContext) -> RequestObserver:
        """A clock for one request that has arrived."""
        return RequestObserver(self, context)

    def observe_queue_time(self, update: SequenceUpdate) -> None:
        """Add the time that a request waited, once it has run."""
        if update.first_scheduled is not None:
            self.queue_time.observe(update.first_scheduled - update.submitted)

    def count(self, outcome: str | None, seconds: float) -> None:
        """Add an ended request."""
        self._requests.labels(outcome).inc()
        self.end_to_end.observe(seconds)

    def note_lost(self, lost: LostPrefix) -> None:
        """Log that a prompt has broken its own prefix, once for each place where one does."""
        if lost.position in self._lost_at or len(self._lost_at) >= MAX_LOGGED_POSITIONS:
            return
        self._lost_at.add(lost.position)
        logger.info(
            "a prompt breaks its own prefix: at token %d it has %d tokens where one before it had "
            "%d others, so that %d behind them are computed anew though they are cached (said once "
            "for each place; caudal_prefix_lost_tokens_total counts all, and --normalise-prompts "
            "may help)",
            lost.position,
            lost.differing,
            lost.cached,
            lost.tokens,
        )

    def count_unprepared(self, context: RequestContext) -> None:
        """Add a request that ran out of time before it could be submitted, and log it."""
        seconds = context.seconds_since_arrival()
        self.count("timeout", seconds)
        logger.debug("timeout: still being prepared, %.2f s%s", seconds, logged_context(context))

    def render(self) -> bytes:
        """The text that Prometheus expects, with the model's name."""
        return exposition(self._registry.collect(), {MODEL: self._model})


class _TemplateCollector(Collector):
    def __init__(self, processes: Callable[[], TemplateProcesses]) -> None:
        self._processes = processes

    def collect(self) -> Iterator[Metric]:
        processes = self._processes()
        yield GaugeMetricFamily(
            "caudal_template_processes",
            "Processes that chat templates run in.",
            processes.running,
        )
        yield CounterMetricFamily(
            "caudal_template_processes_killed",
            "Processes that had to be killed for their template's sake, or ended by themselves.",
            processes.killed,
        )


class RequestObserver:
    """Times one request by the engine's clock. Of its end, the server logs a line."""

    def __init__(self, metrics: ServiceMetrics, context: RequestContext) -> None:
        self._metrics = metrics
        self._context = context
        self._last_token: dict[int, float] = {}
        self._latest: SequenceUpdate | None = None

    def on_update(self, update: SequenceUpdate) -> None:
        """Take the time of a sequence's new tokens."""
        if not update.tokens:
            return
        if not self._last_token:
            self._metrics.observe_queue_time(update)
            self._metrics.first_token.observe(update.time - update.submitted)
            if update.lost is not None:
                self._metrics.note_lost(update.lost)
        last = self._last_token.get(update.index)
        if last is not None:
            self._metrics.inter_token.observe((update.time - last) / len(update.tokens))
        self._last_token[update.index] = update.time
        self._latest = update

    def on_end(self, generation: Generation) -> None:
        """Count the request and its tokens."""
        seconds = self._context.seconds_since_arrival()
        self._metrics.count(generation.outcome, seconds)
        self._count_phases(generation)
        logger.debug(
            "%s: prompt %d tokens (%d cached), answer %d tokens, %.2f s%s",
            generation.outcome,
            len(generation.request.prompt),
            generation.num_cached_tokens,
            generation.num_output_tokens,
            seconds,
            logged_context(self._context),
        )

    def _count_phases(self, generation: Generation) -> None:
        metrics, latest = self._metrics, self._latest
        metrics.prompt_tokens.observe(len(generation.request.prompt))
        metrics.output_tokens.observe(generation.num_output_tokens)
        if latest is None or latest.first_token is None:
            return
        if latest.first_scheduled is not None:
            metrics.prefill_time.observe(latest.first_token - latest.first_scheduled)
        seconds = latest.time - latest.first_token
        metrics.decode_time.observe(seconds)
        if len(self._last_token) == 1 and generation.num_output_tokens > 1:
            metrics.time_per_token.observe(seconds / (generation.num_output_tokens - 1))
