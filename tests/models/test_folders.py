"""Folders that lack something are refused by name, and what isn't computed is left out."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from caudal.errors import ModelLoadError
from caudal.formats.gguf import GGUFFile
from caudal.formats.tensor_types import TensorType
from caudal.models import build_program
from references.checks import Runner, open_reference
from references.reference import Recorded
from references.weights import tokenizer_metadata, write_folder
from support.gguf_writer import write_gguf


def refusal(recorded: Recorded, path: Path) -> str:
    """Why a folder isn't loaded."""
    with (
        pytest.raises(ModelLoadError) as caught,
        open_reference(write_folder(recorded, path)) as file,
    ):
        build_program(file)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("granite_hybrid_moe", "mamba_n_heads"),
        ("granite_hybrid_moe", "layer_types"),
        ("granite_moe", "num_local_experts"),
        ("lfm2_moe", "num_experts_per_tok"),
        ("qwen3_5_moe", "num_experts"),
        ("qwen3_next", "linear_num_key_heads"),
    ],
)
def test_a_missing_key_is_named(name: str, key: str, tmp_path: Path) -> None:
    recorded = Recorded.read(name)
    del recorded.config[key]
    assert key.removeprefix("num_local_").removeprefix("num_") in refusal(recorded, tmp_path / "it")


@pytest.mark.parametrize("name", ["granite_hybrid_moe", "lfm2_moe", "qwen3_next", "qwen3_vl_moe"])
def test_every_kind_of_tensor_is_needed_and_of_its_shape(name: str, tmp_path: Path) -> None:
    recorded = Recorded.read(name)
    kinds = {
        re.sub(r"\.\d+\.", ".N.", tensor): tensor
        for tensor in recorded.tensors
        # Biases are what some checkpoints of a family have, and others don't.
        if "visual" not in tensor and not tensor.endswith("bias")
    }
    assert len(kinds) > 10
    for number, tensor in enumerate(kinds.values()):
        shape, *spread = recorded.tensors.pop(tensor)
        reason = refusal(recorded, tmp_path / f"without {number}")
        # Experts are counted: it is the last one of its layer that is missing. And without a matrix
        # of its own, a gate would have to be in that of the others.
        said = r"missing|_exps\.weight has shape|ffn_up\.weight has \d+ rows"
        assert re.search(said, reason), reason
        recorded.tensors[tensor] = ([*shape[:-1], shape[-1] + 1], *spread)
        reason = refusal(recorded, tmp_path / f"another {number}")
        assert re.search(r"tensor \S+ (has|\d+ rows)|differ in shape", reason), reason
        recorded.tensors[tensor] = (shape, *spread)


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe", "qwen3_next"])
def test_layers_that_predict_several_tokens_are_left_out(name: str, tmp_path: Path) -> None:
    recorded = Recorded.read(name)
    with open_reference(write_folder(recorded, tmp_path / "without")) as file:
        program = build_program(file)
        tensors = {
            tensor: (info.type, info.shape, file.tensor_bytes(tensor).tobytes())
            for tensor, info in file.tensors.items()
        }
        metadata = {**file.metadata, **tokenizer_metadata()}
        arch = file.architecture
    for tensor in ("fc", "layers.0.self_attn.q_proj", "pre_fc_norm_hidden"):
        recorded.tensors[f"mtp.{tensor}.weight"] = ([64, 128], 0.0, 1.0)
    with open_reference(write_folder(recorded, tmp_path / "with")) as file:
        assert build_program(file) == program
    layers = int(str(metadata[f"{arch}.block_count"]))
    metadata |= {f"{arch}.block_count": layers + 1, f"{arch}.nextn_predict_layers": 1}
    last = f"blk.{layers - 1}."
    for tensor in [tensor for tensor in tensors if tensor.startswith(last)]:
        tensors[tensor.replace(last, f"blk.{layers}.")] = tensors[tensor]
    tensors[f"blk.{layers}.nextn.eh_proj.weight"] = (TensorType.F32, (64, 128), bytes(4 * 64 * 128))
    with GGUFFile.open(write_gguf(tmp_path / "model.gguf", metadata, tensors)) as file:
        ahead = build_program(file)
    assert (ahead.matrices, ahead.vectors) == (program.matrices, program.vectors)
    assert (ahead.kv_layers, ahead.state_layers) == (program.kv_layers, program.state_layers)


def test_a_folders_layers_that_predict_several_tokens_are_left_out(tmp_path: Path) -> None:
    recorded = Recorded.read("deepseek_v3")
    whole = write_folder(recorded, tmp_path / "whole")
    layers = recorded.config["num_hidden_layers"]
    last = f"model.layers.{layers - 1}."
    for name, shape in list(recorded.tensors.items()):
        if name.startswith(last):
            recorded.tensors[name.replace(last, f"model.layers.{layers}.")] = shape
    counted = replace(recorded, config=recorded.config | {"num_nextn_predict_layers": 1})
    marked = {f"model.layers.{layers}.eh_proj.weight": ([64, 128], 0.0, 1.0)}
    not_counted = replace(recorded, tensors=recorded.tensors | marked)
    programs = []
    for path in (
        whole,
        write_folder(counted, tmp_path / "counted"),
        write_folder(not_counted, tmp_path / "not counted"),
    ):
        with open_reference(path) as file:
            programs.append(build_program(file))
    assert programs[0] == programs[1] == programs[2]


def test_qwen3next_may_have_queries_keys_values_and_gates_in_one_matrix(tmp_path: Path) -> None:
    recorded = Recorded.read("qwen3_next")
    with open_reference(write_folder(recorded, tmp_path / "it")) as file:
        runner = Runner(file)
        apart = runner.scores()
        runner.close()
        tensors = {
            tensor: (info.type, info.shape, file.tensor_bytes(tensor).tobytes())
            for tensor, info in file.tensors.items()
        }
        metadata = {**file.metadata, **tokenizer_metadata()}
    # What the checkpoint has is what those files had.
    for tensor, (shape, *_) in recorded.tensors.items():
        if tensor.endswith("in_proj_qkvz.weight"):
            layer = tensor.split(".")[2]
            del tensors[f"blk.{layer}.attn_qkv.weight"], tensors[f"blk.{layer}.attn_gate.weight"]
            weights = _checkpoint(tmp_path / "it", tensor)
            tensors[f"blk.{layer}.ssm_in.weight"] = (TensorType.F32, tuple(shape), weights)
    path = write_gguf(tmp_path / "model.gguf", metadata, tensors)
    with GGUFFile.open(path) as file:
        assert any("ssm_in" in tensor for tensor in file.tensors)
        runner = Runner(file)
        assert runner.scores().tolist() == apart.tolist()
        assert runner.scores(chunk=33).tolist() == apart.tolist()
        runner.close()


def _checkpoint(folder: Path, tensor: str) -> bytes:
    """A tensor's bytes in a folder."""
    raw = (folder / "model.safetensors").read_bytes()
    length = int(np.frombuffer(raw[:8], "<u8")[0])
    begin, end = json.loads(raw[8 : 8 + length])[tensor]["data_offsets"]
    return raw[8 + length + begin : 8 + length + end]
