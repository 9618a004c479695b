"""Multi-head latent attention (MLA, arXiv 2405.04434), with its up-projections absorbed.

Of each token one latent is kept for all heads, and a few channels with its position. Keys and
values are linear in the latent; instead of computing them of every token, queries go through the
transposed matrix of the keys, and what they find through that of the values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.models.hyperparameters import MAX_HEAD_DIM, position_temperature, positive
from caudal.models.layer import Layer
from caudal.models.program import Buffer
from caudal.models.rope import RopeTable, rope_table, yarn_scores

_EPSILON = 1e-6
"""What norms of latents add, whatever the others do: so has transformers it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Sizes of the layers.

    Attributes:
        heads: Query heads.
        query_rank: Channels of the queries' own latent; 0: they have none.
        rank: Channels of the latent that is kept.
        plain: Channels of a head without positions.
        rotated: Channels with.
        values: Channels of a head's values.
        scale: Multiplies scores.
        rope: How far the rotated channels turn.
        temperature: See `position_temperature`.
    """

    heads: int
    query_rank: int
    rank: int
    plain: int
    rotated: int
    values: int
    scale: float
    rope: RopeTable
    temperature: tuple[float, int] | None

    @classmethod
    def from_gguf(cls, file: ModelFile) -> Self:
        """Read `{architecture}.attention.*`.

        Raises:
            ModelLoadError: A key is missing or contradicts another.
        """
        prefix = f"{file.architecture}.attention"
        channels = positive(file, f"{prefix}.key_length_mla")
        rank = positive(file, f"{prefix}.kv_lora_rank")
        rotated = positive(file, f"{file.architecture}.rope.dimension_count")
        if not rotated < channels <= MAX_HEAD_DIM or rank + rotated > MAX_HEAD_DIM:
            raise ModelLoadError(
                str(file.path),
                f"{prefix}: {channels} channels (key_length_mla), of which {rotated} are rotated, "
                f"beside a latent of {rank} (kv_lora_rank); supported are up to {MAX_HEAD_DIM}, "
                "some of them not rotated",
            )
        query_rank = f"{prefix}.q_lora_rank"
        return cls(
            heads=positive(file, f"{prefix}.head_count"),
            query_rank=positive(file, query_rank) if file.get_int(query_rank, 0) else 0,
            rank=rank,
            plain=channels - rotated,
            rotated=rotated,
            values=positive(file, f"{prefix}.value_length_mla"),
            scale=channels**-0.5 * yarn_scores(file),
            rope=rope_table(
                file,
                dimensions=rotated,
                base=file.get_float(f"{file.architecture}.rope.freq_base", 10000.0),
                interleaved=True,
            ),
            temperature=position_temperature(file),
        )

    def emit(self, layer: Layer, x: Buffer) -> Buffer:
        """The inside of such a layer: all up to its output matrix."""
        b, heads = layer.b, self.heads
        key_width = self.rank + self.rotated
        q = self._queries(layer, x)
        plain = b.buffer("q plain", heads * self.plain)
        rotated = b.buffer("q rotated", heads * self.rotated)
        b.columns(q, plain, first=0, period=self.plain + self.rotated)
        b.columns(q, rotated, first=self.plain, period=self.plain + self.rotated)
        absorbed = b.buffer("q absorbed", heads * self.rank)
        b.head_linear(plain, layer.tensor("attn_k_b"), absorbed, heads=heads)
        query = b.buffer("latent query", heads * key_width)
        b.join(absorbed, rotated, query, heads=heads)
        b.rope(query, key_width, self.rope, first=self.rank)
        if self.temperature is not None:
            scale, length = self.temperature
            b.position_scale(query, scale=scale, length=length)

        latent, position = b.buffer("latent", self.rank), b.buffer("position", self.rotated)
        b.linear(x, layer.tensor("attn_kv_a_mqa"), latent, first_row=0)
        b.linear(x, layer.tensor("attn_kv_a_mqa"), position, first_row=self.rank)
        b.rms_norm(latent, layer.tensor("attn_kv_a_norm"), latent, eps=_EPSILON)
        key = b.buffer("latent key", key_width)
        b.join(latent, position, key, heads=1)
        b.rope(key, key_width, self.rope, first=self.rank)

        found = b.buffer("latents found", heads * self.rank)
        b.attention(found, query, key, None, head_dim=key_width, scale=self.scale)
        attended = b.buffer("attended", heads * self.values)
        b.head_linear(found, layer.tensor("attn_v_b"), attended, heads=heads)
        return attended

    def _queries(self, layer: Layer, x: Buffer) -> Buffer:
        b = layer.b
        q = b.buffer("q", self.heads * (self.plain + self.rotated))
        if not self.query_rank:
            b.linear(x, layer.tensor("attn_q"), q)
            return q
        latent = b.buffer("latent of q", self.query_rank)
        b.linear(x, layer.tensor("attn_q_a"), latent)
        b.rms_norm(latent, layer.tensor("attn_q_a_norm"), latent, eps=_EPSILON)
        b.linear(latent, layer.tensor("attn_q_b"), q)
        return q
