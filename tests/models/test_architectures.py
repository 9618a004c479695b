"""Every architecture against a float64 forward pass that shares no code with it."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from caudal.backends.executor import Batch, PooledRows, SequenceStep, StateSlots
from caudal.backends.native.executor import NativeExecutor, NativeOptions
from caudal.backends.native.planning import layer_bytes
from caudal.errors import ModelLoadError
from caudal.formats.gguf import GGUFFile
from caudal.models import SUPPORTED_ARCHITECTURES, build_program
from caudal.models.program import KVLayer
from support.gguf_writer import Typed
from support.reference_hybrids import TinyGranite, TinyLFM2, TinyQwen35
from support.reference_model import TinyExperts, TinyModel

LENGTH = 80
TOKENS = [int(t) for t in np.random.default_rng(7).integers(0, 320, LENGTH)]

MODELS = {
    "llama": TinyModel(architecture="llama"),
    "llama, untied head, one KV head": TinyModel(architecture="llama", tied=False, kv_heads=1),
    "llama with a sliding window": TinyModel(architecture="llama", window=20),
    "llama, half of each head rotated": TinyModel(architecture="llama", rotated=8),
    "qwen2 with biases": TinyModel(architecture="qwen2", biases=True, rope_base=1e6),
    "qwen2, half of each head rotated": TinyModel(architecture="qwen2", biases=True, rotated=8),
    "qwen3": TinyModel(architecture="qwen3", tied=False, rope_base=1e6),
    "qwen3, heads wider than hidden": TinyModel(architecture="qwen3", head_dim=32),
    "llama with experts": TinyModel(architecture="llama", experts=TinyExperts(used=2, fused=True)),
    "qwen3moe": TinyModel(architecture="qwen3moe", experts=TinyExperts()),
    "qwen3moe, experts in groups": TinyModel(
        architecture="qwen3moe",
        experts=TinyExperts(
            count=12,
            scoring=2,
            scale=2.5,
            groups=4,
            groups_used=2,
            selection_bias=True,
            shared=40,
        ),
    ),
    "qwen3moe, softmax of the chosen": TinyModel(
        architecture="qwen3moe", experts=TinyExperts(scoring=3, normalise=False)
    ),
    "qwen2moe": TinyModel(
        architecture="qwen2moe",
        biases=True,
        experts=TinyExperts(normalise=False, shared=48, shared_gate=True),
    ),
    "olmoe": TinyModel(
        architecture="olmoe", kv_heads=4, experts=TinyExperts(normalise=False), tied=False
    ),
    "gemma3": TinyModel(
        architecture="gemma3", layers=7, window=16, kv_heads=1, rope_base=1e6, head_dim=24
    ),
    "qwen35": TinyQwen35(),
    "lfm2": TinyLFM2(),
    "granite": TinyGranite(),
    "granitehybrid": TinyGranite(architecture="granitehybrid", hybrid=True),
}


def log_probabilities(model: TinyModel, path: Path, **options: str) -> NDArray[np.float64]:
    """Caudal's log-probabilities of the token after each of TOKENS but the last."""
    with GGUFFile.open(model.write(path / "tiny.gguf")) as file:
        program = build_program(file)
        executor = NativeExecutor(
            file,
            program,
            NativeOptions(
                num_blocks=16,
                window_blocks=(16,) * len(program.windows),
                num_slots=1 if program.state_layers else 0,
                max_batch_tokens=LENGTH,
                threads=2,
                **options,  # type: ignore[arg-type]
            ),
        )
    state = StateSlots(None, 0) if program.state_layers else None
    step = SequenceStep(
        TOKENS,
        0,
        range(8),
        score_targets=TOKENS[1:],
        window_tables=[range(8)] * len(program.windows),
        state=state,
    )
    (result,) = executor.execute(Batch([step]))
    executor.close()
    return np.array([score.logprob for score in result.scores])


