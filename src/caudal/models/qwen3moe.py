"""Qwen 3 with experts (30B-A3B, Coder): the dense decoder with an MLP of many."""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.experts import ExpertsConfig, add_routed
from caudal.models.program import Program


def build(file: ModelFile) -> Program:
    """The program."""
    experts = ExpertsConfig.from_gguf(file)
    decoder = Decoder(file)
    rope = decoder.rope(interleaved=False)
    decoder.embed_tokens()
    for layer in decoder.layers():
        heads = layer.project(layer.norm("attn_norm"))
        layer.norm_heads(heads)
        layer.rotate(heads, rope)
        layer.add(layer.attend(heads), "attn_output")
        add_routed(layer, layer.norm("ffn_norm"), experts)
    return decoder.finish()
