"""Qwen 1.5 and 2 with experts (57B-A14B): Qwen 2's attention, and a shared expert with a gate."""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.experts import ExpertsConfig, add_routed
from caudal.models.program import Program
from caudal.models.qwen2 import BIASES


def build(file: ModelFile) -> Program:
    """The program."""
    experts = ExpertsConfig.from_gguf(file, normalise=False)
    decoder = Decoder(file, always=BIASES)
    rope = decoder.rope(interleaved=False)
    decoder.embed_tokens()
    for layer in decoder.layers():
        heads = layer.project(layer.norm("attn_norm"))
        layer.rotate(heads, rope)
        layer.add(layer.attend(heads), "attn_output")
        add_routed(layer, layer.norm("ffn_norm"), experts, weighed=True)
    return decoder.finish()
