"""Emits mixtures of experts."""

from __future__ import annotations

from caudal.models.builder.emitter import Emitter
from caudal.models.program import Buffer, Experts, ExpertsName, GateName, Routing, VectorName


class ExpertOperations(Emitter):
    """What experts compute that a router chooses."""

    def experts(
        self,
        x: Buffer,
        logits: Buffer,
        name: str,
        out: Buffer,
        routing: Routing,
        activation: GateName,
        *,
        inner: int,
        gated: bool = True,
        alpha: float = 1.702,
        limit: float = 7.0,
        selection_bias: str | None = None,
        weigh_input: bool = False,
        accumulate: bool = False,
    ) -> None:
        """Let the experts compute that a router's logits choose; see `Experts` and `Routing`.

        Their matrices are `name`_{gate,up,down}_exps.weight, or `name`_gate_up_exps.weight with the
        gate's rows first; biases and `name`_down_exps.scale are picked up from the file.

        Args:
            x: What they read.
            logits: The router's; used up.
            name: What their tensors' names begin with.
            out: Where the sum goes.
            routing: How they are chosen.
            activation: What is done inside.
            inner: Rows of an up matrix.
            gated: Whether they have gates.
            alpha: See `Gated`.
            limit: The same.
            selection_bias: The tensor of `Experts.selection_bias`.
            weigh_input: See `Experts`.
            accumulate: See `Experts`.
        """
        count = logits.width
        up_name, down_name = f"{name}_up_exps", f"{name}_down_exps"
        gate_name: str | None = f"{name}_gate_exps"
        gate_rows = up_rows = None
        if not gated:
            gate_name = None
        elif self._tensors.has(f"{name}_gate_up_exps.weight"):
            gate_name = up_name = f"{name}_gate_up_exps"
            gate_rows, up_rows = (0, inner), (inner, 2 * inner)
        stacked = inner if up_rows is None else 2 * inner
        for stack in dict.fromkeys((gate_name, up_name)):
            if stack is not None:
                self._tensors.shape(f"{stack}.weight", (count, stacked, x.width))
        self._tensors.shape(f"{down_name}.weight", (count, out.width, inner))

        def vector(tensor: str, length: int | None = None) -> VectorName | None:
            if not self._tensors.has_optional(tensor):
                return None
            self._tensors.shape(tensor, (count,) if length is None else (count, length))
            return VectorName(tensor)

        if up_rows is not None and self._tensors.has(f"{up_name}.bias"):
            raise self._tensors.error(f"{up_name}.bias", "is of gates and others in one")
        op = Experts(
            out=out,
            x=x,
            logits=logits,
            gate=None if gate_name is None else ExpertsName(f"{gate_name}.weight", gate_rows),
            up=ExpertsName(f"{up_name}.weight", up_rows),
            down=ExpertsName(f"{down_name}.weight"),
            gate_bias=None if gate_name is None else vector(f"{gate_name}.bias", inner),
            up_bias=vector(f"{up_name}.bias", inner),
            down_bias=vector(f"{down_name}.bias", out.width),
            activation=activation,
            alpha=alpha,
            limit=limit,
            used=routing.used,
            scoring=routing.scoring,
            selection_bias=None if selection_bias is None else vector(selection_bias),
            groups=routing.groups,
            groups_used=routing.groups_used,
            best_of_group=routing.best_of_group,
            normalise=routing.normalise,
            scale=routing.scale,
            expert_scale=vector(f"{down_name}.scale"),
            weigh_input=weigh_input,
            accumulate=accumulate,
        )
        self._emit(op, (x, logits, out) if accumulate else (x, logits), out)

    @property
    def has_experts(self) -> bool:
        """Whether experts compute anything so far."""
        return any(isinstance(each.op, Experts) for each in self._layers)