def expected(
    model: TinyModel, frequencies: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    logits = model.logits(TOKENS, frequencies)[:-1]
    logits -= logits.max(axis=-1, keepdims=True)
    scores = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return scores[np.arange(LENGTH - 1), TOKENS[1:]]


@pytest.mark.parametrize("name", MODELS)
def test_matches_the_reference(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    ours = log_probabilities(model, tmp_path, activations="f32", kv_type="f32")
    np.testing.assert_allclose(ours, expected(model), atol=2e-4)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_pooled_states_match_the_reference(name: str, tmp_path: Path) -> None:
    """And are the same to the bit however the prompt is cut."""
    model = MODELS[name]
    with GGUFFile.open(model.write(tmp_path / "tiny.gguf")) as file:
        program = build_program(file)
        options = NativeOptions(
            num_blocks=16,
            window_blocks=(16,) * len(program.windows),
            max_batch_tokens=2 * LENGTH,
            threads=2,
            kv_type="f32",
            activations="f32",
        )
        executor = NativeExecutor(file, program, options)

    def pool(cuts: list[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        total = last = None
        for begin, end in itertools.pairwise([0, *cuts, LENGTH]):
            steps = [
                SequenceStep(
                    TOKENS[begin:end],
                    begin,
                    blocks,
                    pooled_rows=rows,
                    window_tables=[blocks] * len(program.windows),
                )
                for blocks, rows in (
                    (range(8), PooledRows(0, end - begin, total)),
                    (range(8, 16), PooledRows(end - begin - 1, 1)),
                )
            ]
            total, last = (result.pooled for result in executor.execute(Batch(steps)))
        assert total is not None
        assert last is not None
        return total, last

    states = model.states(TOKENS)
    total, last = pool([])
    np.testing.assert_allclose(total / LENGTH, states.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(last, states[-1], atol=1e-3)
    for cuts in ([1], [33, 34], [16, 32, 48]):
        for whole, cut in zip((total, last), pool(cuts), strict=True):
            assert whole.tolist() == cut.tolist()
    executor.close()


def test_half_precision_kv_stays_close(tmp_path: Path) -> None:
    model = MODELS["llama"]
    ours = log_probabilities(model, tmp_path, activations="f32", kv_type="f16")
    np.testing.assert_allclose(ours, expected(model), atol=2e-2)
    assert not np.allclose(ours, expected(model), atol=1e-6)


def test_linear_rope_scaling(tmp_path: Path) -> None:
    model = TinyModel(
        architecture="llama",
        metadata={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
    )
    plain = 10000.0 ** (-np.arange(8) * 2.0 / 16)
    ours = log_probabilities(model, tmp_path, activations="f32", kv_type="f32")
    np.testing.assert_allclose(ours, expected(model, plain / 4), atol=2e-4)


def test_llama3_rope_divisors(tmp_path: Path) -> None:
    divisors = (1.0, 1.0, 1.0, 1.5, 3.0, 8.0, 8.0, 8.0)
    model = TinyModel(architecture="llama", rope_divisors=divisors, rope_base=500000.0)
    plain = 500000.0 ** (-np.arange(8) * 2.0 / 16)
    ours = log_probabilities(model, tmp_path, activations="f32", kv_type="f32")
    np.testing.assert_allclose(ours, expected(model, plain / divisors), atol=2e-4)


def test_gemma_scales_only_its_global_layers(tmp_path: Path) -> None:
    model = TinyModel(
        architecture="gemma3",
        layers=6,
        window=16,
        rope_base=1e6,
        metadata={"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0},
    )
    stretched = 1e6 ** (-np.arange(8) * 2.0 / 16) / 8
    ours = log_probabilities(model, tmp_path, activations="f32", kv_type="f32")
    np.testing.assert_allclose(ours, expected(model, stretched), atol=2e-4)


@pytest.mark.parametrize("name", ["llama", "qwen2 with biases"])
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    path = model.write(tmp_path / "tiny.gguf")
    raw = path.read_bytes().replace(b"blk.2.ffn_up.weight", b"blk.2.ffn_ux.weight")
    path.write_bytes(raw)
    with (
        GGUFFile.open(path) as file,
        pytest.raises(ModelLoadError, match=r"blk\.2\.ffn_up\.weight is missing"),
    ):
        build_program(file)


def test_a_tensor_of_the_wrong_shape_is_named(tmp_path: Path) -> None:
    path = TinyModel(architecture="llama").write(tmp_path / "tiny.gguf")
    raw = path.read_bytes().replace(
        b"llama.feed_forward_length" + b"\x04\0\0\0" + (96).to_bytes(4, "little"),
        b"llama.feed_forward_length" + b"\x04\0\0\0" + (128).to_bytes(4, "little"),
    )
    path.write_bytes(raw)
    with (
        GGUFFile.open(path) as file,
        pytest.raises(ModelLoadError, match=r"ffn_gate\.weight has shape 96 x 64 instead of 128"),
    ):
        build_program(file)


def test_an_unknown_architecture_lists_the_supported_ones(tmp_path: Path) -> None:
    path = TinyModel(architecture="mamba").write(tmp_path / "tiny.gguf")
    with GGUFFile.open(path) as file, pytest.raises(ModelLoadError) as caught:
        build_program(file)
    assert "'mamba' is not supported" in str(caught.value)
    assert all(name in str(caught.value) for name in SUPPORTED_ARCHITECTURES)
    assert "how to ask for another" in str(caught.value)


def test_a_tensor_that_no_operation_uses_is_an_error(tmp_path: Path) -> None:
    """A bias or norm that is silently left out would give silently wrong answers."""
    path = TinyModel(architecture="qwen3").write(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes().replace(b"qwen3", b"llama"))
    with (
        GGUFFile.open(path) as file,
        pytest.raises(ModelLoadError, match=r"attn_q_norm\.weight .* is not part of a llama"),
    ):
        build_program(file)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention.head_count", 3, "is not a multiple of"),
        ("attention.key_length", 12, "multiple of 8"),
        ("rope.dimension_count", 18, "exceeds the head size"),
        ("block_count", 0, "must be positive"),
        ("rope.scaling.type", "dynamic", "supported are 'none', 'linear', 'yarn' and 'longrope'"),
        ("rope.scaling.factor", -2.0, "must be positive"),
        ("attention.sliding_window", Typed("uint64", 2**63), "must be positive and at most"),
        ("attention.layer_norm_rms_epsilon", -1.0, "must be between 0 and 1"),
    ],
)
def test_hyperparameters_that_make_no_sense_are_named(
    key: str, value: object, message: str, tmp_path: Path
) -> None:
    extra = {f"llama.{key}": value}
    if key == "rope.scaling.factor":
        extra["llama.rope.scaling.type"] = "linear"
    path = TinyModel(architecture="llama", metadata=extra).write(tmp_path / "tiny.gguf")
    with GGUFFile.open(path) as file, pytest.raises(ModelLoadError, match=message) as caught:
        build_program(file)
    assert f"llama.{key.rsplit('.', 1)[0]}" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("expert_used_count", 9, "must be at most 8"),
        ("expert_used_count", 0, "must be positive"),
        ("expert_count", Typed("uint64", 2**63), "must be positive and at most"),
        ("expert_group_count", 3, "a divisor of expert_count"),
        ("expert_group_used_count", 2, "must be at most 1"),
        ("expert_gating_func", 4, "must be 0 to 3"),
        ("expert_feed_forward_length", 48, "has shape 8 x 32 x 64 instead of 8 x 48 x 64"),
    ],
)
def test_experts_that_make_no_sense_are_named(
    key: str, value: object, message: str, tmp_path: Path
) -> None:
    model = TinyModel(
        architecture="qwen3moe", metadata={f"qwen3moe.{key}": value}, experts=TinyExperts()
    )
    with (
        GGUFFile.open(model.write(tmp_path / "tiny.gguf")) as file,
        pytest.raises(ModelLoadError, match=message) as caught,
    ):
        build_program(file)
    assert key in str(caught.value) or "ffn_gate_exps" in str(caught.value)


def test_a_dense_family_with_experts_is_refused(tmp_path: Path) -> None:
    model = TinyModel(architecture="qwen3", metadata={"qwen3.expert_count": 8})
    with (
        GGUFFile.open(model.write(tmp_path / "tiny.gguf")) as file,
        pytest.raises(ModelLoadError, match=r"qwen3\.expert_count is 8, but this architecture"),
    ):
        build_program(file)


@pytest.mark.parametrize("context", [2**31, 2**32 - 1, Typed("uint64", 2**64 - 1)])
def test_a_context_without_a_limit_is_taken(context: Any, tmp_path: Path) -> None:
    """Converters write the largest number there is."""
    path = TinyModel(architecture="llama", metadata={"llama.context_length": context}).write(
        tmp_path / "tiny.gguf"
    )
    with GGUFFile.open(path) as file:
        assert build_program(file).context_length == 2**31 - 1


def test_kv_bytes_per_token() -> None:
    layers = (KVLayer(kv_heads=8, head_dim=128),) * 32
    of_token = sum(layer_bytes(layer, "f16") for layer in layers)
    assert of_token == 128 * 1024
    assert 8192 * of_token == math.prod((1024, 1024, 1024))
    assert sum(layer_bytes(layer, "q8") for layer in layers) == 65 * 1024
