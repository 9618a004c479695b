"""From the states of a text's tokens to one vector: the text's embedding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from caudal.errors import ParameterError, RequestFailedError
from caudal.models.embedding_prompts import NO_PROMPTS, EmbeddingPrompts

PoolingKind = Literal["mean", "cls", "last"]
"""Which states count: all tokens' mean, or the first or last token's alone."""

POOLING_TYPES: dict[int, PoolingKind] = {1: "mean", 2: "cls", 3: "last"}
"""Values of the key `{architecture}.pooling_type`; 0 is none, 4 a ranking head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling:
    """How a model makes embeddings, from its own configuration.

    Attributes:
        kind: Which tokens' states become the embedding.
        normalize: Whether embeddings have length 1 (L2).
        dimensions: Sizes that an embedding may be cut to, for a model trained so that its first
            components are an embedding by themselves (Matryoshka, arXiv 2205.13147).
        scores_pairs: Whether the vector has one component, which says how well the two texts of a
            pair belong together (a cross-encoder): no embedding then.
        score_sigmoid: Whether that component goes through a sigmoid to become the score.
        prompts: What comes before texts.
        score_head: What makes that component of the pooled states, where the program doesn't.
    """

    kind: PoolingKind
    normalize: bool
    dimensions: tuple[int, ...] = ()
    scores_pairs: bool = False
    score_sigmoid: bool = True
    prompts: EmbeddingPrompts = NO_PROMPTS
    score_head: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None

    def check_dimensions(self, dimensions: int | None, width: int) -> None:
        """Check the size that a request asks for; `width` is what the model gives.

        Raises:
            ParameterError: Embeddings of this model can't be cut to it.
        """
        if dimensions is None or dimensions == width or dimensions in self.dimensions:
            return
        if not self.dimensions:
            raise ParameterError(
                "dimensions",
                f"This model's embeddings have {width} dimensions and mean nothing when cut: it "
                f"was not trained for that. Leave dimensions out, or send {width}.",
            )
        sizes = ", ".join(map(str, self.dimensions))
        raise ParameterError(
            "dimensions", f"dimensions must be {width} or one of {sizes}, but is {dimensions}."
        )

    def finish(
        self, total: NDArray[np.float64], tokens: int, dimensions: int | None = None
    ) -> NDArray[np.float32]:
        """The embedding.

        Args:
            total: Sum of the pooled states.
            tokens: Tokens of the text.
            dimensions: Size to cut to, checked before; None for all.

        Raises:
            RequestFailedError: The states aren't finite numbers: the model has overflowed.
        """
        if not np.isfinite(total).all():
            raise RequestFailedError("The model gave no number for this input (NaN or infinity).")
        vector = total / tokens if self.kind == "mean" else total
        if self.score_head is not None:
            vector = self.score_head(vector)
        vector = vector[:dimensions]
        if self.normalize:
            length = float(np.sqrt((vector * vector).sum()))
            vector = vector / max(length, 1e-12)
        return vector.astype(np.float32)


def cosine_similarity(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """The cosine of the angle between two embeddings; 0 where one is zero."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    lengths = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / lengths if lengths > 0 else 0.0
