"""Qwen 2 and 2.5: Llama's decoder with biases on queries, keys and values."""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.program import Program

BIASES = ("attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_qkv.bias")


def build(file: ModelFile) -> Program:
    """The program."""
    decoder = Decoder(file, always=BIASES)
    rope = decoder.rope(interleaved=False)
    decoder.embed_tokens()
    for layer in decoder.layers():
        heads = layer.project(layer.norm("attn_norm"))
        layer.rotate(heads, rope)
        layer.add(layer.attend(heads), "attn_output")
        layer.add(layer.gated_mlp(layer.norm("ffn_norm"), "silu"), "ffn_down")
    return decoder.finish()
