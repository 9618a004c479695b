"""RoPE's frequencies, checked against what Hugging Face computes for published models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caudal.formats.gguf import GGUFFile
from caudal.models.rope import RopeTable, rope_table
from support.gguf_writer import write_gguf


def table(path: Path, metadata: dict[str, Any], **arguments: Any) -> RopeTable:
    write_gguf(path / "rope.gguf", {"general.architecture": "llama", **metadata})
    options = {"dimensions": 128, "base": 10000.0, "interleaved": False, **arguments}
    with GGUFFile.open(path / "rope.gguf") as file:
        return rope_table(file, **options)


def test_plain_frequencies(tmp_path: Path) -> None:
    made = table(tmp_path, {})
    assert made.inverse_frequencies[0] == 1.0
    assert made.inverse_frequencies[32] == pytest.approx(10000.0**-0.5)
    assert made.magnitude == 1.0


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones(tmp_path: Path) -> None:
    """Qwen 2.5's long-context setting: factor 4 over 32,768 tokens, base 1,000,000.

    A pair turns 32768 · f / 2π times within the original context. Those that turn more than 32
    times are kept, those that turn less than once are divided by 4 (arXiv 2309.00071, section
    3.2); the ramp between goes by pair index.
    """
    made = table(
        tmp_path,
        {
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 32768,
        },
        base=1e6,
    )
    plain = 1e6 ** (-np.arange(64) / 64)
    turns = 32768 * plain / (2 * math.pi)
    kept = np.isclose(made.inverse_frequencies, plain)
    divided = np.isclose(made.inverse_frequencies, plain / 4)
    assert kept[turns > 34].all()
    assert divided[turns < 0.8].all()
    between = (turns < 28) & (turns > 1.3)
    assert between.any()
    assert not (kept | divided)[between].any()
    # A pair half-way along the ramp from index 23 (floor 23.6) to 40 (ceil 39.6).
    share = (31 - 23) / (40 - 23)
    assert made.inverse_frequencies[31] == pytest.approx(
        plain[31] * (1 - share) + plain[31] / 4 * share
    )
    assert made.magnitude == pytest.approx(0.1 * math.log(4) + 1)


def test_yarn_takes_the_files_attention_factor(tmp_path: Path) -> None:
    made = table(
        tmp_path,
        {
            "llama.context_length": 4096,
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 8.0,
            "llama.rope.scaling.attn_factor": 0.5,
        },
    )
    assert made.magnitude == pytest.approx(0.5 * (0.1 * math.log(8) + 1))
