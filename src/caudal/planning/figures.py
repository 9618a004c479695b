"""What is known of a model that has not been loaded, as far as memory and speed depend on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from caudal.backends.native.costs import Passed
from caudal.formats.tensor_types import TensorType
from caudal.models.program import KVLayer, StateLayer

SMALLER = ("BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K")
"""Quantisations of which it is said what they would take, the largest first."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """What an iteration computes with.

    Attributes:
        of_token: Bytes for each of its tokens.
        of_logits: Bytes for each token whose logits are there at the same time.
        logit_rows: Most of those.
    """

    of_token: int
    of_logits: int
    logit_rows: int

    def bytes(self, tokens: int) -> int:
        """For an iteration of so many tokens."""
        return self.of_token * tokens + self.of_logits * min(tokens, self.logit_rows)


def no_others() -> Mapping[str, int]:
    """Where nothing is known of how weights could be quantised."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """A model.

    Attributes:
        name: As it was given.
        source: Where the figures are from.
        architecture: Its family; empty where that isn't known.
        parameters: Weights there are; 0 where that isn't known.
        quantisation: What most of them are, e.g. `Q4_K`, or `16 bits`.
        weights: Bytes that they take in memory.
        file_bytes: Bytes of the files; None where there are none yet.
        kv_layers: Layers that keep keys and values.
        state_layers: Layers that keep a state.
        context_length: Tokens that it was trained for; None where that isn't known.
        workspace: What an iteration computes with; None where that isn't known.
        passed: Bytes of weights that a token goes through.
        active: Weights that it goes through; 0 where that isn't known.
        type: What most weights are, for measuring; None where that isn't known.
        vocabulary: Tokens that it knows; 0 where that isn't known.
        served_as: What `caudal serve` has to be told to serve it; empty where nothing is there yet.
        is_encoder: Whether it generates nothing, and so keeps nothing.
        obstacle: Why Caudal can't serve it, so that these are figures alone; None where it can.
        others: Bytes that the weights would take, by quantisation.
        draft: The draft model that guesses for it, or the layer of its own; None for none.
        state_width: Of such a layer: the channels of the model's states, which wait for it; 0 of
            all others.
    """

    name: str
    source: str
    architecture: str
    parameters: int
    quantisation: str
    weights: int
    file_bytes: int | None
    kv_layers: tuple[KVLayer, ...]
    state_layers: tuple[StateLayer, ...]
    context_length: int | None
    workspace: Workspace | None
    passed: Passed
    active: int = 0
    type: TensorType | None = None
    vocabulary: int = 0
    served_as: str = ""
    is_encoder: bool = False
    obstacle: str | None = None
    others: Callable[[], Mapping[str, int]] = no_others
    draft: ModelFigures | None = None
    state_width: int = 0
