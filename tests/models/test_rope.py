"""RoPE's frequencies, checked against what Hugging Face computes for published models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caudal.errors import ModelLoadError
from caudal.formats.gguf import GGUFFile
from caudal.models import build_program
from caudal.models.program import Rope
from caudal.models.rope import RopeTable, long_rope_factors, rope_table, yarn_scores
from support.gguf_writer import Typed, write_gguf
from support.reference_model import TinyModel


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


@pytest.mark.parametrize(
    ("scaling", "base", "message"),
    [
        ({}, 1.0, "with base 1.0"),
        ({}, 5e-324, "with base 5e-324"),
        ({}, 1e308, r"with base 1e\+308"),
        ({"yarn_beta_fast": Typed("float64", 1e-320)}, 1e4, "yarn_beta_fast must be positive"),
        ({"yarn_beta_fast": Typed("float64", 1e308)}, 1e4, "yarn_beta_fast must be positive"),
        ({"yarn_beta_slow": -1.0}, 1e4, "yarn_beta_slow must be positive"),
        ({"yarn_beta_slow": 64.0}, 1e4, r"yarn_beta_slow \(64.0\) exceeds yarn_beta_fast"),
        ({"factor": Typed("float64", 5e-324)}, 1e4, "factor must be positive"),
        ({"attn_factor": Typed("float64", 1e308)}, 1e4, "attn_factor must be positive"),
        ({"yarn_log_multiplier": -1.0}, 1e4, "yarn_log_multiplier must be from 0"),
        ({"original_context_length": 0}, 1e4, "original_context_length must be positive"),
    ],
)
def test_yarn_of_numbers_that_make_no_sense_is_refused(
    scaling: dict[str, Any], base: float, message: str, tmp_path: Path
) -> None:
    settings = {"type": "yarn", "factor": 4.0, **scaling}
    metadata = {f"llama.rope.scaling.{key}": value for key, value in settings.items()}
    with pytest.raises(ModelLoadError, match=message):
        table(tmp_path, {"llama.context_length": 4096, **metadata}, base=base)


@pytest.mark.parametrize("original", [1, 2**32 - 1, Typed("uint64", 2**64 - 1)])
@pytest.mark.parametrize("base", [1.0001, 1e15])
@pytest.mark.parametrize("beta", [1e-15, 1e15])
def test_yarn_of_extreme_numbers_stays_finite(
    original: Any, base: float, beta: float, tmp_path: Path
) -> None:
    made = table(
        tmp_path,
        {
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": original,
            "llama.rope.scaling.yarn_beta_fast": Typed("float64", beta),
            "llama.rope.scaling.yarn_beta_slow": Typed("float64", 1e-15),
        },
        base=base,
    )
    assert all(0 < frequency <= 1 for frequency in made.inverse_frequencies)
    assert math.isfinite(made.magnitude)


GPT_OSS = {
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 32.0,
    "llama.rope.scaling.original_context_length": 4096,
}


def test_yarn_without_truncation(tmp_path: Path) -> None:
    """gpt-oss: what `transformers` 5.24 computes of its configuration."""
    made = table(tmp_path, GPT_OSS, dimensions=64, base=150000.0, truncated=False)
    theirs = {
        7: 0.07374456524848938,
        8: 0.05081327259540558,
        10: 0.019334999844431877,
        16: 0.0004564839182421565,
        17: 0.00012931869423482567,
        31: 3.023511396804679e-07,
    }
    for pair, frequency in theirs.items():
        assert made.inverse_frequencies[pair] == pytest.approx(frequency, rel=1e-6)
    assert made.magnitude == pytest.approx(1.3465735902799727)
    whole = table(tmp_path, GPT_OSS, dimensions=64, base=150000.0)
    assert whole.inverse_frequencies[10] != pytest.approx(theirs[10], rel=1e-3)


@pytest.mark.parametrize(
    ("architecture", "multiplier", "magnitude", "scores"),
    [
        ("deepseek2", 0.1, 1.0, (1 + 0.1 * math.log(40)) ** 2),  # V3: mscale_all_dim 1
        ("deepseek2", 0.0707, 1.0, (1 + 0.0707 * math.log(40)) ** 2),  # V2: 0.707
        ("mistral3", 1.0, 1.0, (1 + 0.1 * math.log(40)) ** 2),
        ("mistral3", None, 1 + 0.1 * math.log(40), 1.0),
    ],
)
def test_yarn_of_all_channels(
    architecture: str, multiplier: float | None, magnitude: float, scores: float, tmp_path: Path
) -> None:
    """DeepSeek stretches all channels of a head, by its scores, and the rotated ones no further."""
    metadata: dict[str, Any] = {
        "general.architecture": architecture,
        f"{architecture}.rope.scaling.type": "yarn",
        f"{architecture}.rope.scaling.factor": 40.0,
        f"{architecture}.rope.scaling.original_context_length": 4096,
    }
    if multiplier is not None:
        metadata[f"{architecture}.rope.scaling.yarn_log_multiplier"] = multiplier
    made = table(tmp_path, metadata, dimensions=64)
    assert made.inverse_frequencies[12] == pytest.approx(0.026879360899329185, rel=1e-6)
    assert made.magnitude == pytest.approx(magnitude)
    with GGUFFile.open(tmp_path / "rope.gguf") as file:
        assert yarn_scores(file) == pytest.approx(scores)


def test_long_rope(tmp_path: Path) -> None:
    """Phi: `transformers` gives the same for a factor of 32 over 4096 tokens."""
    original = {"llama.rope.scaling.original_context_length": 4096}
    metadata = {**original, "llama.rope.scaling.attn_factor": 1.1902380714238083}
    made = table(tmp_path, metadata, dimensions=8, divisors=[2.0] * 4)
    np.testing.assert_allclose(made.inverse_frequencies, [0.5, 0.05, 0.005, 0.0005])
    assert made.magnitude == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))
    with GGUFFile.open(tmp_path / "rope.gguf") as file:
        assert long_rope_factors(file, 4096) == "rope_factors_short.weight"
        assert long_rope_factors(file, 4097) == "rope_factors_long.weight"
    table(tmp_path, {})
    with (
        GGUFFile.open(tmp_path / "rope.gguf") as file,
        pytest.raises(ModelLoadError, match="original_context_length"),
    ):
        long_rope_factors(file, 4096)


class TinyPhi(TinyModel):
    """One with a set of factors for short sequences, 2, and one for long ones, 5."""

    def weights(self) -> dict[str, np.typing.NDArray[np.float32]]:
        factors = {"short": 2.0, "long": 5.0}
        return super().weights() | {
            f"rope_factors_{name}.weight": np.full(self.head_dim // 2, factor, np.float32)
            for name, factor in factors.items()
        }


@pytest.mark.parametrize(
    ("served", "divisor"), [(None, 5.0), (4096, 5.0), (65, 5.0), (64, 2.0), (16, 2.0)]
)
def test_the_length_that_is_served_chooses_long_factors(
    served: int | None, divisor: float, tmp_path: Path
) -> None:
    original = {"phi3.rope.scaling.original_context_length": 64}
    model = TinyPhi(architecture="phi3", context_length=4096, metadata=original)
    with GGUFFile.open(model.write(tmp_path / "tiny.gguf")) as file:
        program = build_program(file, served_length=served)
    tables = {op.table for op in program.body if isinstance(op, Rope)}
    assert [made.inverse_frequencies[0] for made in tables] == [1 / divisor]
