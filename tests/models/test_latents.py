"""Latent attention of files that have its matrices otherwise: in one, or quantised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caudal.errors import ModelLoadError
from caudal.formats.gguf import GGUFFile
from caudal.formats.old_latents import with_latents
from caudal.formats.tensor_types import TensorType
from references.checks import Runner, open_reference
from references.reference import Recorded
from references.weights import random_weight, tokenizer_metadata, write_folder
from support.gguf_writer import write_gguf
from support.quantised_weights import numbers, random_weights
from support.safetensors_writer import Bits, write_safetensors

NAME = "deepseek_v3"
HEADS, PLAIN, VALUES, RANK, ROTATED = 4, 24, 32, 32, 16
PREFIX = "deepseek2.attention"


def scores(path: Path) -> list[float]:
    with GGUFFile.open(path) as opened:
        runner = Runner(with_latents(opened))
    made: list[float] = runner.scores().tolist()
    runner.close()
    return made


def joined(layer: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """`attn_kv_b` as Q8_0 blocks, and as numbers."""
    blocks = random_weights("Q8_0", HEADS * (PLAIN + VALUES), RANK, seed=layer)
    return blocks, numbers("Q8_0", blocks)


def old_file(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and tensors as they were before April 2025, and without any latent's matrices."""
    with open_reference(write_folder(Recorded.read(NAME), path)) as file:
        metadata: dict[str, Any] = {**file.metadata, **tokenizer_metadata()}
        tensors = {
            name: (info.type, info.shape, file.tensor_bytes(name).tobytes())
            for name, info in file.tensors.items()
            if "attn_k_b" not in name and "attn_v_b" not in name
        }
    return metadata, tensors


def test_one_matrix_of_keys_and_values_gives_the_same(tmp_path: Path) -> None:
    metadata, tensors = old_file(tmp_path / "folder")
    old, new = dict(tensors), dict(tensors)
    for layer in range(metadata["deepseek2.block_count"]):
        blocks, values = joined(layer)
        old[f"blk.{layer}.attn_kv_b.weight"] = (TensorType.Q8_0, values.shape, blocks.tobytes())
        heads = values.reshape(HEADS, PLAIN + VALUES, RANK)
        for name, part in (
            ("attn_k_b", np.ascontiguousarray(heads[:, :PLAIN].swapaxes(1, 2))),
            ("attn_v_b", np.ascontiguousarray(heads[:, PLAIN:])),
        ):
            new[f"blk.{layer}.{name}.weight"] = (TensorType.F32, part.shape, part.tobytes())
    before = {
        **{key: value for key, value in metadata.items() if not key.endswith("_mla")},
        f"{PREFIX}.head_count_kv": HEADS,
        f"{PREFIX}.key_length": PLAIN + ROTATED,
        f"{PREFIX}.value_length": VALUES,
    }
    ours = scores(write_gguf(tmp_path / "old.gguf", before, old))
    np.testing.assert_allclose(
        ours, scores(write_gguf(tmp_path / "new.gguf", metadata, new)), atol=1e-5
    )
    # And what doesn't fit is named.
    wrong = before | {f"{PREFIX}.key_length": ROTATED}
    with pytest.raises(ModelLoadError, match=r"16 key channels \(key_length\), of which 16 are"):
        scores(write_gguf(tmp_path / "wrong.gguf", wrong, old))
    wrong = before | {f"{PREFIX}.value_length": 64}
    with pytest.raises(ModelLoadError, match=r"tensor blk\.0\.attn_kv_b\.weight has shape"):
        scores(write_gguf(tmp_path / "wrong.gguf", wrong, old))


def test_queries_may_grow_with_the_position(tmp_path: Path) -> None:
    """As in Mistral Large 3, whose files are of this architecture."""
    with open_reference(write_folder(Recorded.read(NAME), tmp_path / "it")) as file:
        plain = file.metadata
        answers = []
        for length in (None, 2**20, 4):
            if length is not None:
                grown = {f"{PREFIX}.temperature_scale": 0.5, f"{PREFIX}.temperature_length": length}
                file.metadata = {**plain, **grown}
            runner = Runner(file)
            answers.append(runner.scores().tolist())
            runner.close()
    assert answers[0] == answers[1]  # no position is as far as that
    assert answers[0][:3] == answers[2][:3]
    assert answers[0] != answers[2]


def test_a_folders_may_be_quantised(tmp_path: Path) -> None:
    """As DeepSeek's own are, to 8-bit floats."""
    recorded = Recorded.read(NAME)
    plain: dict[str, Any] = {
        name: random_weight(name, *spread) for name, spread in recorded.tensors.items()
    }
    packed = dict(plain)
    codes = np.random.default_rng(2)
    for name in [name for name in plain if name.endswith("kv_b_proj.weight")]:
        # Codes of 1 to 1.875, and their opposites.
        signs, mantissas = (codes.integers(0, size, plain[name].shape) for size in (2, 8))
        plain[name] = ((1 - 2 * signs) * (1 + mantissas / 8) * 0.125).astype(np.float32)
        packed[name] = Bits("F8_E4M3", (signs << 7 | 7 << 3 | mantissas).astype(np.uint8))
        packed[f"{name}_scale_inv"] = np.full((1, 1), 0.125, np.float32)
    answers = []
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    for label, tensors, method in (("plain", plain, {}), ("packed", packed, fp8)):
        path = write_folder(recorded, tmp_path / label)
        write_safetensors(path / "model.safetensors", tensors)
        settings = {"quantization_config": method} if method else {}
        (path / "config.json").write_text(json.dumps({**recorded.config, **settings}))
        with open_reference(path) as file:
            assert file.tensor("blk.0.attn_k_b.weight").type is TensorType.F32
            runner = Runner(file)
            answers.append(runner.scores().tolist())
            runner.close()
    np.testing.assert_allclose(answers[1], answers[0], atol=1e-5)
