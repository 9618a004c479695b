"""Attention of Gemma 3n and 4: most layers have a window, and the last ones no keys of their own.

Values are normalised too, and scores aren't scaled. The last layers of small models have no keys
and values, but read those of the last layer of their kind that has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.hyperparameters import head_size, positive
from caudal.models.layer import Layer
from caudal.models.program import Buffer
from caudal.models.rope import RopeTable, rope_table


class GemmaAttention:
    """What layers take from earlier tokens, each as its kind does.

    Args:
        file: The model.
        decoder: It, in the making.
        global_every: Where the file doesn't say, one layer in so many sees all tokens.
        proportional: Whether the file has divisors of the pairs of layers that see all.
        keys_as_values: Whether values may be the keys: of a kind of layers of which none has any.

    Raises:
        ModelLoadError: The file's keys don't make sense together.
    """

    def __init__(
        self,
        file: ModelFile,
        decoder: Decoder,
        *,
        global_every: int,
        proportional: bool,
        keys_as_values: bool,
    ) -> None:
        config, prefix = decoder.config, file.architecture
        self._decoder = decoder
        self._keys_as_values = keys_as_values
        self._local = decoder.window_layers(global_every=global_every)
        self._window = positive(file, f"{prefix}.attention.sliding_window")
        self._kv_heads = decoder.per_layer("attention.head_count_kv", config.heads)
        self._feed_forward = decoder.per_layer("feed_forward_length")
        self._local_head_dim = head_size(file, config.head_dim, suffix="_swa")
        divisors = None
        if proportional:
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
            dimensions=positive(file, f"{prefix}.rope.dimension_count_swa", self._local_head_dim),
            base=file.get_float(f"{prefix}.rope.freq_base_swa", 10000.0),
            interleaved=False,
            scaled=False,
        )
        key = f"{prefix}.attention.shared_kv_layers"
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

    def emit(self, layer: Layer, x: Buffer) -> Buffer:
        """What a layer's queries, made of x, find."""
        is_local = self._local[layer.index]
        rope = self._local_rope if is_local else self._rope
        window = self._window if is_local else None
        b = layer.b
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
        return not self._keys_as_values or any(
            layer.b.has(f"blk.{index}.attn_v.weight")
            for index in range(self._keep)
            if self._local[index] == self._local[layer.index]
        )
