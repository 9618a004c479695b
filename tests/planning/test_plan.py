"""What a plan says, against arithmetic by hand and against what loading a model really takes."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import typer.main

from caudal.backends.registry import find_backend
from caudal.cli.app import app
from caudal.cli.plan_text import verdict
from caudal.engine.engine import Engine
from caudal.engine.request import Generate, Request
from caudal.errors import ParameterError
from caudal.loading.options import LoadOptions
from caudal.loading.planning import plan_run
from caudal.models import build_program
from caudal.planning.kv_types import find_kv_type
from caudal.planning.of_program import figures_of_program
from caudal.planning.plain import GivenFigures, figures_given
from caudal.planning.plan import Demand, Planner
from caudal.planning.processes import process_bytes
from caudal.planning.report import make_report
from caudal.planning.speed import Machine, expected_speed
from caudal.sampling_params import SamplingParams
from references.checks import open_reference
from references.reference import TOKENS, Recorded
from references.weights import write_folder

KIB, MIB, GIB = 2**10, 2**20, 2**30

LLAMA_8B = GivenFigures(layers=32, kv_heads=8, head_dim=128, parameters=8_030_261_248)


def planner(given: GivenFigures) -> Planner:
    return Planner(figures_given(given, name="given"))


def test_the_worked_example() -> None:
    """2 × 32 × 8 × 128 × 2 bytes are 128 KiB a token, and 1 GiB at 8192."""
    found = planner(LLAMA_8B)
    assert found.sizes(find_kv_type("f16")).token_bytes == 128 * KIB
    needs = found.needs(Demand(context=8192))
    assert needs.sequences == needs.own == GIB
    assert needs.weights == 2 * 8_030_261_248
    report = make_report(found.figures, Demand(context=8192), 24 * GIB)
    [line] = report.of_model
    assert line.how == "2 × 32 layers × 8 KV heads × 128 × 2 bytes"
    # 24 GiB less a sixteenth are 22.5; less 14.96 of weights, 7 users of 1 GiB have room.
    assert report.most_users == 7
    assert report.most_context == int((22.5 * GIB - needs.weights) / (128 * KIB)) // 16 * 16


def test_a_70b_model_at_128k_takes_40_gib_of_keys_and_values() -> None:
    """80 layers × 8 × 128: 320 KiB a token, × 131,072 tokens = 40 GiB."""
    found = planner(replace(LLAMA_8B, layers=80, parameters=70_553_706_496))
    assert found.needs(Demand(context=131072)).sequences == 40 * GIB


def test_types_of_keys_and_values() -> None:
    found = planner(LLAMA_8B)
    sizes = {name: found.sizes(find_kv_type(name)).token_bytes for name in ("f32", "fp8", "q8")}
    # A byte each and two for a scale, of heads of 128; blocks of 32 numbers in 4 bits are 18 bytes.
    assert sizes == {"f32": 256 * KIB, "fp8": 64 * KIB, "q8": 65 * KIB}
    assert found.sizes(find_kv_type("q4")).token_bytes == 36 * KIB
    uneven = planner(replace(LLAMA_8B, head_dim=80))  # three blocks of 32, the last half empty
    assert uneven.sizes(find_kv_type("q4")).token_bytes == 2 * 32 * 8 * 3 * 18
    for name in ("q9", "q8_0"):  # the latter is llama.cpp's, with a scale for 32 numbers
        with pytest.raises(ParameterError, match=f"'{name}' is no type"):
            find_kv_type(name)


def test_a_common_prefix_is_kept_once() -> None:
    found = planner(LLAMA_8B)
    apart = found.needs(Demand(context=8192, users=10))
    assert apart.sequences == 10 * GIB
    # 4,100 tokens are 256 whole blocks of 16: 4,096, which are half a GiB.
    needs = found.needs(Demand(context=8192, users=10, shared_prefix=4100))
    assert (needs.shared, needs.own) == (GIB // 2, 10 * GIB // 2)


def test_windows_and_states_are_no_longer_than_they_have_to_be() -> None:
    windowed = replace(LLAMA_8B, window=1024, window_layers=24)
    [(window, size)] = planner(windowed).needs(Demand(context=131072)).windows
    assert window == 1024
    # 24 of 32 layers see 1,024 tokens; beside those are an iteration's, and what is kept of ends.
    assert 1024 * 96 * KIB < size < 131072 * 96 * KIB / 20
    states = replace(LLAMA_8B, layers=8, state_bytes=75 * MIB)
    needs = planner(states).needs(Demand(context=8192, users=8))
    assert needs.states % (75 * MIB) == 0
    assert needs.states >= (8 + 4) * 75 * MIB


def test_places_for_prefixes_hold_what_goes_on_from_conversations_that_ended() -> None:
    found = planner(LLAMA_8B)
    demand = Demand(context=8192, prefix_memory=GIB, prefix_store_size=100 * GIB)
    report = make_report(found.figures, demand, 64 * GIB)
    assert report.kept_tokens == {"memory": 8192, "disk": 819200}
    assert found.needs(demand).prefixes == GIB + 64 * MIB
    assert found.needs(replace(demand, prefix_memory=0)).prefixes == 128 * MIB
    assert found.needs(demand).total == found.needs(Demand(context=8192)).total + GIB + 64 * MIB
    assert report.flags[-6:] == (
        *("--prefix-memory", "1024MiB", "--prefix-store", "DIR"),
        *("--prefix-store-size", "102400MiB"),
    )
    # Two ends have windows of 1,024, and four snapshots a conversation of 4,096.
    windowed = planner(replace(LLAMA_8B, window=1024, window_layers=24))
    states = planner(replace(LLAMA_8B, state_bytes=MIB))
    f16 = find_kv_type("f16")
    windows = 2 * 96 * KIB * (1024 + 3 * 16) / 4096
    assert windowed.sizes(f16).kept_token_bytes == pytest.approx(32 * KIB + windows, rel=0.01)
    assert states.sizes(f16).kept_token_bytes == 128 * KIB + 4 * MIB / 4096
    for name in ("prefix_memory", "prefix_store_size"):
        with pytest.raises(ParameterError, match=f"{name} must be at least {2 * MIB} bytes"):
            make_report(found.figures, Demand(context=8192, **{name: 2 * MIB - 1}), GIB)


def test_what_would_fit_fits_and_one_more_does_not() -> None:
    found = planner(replace(LLAMA_8B, window=512, window_layers=10, state_bytes=MIB))
    demand = Demand(context=32768, users=40, shared_prefix=1000)
    memory = 24 * GIB
    assert not found.fits(demand, memory)
    users, context = found.most_users(demand, memory), found.most_context(demand, memory)
    assert found.fits(replace(demand, users=users), memory)
    assert not found.fits(replace(demand, users=users + 1), memory)
    assert found.fits(replace(demand, context=context), memory)
    assert not found.fits(replace(demand, context=context + 1), memory)
    smaller = found.smaller(replace(demand, users=4), memory)
    assert smaller is not None
    name, size = smaller
    assert name == "Q8_0"
    assert size == round(8_030_261_248 * 8.5 / 8)
    assert found.missing(demand, memory) == found.needs(demand).total - found.usable(memory)
    assert found.most_users(demand, 15 * GIB) == found.most_context(demand, 15 * GIB) == 0


def test_processes_take_more_than_a_sixteenth_of_a_small_memory() -> None:
    small = replace(LLAMA_8B, layers=1, parameters=400_000_000)
    figures = replace(planner(small).figures, vocabulary=100_000)
    found, demand, processes = Planner(figures), Demand(context=1024), process_bytes(figures)
    total = found.needs(demand).total
    assert processes == 160 * MIB + 1200 * 100_000
    assert total + processes > 16 / 15 * total  # a sixteenth isn't enough
    least = found.least_memory(demand)
    assert least == total + processes
    assert found.fits(demand, least)
    assert not found.fits(demand, least - 1)
    assert found.missing(demand, least - MIB) == MIB
    assert found.missing(demand, 0) == least
    [line, *_] = verdict(make_report(figures, demand, GIB))
    assert "about 274 MiB are left to the server's own processes" in line
    large = planner(LLAMA_8B)
    assert large.usable(16 * GIB) == 15 * GIB
    assert large.usable(large.least_memory(demand)) == large.needs(demand).total


def test_speed_is_what_is_read_over_bandwidth() -> None:
    """16 GB of weights and 1 GiB of keys and values at 100 GB/s."""
    found = planner(LLAMA_8B)
    machine = Machine(bandwidth=100e9, is_measured=False)
    one = expected_speed(found, Demand(context=8192), machine)
    assert one.each == one.together == pytest.approx(100e9 / (2 * 8_030_261_248 + GIB))
    assert one.prefill is None
    four = expected_speed(found, Demand(context=8192, users=4, shared_prefix=8192), machine)
    assert four.each == pytest.approx(one.each)  # the weights, and the prefix, are read once
    computed = expected_speed(found, Demand(context=8192), replace(machine, operations=1e12))
    assert computed.prefill == pytest.approx(1e12 / (2 * 8_030_261_248))
    few = planner(replace(LLAMA_8B, active=3_000_000_000))
    assert expected_speed(few, Demand(context=8192), machine).weights == 6_000_000_000
    # A layer has 4 KiB of a token; of windows only what they see is read, states are written, too.
    other = planner(replace(LLAMA_8B, window=1024, window_layers=24, state_bytes=75 * MIB))
    read = expected_speed(other, Demand(context=8192, users=2), machine).sequences
    assert read == 2 * (8 * 4 * KIB * 8192 + 24 * 4 * KIB * 1024 + 2 * 75 * MIB)


KINDS = {
    "llama": (0, False),
    "gemma3": (1, False),  # windows
    "qwen3_5": (0, True),  # states of delta nets
    "deepseek_v3": (0, False),  # latents, and experts
    "lfm2": (0, True),  # states of convolutions
    "granite_hybrid_moe": (0, True),  # states of Mamba 2, and experts
}


@pytest.mark.parametrize("name", KINDS)
def test_the_flags_give_all_users_their_context(name: str, tmp_path: Path) -> None:
    """A model loaded with a plan's flags takes what the plan says, and preempts nobody."""
    users, context = 5, 200
    with open_reference(write_folder(Recorded.read(name), tmp_path / name)) as file:
        program = build_program(file)
        figures = figures_of_program(file, program, name="it", source="", file_bytes=None)
        demand = Demand(context=context, users=users)
        found = Planner(figures)
        needs = found.needs(demand)
        assert (len(needs.windows), needs.states > 0) == KINDS[name]

        options = _parsed(["MODEL", *found.flags(demand)])
        assert options.max_model_len == context
        backend = find_backend("native")
        plan = plan_run(file, program, options, backend)
        assert plan.memory.weights.bytes == needs.weights
        assert plan.memory.workspace == needs.workspace
        assert plan.memory.kinds.sequences(context) >= users
        assert plan.engine.max_num_seqs == users
        # To the byte, where no MiB is filled up.
        exact = plan_run(file, program, replace(options, kv_memory=needs.sequences), backend).memory
        assert exact.kinds.bytes == needs.sequences
        assert exact.kinds.kv.bytes == needs.own
        assert tuple((each.window, each.bytes) for each in exact.kinds.windows) == needs.windows
        assert exact.kinds.sequences(context) >= users

        executor = backend.open(file, program, exact)
    assert executor.info.facts.weight_bytes == needs.weights
    engine = Engine(executor, plan.engine, frozenset())
    for number in range(users):
        prompt = [token + number & 255 for token in TOKENS[: context - 20]]
        work = Generate(SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
        engine.submit(Request(request_id=str(number), prompt=prompt, work=work))
    tokens = 0
    while engine.has_work:
        tokens += sum(len(update.tokens) for update in engine.step())
    assert tokens == users * 20
    assert engine.stats().preemptions == 0
    executor.close()


def _parsed(arguments: list[str]) -> LoadOptions:
    """What `caudal serve` makes of its arguments, as far as it is about memory."""
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    context = serve.make_context("serve", shlex.split(shlex.join(arguments)))
    names = ("kv_memory", "max_num_seqs", "max_model_len", "max_num_batched_tokens", "kv_type")
    return LoadOptions(threads=2, **{name: context.params[name] for name in names})


def test_flags_are_those_that_a_server_has(tmp_path: Path) -> None:
    found = planner(LLAMA_8B)
    flags = found.flags(Demand(context=8192, users=300, kv_type=find_kv_type("f32")))
    options = _parsed(["MODEL", *flags])
    assert options == LoadOptions(
        threads=2,
        kv_memory=600 * GIB,
        max_num_seqs=300,
        max_model_len=8192,
        max_num_batched_tokens=301,  # more than run at once
        kv_type="f32",
    )


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"kv_heads": None}, "kv_heads"),
        ({"window": 512}, "window"),
        ({"window": 512, "window_layers": 33}, "window_layers"),
        ({"layers": 0}, "layers"),
        ({"layers": 2**40}, "layers"),
        ({"head_dim": -1}, "head_dim"),
        ({"bits": 0.0}, "bits"),
        ({"active": 9_000_000_000}, "active_parameters"),
    ],
)
def test_figures_that_no_model_has(wrong: dict[str, int], named: str) -> None:
    with pytest.raises(ParameterError) as refused:
        replace(LLAMA_8B, **wrong)
    assert refused.value.param == named


@pytest.mark.parametrize(
    "wrong", [{"context": 1}, {"users": 0}, {"users": 5000}, {"shared_prefix": 101}, {"batch": 0}]
)
def test_demands_that_nobody_can_have(wrong: dict[str, int]) -> None:
    with pytest.raises(ParameterError):
        Demand(**{"context": 100, **wrong})
