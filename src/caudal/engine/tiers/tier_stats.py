"""What lies behind the pools, as one immutable snapshot."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStats:
    """A snapshot of what lies behind the pools.

    All but bytes, `reading` and `disk_rate` are counters.

    Attributes:
        memory_bytes: What is in memory, that on its way to the disk with it.
        disk_bytes: What the files of this model take.
        disk_limit: Most bytes that those of all models may take; 0 without a disk.
        memory_hit_tokens: Tokens brought back from memory.
        disk_hit_tokens: Tokens brought back from the disk.
        hits: Requests that something was brought back for.
        misses: Requests that found nothing here beyond what the pools had.
        declined: Requests for which reading what was found would have taken longer than computing.
        written: Pieces (a block or a slot) written to the disk.
        written_bytes: What they take there.
        evicted: Files deleted to make room.
        dropped: Pieces that weren't kept, since the disk couldn't keep pace.
        failures: Pieces that couldn't be written or read, or were damaged.
        reading: Prefixes that are being read.
        disk_rate: Bytes a second at which the disk is read; 0 without one.
    """

    memory_bytes: int = 0
    disk_bytes: int = 0
    disk_limit: int = 0
    memory_hit_tokens: int = 0
    disk_hit_tokens: int = 0
    hits: int = 0
    misses: int = 0
    declined: int = 0
    written: int = 0
    written_bytes: int = 0
    evicted: int = 0
    dropped: int = 0
    failures: int = 0
    reading: int = 0
    disk_rate: float = 0.0
