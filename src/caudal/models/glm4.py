"""GLM-4 of 2025 (0414): norms around each sublayer, half of every head rotated, fused matrices."""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.program import Program


def build(file: ModelFile) -> Program:
    """The program."""
    decoder = Decoder(file)
    rope = decoder.rope(interleaved=True)
    decoder.embed_tokens()
    for layer in decoder.layers():
        heads = layer.project(layer.norm("attn_norm"))
        layer.rotate(heads, rope)
        layer.add_normed(layer.attend(heads), "attn_output", "post_attention_norm")
        inner = layer.gated_mlp(layer.norm("ffn_norm"), "silu")
        layer.add_normed(inner, "ffn_down", "post_ffw_norm")
    return decoder.finish()
