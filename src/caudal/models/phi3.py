"""Phi-3, Phi-3.5 and Phi-4 (arXiv 2404.14219, 2412.08905): Llama with fused matrices.

Some rotate only the first channels of a head, and by frequencies that are stretched pair by pair
(LongRoPE, arXiv 2402.13753).
"""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.program import Program


def build(file: ModelFile, served_length: int | None = None) -> Program:
    """The program; a window that a file names is for none of its layers, as llama.cpp has it."""
    decoder = Decoder(file, served_length)
    rope = decoder.rope(interleaved=False)
    decoder.embed_tokens()
    for layer in decoder.layers():
        heads = layer.project(layer.norm("attn_norm"))
        layer.rotate(heads, rope)
        layer.add(layer.attend(heads), "attn_output")
        layer.add(layer.gated_mlp(layer.norm("ffn_norm"), "silu"), "ffn_down")
    return decoder.finish()
