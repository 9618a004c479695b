"""Llama 4, of text: Scout and Maverick.

Three layers in four rotate, and see no more than their chunk of the positions. The others don't
rotate (NoPE) and see all; their queries grow with the position (arXiv 2501.19399). Every layer of
Scout has experts, of Maverick every other: one is chosen for a token, whose sigmoid weighs what it
reads, beside one of all tokens. Scout's rotated queries and keys are normalised.
"""

from __future__ import annotations

from dataclasses import replace

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.experts import ExpertsConfig, add_experts, route, shared_expert
from caudal.models.hyperparameters import MOST, positive
from caudal.models.layer import Heads, Layer
from caudal.models.program import Program

_GLOBAL_EVERY = 4
_CHUNK = 8192
_TEMPERATURE_SCALE, _TEMPERATURE_LENGTH = 0.1, 8192
_EXPERTS_OF_MAVERICK = 128
"""Files don't say that a model's queries and keys aren't normalised: this many experts do."""


def build(file: ModelFile) -> Program:
    """The program."""
    experts = ExpertsConfig.from_gguf(file, scoring="sigmoid", normalise=False)
    if not experts.shared_feed_forward:
        experts = replace(experts, shared_feed_forward=experts.feed_forward)
    step = positive(file, "llama4.interleave_moe_layer_step")
    normalised = file.get_bool("llama4.attention.qk_norm", experts.count != _EXPERTS_OF_MAVERICK)
    chunk = positive(file, "llama4.attention.sliding_window", _CHUNK)
    decoder = Decoder(file)
    scale, length = _temperature(file)
    rope = decoder.rope(interleaved=True)
    local = decoder.window_layers(global_every=_GLOBAL_EVERY)
    decoder.embed_tokens()
    for layer in decoder.layers():
        heads = layer.project(layer.norm("attn_norm"))
        if local[layer.index]:
            layer.rotate(heads, rope)
            if normalised:
                _norm_heads(layer, heads)
            attended = layer.attend(heads, window=chunk, chunked=True)
        else:
            if scale:
                layer.b.position_scale(heads.q, scale=scale, length=length, offset=1)
            attended = layer.attend(heads)
        layer.add(attended, "attn_output")
        normed = layer.norm("ffn_norm")
        if (layer.index + 1) % step == 0:
            logits = route(layer, normed, experts)
            inside = shared_expert(layer, normed, experts)
            add_experts(layer, normed, logits, experts, weigh_input=True)
            layer.add(inside, "ffn_down_shexp")
        else:
            layer.add(layer.gated_mlp(normed, "silu"), "ffn_down")
    return decoder.finish()


def _norm_heads(layer: Layer, heads: Heads) -> None:
    """Normalise queries and keys, without weights."""
    for x in (heads.q, heads.k):
        layer.b.rms_norm(x, None, x, eps=layer.eps, group=heads.dim)


def _temperature(file: ModelFile) -> tuple[float, int]:
    """How much queries grow, and each time after how many positions."""
    key = "llama4.attention.temperature_scale"
    scale = file.get_float(key, _TEMPERATURE_SCALE)
    if not 0 <= scale <= MOST:
        raise ModelLoadError(str(file.path), f"{key} must be from 0 to {MOST:.0e}, but is {scale}")
    return scale, positive(file, "llama4.attention.temperature_length", _TEMPERATURE_LENGTH)
