"""Gemma 4, of text: E2B, E4B, 12B, 31B, and 26B-A4B with experts.

Most layers have a window. Those that see all have larger heads, fewer of them for keys and values,
or values that are the keys; and only a part of a head's pairs turns ("proportional" RoPE: others
have huge divisors). Values are normalised too, and scores aren't scaled. The last layers of small
models have no keys and values, but read those of the last layer of their kind that has; and each
layer adds what it makes of an embedding of its own of the token. Experts stand beside the MLP.
"""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.experts import ExpertsConfig, add_experts
from caudal.models.gemma_attention import GemmaAttention
from caudal.models.hyperparameters import cap
from caudal.models.layer import Layer
from caudal.models.own_embeddings import own_embeddings, own_sublayer
from caudal.models.program import ActivationName, Buffer, Program

_GLOBAL_EVERY = 6
_ACTIVATION: ActivationName = "gelu_tanh"


def build(file: ModelFile) -> Program:
    """The program."""
    decoder = Decoder(file)
    config = decoder.config
    experts = ExpertsConfig.from_gguf(file) if file.get_int("gemma4.expert_count", 0) else None
    attention = GemmaAttention(
        file,
        decoder,
        global_every=_GLOBAL_EVERY,
        proportional=True,
        keys_as_values=True,
    )
    decoder.embed_tokens(scale=config.hidden**0.5)
    own = own_embeddings(file, decoder)
    for layer in attention.layers():
        attended = attention.emit(layer, layer.norm("attn_norm"))
        layer.add_normed(attended, "attn_output", "post_attention_norm")
        _feed_forward(layer, experts)
        if own is not None:
            gate = own_sublayer(layer, layer.hidden, own, config.layers)
            layer.add_normed(gate, "proj", "post_norm")
        scale = layer.tensor("layer_output_scale.weight")
        if layer.b.has_optional(scale):
            layer.b.scale_by(layer.hidden, scale, length=1)
    return decoder.finish(logit_cap=cap(file, "gemma4.final_logit_softcapping"))


def _feed_forward(layer: Layer, experts: ExpertsConfig | None) -> None:
    """Add the MLP, and what experts make of the same, to the residual stream."""
    b = layer.b
    if experts is None:
        inner = layer.gated_mlp(layer.norm("ffn_norm"), _ACTIVATION)
        layer.add_normed(inner, "ffn_down", "post_ffw_norm")
        return
    inner = layer.gated_mlp(layer.norm("ffn_norm"), _ACTIVATION)
    dense = b.buffer("dense", layer.hidden.width)
    b.linear(inner, layer.tensor("ffn_down"), dense)
    b.rms_norm(dense, layer.tensor("post_ffw_norm_1"), dense, eps=layer.eps)
    logits = _route(layer, experts)
    sublayer = b.buffer("sublayer", layer.hidden.width)
    add_experts(layer, layer.norm("pre_ffw_norm_2"), logits, experts, _ACTIVATION, out=sublayer)
    b.rms_norm(sublayer, layer.tensor("post_ffw_norm_2"), sublayer, eps=layer.eps)
    b.add(sublayer, dense, sublayer)
    b.rms_norm(sublayer, layer.tensor("post_ffw_norm"), sublayer, eps=layer.eps)
    b.add(layer.hidden, sublayer, layer.hidden)


def _route(layer: Layer, experts: ExpertsConfig) -> Buffer:
    """A router's logits, which reads the residual stream through a norm of its own."""
    b, hidden = layer.b, layer.hidden
    x = b.buffer("normed", hidden.width)
    b.rms_norm(hidden, None, x, eps=layer.eps)
    b.scale(x, hidden.width**-0.5)
    b.scale_by(x, layer.tensor("ffn_gate_inp.scale"))
    logits = b.buffer("router logits", experts.count)
    b.linear(x, layer.tensor("ffn_gate_inp"), logits)
    return logits
