"""Emits what is done row by row."""

from __future__ import annotations

from caudal.models.builder.emitter import Emitter
from caudal.models.program import (
    Activate,
    ActivationName,
    Add,
    Buffer,
    Clamp,
    Columns,
    Cut,
    Embed,
    EmbedBy,
    Gated,
    GateName,
    Given,
    Join,
    L2Norm,
    LayerNorm,
    MatchMagnitude,
    MatrixName,
    PositionScale,
    RMSNorm,
    Scale,
    ScaleBy,
    ShiftBy,
    Softcap,
)


class RowOperations(Emitter):
    """Embeddings, norms, activations, sums, products."""

    def embed(
        self,
        out: Buffer,
        weight: str,
        *,
        scale: float = 1.0,
        by: EmbedBy = "token",
        rows: int | None = None,
    ) -> None:
        """Look embeddings up, in a table of so many `rows`; None: of any number."""
        self._tensors.matrix(weight, rows, out.width)
        self._emit(Embed(out, MatrixName(weight), scale, by), (), out)

    def given(self, out: Buffer) -> None:
        """Take what batches give for each token."""
        self._emit(Given(out), (), out)

    def layer_norm(
        self, x: Buffer, name: str, out: Buffer, *, eps: float, group: int | None = None
    ) -> None:
        """Normalise `x`, scale it by `name`.weight, and add `name`.bias where the file has one.

        Where `group` isn't None, each so many channels by themselves.
        """
        weight, bias = f"{name}.weight", f"{name}.bias"
        scale = self._tensors.vector(weight, x.width)
        shift = None
        if self._tensors.has_optional(bias):
            shift = self._tensors.vector(bias, x.width)
        self._emit(LayerNorm(out, x, scale, shift, _group(x, group), eps), (x,), out)

    def rms_norm(
        self,
        x: Buffer,
        name: str | None,
        out: Buffer,
        *,
        eps: float,
        group: int | None = None,
        period: int | None = None,
    ) -> None:
        """Normalise `x` in groups of channels, and scale it by `name`.weight where there is a name.

        Args:
            x: What is normalised.
            name: Of the weight.
            out: As wide as x.
            eps: Added to the mean of squares.
            group: Channels of a group; None: as many as the weight is for, or all.
            period: Channels that the weight is for, which is used again for the next ones: a whole
                number of groups; None: all.
        """
        period = _group(x, period)
        group = period if group is None else group
        if period % _group(x, group) != 0:
            raise ValueError(f"{period} channels of {x.name} can't be cut into groups of {group}")
        weight = None if name is None else self._tensors.vector(f"{name}.weight", period)
        self._emit(RMSNorm(out, x, weight, group, eps), (x,), out)

    def l2_norm(self, x: Buffer, out: Buffer, *, group: int, eps: float) -> None:
        """Give each `group` of channels of `x` length 1."""
        self._emit(L2Norm(out, x, _group(x, group), eps), (x,), out)

    def gated(
        self,
        gate: Buffer,
        up: Buffer,
        out: Buffer,
        activation: GateName,
        *,
        alpha: float = 1.702,
        limit: float = 7.0,
    ) -> None:
        """Multiply `up` by the activated `gate`, which may be narrower; see `Gated`."""
        self._emit(Gated(out, gate, up, activation, alpha, limit), (gate, up), out)

    def activate(self, x: Buffer, activation: ActivationName) -> None:
        """Apply an activation in place."""
        self._emit(Activate(x, activation), (x,), x)

    def add(self, a: Buffer, b: Buffer, out: Buffer) -> None:
        """Add two buffers."""
        self._emit(Add(out, a, b), (a, b), out)

    def softcap(self, x: Buffer, cap: float) -> None:
        """Bound the values of `x`."""
        self._emit(Softcap(x, cap), (x,), x)

    def columns(self, x: Buffer, out: Buffer, *, first: int, period: int | None = None) -> None:
        """Copy of every `period` channels of `x` (None: of all) those from `first` on to `out`.

        Raises:
            ValueError: Out isn't filled by so many of each period.
        """
        every = x.width if period is None else period
        periods, rest = divmod(x.width, every)
        if rest or out.width % periods or not 0 <= first <= every - out.width // periods:
            raise ValueError(
                f"{out.name} ({out.width}) can't be of every {every} of {x.name} ({x.width})"
            )
        self._emit(Columns(out, x, first, every), (x,), out)

    def scale(self, x: Buffer, factor: float) -> None:
        """Multiply `x` by a number; by 1 nothing is done."""
        if factor != 1.0:
            self._emit(Scale(x, factor), (x,), x)

    def scale_by(self, x: Buffer, name: str, *, length: int | None = None) -> None:
        """Multiply `x` by the tensor `name`: one number (`length` 1), or one for each channel."""
        self._emit(ScaleBy(x, self._tensors.vector(name, length or x.width)), (x,), x)

    def shift_by(self, x: Buffer, name: str) -> None:
        """Add the tensor `name` to `x`: a number for each channel."""
        self._emit(ShiftBy(x, self._tensors.vector(name, x.width)), (x,), x)

    def clamp(self, x: Buffer, low: float, high: float) -> None:
        """Keep the values of `x` within bounds."""
        self._emit(Clamp(x, low, high), (x,), x)

    def cut(self, x: Buffer, *, deviations: float) -> None:
        """Keep what is that far above the mean of `x`; see `Cut`."""
        self._emit(Cut(x, deviations), (x,), x)

    def match_magnitude(self, x: Buffer, model: Buffer, *, floor: float) -> None:
        """Give `x` the magnitude of `model`; see `MatchMagnitude`."""
        self._emit(MatchMagnitude(x, model, floor), (x, model), x)

    def position_scale(self, x: Buffer, *, scale: float, length: int, offset: int = 0) -> None:
        """Multiply `x` by what grows with its token's position; see `PositionScale`."""
        self._emit(PositionScale(x, scale, length, offset), (x,), x)

    def join(self, a: Buffer, b: Buffer, out: Buffer, *, heads: int) -> None:
        """Put the channels of `b` behind those of `a`, head by head."""
        self._emit(Join(out, a, b, heads), (a, b), out)


def _group(x: Buffer, group: int | None) -> int:
    """Channels of each group of `x`: all where that isn't said."""
    group = x.width if group is None else group
    if group <= 0 or x.width % group != 0:
        raise ValueError(f"{x.name} ({x.width}) can't be cut into groups of {group}")
    return group
