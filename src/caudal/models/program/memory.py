"""What layers remember of a sequence's tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVLayer:
    """What an attention layer remembers of each token: its keys and values.

    Attributes:
        kv_heads: Key and value heads.
        head_dim: Channels of a head, of queries and keys.
        window: Most tokens that a query sees, itself among them: older ones are forgotten. None:
            all are kept.
        value_dim: Channels of a value; None: as many as of a key.
        latent: Values are the first channels of keys, and nothing else is kept of them (MLA,
            arXiv 2405.04434).
    """

    kv_heads: int
    head_dim: int
    window: int | None = None
    value_dim: int | None = None
    latent: bool = False

    @property
    def channels_of_values(self) -> int:
        """Channels of a value."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def numbers(self) -> int:
        """Numbers that are kept of a token."""
        return self.kv_heads * (self.head_dim + (0 if self.latent else self.channels_of_values))


@dataclass(frozen=True, slots=True)
class StateLayer:
    """What a recurrent layer remembers of all tokens so far: a state of a fixed size.

    Attributes:
        floats: Its float32 numbers, the last inputs of a convolution among them.
    """

    floats: int
