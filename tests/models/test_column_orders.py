"""Matrices whose columns are stored in another order than their inputs."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from caudal.errors import ModelLoadError
from caudal.formats.gguf import GGUFFile
from caudal.formats.huggingface.model import open_folder
from caudal.formats.lora.adapter import Adapter, LowRank
from caudal.formats.model_folder import ModelFolder
from caudal.formats.tensor_types import TensorType
from caudal.models import build_program
from caudal.models.program import Gather
from references.checks import Runner, check_invariance, open_reference
from references.reference import Recorded
from references.weights import random_weight, tokenizer_metadata, write_folder
from support.gguf_writer import write_gguf
from support.safetensors_writer import write_safetensors

GROUP = 32
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}


def quantised(name: str, shape: list[int]) -> tuple[dict[str, NDArray[Any]], NDArray[np.float32]]:
    """A matrix as GPTQ stores it, and its values; those of one input have it in one order."""
    module = name.removesuffix(".weight")
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    outputs, inputs = shape
    reads = module.replace("k_proj", "q_proj").replace("v_proj", "q_proj").replace("up_", "gate_")
    order = np.random.default_rng(zlib.crc32(reads.encode()))
    owners = order.permutation(np.arange(inputs) // GROUP)
    codes = rng.integers(0, 16, (outputs, inputs))
    scales = rng.uniform(0.01, 0.03, (outputs, inputs // GROUP)).astype(np.float16)
    zeros = rng.integers(1, 16, scales.shape)
    shifts = np.arange(0, 32, 4, dtype=np.uint64)

    def words(each: NDArray[Any]) -> NDArray[np.int32]:
        grouped = each.astype(np.uint64).reshape(len(each), -1, 8)
        return (grouped << shifts).sum(-1).astype(np.uint32).view(np.int32)

    stored = {
        f"{module}.qweight": words(codes).T,
        f"{module}.qzeros": words(zeros.T - 1),
        f"{module}.scales": scales.T,
        f"{module}.g_idx": owners.astype(np.int32),
    }
    return stored, ((codes - zeros[:, owners]) * scales[:, owners].astype(np.float32)).astype("<f4")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model of 4 bits, and one of the same values as floats."""
    recorded = Recorded.read("llama")
    plain: dict[str, Any] = {}
    packed: dict[str, Any] = {}
    for name, spread in recorded.tensors.items():
        if name.endswith("_proj.weight"):
            stored, plain[name] = quantised(name, spread[0])
            packed |= stored
        else:
            plain[name] = packed[name] = random_weight(name, *spread)
    paths = []
    for label, tensors, method in (("packed", packed, GPTQ), ("plain", plain, None)):
        path = write_folder(recorded, tmp_path_factory.mktemp("model") / label)
        write_safetensors(path / "model.safetensors", tensors)
        settings = {} if method is None else {"quantization_config": method}
        (path / "config.json").write_text(json.dumps({**recorded.config, **settings}))
        paths.append(path)
    return paths[0], paths[1]


def test_inputs_are_taken_in_the_order_of_the_columns(folders: tuple[Path, Path]) -> None:
    packed, plain = folders
    rng = np.random.default_rng(3)
    with open_reference(packed) as file:
        for name in ("attn_q", "attn_output", "ffn_down"):
            assert file.tensor(f"blk.0.{name}.weight").type is TensorType.INT4_G32
        program = build_program(file)
        gathers = [op for op in program.body + program.tail if isinstance(op, Gather)]
        assert len(gathers) == 4 * file.get_int("llama.block_count"), "one for each input"
        ours = check_invariance(file)
        names = [f"blk.1.{name}.weight" for name in ("attn_k", "ffn_down")]
        shapes = {name: file.tensor(name).shape for name in names}
    matrices = {
        name: LowRank(
            rng.normal(0, 0.3, (2, shape[1])).astype(np.float32),
            rng.normal(0, 0.3, (shape[0], 2)).astype(np.float32),
            1.0,
        )
        for name, shape in shapes.items()
    }
    adapted = []
    for path in (packed, plain):
        with open_reference(path) as file:
            runner = Runner(file)
            if path == plain:
                np.testing.assert_allclose(ours, runner.scores(), atol=1e-5)
            adapted.append(runner.scores(adapter=Adapter("it", matrices)))
            runner.close()
    np.testing.assert_allclose(adapted[0], adapted[1], atol=1e-5)
    assert np.abs(adapted[0] - ours).max() > 0.01


def test_who_does_not_ask_for_orders_gets_none(folders: tuple[Path, Path]) -> None:
    packed, plain = (ModelFolder.scan(path) for path in folders)
    name = "blk.0.ffn_down.weight"
    with open_folder(packed) as file, open_folder(plain) as floats:
        assert file.tensors == floats.tensors
        assert file.tensor_bytes(name).tobytes() == floats.tensor_bytes(name).tobytes()


def test_an_order_that_is_none_is_refused(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    with open_reference(folders[1]) as file:
        width = file.get_int("llama.embedding_length")
        order = np.zeros(width, "<f4")
        tensors = {
            name: (info.type, info.shape, file.tensor_bytes(name).tobytes())
            for name, info in file.tensors.items()
        }
        tensors["blk.0.attn_q.columns"] = (TensorType.F32, (width,), order.tobytes())
        metadata = {**file.metadata, **tokenizer_metadata()}
    written = write_gguf(tmp_path / "wrong.gguf", metadata, tensors)
    with (
        GGUFFile.open(written) as file,
        pytest.raises(
            ModelLoadError, match=r"blk\.0\.attn_q\.columns isn't an order of 64 columns"
        ),
    ):
        build_program(file)
