"""Experts: those that a router chooses for a token, and those that compute for all tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.models.hyperparameters import MOST, positive
from caudal.models.layer import Layer
from caudal.models.program import ActivationName, Buffer, GateName, Routing, ScoringName

MOST_USED = 64
MOST_GROUPS = 64
"""Experts of a token, and groups of experts: the native library has no more."""

SELECTION_BIAS = "exp_probs_b.bias"
"""A layer's tensor of what is added to experts' scores for choosing them."""

_SCORINGS: dict[int, ScoringName] = {1: "softmax", 2: "sigmoid", 3: "softmax_of_chosen"}
"""llama.cpp's numbers in `expert_gating_func`."""


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Sizes of a model's experts, from the file's `{architecture}.expert_*` keys.

    Attributes:
        count: Experts of a layer, of which a router chooses.
        feed_forward: Width inside of each.
        shared_feed_forward: Width inside what all tokens pass besides; 0: there is no such expert.
        dense_layers: So many layers from the first on have none.
        routing: How they are chosen.
    """

    count: int
    feed_forward: int
    shared_feed_forward: int
    dense_layers: int
    routing: Routing

    @classmethod
    def from_gguf(
        cls,
        file: ModelFile,
        *,
        scoring: ScoringName = "softmax",
        normalise: bool = True,
        best_of_group: int = 2,
    ) -> Self:
        """Read the keys, checking that they make sense together.

        Args:
            file: The model.
            scoring: The family's, where the file says nothing.
            normalise: Likewise: whether weights are made to add up to one.
            best_of_group: How many of its experts' scores the family measures a group by.

        Raises:
            ModelLoadError: A key is missing, has a wrong type, or contradicts another.
        """
        arch = file.architecture
        count = _positive(file, "expert_count")
        used = _positive(file, "expert_used_count")
        _check(file, used <= min(count, MOST_USED), "expert_used_count", used, f"at most {count}")
        feed_forward = f"{arch}.expert_feed_forward_length"
        if file.get_int(feed_forward, 0) == 0:
            feed_forward = f"{arch}.feed_forward_length"
        inner = positive(file, feed_forward)
        shared = _not_negative(file, "expert_shared_feed_forward_length")
        if not shared:
            shared = _not_negative(file, "expert_shared_count") * inner
        groups = _positive(file, "expert_group_count", 1)
        _check(
            file,
            count % groups == 0 and groups <= MOST_GROUPS,
            "expert_group_count",
            groups,
            f"a divisor of expert_count ({count}), up to {MOST_GROUPS}",
        )
        groups_used = _positive(file, "expert_group_used_count", groups)
        _check(
            file,
            groups_used <= groups and used <= count // groups * groups_used,
            "expert_group_used_count",
            groups_used,
            f"at most {groups} and enough for {used} experts",
        )
        gating = file.get_int(f"{arch}.expert_gating_func", 0)
        _check(file, gating in (0, *_SCORINGS), "expert_gating_func", gating, "0 to 3")
        scale = file.get_float(f"{arch}.expert_weights_scale", 1.0)
        in_bounds = scale == 0 or 1 / MOST <= scale <= MOST
        _check(file, in_bounds, "expert_weights_scale", scale, f"0, or up to {MOST:.0e}")
        return cls(
            count=count,
            feed_forward=inner,
            shared_feed_forward=shared,
            dense_layers=_not_negative(file, "leading_dense_block_count"),
            routing=Routing(
                used=used,
                scoring=_SCORINGS.get(gating, scoring),
                normalise=file.get_bool(f"{arch}.expert_weights_norm", normalise),
                scale=scale or 1.0,  # converters write 0 for none
                groups=groups,
                groups_used=groups_used,
                best_of_group=best_of_group,
            ),
        )

    def in_layer(self, index: int) -> bool:
        """Whether a layer has experts."""
        return index >= self.dense_layers


def route(layer: Layer, x: Buffer, experts: ExpertsConfig) -> Buffer:
    """A router's logits: what each expert has to say about x."""
    logits = layer.b.buffer("router logits", experts.count)
    layer.b.linear(x, layer.tensor("ffn_gate_inp"), logits)
    return logits


def add_experts(
    layer: Layer,
    x: Buffer,
    logits: Buffer,
    experts: ExpertsConfig,
    activation: GateName = "silu",
    *,
    gated: bool = True,
    weigh_input: bool = False,
    out: Buffer | None = None,
) -> None:
    """Add what the chosen experts make of x to the residual stream, or put it into `out`.

    A bias for choosing them is picked up from the file. For `weigh_input` see `Experts`.
    """
    layer.b.experts(
        x,
        logits,
        layer.tensor("ffn"),
        layer.hidden if out is None else out,
        experts.routing,
        activation,
        inner=experts.feed_forward,
        gated=gated,
        selection_bias=layer.tensor(SELECTION_BIAS),
        weigh_input=weigh_input,
        accumulate=out is None,
    )


def add_routed(
    layer: Layer,
    x: Buffer,
    experts: ExpertsConfig,
    activation: ActivationName = "silu",
    *,
    gated: bool = True,
    weighed: bool = False,
    scale: float = 1.0,
) -> None:
    """Add a layer of experts to the residual stream: the chosen ones, and the one of all tokens.

    What is added is multiplied by `scale`. For `weighed` see `shared_expert`.
    """
    if scale != 1.0:
        routing = replace(experts.routing, scale=scale * experts.routing.scale)
        experts = replace(experts, routing=routing)
    logits = route(layer, x, experts)
    inside = None
    if experts.shared_feed_forward:
        inside = shared_expert(layer, x, experts, activation, gated=gated, weighed=weighed)
    add_experts(layer, x, logits, experts, activation, gated=gated)
    if inside is not None:
        layer.add(inside, "ffn_down_shexp", scale=scale)


def shared_expert(
    layer: Layer,
    x: Buffer,
    experts: ExpertsConfig,
    activation: ActivationName = "silu",
    *,
    gated: bool = True,
    weighed: bool = False,
) -> Buffer:
    """The inside of the expert that computes for all tokens; `ffn_down_shexp` leads out of it.

    If it is `weighed`, what `ffn_gate_inp_shexp` says of a token weighs this token's result.
    """
    b = layer.b
    inner = b.buffer("shared inner", experts.shared_feed_forward)
    b.linear(x, layer.tensor("ffn_up_shexp"), inner)
    if gated:
        gate = b.buffer("shared gate", inner.width)
        b.linear(x, layer.tensor("ffn_gate_shexp"), gate)
    weight = b.buffer("shared weight", 1)
    if weighed:
        b.linear(x, layer.tensor("ffn_gate_inp_shexp"), weight)
    if gated:
        b.gated(gate, inner, inner, activation)
    else:
        b.activate(inner, activation)
    if weighed:
        b.gated(weight, inner, inner, "sigmoid")
    return inner


def _positive(file: ModelFile, name: str, default: int | None = None) -> int:
    return positive(file, f"{file.architecture}.{name}", default)


def _not_negative(file: ModelFile, name: str) -> int:
    key = f"{file.architecture}.{name}"
    return positive(file, key) if file.get_int(key, 0) else 0


def _check(file: ModelFile, holds: bool, name: str, value: float, needed: str) -> None:
    if not holds:
        raise ModelLoadError(
            str(file.path), f"{file.architecture}.{name} must be {needed}, but is {value}"
        )
