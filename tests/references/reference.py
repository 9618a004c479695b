"""What is compared: a tiny model, and what was said of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 320
LENGTH = 200
TOKENS = [int(token) for token in np.random.default_rng(7).integers(0, VOCABULARY, LENGTH)]

SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
"""What most tiny models have in common."""

FOLDER = Path(__file__).parents[1] / "data" / "references"


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A tiny model of transformers.

    Attributes:
        config: Its configuration, `model_type` included.
        auto: The class of transformers that makes a model of a configuration.
        spread: By a part of their names, tensors whose values are around a mean, and how far
            (mean, deviation), where `weights.py` would choose badly.
        llama_cpp: Whether llama.cpp computes the architecture.
        tolerance: How far log-probabilities may be from transformers'.
    """

    config: Mapping[str, Any]
    auto: str = "AutoModelForCausalLM"
    spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    llama_cpp: bool = True
    tolerance: float = 1e-4


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What transformers said of a model.

    Attributes:
        config: config.json as transformers saves it.
        tensors: Shape, mean and deviation of each tensor.
        logprobs: Of each of TOKENS but the first, after those before it.
        tolerance: How far others may be from it.
    """

    config: dict[str, Any]
    tensors: dict[str, tuple[list[int], float, float]]
    logprobs: list[float]
    tolerance: float

    @classmethod
    def names(cls) -> list[str]:
        """All that were recorded."""
        return sorted(path.stem for path in FOLDER.glob("*.json"))

    @classmethod
    def read(cls, name: str) -> Recorded:
        """One of them."""
        return cls(**json.loads((FOLDER / f"{name}.json").read_text()))

    def write(self, name: str) -> None:
        """Record it."""
        FOLDER.mkdir(exist_ok=True)
        tensors = [f"{json.dumps(key)}: {json.dumps(each)}" for key, each in self.tensors.items()]
        lines = [
            f'"config": {json.dumps(self.config, sort_keys=True)}',
            '"tensors": {\n' + ",\n".join(tensors) + "\n}",
            f'"logprobs": {json.dumps([round(value, 6) for value in self.logprobs])}',
            f'"tolerance": {self.tolerance}',
        ]
        assert asdict(self).keys() == {"config", "tensors", "logprobs", "tolerance"}
        (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
