"""Command R7B, Command A (Cohere 2, arXiv 2504.00698): attention and MLP side by side.

Three of four layers have windows, and rotate; the others see all tokens, without positions. Logits
are scaled.
"""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.hyperparameters import positive, positive_number, window_layers
from caudal.models.program import Program

_GLOBAL_EVERY = 4


def build(file: ModelFile) -> Program:
    """The program."""
    decoder = Decoder(file, norms="layer")
    window = positive(file, "cohere2.attention.sliding_window")
    local = window_layers(file, decoder.config.layers, global_every=_GLOBAL_EVERY)
    rope = decoder.rope(interleaved=True)
    decoder.embed_tokens()
    for layer in decoder.layers():
        is_local = local[layer.index]
        normed = layer.norm("attn_norm")
        heads = layer.project(normed)
        if is_local:
            layer.rotate(heads, rope)
        attended = layer.attend(heads, window=window if is_local else None)
        layer.add(attended, "attn_output")
        layer.add(layer.gated_mlp(normed, "silu"), "ffn_down")
    return decoder.finish(logit_scale=positive_number(file, "cohere2.logit_scale", 1.0))
