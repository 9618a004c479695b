"""SmolLM3: as Llama, but every fourth layer doesn't rotate (NoPE, arXiv 2501.18795)."""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.program import Program

_UNROTATED_EVERY = 4


def build(file: ModelFile) -> Program:
    """The program."""
    decoder = Decoder(file)
    rope = decoder.rope(interleaved=True)
    decoder.embed_tokens()
    for layer in decoder.layers():
        heads = layer.project(layer.norm("attn_norm"))
        if (layer.index + 1) % _UNROTATED_EVERY != 0:
            layer.rotate(heads, rope)
        layer.add(layer.attend(heads), "attn_output")
        layer.add(layer.gated_mlp(layer.norm("ffn_norm"), "silu"), "ffn_down")
    return decoder.finish()
