"""Qwen 3 (dense): no biases, but queries and keys are normalised per head."""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.program import Program


def build(file: ModelFile) -> Program:
    """The program."""
    decoder = Decoder(file)
    rope = decoder.rope(interleaved=False)
    decoder.embed_tokens()
    for layer in decoder.layers():
        heads = layer.project(layer.norm("attn_norm"))
        layer.norm_heads(heads)
        layer.rotate(heads, rope)
        layer.add(layer.attend(heads), "attn_output")
        layer.add(layer.gated_mlp(layer.norm("ffn_norm"), "silu"), "ffn_down")
    return decoder.finish()
