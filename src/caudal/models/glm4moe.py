"""GLM-4.5 to 4.7 with experts (arXiv 2508.06471): the first layers are dense, half of heads rotate.

Experts are chosen by sigmoids with a bias, and one computes for all tokens. Some normalise queries
and keys. What predicts a token further ahead (a layer after the others) is a program of its own.
"""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.experts import SELECTION_BIAS, ExpertsConfig, add_routed
from caudal.models.program import Program


def build(file: ModelFile, *, ahead: bool = False) -> Program:
    """The program, or that of what predicts a token further ahead."""
    experts = ExpertsConfig.from_gguf(file, scoring="sigmoid")
    decoder = Decoder(file, always=(SELECTION_BIAS,), ahead=ahead)
    rope = decoder.rope(interleaved=False)
    decoder.embed_tokens()
    for layer in decoder.layers():
        heads = layer.project(layer.norm("attn_norm"))
        if decoder.b.has_optional(layer.tensor("attn_q_norm.weight")):
            layer.norm_heads(heads)
        layer.rotate(heads, rope)
        layer.add(layer.attend(heads), "attn_output")
        normed = layer.norm("post_attention_norm")
        if experts.in_layer(layer.index):
            add_routed(layer, normed, experts)
        else:
            layer.add(layer.gated_mlp(normed, "silu"), "ffn_down")
    return decoder.finish(state_before_norm=ahead)  # what a layer ahead goes on from itself
