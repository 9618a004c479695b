"""Adapters: where each change of a checkpoint's matrix goes, and what is refused, by name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caudal.errors import ModelLoadError
from caudal.formats.huggingface.rows import as_floats
from caudal.formats.lora.adapter import Adapter
from caudal.formats.lora.base import AdapterBase
from caudal.formats.lora.reading import read_adapter
from caudal.formats.model_file import ModelFile
from caudal.formats.tensor_types import TensorType
from references.checks import open_reference
from references.reference import Recorded
from references.weights import write_folder
from support.adapter_writer import (
    Floats,
    Modules,
    changeable,
    random_factors,
    write_gguf_adapter,
    write_merged,
    write_peft,
)
from support.gguf_writer import random_tensor, write_gguf
from support.quantised_weights import numbers
from support.safetensors_writer import as_bfloat16


def values(file: ModelFile, name: str) -> Floats:
    tensor = file.tensor(name)
    rows = file.tensor_bytes(name).reshape(tensor.rows, -1)
    return as_floats(rows, tensor.type).reshape(tensor.shape)


# Rules of rows, of columns, of parts of a matrix, of names alone, and of several files' names.
@pytest.mark.parametrize(
    "name", ["llama", "qwen3_5_moe", "qwen3_next", "granite_hybrid_moe", "phi3", "gemma3"]
)
def test_changes_go_where_the_weights_go(name: str, tmp_path: Path) -> None:
    recorded = Recorded.read(name)
    with open_reference(write_folder(recorded, tmp_path / "base")) as base:
        known = AdapterBase.of(base)
        modules = changeable(recorded, known.architecture)
        assert len(modules) >= 8
        adapter = read_adapter(write_peft(tmp_path / "adapter", modules), known)
        merged = write_merged(recorded, tmp_path / "merged", modules, 1.5)
        with open_reference(merged) as other:
            differ = {
                name for name in base.tensors if (values(base, name) != values(other, name)).any()
            }
            assert adapter.matrices.keys() == differ
            for changed, change in adapter.matrices.items():
                difference = values(other, changed) - values(base, changed)
                np.testing.assert_allclose(
                    change.scale * (change.b @ change.a), difference, atol=1e-6, err_msg=changed
                )


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> AdapterBase:
    folder = write_folder(Recorded.read("llama"), tmp_path_factory.mktemp("llama") / "base")
    with open_reference(folder) as file:
        return AdapterBase.of(file)


Q = "model.layers.1.self_attn.q_proj"
FACTORS = random_factors(Q, (64, 64))


def only(adapter: Adapter) -> tuple[str, float]:
    [(name, change)] = adapter.matrices.items()
    return name, change.scale


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, 1.5),
        ({"use_rslora": True}, 3.0),
        ({"lora_alpha": 16, "r": 8, "rank_pattern": {"q_proj": 4}}, 4.0),
        ({"alpha_pattern": {"k_proj": 9, "self_attn.q_proj": 2}}, 0.5),
        ({"alpha_pattern": {r"model.layers.\d+.self_attn.(q|k)_proj": 2}}, 0.5),
        ({"alpha_pattern": {"^model.layers.0.self_attn.q_proj": 2}}, 1.5),
        ({"fan_in_fan_out": True, "init_lora_weights": "gaussian"}, 1.5),
    ],
)
def test_how_far_a_change_is_scaled(
    config: dict[str, Any], scale: float, llama: AdapterBase, tmp_path: Path
) -> None:
    adapter = read_adapter(write_peft(tmp_path / "it", {Q: FACTORS}, config), llama)
    assert only(adapter) == ("blk.1.attn_q.weight", pytest.approx(scale))


def with_nan(factor: Floats) -> Floats:
    broken = factor.copy()
    broken[1, 2] = math.nan
    return broken


A, B = FACTORS
NORM = np.ones(64, np.float32)
K = "model.layers.1.self_attn.k_proj"
PREFIX = "base_model.model."


@pytest.mark.parametrize(
    ("modules", "config", "more", "reason"),
    [
        ({}, {}, {}, "changes nothing"),
        ({Q: (A, B)}, {"peft_type": "LOHA"}, {}, "peft_type is 'LOHA'"),
        ({Q: (A, B)}, {"use_dora": True}, {}, "use_dora asks for DoRA"),
        ({Q: (A, B)}, {"modules_to_save": ["lm_head"]}, {}, "modules_to_save"),
        ({Q: (A, B)}, {"bias": "lora_only"}, {}, "bias is 'lora_only'"),
        ({Q: (A, B)}, {"init_lora_weights": "pissa_niter_4"}, {}, "pissa_niter_4"),
        ({Q: (A, B)}, {"r": 0}, {}, "r must be positive"),
        ({Q: (A, B)}, {"r": 8}, {}, "has rank 4, but adapter_config.json says 8"),
        ({Q: (A, B)}, {"lora_alpha": float("nan")}, {}, "lora_alpha"),
        ({Q: (A, B)}, {"lora_alpha": 1e300}, {}, "multiplied by 2.5e.299, which"),
        ({Q: (A, B * 0)}, {"lora_alpha": 1e300}, {}, "multiplied by 2.5e.299, which"),
        ({Q: (A, B)}, {"alpha_pattern": {"(a+)+": 1}}, {}, "too complex"),
        ({Q: (A, B)}, {"alpha_pattern": {"(": 1}}, {}, "no regular expression"),
        ({Q: (A, with_nan(B))}, {}, {}, "lora_B.weight has values that are infinite or not"),
        ({Q: (A, B[:48])}, {}, {}, "attn_q.weight is 64 x 64"),
        ({Q: (A[:, :32], B)}, {}, {}, "attn_q.weight is 64 x 64"),
        ({Q: (A, B[:, :3])}, {}, {}, "rank x columns"),
        ({Q: (A[:0], B[:, :0])}, {}, {}, "rank 0"),
        ({K: (A, B)}, {}, {}, "attn_k.weight is 32 x 64"),
        ({K: (A, B[:31])}, {}, {}, "k_proj doesn't fit the model: 31 rows"),
        ({Q.replace("1", "7"): (A, B)}, {}, {}, "blk.7.attn_q.weight, which the model doesn't"),
        ({"model.layers.1.attn.wq": (A, B)}, {}, {}, "attn.wq is not part of a llama model"),
        ({"model.embed_tokens": random_factors("e", (320, 64))}, {}, {}, "changes the embedding"),
        ({Q: (A, B)}, {}, {f"{PREFIX}{K}.lora_A.weight": A}, "lora_B.weight is missing"),
        ({Q: (A, B)}, {}, {f"{PREFIX}model.norm.weight": NORM}, "model.norm.weight is no factor"),
        ({Q: (A, B)}, {}, {f"{PREFIX}{Q}.lora_magnitude_vector": NORM}, "is DoRA's"),
        (
            {Q: (A, B)},
            {},
            {f"{PREFIX}model.embed_tokens.lora_embedding_A": A},
            "lora_embedding_A changes an embedding",
        ),
        (
            {},
            {},
            {f"{PREFIX}{Q}.lora_A.weight": A.astype("i4"), f"{PREFIX}{Q}.lora_B.weight": B},
            "is I32; supported are F32, F16, BF16",
        ),
    ],
)
def test_peft_folders_that_are_refused(
    modules: Modules,
    config: dict[str, Any],
    more: Mapping[str, Any],
    reason: str,
    llama: AdapterBase,
    tmp_path: Path,
) -> None:
    folder = write_peft(tmp_path / "it", modules, config, more)
    with pytest.raises(ModelLoadError, match=reason.replace("(", r"\(")):
        read_adapter(folder, llama)


def test_a_folder_without_its_files(llama: AdapterBase, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no adapter's folder: it has no adapter_config.json"):
        read_adapter(tmp_path, llama)
    folder = write_peft(tmp_path / "it", {Q: FACTORS})
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(ModelLoadError, match="a pickle, which may run code"):
        read_adapter(folder, llama)
    (folder / "adapter_config.json").write_text(json.dumps([1]))
    with pytest.raises(ModelLoadError, match="expected a JSON object"):
        read_adapter(folder, llama)


def test_types_of_factors_and_the_head(llama: AdapterBase, tmp_path: Path) -> None:
    a, b = random_factors("lm_head", (330, 64))  # ten rows of padding
    tensors = {
        f"{PREFIX}lm_head.lora_A.weight": as_bfloat16(a),
        f"{PREFIX}lm_head.lora_B.weight": b.astype(np.float16),
    }
    adapter = read_adapter(write_peft(tmp_path / "it", {}, {}, tensors), llama)
    change = adapter.matrices["output.weight"]
    np.testing.assert_allclose(change.a, a, rtol=2**-7)
    np.testing.assert_allclose(change.b, b[:320], rtol=2**-9, atol=1e-6)
    assert (adapter.rank, adapter.nbytes) == (4, 4 * 4 * (64 + 320))


def test_gguf_adapters(llama: AdapterBase, tmp_path: Path) -> None:
    path = write_gguf_adapter(tmp_path / "it.gguf", "llama", {"blk.1.attn_q.weight": FACTORS})
    adapter = read_adapter(path, llama)
    assert only(adapter) == ("blk.1.attn_q.weight", 1.5)
    change = adapter.matrices["blk.1.attn_q.weight"]
    assert (change.a == A).all()
    assert (change.b == B).all()


@pytest.mark.parametrize("kind", [TensorType.F16, TensorType.BF16, TensorType.Q8_0])
def test_types_of_factors_in_gguf_files(
    kind: TensorType, llama: AdapterBase, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    keys = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    a, b = random_tensor(rng, kind, (32, 64)), random_tensor(rng, kind, (64, 32))
    tensors = {"blk.1.attn_q.weight.lora_a": a, "blk.1.attn_q.weight.lora_b": b}
    path = write_gguf(tmp_path / "it.gguf", {**keys, "adapter.lora.alpha": 6.0}, tensors)
    change = read_adapter(path, llama).matrices["blk.1.attn_q.weight"]
    for made, (_, shape, data) in ((change.a, a), (change.b, b)):
        blocks = np.frombuffer(data, np.uint8)
        assert made.tolist() == numbers(kind.name, blocks).reshape(shape).tolist()


@pytest.mark.parametrize(
    ("metadata", "changes", "reason"),
    [
        ({"general.type": "model"}, {}, "no adapter: general.type is 'model'"),
        ({"adapter.type": "control_vector"}, {}, "adapter.type is 'control_vector'"),
        ({"general.architecture": "qwen2"}, {}, "for 'qwen2' models, but this one is 'llama'"),
        ({"adapter.lora.alpha": float("inf")}, {}, "adapter.lora.alpha must be a finite number"),
        ({"adapter.alora.invocation_tokens": [1]}, {}, "activated LoRA"),
        ({}, {}, "changes nothing"),
        ({}, {"blk.1.attn_q.weight": (A, B[:10])}, "attn_q.weight is 64 x 64"),
        (
            {"adapter.lora.alpha": 3e38},
            {"blk.1.attn_q.weight": (A, B * 1e3)},
            "multiplied by 7.5e.37, which",
        ),
        ({}, {"blk.1.attn_q.weight": (with_nan(A), B)}, "lora_a has values that are infinite"),
        ({}, {"blk.9.attn_q.weight": (A, B)}, "blk.9.attn_q.weight, which the model doesn't have"),
        ({}, {"token_embd.weight": random_factors("e", (320, 64))}, "changes the embedding"),
        ({}, {"blk.1.attn_norm.weight": (A, B)}, "changes a tensor"),
        ({}, {"blk.1.attn_q.weight": (A[None], B[None])}, "rank x columns"),
    ],
)
def test_gguf_adapters_that_are_refused(
    metadata: dict[str, Any], changes: Modules, reason: str, llama: AdapterBase, tmp_path: Path
) -> None:
    path = write_gguf_adapter(tmp_path / "it.gguf", "llama", changes, metadata=metadata)
    with pytest.raises(ModelLoadError, match=reason):
        read_adapter(path, llama)


def test_what_changes_experts_is_refused(tmp_path: Path) -> None:
    with open_reference(write_folder(Recorded.read("granite_moe"), tmp_path / "base")) as file:
        base = AdapterBase.of(file)
    shape = base.shapes["blk.0.ffn_up_exps.weight"]
    a, b = random_factors("up", shape[1:])
    changes = {"blk.0.ffn_up_exps.weight": (np.stack([a] * 4), np.stack([b] * 4))}
    path = write_gguf_adapter(tmp_path / "it.gguf", base.architecture, changes)
    with pytest.raises(ModelLoadError, match="changes experts"):
        read_adapter(path, base)


def test_models_without_known_checkpoints_take_gguf_adapters_alone(
    llama: AdapterBase, tmp_path: Path
) -> None:
    base = replace(llama, architecture="unheard-of")
    with pytest.raises(ModelLoadError, match="not supported for unheard-of models"):
        read_adapter(write_peft(tmp_path / "it", {Q: FACTORS}), base)
    changes = {"blk.1.attn_q.weight": FACTORS}
    read_adapter(write_gguf_adapter(tmp_path / "it.gguf", "unheard-of", changes), base)
