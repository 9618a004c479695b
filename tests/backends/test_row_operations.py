"""Operations that look at a token's row alone, each against what it says in numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from caudal.errors import ModelLoadError
from caudal.models.builder import ProgramBuilder
from caudal.models.program import Buffer
from support.op_runner import Emit, Floats, OpRunner

Doubles = NDArray[np.float64]

WIDTH, ROWS = 48, 5
RNG = np.random.default_rng(3)
TABLE: Floats = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32) * 2
WEIGHTS: dict[str, Floats] = {
    "one": np.array([1.75], np.float32),
    "wide": RNG.standard_normal(WIDTH).astype(np.float32),
    "short.weight": RNG.standard_normal(24).astype(np.float32),
    "heads.weight": RNG.standard_normal(WIDTH).astype(np.float32),
}


def in_place(emit: Callable[[ProgramBuilder, Buffer], None]) -> Emit:
    def emitted(b: ProgramBuilder, x: Buffer) -> Buffer:
        emit(b, x)
        return x

    return emitted


def normed(b: ProgramBuilder, x: Buffer, name: str | None, group: int | None) -> Buffer:
    out = b.buffer("normed", x.width)
    period = 24 if name == "short" else None
    b.rms_norm(x, name, out, eps=0.1, group=group, period=period)
    return out


def sliced(b: ProgramBuilder, x: Buffer, width: int, first: int, period: int | None) -> Buffer:
    out = b.buffer("sliced", width)
    b.columns(x, out, first=first, period=period)
    return out


def gated_by_heads(b: ProgramBuilder, x: Buffer) -> Buffer:
    b.gated(sliced(b, x, 4, 0, None), x, x, "sigmoid")
    return x


def clamped(b: ProgramBuilder, x: Buffer) -> Buffer:
    gate, up, out = sliced(b, x, 24, 0, None), b.buffer("up", 24), b.buffer("out", 24)
    b.columns(x, up, first=24)
    b.gated(gate, up, out, "swiglu_clamped", alpha=1.5, limit=2.0)
    return out


def layer_normed(b: ProgramBuilder, x: Buffer) -> None:
    b.layer_norm(x, "heads", x, eps=0.1, group=12)


def matched(b: ProgramBuilder, x: Buffer, model: Buffer, floor: float) -> Buffer:
    b.match_magnitude(x, model, floor=floor)
    return x


def unit(b: ProgramBuilder, x: Buffer) -> Buffer:
    b.l2_norm(x, x, group=12, eps=0.01)
    return x


def sigmoid(x: Doubles) -> Doubles:
    return 1 / (1 + np.exp(-x))


def rms(x: Doubles, group: int) -> Doubles:
    groups = x.reshape(len(x), -1, group)
    scaled = groups / np.sqrt((groups**2).mean(-1, keepdims=True) + 0.1)
    return scaled.reshape(x.shape)


def layer_norm(x: Doubles) -> Doubles:
    heads = x.reshape(len(x), 4, 12)
    centred = heads - heads.mean(-1, keepdims=True)
    return (centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 0.1)).reshape(x.shape)


def mean_square(x: Doubles) -> Doubles:
    return (x**2).mean(-1, keepdims=True)


CASES: dict[str, tuple[Emit, Callable[[Doubles], Doubles]]] = {
    "a norm without a weight": (
        lambda b, x: normed(b, x, None, 16),
        lambda x: rms(x, 16),
    ),
    "a norm of groups shorter than the weight": (
        lambda b, x: normed(b, x, "short", 8),
        lambda x: rms(x, 8) * np.tile(WEIGHTS["short.weight"], 2),
    ),
    "a LayerNorm for each head": (
        in_place(layer_normed),
        lambda x: layer_norm(x) * WEIGHTS["heads.weight"],
    ),
    "what is far above the mean": (
        in_place(lambda b, x: b.cut(x, deviations=0.4)),
        lambda x: np.maximum(x - x.mean(-1, keepdims=True) - 0.4 * x.std(-1, keepdims=True), 0),
    ),
    "the magnitude of others": (
        lambda b, x: matched(b, sliced(b, x, 20, 28, None), x, 1e-5),
        lambda x: x[:, 28:] * np.sqrt(mean_square(x) / mean_square(x[:, 28:])),
    ),
    "the magnitude of others, for next to nothing": (
        lambda b, x: matched(b, sliced(b, x, 20, 28, None), x, 100.0),
        lambda x: x[:, 28:] * np.sqrt(mean_square(x) / 100),
    ),
    "unit length": (
        unit,
        lambda x: (
            x.reshape(ROWS, 4, 12)
            / np.sqrt((x.reshape(ROWS, 4, 12) ** 2).sum(-1, keepdims=True) + 0.01)
        ).reshape(ROWS, WIDTH),
    ),
    "a slice": (lambda b, x: sliced(b, x, 20, 28, None), lambda x: x[:, 28:]),
    "a slice of every head": (
        lambda b, x: sliced(b, x, 12, 5, 12),
        lambda x: x.reshape(ROWS, 4, 12)[:, :, 5:8].reshape(ROWS, 12),
    ),
    "a gate for each head": (
        gated_by_heads,
        lambda x: x * np.repeat(sigmoid(x[:, :4]), 12, axis=1),
    ),
    "a clamped gate": (
        clamped,
        lambda x: (
            np.minimum(x[:, :24], 2)
            * sigmoid(1.5 * np.minimum(x[:, :24], 2))
            * (np.clip(x[:, 24:], -2, 2) + 1)
        ),
    ),
    "relu_squared": (
        in_place(lambda b, x: b.activate(x, "relu_squared")),
        lambda x: np.maximum(x, 0) ** 2,
    ),
    "softplus": (in_place(lambda b, x: b.activate(x, "softplus")), lambda x: np.log1p(np.exp(x))),
    "exp": (in_place(lambda b, x: b.activate(x, "exp")), np.exp),
    "a factor": (in_place(lambda b, x: b.scale(x, 0.3)), lambda x: x * 0.3),
    "a factor from the file": (
        in_place(lambda b, x: b.scale_by(x, "one", length=1)),
        lambda x: x * 1.75,
    ),
    "factors": (in_place(lambda b, x: b.scale_by(x, "wide")), lambda x: x * WEIGHTS["wide"]),
    "shifts": (in_place(lambda b, x: b.shift_by(x, "wide")), lambda x: x + WEIGHTS["wide"]),
    "bounds": (in_place(lambda b, x: b.clamp(x, -0.5, 1.0)), lambda x: np.clip(x, -0.5, 1.0)),
    "temperature by position": (
        in_place(lambda b, x: b.position_scale(x, scale=0.1, length=4, offset=1)),
        lambda x: x * (1 + 0.1 * np.log1p((100 + np.arange(ROWS) + 1) // 4))[:, None],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_against_numpy(tmp_path: Path, case: str) -> None:
    emit, expected = CASES[case]

    def beside_the_rest(b: ProgramBuilder, x: Buffer) -> Buffer:
        """A program must use all that its file has."""
        other = b.buffer("other", WIDTH)
        b.columns(x, other, first=0)
        b.scale_by(other, "one", length=1)
        b.shift_by(other, "wide")
        b.rms_norm(other, "short", other, eps=1.0, period=24)
        b.layer_norm(other, "heads", other, eps=1.0)
        return emit(b, x)

    with OpRunner(tmp_path / "ops.gguf", TABLE, beside_the_rest, WEIGHTS) as runner:
        got = runner.rows(range(ROWS), context=100)
    np.testing.assert_allclose(got, expected(TABLE.astype(np.float64)), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("emit", "error", "reason"),
    [
        (lambda b, x: normed(b, x, "wide", None), ModelLoadError, "tensor wide.weight is missing"),
        (lambda b, x: normed(b, x, "short", 9), ValueError, "can't be cut into groups of 9"),
        (lambda b, x: normed(b, x, "short", 16), ValueError, "can't be cut into groups of 16"),
        (
            in_place(lambda b, x: b.rms_norm(x, "short", x, eps=1.0)),
            ModelLoadError,
            "tensor short.weight has length 24 instead of 48",
        ),
        (lambda b, x: sliced(b, x, 20, 29, None), ValueError, "can't be of every 48"),
        (lambda b, x: sliced(b, x, 20, 0, 7), ValueError, "can't be of every 7"),
        (
            in_place(lambda b, x: b.scale_by(x, "short.weight")),
            ModelLoadError,
            "tensor short.weight has length 24 instead of 48",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    tmp_path: Path, emit: Emit, error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        OpRunner(tmp_path / "ops.gguf", TABLE, emit, WEIGHTS)
