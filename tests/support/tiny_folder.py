"""The smallest decoder in a folder of Hugging Face's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from references.reference import VOCABULARY, Recorded
from references.weights import write_folder

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}

SHAPES = {
    "model.embed_tokens.weight": [VOCABULARY, 16],
    "model.norm.weight": [16],
    "model.layers.0.input_layernorm.weight": [16],
    "model.layers.0.post_attention_layernorm.weight": [16],
    "model.layers.0.self_attn.q_proj.weight": [16, 16],
    "model.layers.0.self_attn.k_proj.weight": [8, 16],
    "model.layers.0.self_attn.v_proj.weight": [8, 16],
    "model.layers.0.self_attn.o_proj.weight": [16, 16],
    "model.layers.0.mlp.gate_proj.weight": [16, 16],
    "model.layers.0.mlp.up_proj.weight": [16, 16],
    "model.layers.0.mlp.down_proj.weight": [16, 16],
}


def write_tiny_folder(
    path: Path, config: dict[str, Any] | None = None, **shapes: list[int]
) -> Path:
    """A folder; `config` is laid over the configuration, and `shapes` over the tensors."""
    tensors = {name: (shape, 0.0, 0.2) for name, shape in {**SHAPES, **shapes}.items()}
    recorded = Recorded(
        config={**CONFIG, **(config or {})}, tensors=tensors, logprobs=[], tolerance=0.0
    )
    return write_folder(recorded, path)
