"""Random weights by tensors' names, and the folders that hold them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caudal.formats.bpe import byte_alphabet
from references.reference import VOCABULARY, Recorded
from support.safetensors_writer import write_safetensors


def random_weight(
    name: str, shape: list[int], mean: float, deviation: float
) -> NDArray[np.float32]:
    """A tensor's values, which its name decides."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return rng.normal(mean, deviation, shape).astype(np.float32)


def write_folder(recorded: Recorded, path: Path) -> Path:
    """The folder of a recorded model."""
    path.mkdir()
    weights = {name: random_weight(name, *spread) for name, spread in recorded.tensors.items()}
    write_safetensors(path / "model.safetensors", weights)
    (path / "config.json").write_text(json.dumps(recorded.config))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    return path


def tokenizer_json() -> dict[str, Any]:
    """A byte-level tokenizer of VOCABULARY tokens: all bytes, and words of them."""
    texts = [*byte_alphabet()]
    merges = [(left, right) for left in texts[:8] for right in texts[64:72]]
    texts += ["".join(pair) for pair in merges[: VOCABULARY - len(texts)]]
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE",
            "vocab": {text: token for token, text in enumerate(texts)},
            "merges": [list(pair) for pair in merges if "".join(pair) in set(texts)],
        },
    }


def tokenizer_metadata() -> Mapping[str, Any]:
    """The same tokenizer in a GGUF file."""
    model = tokenizer_json()["model"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": list(model["vocab"]),
        "tokenizer.ggml.token_type": [1] * len(model["vocab"]),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }
