"""OLMoE (arXiv 2409.02060): queries and keys are normalised over all heads at once."""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.experts import ExpertsConfig, add_routed
from caudal.models.program import Program


def build(file: ModelFile) -> Program:
    """The program."""
    experts = ExpertsConfig.from_gguf(file, normalise=False)
    decoder = Decoder(file)
    rope = decoder.rope(interleaved=False)
    decoder.embed_tokens()
    for layer in decoder.layers():
        heads = layer.project(layer.norm("attn_norm"))
        layer.norm_heads(heads, together=True)
        layer.rotate(heads, rope)
        layer.add(layer.attend(heads), "attn_output")
        add_routed(layer, layer.norm("ffn_norm"), experts)
    return decoder.finish()
