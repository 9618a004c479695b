"""What runs a model, as far as it is worth showing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorFacts:
    """What an executor is, for the banner, `/v1/models` and benchmark reports.

    Attributes:
        backend: The backend's name.
        instruction_set: What its kernels are made for.
        threads: Threads that compute.
        activations: What matrices are multiplied by.
        kv_type: Element type of keys and values.
        weight_bytes: Memory that the weights take.
        weights_mapped: Whether that is memory of a mapped file, which the system may take back.
        disk_bytes_per_token: Of weights that don't fit in memory, what a token by itself reads.
        disk_rate: Bytes a second at which the disk was read; 0 where it needn't be.
    """

    backend: str
    instruction_set: str
    threads: int
    activations: str
    kv_type: str
    weight_bytes: int
    weights_mapped: bool = False
    disk_bytes_per_token: int = 0
    disk_rate: float = 0.0
