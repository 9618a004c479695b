"""Emits attention, and the rotations that tell it where tokens are."""

from __future__ import annotations

from caudal.models.builder.emitter import Emitter
from caudal.models.program import Attention, Buffer, KVLayer, Rope, VectorName
from caudal.models.rope import RopeTable


class AttentionOperations(Emitter):
    """Rotary positions; attention in KV layers."""

    def rope(self, x: Buffer, head_dim: int, table: RopeTable, *, first: int = 0) -> None:
        """Rotate the heads of `x`, from channel `first` on."""
        self._emit(Rope(x, head_dim, table, first), (x,), x)

    def attention(
        self,
        out: Buffer,
        q: Buffer,
        k: Buffer,
        v: Buffer | None,
        *,
        head_dim: int,
        scale: float,
        window: int | None = None,
        causal: bool = True,
        chunked: bool = False,
        softcap: float = 0.0,
        sinks: str | None = None,
    ) -> int:
        """Attend, in a new KV layer, whose index is returned.

        Args:
            out: Its width says how many channels values have.
            q: Queries.
            k: Keys.
            v: Values; None: they are the first channels of the keys (a latent).
            head_dim: Channels of a query's or key's head.
            scale: See `Attention`.
            window: See `Attention`.
            causal: See `Attention`.
            chunked: See `Attention`.
            softcap: See `Attention`.
            sinks: The name of their vector, as long as there are query heads.
        """
        layer, heads = len(self._kv_layers), q.width // head_dim
        op = Attention(
            out,
            q,
            k,
            v,
            layer,
            heads,
            scale,
            window,
            causal,
            chunked,
            softcap,
            self._sinks(sinks, heads),
        )
        self._emit(op, (q, k) if v is None else (q, k, v), out, keeps=True)
        self._kv_layers.append(
            KVLayer(k.width // head_dim, head_dim, value_dim=out.width // heads, latent=v is None)
        )
        return layer

    def attention_again(
        self,
        out: Buffer,
        q: Buffer,
        layer: int,
        *,
        scale: float,
        window: int | None = None,
        softcap: float = 0.0,
        sinks: str | None = None,
    ) -> None:
        """Attend in a KV layer that an attention before has stored; arguments as there."""
        heads = q.width // self._kv_layers[layer].head_dim
        op = Attention(
            out,
            q,
            None,
            None,
            layer,
            heads,
            scale,
            window,
            causal=True,
            softcap=softcap,
            sinks=self._sinks(sinks, heads),
        )
        # It keeps nothing itself, but is for every token, whose results later layers keep.
        self._emit(op, (q,), out, keeps=True)

    def _sinks(self, name: str | None, heads: int) -> VectorName | None:
        if name is None:
            return None
        self._tensors.shape(name, (heads,))
        return VectorName(name)
