"""Ministral 3 and Devstral 2: Llama with YaRN, and queries that grow with the position.

Queries are multiplied by 1 + scale · log(1 + floor(position / length)).
"""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.hyperparameters import position_temperature
from caudal.models.program import Program


def build(file: ModelFile) -> Program:
    """The program."""
    temperature = position_temperature(file)
    decoder = Decoder(file)
    rope = decoder.rope(interleaved=True)
    decoder.embed_tokens()
    for layer in decoder.layers():
        heads = layer.project(layer.norm("attn_norm"))
        layer.rotate(heads, rope)
        if temperature is not None:
            scale, length = temperature
            decoder.b.position_scale(heads.q, scale=scale, length=length)
        layer.add(layer.attend(heads), "attn_output")
        layer.add(layer.gated_mlp(layer.norm("ffn_norm"), "silu"), "ffn_down")
    return decoder.finish()
