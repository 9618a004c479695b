"""Muse Glimmer: three layers with windows to one that sees all, without positions.

Embeddings are normalised, queries by a factor more than keys; attention's output is gated by a
sigmoid, channel by channel, and each sublayer's has a norm with an epsilon of its own. The "1 +" of
norm weights is already in the file.
"""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.hyperparameters import cap, positive, positive_number
from caudal.models.program import Program

_GLOBAL_EVERY = 4
_POST_NORM_EPS = 1e-8


def build(file: ModelFile) -> Program:
    """The program."""
    decoder = Decoder(file)
    b, config = decoder.b, decoder.config
    rope = decoder.rope(interleaved=True)
    window = positive(file, "muse-glimmer.attention.sliding_window")
    local = decoder.window_layers(global_every=_GLOBAL_EVERY)
    decoder.embed_tokens()
    b.rms_norm(decoder.hidden, None, decoder.hidden, eps=config.norm_eps)
    for layer in decoder.layers():
        is_local = local[layer.index]
        x = layer.norm("attn_norm")
        heads = layer.project(x)
        gate = b.buffer("attention_gate", heads.q.width)
        b.linear(x, layer.tensor("attn_gate"), gate)
        layer.norm_heads(heads)
        if is_local:
            layer.rotate(heads, rope)
        attended = layer.attend(heads, window=window if is_local else None)
        b.gated(gate, attended, attended, "sigmoid")
        layer.add_normed(attended, "attn_output", "post_attention_norm", eps=_POST_NORM_EPS)
        inner = layer.gated_mlp(layer.norm("ffn_norm"), "silu")
        layer.add_normed(inner, "ffn_down", "post_ffw_norm", eps=_POST_NORM_EPS)
    return decoder.finish(
        logit_cap=cap(file, "muse-glimmer.final_logit_softcapping"),
        logit_scale=positive_number(file, "muse-glimmer.logit_scale", 1.0),
    )
