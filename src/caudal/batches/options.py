"""What files and batches may take."""

from __future__ import annotations

from dataclasses import dataclass, field

from caudal.batches.lines import LineLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """Bounds for files and batches.

    Attributes:
        concurrency: Most lines that are being answered at a time, of all batches.
        max_bytes: Of all files together.
        max_running: Most batches of one tenant that have not ended.
        limits: What one batch may bring.
    """

    concurrency: int = 16
    max_bytes: int = 10 * 2**30
    max_running: int = 100
    limits: LineLimits = field(default_factory=LineLimits)
