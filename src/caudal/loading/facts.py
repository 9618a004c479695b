"""What was loaded, as far as it is worth showing; whoever shows it finds the words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from caudal.backends.backend import MemoryKinds
from caudal.backends.facts import ExecutorFacts
from caudal.loading.packaged import PackageFacts
from caudal.models.pooling import Pooling
from caudal.models.program import Task
from caudal.sampling_params import NO_RECOMMENDATION, RecommendedSampling


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFacts:
    """A draft model, which guesses what another is going to say.

    Attributes:
        model: Its name or path, as the user gave it; `mtp` for a layer of the model itself, whose
            weights are counted there.
        architecture: The model family.
        matrices: How many matrices have each tensor type, most frequent first.
        max_model_len: Most tokens of a sequence that it guesses for.
        weight_bytes: Memory that its weights take.
        weights_mapped: Whether that is memory of a mapped file.
        memory: What there is of each kind of memory for it.
        state_bytes: Bytes of the model's states that may wait for a layer; 0 for a draft model.
    """

    model: str
    architecture: str
    matrices: Mapping[str, int]
    max_model_len: int
    weight_bytes: int
    weights_mapped: bool
    memory: MemoryKinds
    state_bytes: int = 0

    @property
    def tensors_text(self) -> str:
        """E.g. `Q4_1 x210, Q8_0 x1`."""
        return tensors_text(self.matrices)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A loaded model, and what runs it.

    Attributes:
        model: Its name or path, as the user gave it.
        architecture: The model family.
        tasks: What requests may ask of it.
        matrices: How many matrices have each tensor type, most frequent first.
        tokenizer: The tokenizer's family, e.g. `gpt2 (smollm)`.
        vocab_size: Tokens it knows.
        pooling: How the model makes embeddings.
        embedding_width: Components of an embedding.
        max_model_len: Most tokens of one sequence, prompt and answer together.
        context_length: Tokens the model was trained for.
        executor: What runs it.
        chat_template: Where the chat template is from; None for a model that doesn't generate.
        left_out: Modules of the model that aren't loaded, because they aren't for text.
        sampling: What requests that don't say otherwise are sampled with.
        memory: What there is of each kind of memory; None for a model that keeps nothing.
        package: What its package brought besides a template; None where that is nothing.
        weights_hash: SHA-256 of its file, or of the list of those of several; None where the store
            doesn't know it.
        chat_template_hash: SHA-256 of the chat template; None like `chat_template`.
        draft: The draft model that guesses for it, where it has one.
    """

    model: str
    architecture: str
    tasks: frozenset[Task]
    matrices: Mapping[str, int]
    tokenizer: str
    vocab_size: int
    pooling: Pooling
    embedding_width: int
    max_model_len: int
    context_length: int
    executor: ExecutorFacts
    chat_template: str | None
    memory: MemoryKinds | None
    left_out: tuple[str, ...] = ()
    sampling: RecommendedSampling = NO_RECOMMENDATION
    package: PackageFacts | None = None
    weights_hash: str | None = None
    chat_template_hash: str | None = None
    draft: DraftFacts | None = None

    @property
    def tensors_text(self) -> str:
        """E.g. `Q4_1 x210, Q8_0 x1`."""
        return tensors_text(self.matrices)

    @property
    def tokenizer_text(self) -> str:
        """E.g. `gpt2 (smollm), 49152 tokens`."""
        return f"{self.tokenizer}, {self.vocab_size} tokens"

    @property
    def embedding_text(self) -> str:
        """E.g. `mean, normalised, 384 dimensions`."""
        return embedding_text(self.pooling, self.embedding_width)


def tensors_text(matrices: Mapping[str, int]) -> str:
    """How many matrices have each tensor type."""
    return ", ".join(f"{name} x{count}" for name, count in matrices.items())


def embedding_text(pooling: Pooling, width: int) -> str:
    """How a model makes embeddings of `width` components."""
    if pooling.scores_pairs:
        return "scores pairs"
    normalised = ", normalised" if pooling.normalize else ""
    prompts = f"; prompts {', '.join(pooling.prompts.texts)}" if pooling.prompts.texts else ""
    return f"{pooling.kind}{normalised}, {width} dimensions{prompts}"
