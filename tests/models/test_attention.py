"""Attention of every kind against a float64 forward pass that shares no code with it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from caudal.backends.executor import Batch, SequenceStep
from caudal.backends.native.executor import NativeExecutor, NativeOptions
from caudal.backends.native.planning import layer_bytes
from caudal.errors import ModelLoadError
from caudal.formats.gguf import GGUFFile
from caudal.models.program import KVLayer
from support.attention_model import WINDOW, AttentionModel, build

LENGTH = 300  # two partitions of attention
TOKENS = [int(t) for t in np.random.default_rng(7).integers(0, 320, LENGTH)]


def test_matches_the_reference(tmp_path: Path) -> None:
    model = AttentionModel()
    with GGUFFile.open(model.write(tmp_path / "tiny.gguf")) as file:
        options = NativeOptions(
            num_blocks=20,
            window_blocks=(20,),
            max_batch_tokens=LENGTH,
            threads=2,
            kv_type="f32",
            activations="f32",
        )
        executor = NativeExecutor(file, build(file), options)
    ours = []
    for begin in range(0, LENGTH, 100):
        chunk, targets = TOKENS[begin : begin + 100], TOKENS[begin + 1 : begin + 101]
        window = [-1] * (max(0, begin - WINDOW + 1) // 16)
        window += range(len(window), 20)
        step = SequenceStep(chunk, begin, range(20), score_targets=targets, window_tables=[window])
        ours += [score.logprob for score in executor.execute(Batch([step]))[0].scores]
    executor.close()
    logits = model.logits(TOKENS)[:-1]
    scores = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(ours, scores[np.arange(LENGTH - 1), TOKENS[1:]], atol=2e-4)


@pytest.mark.parametrize(
    ("tensor", "shape", "message"),
    [
        ("blk.2.attn_k_b.weight", (4, 64, 16), "shape 4 x 64 x 16 instead of 4 x 64 x 32"),
        ("blk.0.attn_sinks.weight", (5,), "shape 5 instead of 4"),
    ],
)
def test_a_tensor_of_the_wrong_shape_is_named(
    tensor: str, shape: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    class Wrong(AttentionModel):
        def weights(self) -> dict[str, np.typing.NDArray[np.float32]]:
            return super().weights() | {tensor: np.zeros(shape, np.float32)}

    with (
        GGUFFile.open(Wrong().write(tmp_path / "tiny.gguf")) as file,
        pytest.raises(ModelLoadError, match=rf"{tensor} has {message}"),
    ):
        build(file)


def test_programs_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with GGUFFile.open(AttentionModel().write(tmp_path / "tiny.gguf")) as file:
        program = build(file)
        for change, message in (
            ({"head_dim": 24}, "key width"),
            ({"value_dim": 16}, "value width"),
            ({"latent": True, "value_dim": 8}, "values of an attention"),
            ({"window": 99}, "window of a layer that forgets"),
        ):
            first, *others = program.kv_layers
            layers = (dataclasses.replace(first, **change), *others)  # type: ignore[arg-type]
            broken = dataclasses.replace(program, kv_layers=layers)
            options = NativeOptions(
                num_blocks=1,
                max_batch_tokens=1,
                threads=1,
                window_blocks=(1,) * len(broken.windows),
            )
            with pytest.raises(ModelLoadError, match=message):
                NativeExecutor(file, broken, options)


def test_latents_are_kept_once() -> None:
    """DeepSeek V3: 576 numbers of a token and layer, where 128 heads would be 40,960."""
    latent = KVLayer(kv_heads=1, head_dim=576, value_dim=512, latent=True)
    assert layer_bytes(latent, "f16") == 576 * 2
    assert layer_bytes(latent, "q8") == 576 + 2 * 2  # a scale of what are values, and of the rest
    heads = KVLayer(kv_heads=128, head_dim=192, value_dim=128)
    assert heads.numbers == 40960
