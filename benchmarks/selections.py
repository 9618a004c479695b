"""What is measured in one go: files, cases and peers, for a number of threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.cases import GUESS_CASES


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Every case on every file, by every peer but some.

    Attributes:
        models: Files, by name.
        cases: By name.
        threads: For everyone; None: the usable processors.
        without: Peers that aren't asked, by name.
    """

    models: Sequence[str]
    cases: Sequence[str]
    threads: int | None = None
    without: Sequence[str] = ()


_OTHER_FILES = (
    *("smollm2-q4_k_m", "smollm2-q8_0", "smollm2-f16"),
    *("gemma3-270m-q4_k_m", "llama-1b-q4_k_m"),
)

PUBLISHED: Sequence[Part] = (
    Part(
        models=("smollm2-q4_1",),
        cases=("prefill", "decode", "batch-8", "batch-32", "long", "long-q8"),
    ),
    Part(
        models=("smollm2-q4_0",),
        cases=("prefill", "decode", "batch-8", "batch-32", "long", "long-q8"),
        without=("vllm",),
    ),
    Part(
        models=("smollm2-q4_0",),
        cases=[case.name for case in GUESS_CASES],
        without=("openvino", "ik_llama"),  # neither has a server that guesses
    ),
    Part(models=_OTHER_FILES, cases=("prefill", "decode"), without=("vllm",)),
    Part(
        models=("smollm2-q4_1", "smollm2-q4_0", *_OTHER_FILES),
        cases=("prefill", "decode"),
        threads=1,
        without=("vllm",),
    ),
)
"""The rows of docs/performance.md. vLLM computes the same whatever file its weights come from, and
is asked once; what takes longest, batches and long prompts, is measured on two 4-bit files."""
