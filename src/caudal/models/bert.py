"""BERT (arXiv 1810.04805): post-norm blocks, learned positions, attention both ways.

Tensors go by llama.cpp's names, from a Hugging Face folder too (formats/tensor_names.py).
"""

from __future__ import annotations

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.formats.tensor_file import TensorFile
from caudal.models.builder import ProgramBuilder
from caudal.models.encoder_config import EncoderConfig
from caudal.models.layer import Layer
from caudal.models.program import Program


def build(file: ModelFile) -> Program:
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
