"""Layers that predict tokens further ahead, against an independent forward pass in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from caudal.backends.executor import Batch, SequenceStep, StateSlots, StepResult
from caudal.backends.native.executor import NativeExecutor, NativeOptions
from caudal.errors import ModelLoadError
from caudal.formats.gguf import GGUFFile
from caudal.formats.huggingface.model import open_folder
from caudal.formats.model_folder import ModelFolder
from caudal.formats.tensor_types import TensorType
from caudal.models import build_ahead, build_program, has_ahead
from references.checks import open_reference
from references.reference import Recorded
from references.weights import random_weight, tokenizer_metadata, write_folder
from support.gguf_writer import write_gguf
from support.reference_hybrids import TinyQwen35, TinyQwen35Ahead
from support.vocabularies import bpe_metadata

TOKENS = [5, 17, 200, 3, 99, 42, 256, 7, 7, 131, 64, 12, 250, 1, 90, 33, 2, 8, 75, 210]
OPTIONS = NativeOptions(
    num_blocks=4,
    max_batch_tokens=64,
    threads=1,
    kv_type="f32",
    activations="f32",
    num_slots=2,
)


def named(model: TinyQwen35Ahead) -> TinyQwen35Ahead:
    metadata = bpe_metadata() | model.metadata | {"general.architecture": "qwen35"}
    return replace(model, vocab_size=259, metadata=metadata)


def run(executor: NativeExecutor, step: SequenceStep) -> StepResult:
    [result] = executor.execute(Batch([step]))
    assert result.error is None
    return result


def logprobs(logits: NDArray[np.float64], targets: list[int]) -> NDArray[np.float64]:
    exact = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return exact[np.arange(len(targets)), targets]


@pytest.mark.parametrize("tied", [True, False])
def test_a_layer_goes_on_from_a_state_and_then_from_its_own(tied: bool, tmp_path: Path) -> None:
    model = named(TinyQwen35Ahead(tied=tied))
    with GGUFFile.open(model.write(tmp_path / "it.gguf")) as file:
        program, ahead = build_program(file), build_ahead(file)
        executor = NativeExecutor(file, program, OPTIONS, more=ahead)
        layer = NativeExecutor(file, ahead, replace(OPTIONS, num_slots=0), beside=executor)
    try:
        assert layer.info.facts.weight_bytes == 0  # they are the model's
        count = len(TOKENS)
        step = SequenceStep(TOKENS, 0, [0, 1], state=StateSlots(None, 0), states=count)
        states = run(executor, step).states
        assert states is not None
        exact = model.states(TOKENS)
        np.testing.assert_allclose(states, exact, atol=2e-4)

        following = TOKENS[1:]
        own: list[NDArray[np.float32]] = []
        for first, end in ((0, 11), (11, count - 1)):  # in two pieces
            part = following[first:end]
            step = SequenceStep(
                part,
                first,
                [2, 3],
                score_targets=[*part[1:], 11],
                states=len(part),
                given=states[first:end],
            )
            result = run(layer, step)
            assert result.states is not None
            own.append(result.states)
            left = model.states_ahead(exact[:end], following[:end])
            np.testing.assert_allclose(result.states, left[first:], atol=2e-4)
            scores = [score.logprob for score in result.scores]
            expected = logprobs(model.logits_ahead(left[first:]), [*part[1:], 11])
            np.testing.assert_allclose(scores, expected, atol=2e-4)

        chained = np.concatenate([exact[:-1], left[-1:]])
        step = SequenceStep([11], count - 1, [2, 3], states=1, given=own[-1][-1:])
        result = run(layer, step)
        expected = model.states_ahead(chained, [*following, 11])[-1:]
        np.testing.assert_allclose(result.states, expected, atol=2e-4)

        with pytest.raises(ValueError, match="rows that are given"):
            layer.execute(Batch([SequenceStep([11], 0, [0], states=1)]))
    finally:
        executor.close()
        layer.close()


@pytest.mark.parametrize("name", ["glm4_moe", "deepseek_v3", "qwen3_next"])
def test_other_families_have_them_with_what_their_layers_have(name: str, tmp_path: Path) -> None:
    with open_reference(write_folder(Recorded.read(name), tmp_path / "folder")) as file:
        tensors = {
            tensor: (info.type, info.shape, file.tensor_bytes(tensor).tobytes())
            for tensor, info in file.tensors.items()
        }
        metadata, arch = {**file.metadata, **tokenizer_metadata()}, file.architecture
        width = file.tensors["output_norm.weight"].shape[0]
    # The last layer, which attends, once more.
    layers = int(str(metadata[f"{arch}.block_count"]))
    last = f"blk.{layers - 1}."
    for tensor in [tensor for tensor in tensors if tensor.startswith(last)]:
        tensors[tensor.replace(last, f"blk.{layers}.")] = tensors[tensor]
    ones = np.ones(width, np.float32).tobytes()
    joining = np.random.default_rng(0).normal(0, 0.1, (width, 2 * width)).astype(np.float32)
    own = {
        "eh_proj": (TensorType.F32, joining.shape, joining.tobytes()),
        "enorm": (TensorType.F32, (width,), ones),
        "hnorm": (TensorType.F32, (width,), ones),
        "shared_head_norm": (TensorType.F32, (width,), ones),
        "embed_tokens": tensors["token_embd.weight"],
        "shared_head_head": tensors.get("output.weight", tensors["token_embd.weight"]),
    }
    tensors |= {f"blk.{layers}.nextn.{tensor}.weight": made for tensor, made in own.items()}
    metadata |= {f"{arch}.block_count": layers + 1, f"{arch}.nextn_predict_layers": 1}
    with GGUFFile.open(write_gguf(tmp_path / "it.gguf", metadata, tensors)) as file:
        ahead = build_ahead(file)
        assert len(ahead.kv_layers) == 1
        assert not ahead.state_layers
        layer = NativeExecutor(file, ahead, replace(OPTIONS, num_slots=0))
    given = np.random.default_rng(1).standard_normal((3, width)).astype(np.float32)
    step = SequenceStep([5, 6, 7], 0, [0], states=1, given=given, score_targets=[6, 7])
    result = run(layer, step)
    layer.close()
    assert result.states is not None
    assert np.isfinite(result.states).all()
    normed = np.isclose((result.states**2).mean(), 1.0, atol=1e-3)  # by a norm of ones
    assert normed == (name == "qwen3_next")


@pytest.mark.parametrize("name", ["qwen3_5", "deepseek_v3"])
def test_folders_have_them_in_a_module_or_behind_the_layers(name: str, tmp_path: Path) -> None:
    recorded = Recorded.read(name)
    layers, width = recorded.config["num_hidden_layers"], recorded.config["hidden_size"]
    own = {
        "qwen3_5": {
            "fc": "eh_proj",
            "pre_fc_norm_embedding": "enorm",
            "pre_fc_norm_hidden": "hnorm",
            "norm": "shared_head_norm",
        },
        "deepseek_v3": {
            "eh_proj": "eh_proj",
            "enorm": "enorm",
            "hnorm": "hnorm",
            "shared_head.norm": "shared_head_norm",
            "shared_head.head": "shared_head_head",
            "embed_tokens": "embed_tokens",
        },
    }[name]
    to, of_layer = {
        "qwen3_5": ("mtp.", "mtp.layers.0."),
        "deepseek_v3": (f"model.layers.{layers}.", f"model.layers.{layers}."),
    }[name]
    last = next(tensor for tensor in recorded.tensors if f"layers.{layers - 1}." in tensor)
    last = last[: last.index(f"layers.{layers - 1}.")] + f"layers.{layers - 1}."
    for tensor in [tensor for tensor in recorded.tensors if tensor.startswith(last)]:
        recorded.tensors[tensor.replace(last, of_layer)] = recorded.tensors[tensor]
    embedding = next(each for tensor, each in recorded.tensors.items() if "embed_tokens" in tensor)
    for theirs, ours in own.items():
        shape = [width]
        if ours == "eh_proj":
            shape = [width, 2 * width]
        elif "norm" not in ours:
            shape = embedding[0]
        recorded.tensors[f"{to}{theirs}.weight"] = (shape, 0.0, 0.1)
    folder = ModelFolder.scan(write_folder(recorded, tmp_path / "it"))
    with open_folder(folder, any_column_order=True) as file:
        program = build_program(file)
        assert not has_ahead(file)
    with open_folder(folder, any_column_order=True, with_ahead=True) as file:
        assert build_program(file) == program
        ahead = build_ahead(file)
        for theirs, ours in own.items():
            made = file.tensor_bytes(f"blk.{layers}.nextn.{ours}.weight").view("<f4")
            theirs = f"{to}{theirs}.weight"
            values = random_weight(theirs, *recorded.tensors[theirs]).ravel()
            is_norm = name == "qwen3_5" and "norm" in ours
            np.testing.assert_allclose(made, values + 1 if is_norm else values, rtol=1e-6)
    assert len(ahead.kv_layers) == 1


def test_a_file_without_such_a_layer(tmp_path: Path) -> None:
    model = named(TinyQwen35Ahead())
    plain = replace(TinyQwen35(), vocab_size=259, metadata=model.metadata)
    with GGUFFile.open(plain.write(tmp_path / "plain.gguf")) as file:
        assert not has_ahead(file)
        with pytest.raises(ModelLoadError, match="no layers that predict tokens further ahead"):
            build_ahead(file)
    with GGUFFile.open(model.write(tmp_path / "it.gguf")) as file:
        assert has_ahead(file)
        file.tensors.pop("blk.4.nextn.hnorm.weight")
        with pytest.raises(ModelLoadError, match="hnorm"):
            build_ahead(file)
