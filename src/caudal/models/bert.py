"""BERT (arXiv 1810.04805): post-norm blocks, learned positions, attention both ways.

Tensors go by llama.cpp's names; a Hugging Face folder's are renamed on the way in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from caudal.errors import ModelLoadError
from caudal.formats.gguf import GGUFFile
from caudal.formats.gguf_header import TensorInfo
from caudal.formats.safetensors import SafetensorsFile
from caudal.formats.tensor_file import TensorFile
from caudal.models.builder import ProgramBuilder
from caudal.models.encoder_config import EncoderConfig
from caudal.models.layer import Layer
from caudal.models.program import Program

_FIXED_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "pooler.dense": "cls",
    "classifier": "cls.output",
}
_LAYER_NAMES = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_LAYER = re.compile(r"encoder\.layer\.(\d+)\.(.+)")
_KINDS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def build(file: GGUFFile) -> Program:
    """The program of a GGUF file."""
    return build_encoder(file, EncoderConfig.from_gguf(file))


def build_encoder(file: TensorFile, config: EncoderConfig) -> Program:
    """The program of an encoder; `file` has tensors of llama.cpp's names.

    Raises:
        ModelLoadError: A tensor is missing, of a wrong shape, or not used.
    """
    embedding = file.tensors.get("token_embd.weight")
    positions = file.tensors.get("position_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelLoadError(str(file.path), "the matrix token_embd.weight is missing")
    if positions is None or len(positions.shape) != 2:
        raise ModelLoadError(str(file.path), "the matrix position_embd.weight is missing")
    if positions.shape[0] < config.context_length:
        raise ModelLoadError(
            str(file.path),
            f"tensor position_embd.weight has {positions.shape[0]} positions, fewer than the "
            f"context of {config.context_length}",
        )
    b = ProgramBuilder(file)
    hidden = b.buffer("hidden", config.hidden)
    addend = b.buffer("addend", config.hidden)
    b.embed(hidden, "token_embd.weight")
    b.embed(addend, "position_embd.weight", by="position")
    b.add(hidden, addend, hidden)
    b.embed(addend, "token_types.weight", by="segment")
    b.add(hidden, addend, hidden)
    b.layer_norm(hidden, "token_embd_norm", hidden, eps=config.eps)
    for index in range(config.layers):
        layer = Layer(
            b=b,
            index=index,
            hidden=hidden,
            heads=config.heads,
            kv_heads=config.heads,
            head_dim=config.head_dim,
            feed_forward=config.feed_forward,
            eps=config.eps,
        )
        layer.add(layer.attend(layer.project(hidden), causal=False), "attn_output")
        b.layer_norm(hidden, layer.tensor("attn_output_norm"), hidden, eps=config.eps)
        layer.add(layer.mlp(hidden, config.activation), "ffn_down")
        b.layer_norm(hidden, layer.tensor("layer_output_norm"), hidden, eps=config.eps)
    b.begin_states()
    state = hidden
    if config.pooling.scores_pairs:
        pooled = b.buffer("pooled", config.hidden)
        state = b.buffer("score", 1)
        b.linear(hidden, "cls", pooled)
        b.activate(pooled, "tanh")
        b.linear(pooled, "cls.output", state)
    elif config.dense is not None:
        state = b.buffer("dense", config.dense.width)
        b.linear(hidden, "dense", state)
        if config.dense.activation is not None:
            b.activate(state, config.dense.activation)
    return b.finish(
        state=state,
        logits=None,
        vocab_size=embedding.shape[0],
        context_length=config.context_length,
        pooling=config.pooling,
    )


@dataclass(frozen=True, slots=True)
class RenamedTensors:
    """Tensors of safetensors files under llama.cpp's names (a `TensorFile`).

    Attributes:
        path: The main file, for errors.
        architecture: The model family.
        tensors: Descriptions by new name.
        origins: Where each is: its file, and its name there.
    """

    path: Path
    architecture: str
    tensors: Mapping[str, TensorInfo]
    origins: Mapping[str, tuple[SafetensorsFile, str]]

    def tensor_bytes(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes, shape (nbytes,)."""
        file, original = self.origins[name]
        return file.tensor_bytes(original)

    def tensor_place(self, name: str) -> tuple[int, int]:
        """The descriptor of the open file that holds a tensor, and where in it that begins."""
        file, original = self.origins[name]
        return file.tensor_place(original)


def rename_tensors(
    weights: SafetensorsFile, dense: SafetensorsFile | None, config: EncoderConfig
) -> RenamedTensors:
    """Hugging Face's tensors under llama.cpp's names, without those that embedding doesn't use.

    Args:
        weights: The encoder.
        dense: The layer after the pooling, where there is one.
        config: What is used.

    Raises:
        ModelLoadError: A tensor isn't part of BERT, or is of a type that isn't computed with.
    """
    origins: dict[str, tuple[SafetensorsFile, str]] = {}
    for name in [*weights.tensors, *weights.others]:
        renamed = _new_name(name, scores_pairs=config.pooling.scores_pairs)
        if renamed is None:
            continue
        if name in weights.others:
            raise ModelLoadError(
                str(weights.path),
                f"tensor {name} has type {weights.others[name]}; supported are F32, F16 and BF16",
            )
        origins[renamed] = (weights, name)
    if dense is not None:
        for name in dense.tensors:
            origins[name.replace("linear.", "dense.", 1)] = (dense, name)
    tensors = {new: replace(file.tensors[old], name=new) for new, (file, old) in origins.items()}
    return RenamedTensors(weights.path, "bert", tensors, origins)


def _new_name(name: str, *, scores_pairs: bool) -> str | None:
    """A tensor's name at llama.cpp; the name itself if BERT has none such; None if not needed."""
    plain = name.removeprefix("bert.")
    if plain == "embeddings.position_ids" or plain.startswith("cls."):
        return None  # constants, and the head for guessing masked words
    stem, _, kind = plain.rpartition(".")
    if stem == "pooler.dense" and not scores_pairs:
        return None
    kind = _KINDS.get(kind, kind)
    layer = _LAYER.fullmatch(stem)
    if layer is not None and layer[2] in _LAYER_NAMES:
        return f"blk.{layer[1]}.{_LAYER_NAMES[layer[2]]}.{kind}"
    return f"{_FIXED_NAMES[stem]}.{kind}" if stem in _FIXED_NAMES else name
