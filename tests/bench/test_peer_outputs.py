"""What peers print, as recorded, and what is made of it."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from benchmarks import limits as limits_module
from benchmarks.limits import (
    INSTRUCTIONS,
    LimitsError,
    measure_limits,
    measure_read,
    parse_limits,
)
from benchmarks.llama_tools import Printed
from benchmarks.peers.base import PeerError
from benchmarks.peers.llama_cpp import parse_batched_bench, parse_llama_bench
from benchmarks.processes import last_words
from benchmarks.setup_peers import needed_requirements

LLAMA_BENCH = """\
[
  {
    "build_commit": "unknown",
    "model_type": "llama 256M Q4_1",
    "n_threads": 2,
    "n_prompt": 512,
    "n_gen": 0,
    "avg_ns": 9374425956,
    "stddev_ns": 0,
    "avg_ts": 54.616678,
    "samples_ns": [ 9374425956 ]
  }
]
"""
BATCHED_BENCH = """\

{"n_kv_max": 2048, "n_batch": 2048, "n_ubatch": 512, "is_pp_shared": 0, "n_threads": 2, \
"pp": 128, "tg": 64, "pl": 8, "n_kv": 1536, "t_pp": 9.179911, "speed_pp": 111.547928, \
"t_tg": 31.063978, "speed_tg": 16.482113, "t": 40.243889, "speed": 38.167286}

"""

# ik_llama.cpp's, as an error.
BATCHED_TABLE = """\

main: n_kv_max = 384, n_batch = 2048, n_ubatch = 512, flash_attn = 1, is_pp_shared = 0

|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|   128 |     64 |    2 |    384 |    0.391 |   654.23 |    0.552 |   231.88 |    0.943 |   407.06 |

llama_print_timings:        load time =     155.10 ms
"""


def test_llama_bench():
    timing = parse_llama_bench(LLAMA_BENCH)
    assert timing.first == timing.total == pytest.approx(9.374425956)
    assert 512 / timing.total == pytest.approx(54.616678, rel=1e-6)


def test_batched_bench():
    timing = parse_batched_bench(Printed(BATCHED_BENCH, "llama_context: 2 |\n"))
    assert (timing.first, timing.total) == (9.179911, 40.243889)
    assert 8 * (128 + 64) / timing.total == pytest.approx(38.167286, rel=1e-5)

    timing = parse_batched_bench(Printed("", BATCHED_TABLE))
    assert (timing.first, timing.total) == (0.391, 0.943)


@pytest.mark.parametrize(
    "text", ["", "main: n_kv_max = 2048", "[]", "{}", "[{}]", "[1]", '[{"avg_ns": "fast"}]']
)
def test_anything_else_is_refused_with_its_beginning(text: str):
    with pytest.raises(PeerError, match="llama-bench printed no time"):
        parse_llama_bench(text)
    with pytest.raises(PeerError, match="llama-batched-bench printed no times"):
        parse_batched_bench(Printed(text, "| 1 | 2 |"))


def test_two_combinations_are_one_too_many():
    with pytest.raises(PeerError):
        parse_batched_bench(Printed(BATCHED_BENCH, BATCHED_TABLE))


def test_limits_are_the_fastest_of_each_kind():
    limits = parse_limits(
        "read 3.1e10\nfp32/avx2 2.5e11\nint8/avx2 4.7e11\nfp32/avx512 5.2e11\nint8/vnni512 9.6e11\n"
    )
    assert (limits.read, limits.fp32, limits.int8) == (3.1e10, 5.2e11, 9.6e11)
    assert limits.fastest("int8") == "int8/vnni512"


@pytest.mark.parametrize(
    "text", ["", "read 1e9\nfp32/avx2 1e9", "read fast\n", "read 0\nfp32/avx2 1\nint8/avx2 1"]
)
def test_limits_that_are_not_whole(text: str):
    with pytest.raises(LimitsError):
        parse_limits(text)


def test_what_a_log_ends_with(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("loading\nRuntimeError: no such tensor \n\n  \n")
    assert last_words(log) == "RuntimeError: no such tensor"
    log.write_text("")
    assert last_words(log) == "…"


def test_requirements_that_vllm_can_do_without():
    listed = "torch==2.13.0+cpu\ntorchvision\ntorchcodec>=0.14\nfastapi[standard]<0.137\nPillow\n\n"
    assert needed_requirements(listed) == ["fastapi[standard]<0.137", "Pillow"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="limits.cpp knows x86 only")
def test_this_machines_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(limits_module, "HOME", tmp_path)
    limits = measure_limits(threads=1)
    assert 1e8 < limits.read < 1e13
    assert 1e9 < limits.fp32 < 1e13
    assert limits.int8 > limits.fp32
    assert limits.rates.keys() <= INSTRUCTIONS.keys()
    later = limits.with_read(measure_read(threads=1))
    assert 1e8 < later.read < 1e13
    assert (later.fp32, later.int8) == (limits.fp32, limits.int8)


def test_no_limits_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(limits_module, "HOME", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LimitsError, match=r"cannot run c\+\+"):
        measure_limits(threads=1)
