"""Gemma 4, of text: E2B, E4B, 12B, 31B, and 26B-A4B with experts.

Most layers have a window. Those that see all have larger heads, fewer of them for keys and values,
or values that are the keys; and only a part of a head's pairs turns ("proportional" RoPE: others
have huge divisors). Values are normalised too, and scores aren't scaled. The last layers of small
models have no keys and values, but read those of the last layer of their kind that has; and each
layer adds what it makes of an embedding of its own of the token. Experts stand beside the MLP.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.experts import ExpertsConfig, add_experts
from caudal.models.hyperparameters import cap, head_size, positive
from caudal.models.layer import Layer
from caudal.models.program import ActivationName, Buffer, Program
from caudal.models.rope import RopeTable, rope_table

_GLOBAL_EVERY = 6
_ACTIVATION: ActivationName = "gelu_tanh"


def build(file: ModelFile) -> Program:
    """The program."""
    decoder = Decoder(file)
    config = decoder.config
    experts = ExpertsConfig.from_gguf(file) if file.get_int("gemma4.expert_count", 0) else None
    attention = _Attention(file, decoder)
    decoder.embed_tokens(scale=config.hidden**0.5)
    own = _own_embeddings(file, decoder)
    for layer in attention.layers():
        attended = attention.emit(layer)
        layer.add_normed(attended, "attn_output", "post_attention_norm")
        _feed_forward(layer, experts)
        if own is not None:
            _add_own_embedding(layer, own, own.width // decoder.config.layers)
        scale = layer.tensor("layer_output_scale.weight")
        if layer.b.has_optional(scale):
            layer.b.scale_by(layer.hidden, scale, length=1)
    return decoder.finish(logit_cap=cap(file, "gemma4.final_logit_softcapping"))


class _Attention:
    """What layers take from earlier tokens, each as its kind does.

    Args:
        file: The model.
        decoder: It, in the making.

    Raises:
        ModelLoadError: The file's keys don't make sense together.
    """

    def __init__(self, file: ModelFile, decoder: Decoder) -> None:
        config = decoder.config
        self._decoder = decoder
        self._local = decoder.window_layers(global_every=_GLOBAL_EVERY)
        self._window = positive(file, "gemma4.attention.sliding_window")
        self._kv_heads = decoder.per_layer("attention.head_count_kv", config.heads)
        self._feed_forward = decoder.per_layer("feed_forward_length")
        self._local_head_dim = head_size(file, config.head_dim, suffix="_swa")
        decoder.b.require("rope_freqs.weight")
        divisors = decoder.b.vector_values("rope_freqs.weight", config.rope_dimensions // 2)
        self._rope = rope_table(
            file,
            dimensions=config.rope_dimensions,
            base=config.rope_base,
            interleaved=False,
            divisors=divisors,
        )
        self._local_rope = rope_table(
            file,
            dimensions=positive(file, "gemma4.rope.dimension_count_swa", self._local_head_dim),
            base=file.get_float("gemma4.rope.freq_base_swa", 10000.0),
            interleaved=False,
            scaled=False,
        )
        key = "gemma4.attention.shared_kv_layers"
        shared = file.get_int(key, 0)
        self._keep = config.layers - shared
        """So many layers have keys and values of their own."""
        kept = self._local[: self._keep]
        if not 0 <= shared < config.layers or not set(self._local) <= set(kept):
            raise ModelLoadError(
                str(file.path), f"{key} is {shared}, which leaves no layer that could be shared"
            )
        self._stored: dict[bool, int] = {}  # KV layers of the last layers of either kind

    def layers(self) -> Iterator[Layer]:
        """The layers, each with its sizes."""
        for layer in self._decoder.layers():
            yield replace(
                layer,
                kv_heads=self._kv_heads[layer.index],
                head_dim=self._local_head_dim if self._local[layer.index] else layer.head_dim,
                feed_forward=self._feed_forward[layer.index],
            )

    def emit(self, layer: Layer) -> Buffer:
        """What a layer's queries find."""
        is_local = self._local[layer.index]
        rope = self._local_rope if is_local else self._rope
        window = self._window if is_local else None
        b, x = layer.b, layer.norm("attn_norm")
        q = b.buffer("q", layer.heads * layer.head_dim)
        b.linear(x, layer.tensor("attn_q"), q)
        b.rms_norm(q, layer.tensor("attn_q_norm"), q, eps=layer.eps, period=layer.head_dim)
        b.rope(q, layer.head_dim, rope)
        attended = b.buffer("attended", q.width)
        if layer.index >= self._keep:
            # Files have keys and values of these layers, too, but nothing reads them.
            for name in ("attn_k", "attn_v", "attn_k_norm"):
                b.leave_out(f"{layer.tensor(name)}.")
            b.attention_again(attended, q, self._stored[is_local], scale=1.0, window=window)
            return attended
        k, v = self._keys_and_values(layer, x, rope)
        self._stored[is_local] = b.attention(
            attended, q, k, v, head_dim=layer.head_dim, scale=1.0, window=window
        )
        return attended

    def _keys_and_values(self, layer: Layer, x: Buffer, rope: RopeTable) -> tuple[Buffer, Buffer]:
        b, width = layer.b, layer.kv_heads * layer.head_dim
        k, v = b.buffer("k", width), b.buffer("v", width)
        b.linear(x, layer.tensor("attn_k"), k)
        made = k
        if self._has_values(layer):
            b.linear(x, layer.tensor("attn_v"), v)
            made = v
        b.rms_norm(made, None, v, eps=layer.eps, group=layer.head_dim)
        b.rms_norm(k, layer.tensor("attn_k_norm"), k, eps=layer.eps, period=layer.head_dim)
        b.rope(k, layer.head_dim, rope)
        return k, v

    def _has_values(self, layer: Layer) -> bool:
        """Whether a layer has values of its own: as all of its kind have, or none."""
        return layer.b.has(layer.tensor("attn_v.weight")) or any(
            layer.b.has(f"blk.{index}.attn_v.weight")
            for index in range(self._keep)
            if self._local[index] == self._local[layer.index]
        )


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


def _own_embeddings(file: ModelFile, decoder: Decoder) -> Buffer | None:
    """An embedding of each token for each layer, side by side; None where there are none.

    What the table has for a token is added to what is made of the token's embedding.
    """
    key = "gemma4.embedding_length_per_layer_input"
    if file.get_int(key, 0) == 0:
        return None
    width = positive(file, key)
    config, b = decoder.config, decoder.b
    projected = b.buffer("projected embeddings", width * config.layers)
    own = b.buffer("own embeddings", width * config.layers)
    b.linear(decoder.hidden, "per_layer_model_proj", projected)
    b.scale(projected, config.hidden**-0.5)
    b.rms_norm(projected, "per_layer_proj_norm", projected, eps=config.norm_eps, period=width)
    b.embed(own, "per_layer_token_embd.weight", scale=width**0.5, rows=config.vocab_size)
    b.add(own, projected, own)
    b.scale(own, 0.5**0.5)
    return own


def _add_own_embedding(layer: Layer, own: Buffer, width: int) -> None:
    """Add what a layer makes of its embedding of the token to the residual stream."""
    b = layer.b
    embedding = b.buffer("own embedding", width)
    b.columns(own, embedding, first=layer.index * width)
    gate = b.buffer("own gate", width)
    b.linear(layer.hidden, layer.tensor("inp_gate"), gate)
    b.gated(gate, embedding, gate, _ACTIVATION)
    layer.add_normed(gate, "proj", "post_norm")
