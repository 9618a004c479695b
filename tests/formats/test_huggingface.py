"""Folders of decoders: what is read, and what is refused. What they compute: tests/references."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caudal.errors import ModelLoadError
from caudal.formats.huggingface.model import open_folder
from caudal.formats.huggingface.rows import (
    Joined,
    Made,
    Reordered,
    Rows,
    Slice,
    made_of_floats,
    reshaped,
    transposed,
)
from caudal.formats.model_folder import ModelFolder
from caudal.formats.tensor_types import TensorType
from caudal.loading.load import load_model
from caudal.loading.options import LoadOptions
from references.weights import random_weight
from support.safetensors_writer import write_safetensors
from support.tiny_folder import SHAPES, write_tiny_folder

VALUES = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def stack() -> Rows:
    return made_of_floats("stack", (2, 3, 4), lambda: VALUES)


def refusal(path: Path) -> str:
    with pytest.raises(ModelLoadError) as caught, open_folder(ModelFolder.scan(path)):
        pass
    return str(caught.value)


def test_rows_are_cut_reordered_and_joined_in_pieces_of_any_size() -> None:
    order = np.array([4, 0, 5, 5, 2])
    made = {
        "slice": (Slice(stack(), 2, (3, 4)), VALUES.reshape(6, 4)[2:5]),
        "reordered": (Reordered(stack(), order, (5, 4)), VALUES.reshape(6, 4)[order]),
        "joined": (Joined("j", [stack(), stack()], (4, 3, 4)), np.concatenate([VALUES, VALUES])),
        "reshaped": (reshaped(stack(), (4, 6)), VALUES.reshape(4, 6)),
        "transposed": (transposed(stack()), VALUES.swapaxes(1, 2)),
    }
    for name, (rows, expected) in made.items():
        assert rows.shape == expected.shape
        assert rows.floats().tolist() == expected.tolist(), name
        count = rows.info.rows
        for step in (1, 2, 3):
            pieces = [rows.read(at, min(step, count - at)) for at in range(0, count, step)]
            assert np.concatenate(pieces).tobytes() == expected.astype("<f4").tobytes(), name


def test_what_is_made_as_a_whole_is_made_once_and_then_let_go() -> None:
    calls = []

    def make() -> Any:
        calls.append(None)
        return VALUES.reshape(6, 4).view(np.uint8)

    rows = Made("m", TensorType.F32, (6, 4), make)
    for first in range(6):
        rows.read(first, 1)
    assert len(calls) == 1
    rows.read(0, 1)
    assert len(calls) == 2


def shard(path: Path, names: dict[str, list[str]]) -> Path:
    """Put a folder's tensors into several files."""
    (path / "model.safetensors").unlink()
    for file, inside in names.items():
        tensors = {name: random_weight(name, SHAPES[name], 0.0, 0.2) for name in inside}
        write_safetensors(path / file, tensors)
    weight_map = {name: file for file, inside in names.items() for name in inside}
    write_index(path, weight_map)
    return path


def write_index(path: Path, weight_map: dict[str, Any]) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_are_one_model_and_are_all_there(tmp_path: Path) -> None:
    names = list(SHAPES)
    files = {"model-1-of-2.safetensors": names[:4], "model-2-of-2.safetensors": names[4:]}
    whole = write_tiny_folder(tmp_path / "whole")
    path = shard(write_tiny_folder(tmp_path / "shards"), files)
    with open_folder(ModelFolder.scan(whole)) as one, open_folder(ModelFolder.scan(path)) as many:
        assert many.tensors == one.tensors
        for name in one.tensors:
            assert many.tensor_bytes(name).tobytes() == one.tensor_bytes(name).tobytes()
        assert one.tensor_place("blk.0.ffn_up.weight") is not None
        assert one.tensor_place("blk.0.attn_q.weight") is None  # its rows are in another order
    right = {name: file for file, inside in files.items() for name in inside}
    for wrong, message in (
        (right | {names[0]: "model-2-of-2.safetensors"}, "is in this file, but in"),
        ({name: right[name] for name in names[1:]}, "but in no file by the index"),
        (right | {"more": "model-1-of-2.safetensors"}, r"tensor more .* is not in the file"),
        (right | {names[0]: "../elsewhere"}, "lacks ../elsewhere"),
        (right | {names[0]: 1}, "is no file: 1"),
        ({}, "weight_map is empty"),
    ):
        write_index(path, wrong)
        with pytest.raises(ModelLoadError, match=message), open_folder(ModelFolder.scan(path)):
            pass
    (path / "model-2-of-2.safetensors").unlink()
    write_index(path, right)
    assert "lacks model-2-of-2.safetensors" in refusal(path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "perceiver"}, "model_type 'perceiver' is not supported; supported are"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'; supported is 'silu' or 'swish'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope_type is 'spiral'"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "factor is missing"),
        ({"rope_parameters": {"rope_type": "proportional"}}, "rope_type is 'proportional'"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": 2**63}, "num_hidden_layers must be positive"),
        ({"num_attention_heads": "two"}, "num_attention_heads must be of type int"),
        ({"quantization_config": {"quant_method": "origami"}}, "quant_method 'origami' is not"),
        ({"text_config": 5}, "text_config must be of type dict"),
        ({"tie_word_embeddings": False}, "tensor lm_head.weight is missing"),
    ],
)
def test_configurations_are_refused_by_name(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    assert message in refusal(write_tiny_folder(tmp_path / "m", config))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("model.layers.0.self_attn.sinks", [2], "sinks is not part of a llama model"),
        ("transformer.h.0.weight", [2, 2], "transformer.h.0.weight is not part of a llama"),
        ("embed_tokens.weight", [320, 16], "and model.embed_tokens.weight are both token_embd"),
        ("model.layers.0.self_attn.q_proj.bias", [], "q_proj.bias has the shape []"),
        ("model.layers.0.mlp.up_proj.weight", [0, 16], "up_proj.weight has the shape [0, 16]"),
        ("model.layers.0.self_attn.q_proj.bias", [6], "6 rows aren't 2 heads of pairs"),
    ],
)
def test_tensors_are_refused_by_name(
    tmp_path: Path, name: str, shape: list[int], message: str
) -> None:
    text = refusal(write_tiny_folder(tmp_path / "m", **{name: shape}))
    assert message in text or "are both token_embd" in text


def test_recommendations_are_the_defaults_unless_turned_off(tmp_path: Path) -> None:
    path = write_tiny_folder(tmp_path / "m")
    generation = path / "generation_config.json"
    generation.write_text('{"temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": true}')
    for choice, expected in (
        ("auto", {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
        ("none", {}),
    ):
        options = LoadOptions(kv_memory=2**20, threads=1, generation_config=choice)  # type: ignore[arg-type]
        loaded = load_model(str(path), options)
        loaded.executor.close()
        assert loaded.facts.sampling.values() == expected
    generation.write_text('{"top_p": 7}')
    with pytest.raises(ModelLoadError, match="top_p must be in"):
        load_model(str(path), LoadOptions())
