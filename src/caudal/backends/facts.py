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
    """

    backend: str
    instruction_set: str
    threads: int
    activations: str
    kv_type: str
    weight_bytes: int
