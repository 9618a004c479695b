"""What fake models say of themselves."""

from __future__ import annotations

from typing import Any

from caudal.backends.backend import MemoryKinds, PagedKV
from caudal.backends.facts import ExecutorFacts
from caudal.loading.facts import ModelFacts
from caudal.models.pooling import Pooling

EXECUTOR_FACTS = ExecutorFacts(
    backend="fake",
    instruction_set="python",
    threads=1,
    activations="none",
    kv_type="tokens",
    weight_bytes=0,
)


def fake_facts(**known: Any) -> ModelFacts:
    """Facts of a model, as far as they are known; the rest is made up."""
    facts: dict[str, Any] = {
        "model": "fake",
        "architecture": "fake",
        "tasks": frozenset(("generate", "embed", "score")),
        "matrices": {},
        "tokenizer": "bytes",
        "vocab_size": 257,
        "pooling": Pooling(kind="last", normalize=False),
        "embedding_width": 1,
        "max_model_len": 512,
        "context_length": 512,
        "executor": EXECUTOR_FACTS,
        "chat_template": "given",
        "memory": MemoryKinds(kv=PagedKV(num_blocks=512, block_size=16, bytes_per_token=8)),
    }
    return ModelFacts(**facts | known)
