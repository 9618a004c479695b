"""The files and batches of an application, and whose they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import Request
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException

from caudal.batches.answers import Answer, Outcome
from caudal.batches.batch_service import BatchService
from caudal.batches.options import BatchOptions
from caudal.server.json_bounds import find_excess


@dataclass(frozen=True, slots=True)
class BatchHome:
    """Where files and batches are kept.

    Attributes:
        path: A directory, which other things may be in.
        options: What they may take.
    """

    path: Path
    options: BatchOptions = field(default_factory=BatchOptions)


def make_service(home: BatchHome, answer: Answer, registry: CollectorRegistry) -> BatchService:
    """What keeps them, counted.

    Args:
        home: Where they are.
        answer: Answers a line.
        registry: What counts is shown by.
    """
    lines = Counter(
        "caudal_batch_lines",
        "Lines of batches that have been answered, or have failed.",
        ["outcome"],
        registry=registry,
    )
    for outcome in ("completed", "failed"):
        lines.labels(outcome)

    def note(outcome: Outcome) -> None:
        lines.labels("failed" if outcome.failed else "completed").inc()

    service = BatchService(home.path, answer, find_excess, home.options, note)
    registry.register(_Figures(service))
    return service


class _Figures(Collector):
    def __init__(self, service: BatchService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """What there is now."""
        for name, help_text, value in (
            ("caudal_batches", "Batches that have not ended.", self._service.num_running),
            (
                "caudal_batch_lines_in_progress",
                "Lines of batches that are being answered.",
                self._service.num_lines,
            ),
            ("caudal_files_bytes", "Files that are kept for clients.", self._service.files.bytes),
        ):
            yield GaugeMetricFamily(name, help_text, value)


async def batch_service(request: Request) -> BatchService:
    """The files and batches of this application.

    Raises:
        HTTPException: It keeps none.
        BatchesElsewhereError: Another server has them.
    """
    service: BatchService | None = request.app.state.batches
    if service is None:
        raise HTTPException(403, "This server keeps no files and no batches.")
    await service.open()
    return service
