"""Layers with a state: right, and the same bits however a sequence is cut and whatever runs beside.

What a state is goes through slots: read where the last step left it, written where the next one
will look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from caudal.backends.executor import Batch, SequenceStep, StateSlots
from caudal.errors import ModelLoadError
from caudal.models.builder import ProgramBuilder
from caudal.models.program import Buffer, StateLayer
from support.op_runner import Emit, Floats, OpRunner, step

Doubles = NDArray[np.float64]

RNG = np.random.default_rng(8)
ROWS, WIDTH = 64, 168
SLOTS = 12
TABLE: Floats = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
TOKENS = [(11 * i + i * i) % ROWS for i in range(40)]

HEADS, KEY_HEADS, KEY, VALUE = 4, 2, 24, 16
WEIGHTS: dict[str, Floats] = {
    "conv.weight": RNG.standard_normal((WIDTH, 4)).astype(np.float32) / 2,
    "conv.bias": RNG.standard_normal(WIDTH).astype(np.float32) / 4,
    "rate": -np.exp(RNG.standard_normal((HEADS, 1))).astype(np.float32),
    "skip": RNG.standard_normal((HEADS, 1)).astype(np.float32),
}


def sigmoid(x: Doubles) -> Doubles:
    return 1 / (1 + np.exp(-x))


def softplus(x: Doubles) -> Doubles:
    return np.log1p(np.exp(x))


def column(b: ProgramBuilder, x: Buffer, name: str, first: int, width: int) -> Buffer:
    out = b.buffer(name, width)
    b.columns(x, out, first=first)
    return out


def emit_convolution(b: ProgramBuilder, x: Buffer) -> Buffer:
    out = b.buffer("convolved", x.width)
    b.causal_conv(x, "conv", out, "silu", taps=4)
    return out


def convolution(x: Doubles) -> Doubles:
    padded = np.concatenate([np.zeros((3, WIDTH)), x])
    weight = WEIGHTS["conv.weight"].astype(np.float64)
    total = sum(padded[tap : tap + len(x)] * weight[:, tap] for tap in range(4))
    total = total + WEIGHTS["conv.bias"]
    return total * sigmoid(total)


def emit_delta(*, tiled: bool) -> Emit:
    def emit(b: ProgramBuilder, x: Buffer) -> Buffer:
        keys = KEY_HEADS * KEY
        q, k = column(b, x, "q", 0, keys), column(b, x, "k", keys, keys)
        v = column(b, x, "v", 2 * keys, HEADS * VALUE)
        decay, beta = column(b, x, "decay", 160, HEADS), column(b, x, "beta", 164, HEADS)
        for each in (q, k):
            b.l2_norm(each, each, group=KEY, eps=1e-6)
        b.activate(decay, "softplus")
        b.scale_by(decay, "rate")
        b.activate(decay, "exp")
        b.activate(beta, "sigmoid")
        out = b.buffer("out", v.width)
        b.gated_delta(q, k, v, decay, beta, out, key_heads=KEY_HEADS, scale=0.2, tiled=tiled)
        return out

    return emit


def delta(*, tiled: bool) -> Callable[[Doubles], Doubles]:
    def computed(x: Doubles) -> Doubles:
        q, k = (part.reshape(-1, KEY_HEADS, KEY) for part in (x[:, :48], x[:, 48:96]))
        q, k = (part / np.sqrt((part**2).sum(-1, keepdims=True) + 1e-6) for part in (q, k))
        heads = [h % KEY_HEADS if tiled else h // (HEADS // KEY_HEADS) for h in range(HEADS)]
        q, k = q[:, heads], k[:, heads]
        v = x[:, 96:160].reshape(-1, HEADS, VALUE)
        decay = np.exp(WEIGHTS["rate"][:, 0].astype(np.float64) * softplus(x[:, 160:164]))
        beta = sigmoid(x[:, 164:168])
        state = np.zeros((HEADS, KEY, VALUE))
        out = []
        for t in range(len(x)):
            state *= decay[t][:, None, None]
            found = np.einsum("hkv,hk->hv", state, k[t])
            state += np.einsum("hk,hv->hkv", k[t], beta[t][:, None] * (v[t] - found))
            out.append(0.2 * np.einsum("hkv,hk->hv", state, q[t]).reshape(-1))
        return np.array(out)

    return computed


GROUPS, STATE = 2, 24


def emit_mamba(b: ProgramBuilder, x: Buffer) -> Buffer:
    of_group = GROUPS * STATE
    values = column(b, x, "values", 96, HEADS * VALUE)
    keys, queries = column(b, x, "b", 0, of_group), column(b, x, "c", of_group, of_group)
    dt = column(b, x, "dt", 160, HEADS)
    b.activate(dt, "softplus")
    b.clamp(dt, 0.1, 1.5)
    out = b.buffer("out", values.width)
    b.mamba2(values, keys, queries, dt, out, rate="rate", skip="skip", groups=GROUPS)
    return out


def mamba(x: Doubles) -> Doubles:
    group = [h // (HEADS // GROUPS) for h in range(HEADS)]
    b, c = (part.reshape(-1, GROUPS, STATE)[:, group] for part in (x[:, :48], x[:, 48:96]))
    values = x[:, 96:160].reshape(-1, HEADS, VALUE)
    dt = np.clip(softplus(x[:, 160:164]), 0.1, 1.5)
    decay = np.exp(WEIGHTS["rate"][:, 0].astype(np.float64) * dt)
    state = np.zeros((HEADS, STATE, VALUE))
    out = []
    for t in range(len(x)):
        state *= decay[t][:, None, None]
        state += np.einsum("hk,hv->hkv", b[t], dt[t][:, None] * values[t])
        read = np.einsum("hkv,hk->hv", state, c[t]) + WEIGHTS["skip"] * values[t]
        out.append(read.reshape(-1))
    return np.array(out)


CASES: dict[str, tuple[Emit, Callable[[Doubles], Doubles], int]] = {
    "convolution": (emit_convolution, convolution, 3 * WIDTH),
    "delta net": (emit_delta(tiled=False), delta(tiled=False), HEADS * KEY * VALUE),
    "delta net with tiled heads": (emit_delta(tiled=True), delta(tiled=True), HEADS * KEY * VALUE),
    "Mamba-2": (emit_mamba, mamba, HEADS * STATE * VALUE),
}


def beside_the_rest(emit: Emit) -> Emit:
    """A program must use all that its file has."""

    def emitted(b: ProgramBuilder, x: Buffer) -> Buffer:
        result = emit(b, x)
        b.leave_out("")
        return result

    return emitted


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def runner(case: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpRunner]:
    path = tmp_path_factory.mktemp("recurrences") / "ops.gguf"
    emit = beside_the_rest(CASES[case][0])
    with OpRunner(path, TABLE, emit, WEIGHTS, num_slots=SLOTS) as made:
        yield made


def part(
    first: int, end: int, source: int | None, destination: int, tokens: Sequence[int] = TOKENS
) -> SequenceStep:
    """Some of a sequence's tokens, from one slot to another."""
    return replace(step(tokens[first:end], first), state=StateSlots(source, destination))


