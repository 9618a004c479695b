"""Mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from caudal.models.program.op import Buffer, ExpertsName, Op, VectorName
from caudal.models.program.rows import GateName

ScoringName = Literal["softmax", "sigmoid", "softmax_of_chosen"]
"""What a router's logits become before they weigh experts: a softmax over all experts, each logit's
sigmoid, or a softmax over those that were chosen by their logits."""


@dataclass(frozen=True, slots=True)
class Routing:
    """How experts are chosen for a token, and weighed.

    Attributes:
        used: Experts of a token: those of the largest scores, of equals the first.
        scoring: What scores are.
        normalise: Whether the weights, the chosen experts' scores, are divided by their sum.
        scale: Multiplies all weights.
        groups: Groups of experts that lie side by side; only experts of the best are chosen.
        groups_used: How many groups are the best (DeepSeek-V2, arXiv 2405.04434).
        best_of_group: How many of its best experts' scores a group is measured by.
    """

    used: int
    scoring: ScoringName
    normalise: bool
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1
    best_of_group: int = 2


@dataclass(frozen=True, slots=True)
class Experts(Op):
    """out = Σ weight · down(activation(gate(x)) · up(x)) over the experts of each token.

    (Mixture of experts, arXiv 1701.06538.) Fields that aren't here are explained in `Routing`.

    Attributes:
        out: Shape (tokens, rows of a down matrix).
        x: Shape (tokens, columns of an up matrix).
        logits: A router's, shape (tokens, experts); scores take their place.
        gate: None: activation(up(x)) takes the place of the product.
        gate_bias: One behind the other, of all experts; as the others.
        activation: With a gate one as `Gated` has, with `alpha` and `limit`.
        selection_bias: Added to scores when experts are chosen, not when they are weighed.
        expert_scale: A factor for each expert's weight.
        weigh_input: Whether the weights multiply x instead of what experts make of it.
        accumulate: Whether it is added to what out holds.
    """

    out: Buffer
    x: Buffer
    logits: Buffer
    gate: ExpertsName | None
    up: ExpertsName
    down: ExpertsName
    gate_bias: VectorName | None
    up_bias: VectorName | None
    down_bias: VectorName | None
    activation: GateName
    alpha: float
    limit: float
    used: int
    scoring: ScoringName
    selection_bias: VectorName | None
    groups: int
    groups_used: int
    best_of_group: int
    normalise: bool
    scale: float
    expert_scale: VectorName | None
    weigh_input: bool
    accumulate: bool
