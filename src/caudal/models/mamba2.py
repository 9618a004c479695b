"""Layers that are a Mamba-2 state space (arXiv 2405.21060) instead of attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.models.hyperparameters import positive
from caudal.models.layer import Layer
from caudal.models.program import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace:
    """Sizes of the layers.

    Attributes:
        heads: Heads; neighbouring ones share a group's inputs and outputs of the state.
        inner: Channels of all heads; of each a multiple of 16.
        state: Numbers of the state for each channel.
        groups: Of inputs and outputs of the state; also of the norm.
        taps: Of the convolution before.
    """

    heads: int
    inner: int
    state: int
    groups: int
    taps: int

    @classmethod
    def from_gguf(cls, file: ModelFile) -> Self:
        """Read `{architecture}.ssm.*`.

        Raises:
            ModelLoadError: A key is missing or contradicts another.
        """
        prefix = f"{file.architecture}.ssm"
        heads = positive(file, f"{prefix}.time_step_rank")
        inner = positive(file, f"{prefix}.inner_size")
        groups = positive(file, f"{prefix}.group_count")
        if inner % (16 * heads) != 0 or heads % groups != 0:
            raise ModelLoadError(
                str(file.path),
                f"{prefix}: {heads} heads (time_step_rank) of {inner} channels (inner_size) in "
                f"{groups} groups (group_count); supported are heads of a multiple of 16 channels, "
                "as many in each group",
            )
        return cls(
            heads=heads,
            inner=inner,
            state=positive(file, f"{prefix}.state_size"),
            groups=groups,
            taps=positive(file, f"{prefix}.conv_kernel"),
        )

    def emit(self, layer: Layer, x: Buffer) -> Buffer:
        """The inside of such a layer: all up to its output matrix."""
        b, inner, of_groups = layer.b, self.inner, self.groups * self.state
        gate, mixed = b.buffer("ssm_gate", inner), b.buffer("ssm_mixed", inner + 2 * of_groups)
        dt = b.buffer("ssm_dt", self.heads)
        first = 0
        for out in (gate, mixed, dt):
            b.linear(x, layer.tensor("ssm_in"), out, first_row=first)
            first += out.width
        convolved = b.buffer("ssm_convolved", mixed.width)
        b.causal_conv(mixed, layer.tensor("ssm_conv1d"), convolved, "silu", taps=self.taps)
        values = b.buffer("ssm_x", inner)
        keys, queries = b.buffer("ssm_b", of_groups), b.buffer("ssm_c", of_groups)
        for start, out in ((0, values), (inner, keys), (inner + of_groups, queries)):
            b.columns(convolved, out, first=start)
        b.shift_by(dt, layer.tensor("ssm_dt.bias"))
        b.activate(dt, "softplus")
        out = b.buffer("ssm_out", inner)
        rate, skip = layer.tensor("ssm_a"), layer.tensor("ssm_d")
        b.mamba2(values, keys, queries, dt, out, rate=rate, skip=skip, groups=self.groups)
        b.gated(gate, out, out, "silu")
        norm = layer.tensor("ssm_norm")
        b.rms_norm(out, norm, out, eps=layer.eps, group=inner // self.groups)
        return out
