"""Routed experts against what they say in numpy: forms that single families have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from caudal.errors import ModelLoadError
from caudal.models.builder import ProgramBuilder
from caudal.models.program import Buffer, GateName, Routing
from support.op_runner import Emit, Floats, OpRunner

ROWS, WIDTH, OUT, INNER, EXPERTS, USED = 9, 40, 24, 36, 6, 2
RNG = np.random.default_rng(5)
TABLE: Floats = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
ROUTING = Routing(used=USED, scoring="softmax_of_chosen", normalise=False)


def random(*shape: int) -> Floats:
    return (RNG.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


WEIGHTS: dict[str, Floats] = {
    "router.weight": random(EXPERTS, WIDTH) * np.float32(4),
    "router.bias": random(EXPERTS),
    "up.weight": random(OUT, WIDTH),
    "ffn_gate_exps.weight": random(EXPERTS, INNER, WIDTH),
    "ffn_up_exps.weight": random(EXPERTS, INNER, WIDTH),
    "ffn_down_exps.weight": random(EXPERTS, OUT, INNER),
    "ffn_gate_exps.bias": random(EXPERTS, INNER) * np.float32(3),
    "ffn_up_exps.bias": random(EXPERTS, INNER) * np.float32(3),
    "ffn_down_exps.bias": random(EXPERTS, OUT),
    "ffn_down_exps.scale": random(EXPERTS) + np.float32(1),
}


def emitted(activation: GateName, *, gated: bool, weigh_input: bool, routing: Routing) -> Emit:
    def emit(b: ProgramBuilder, x: Buffer) -> Buffer:
        out, logits = b.buffer("out", OUT), b.buffer("logits", EXPERTS)
        b.linear(x, "up", out)
        b.linear(x, "router", logits)
        b.experts(
            x,
            logits,
            "ffn",
            out,
            routing,
            activation,
            inner=INNER,
            gated=gated,
            limit=0.5,
            weigh_input=weigh_input,
            accumulate=True,
        )
        return out

    return emit


def runner(
    path: Path,
    table: Floats = TABLE,
    activation: GateName = "swiglu_clamped",
    *,
    gated: bool = True,
    weigh_input: bool = False,
    routing: Routing = ROUTING,
) -> OpRunner:
    weights = {name: each for name, each in WEIGHTS.items() if gated or "gate" not in name}
    emit = emitted(activation, gated=gated, weigh_input=weigh_input, routing=routing)
    return OpRunner(path / "ops.gguf", table, emit, weights)


def expected(*, gated: bool, weigh_input: bool) -> NDArray[np.float64]:
    w = {name: each.astype(np.float64) for name, each in WEIGHTS.items()}
    rows = []
    for x in TABLE.astype(np.float64):
        logits = w["router.weight"] @ x + w["router.bias"]
        chosen = np.argsort(-logits)[:USED]
        weights = np.exp(logits[chosen]) / np.exp(logits[chosen]).sum()
        row = w["up.weight"] @ x
        for expert, weight in zip(chosen, weights * w["ffn_down_exps.scale"][chosen], strict=True):
            seen = x * weight if weigh_input else x
            up = w["ffn_up_exps.weight"][expert] @ seen + w["ffn_up_exps.bias"][expert]
            if gated:
                gate = w["ffn_gate_exps.weight"][expert] @ seen + w["ffn_gate_exps.bias"][expert]
                gate = np.minimum(gate, 0.5)
                inner = gate / (1 + np.exp(-1.702 * gate)) * (np.clip(up, -0.5, 0.5) + 1)
            else:
                inner = np.maximum(up, 0) ** 2
            made = w["ffn_down_exps.weight"][expert] @ inner + w["ffn_down_exps.bias"][expert]
            row = row + (made if weigh_input else weight * made)
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("weigh_input", [True, False])
def test_every_form(gated: bool, weigh_input: bool, tmp_path: Path) -> None:
    """Biases and gates or none, narrower than what they add to, and with a factor for each."""
    activation: GateName = "swiglu_clamped" if gated else "relu_squared"
    made = runner(tmp_path, activation=activation, gated=gated, weigh_input=weigh_input)
    with made:
        together = made.rows(range(ROWS))
        np.testing.assert_allclose(
            together, expected(gated=gated, weigh_input=weigh_input), atol=1e-5
        )
        for row in range(ROWS):
            assert made.rows([row]).tolist() == together[[row]].tolist()


def test_a_token_that_is_not_a_number_fails_alone(tmp_path: Path) -> None:
    table = TABLE.copy()
    table[4, 7] = np.nan
    with runner(tmp_path) as whole, runner(tmp_path, table) as broken:
        good, bad = whole.rows(range(ROWS)), broken.rows(range(ROWS))
        assert np.isnan(bad[4]).all()
        others = [row for row in range(ROWS) if row != 4]
        assert bad[others].tolist() == good[others].tolist()


@pytest.mark.parametrize(
    ("routing", "reason"),
    [
        (Routing(7, "softmax", normalise=True), "number of experts used"),
        (Routing(0, "softmax", normalise=True), "number of experts used"),
        (Routing(2, "softmax", normalise=True, groups=4), "groups of experts"),
        (Routing(3, "softmax", normalise=True, groups=3, groups_used=1), "number of experts used"),
    ],
)
def test_routing_that_makes_no_sense_is_refused(
    routing: Routing, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        runner(tmp_path, routing=routing)
