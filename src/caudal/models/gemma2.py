"""Gemma 2 (arXiv 2408.00118): norms around each sublayer, and a window in every second one.

Attention's scores and the logits are bounded; the embedding is scaled by sqrt(hidden). The "1 +" of
Gemma's norm weights is already in the file.
"""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.hyperparameters import cap, positive, positive_number
from caudal.models.program import Program

_GLOBAL_EVERY = 2
_WINDOW = 4096
_LAYERS_OF_27B = 46


def build(file: ModelFile) -> Program:
    """The program."""
    decoder = Decoder(file)
    config = decoder.config
    rope = decoder.rope(interleaved=False)
    window = positive(file, "gemma2.attention.sliding_window", _WINDOW)
    local = decoder.window_layers(global_every=_GLOBAL_EVERY)
    # The 27B model scales by its hidden size per head, which differs from its head size.
    scaled_by = (
        config.hidden // config.heads if config.layers == _LAYERS_OF_27B else config.head_dim
    )
    scale = positive_number(file, "gemma2.attention.scale", scaled_by**-0.5)
    softcap = cap(file, "gemma2.attn_logit_softcapping", 50.0)
    decoder.embed_tokens(scale=config.hidden**0.5)
    for layer in decoder.layers():
        heads = layer.project(layer.norm("attn_norm"))
        layer.rotate(heads, rope)
        attended = layer.attend(
            heads, scale=scale, window=window if local[layer.index] else None, softcap=softcap
        )
        layer.add_normed(attended, "attn_output", "post_attention_norm")
        inner = layer.gated_mlp(layer.norm("ffn_norm"), "gelu_tanh")
        layer.add_normed(inner, "ffn_down", "post_ffw_norm")
    return decoder.finish(logit_cap=cap(file, "gemma2.final_logit_softcapping", 30.0))