@pytest.fixture(scope="module")
def whole(runner: OpRunner) -> Floats:
    return runner.batch([part(0, 40, None, 0)])[0]


def test_against_numpy(case: str, runner: OpRunner, whole: Floats) -> None:
    _, expected, floats = CASES[case]
    assert runner.program.state_layers == (StateLayer(floats),)
    assert runner.executor.info.num_slots == SLOTS
    wanted = expected(TABLE[TOKENS].astype(np.float64))
    np.testing.assert_allclose(whole, wanted, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("cuts", [[0, 1, 2, 9, 40], [0, 17, 39, 40], [0, 2, 4, 38, 40]])
def test_bits_do_not_depend_on_cuts_company_or_slots(
    runner: OpRunner, whole: Floats, cuts: list[int]
) -> None:
    others = TOKENS[::-1]
    alone = runner.batch([part(0, 40, None, 1, others)])[0]
    source: int | None = None
    got, beside = [], []
    for number, (first, end) in enumerate(pairwise(cuts)):
        destination = 2 + number % 3
        mine = part(first, end, source, destination)
        other = part(first, end, None if first == 0 else 5 + number % 2, 6 - number % 2, others)
        company = part(0, 1 + number, None, 7)
        for rows, result in zip(
            (got, beside), runner.batch([mine, company, other])[::2], strict=True
        ):
            rows.append(result)
        source = destination
    assert np.array_equal(np.concatenate(got), whole)
    assert np.array_equal(np.concatenate(beside), alone)


def test_states_in_place_and_from_a_snapshot_that_several_go_on_from(
    runner: OpRunner, whole: Floats
) -> None:
    runner.batch([part(0, 20, None, 3)])
    forks = [[*TOKENS[:20], *[(token + fork) % ROWS for token in TOKENS[20:]]] for fork in range(3)]
    alone = [runner.batch([part(0, 40, None, 0, fork)])[0] for fork in forks]
    together = runner.batch(
        [part(20, 30, 3, 4 + number, fork) for number, fork in enumerate(forks)]
    )
    for number, fork in enumerate(forks):
        assert np.array_equal(together[number], alone[number][20:30])
        for place in range(30, 40):
            slot = 4 + number
            (row,) = runner.batch([part(place, place + 1, slot, slot, fork)])
            assert np.array_equal(row[0], alone[number][place])
    # The snapshot is as it was.
    assert np.array_equal(runner.batch([part(20, 40, 3, 0)])[0], whole[20:])


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ([(None, -1)], "no slot for a sequence's states"),
        ([(None, SLOTS)], "no slot for a sequence's states"),
        ([None], "no slot for a sequence's states"),
        ([(None, 1), (None, 1)], "in one slot"),
        ([(0, 1)], "one that begins has none"),
        ([(None, 1), (SLOTS, 2)], "slot that doesn't exist"),
        ([(None, 1), (None, 2)], "a sequence that goes on has states"),
        ([(None, 1), (1, 2)], "where another's are read"),
    ],
)
def test_slots_that_make_no_sense_are_refused(
    runner: OpRunner, states: list[Any], reason: str
) -> None:
    """The first of the steps begins; others go on."""
    steps = [
        replace(step([1], 3 * number), state=None if state is None else StateSlots(*state))
        for number, state in enumerate(states)
    ]
    if reason == "in one slot":
        steps[1] = replace(steps[1], context=0)
    with pytest.raises(ValueError, match=reason):
        runner.executor.execute(Batch(steps))


def test_a_model_without_states_takes_none(tmp_path: Any) -> None:
    refused = pytest.raises(ValueError, match="states of a model that has none")
    with OpRunner(tmp_path / "ops.gguf", TABLE, lambda b, x: x) as plain, refused:
        plain.executor.execute(Batch([part(0, 1, None, 0)]))


def test_states_need_slots(tmp_path: Any) -> None:
    with pytest.raises(ModelLoadError, match="at least one slot"):
        OpRunner(tmp_path / "ops.gguf", TABLE, beside_the_rest(emit_convolution), WEIGHTS)


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        ((WIDTH, 3), "has shape 168 x 3 instead of 168 x 4"),
        ((WIDTH - 1, 4), "has shape 167 x 4 instead of 168 x 4"),
    ],
)
def test_convolutions_of_a_wrong_shape_are_refused(
    tmp_path: Any, weight: tuple[int, int], reason: str
) -> None:
    weights = {**WEIGHTS, "conv.weight": np.zeros(weight, np.float32)}
    with pytest.raises(ModelLoadError, match=reason):
        OpRunner(tmp_path / "ops.gguf", TABLE, emit_convolution, weights)
