"""MiniMax M2: experts in all layers, chosen by sigmoids with a bias; norms over all heads at once.

Only the first channels of a head rotate.
"""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.experts import SELECTION_BIAS, ExpertsConfig, add_routed
from caudal.models.program import Program


def build(file: ModelFile) -> Program:
    """The program."""
    experts = ExpertsConfig.from_gguf(file, scoring="sigmoid")
    decoder = Decoder(file, always=(SELECTION_BIAS,))
    rope = decoder.rope(interleaved=False)
    decoder.embed_tokens()
    for layer in decoder.layers():
        heads = layer.project(layer.norm("attn_norm"))
        layer.norm_heads(heads, together=True)
        layer.rotate(heads, rope)
        layer.add(layer.attend(heads), "attn_output")
        add_routed(layer, layer.norm("ffn_norm"), experts)
    return decoder.finish()
