"""What models can be planned from, and what is said where that isn't enough."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caudal.errors import ConversionError, ModelLoadError, ModelNotFoundError
from caudal.formats.tensor_types import TensorType
from caudal.loading.load import load_model
from caudal.loading.options import LoadOptions
from caudal.planning.figures import ModelFigures
from caudal.planning.plan import Demand, Planner
from caudal.planning.reading import read_figures
from caudal.store import Store
from references.reference import Recorded
from references.weights import write_folder
from support.gguf_writer import write_gguf
from support.local_hub import LocalHub
from support.reference_model import TinyModel
from support.safetensors_writer import write_safetensors
from support.vocabularies import bpe_metadata

DEMAND = Demand(context=300, users=3)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def same(ours: ModelFigures, theirs: ModelFigures) -> bool:
    return Planner(ours).needs(DEMAND) == Planner(theirs).needs(DEMAND)


def test_a_gguf_file_whole_and_split(tmp_path: Path, store: Store) -> None:
    """What is said of it is what loading it takes."""
    model = TinyModel(architecture="llama", vocab_size=259, metadata=bpe_metadata())
    path = model.write(tmp_path / "tiny.gguf")
    figures = read_figures(str(path), store=store)
    assert figures.file_bytes == path.stat().st_size
    assert figures.served_as == str(path)
    loaded = load_model(str(path), LoadOptions(kv_memory=2**20, threads=1), store=store)
    try:
        assert loaded.executor.info.facts.weight_bytes == figures.weights
        assert loaded.program.kv_layers == figures.kv_layers
    finally:
        loaded.executor.close()
    # Nothing of the weights is read: without their last byte the file isn't opened, though.
    os.truncate(path, path.stat().st_size - 64)
    with pytest.raises(ModelLoadError):
        read_figures(str(path), store=store)


@pytest.mark.parametrize("name", ["gemma3", "qwen3_next", "deepseek_v3"])
def test_a_folder_and_its_configuration_say_the_same(
    name: str, tmp_path: Path, store: Store
) -> None:
    folder = write_folder(Recorded.read(name), tmp_path / name)
    whole = read_figures(str(folder), store=store)
    alone = read_figures(str(folder / "config.json"), store=store)
    assert same(whole, alone)
    assert (whole.served_as, alone.served_as) == (str(folder), "")
    assert whole.file_bytes == sum(file.stat().st_size for file in folder.iterdir())
    (folder / "tokenizer.json").unlink()
    without = read_figures(str(folder), store=store)
    assert same(without, whole)
    assert without.file_bytes == (folder / "model.safetensors").stat().st_size
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"x": "model-00001-of-00002.safetensors"}, "metadata": {"total_size": 5}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    partial = read_figures(str(folder), store=store)
    assert same(partial, whole)
    assert partial.file_bytes == 5


def test_quantised_as_it_would_be(tmp_path: Path, store: Store) -> None:
    config = Recorded.read("llama").config | {"hidden_size": 512, "intermediate_size": 1024}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    plain, small = (
        read_figures(str(path), quantisation=each, store=store) for each in (None, "Q4_K_M")
    )
    assert small.quantisation == "Q4_K_M"
    assert small.weights < plain.weights / 4
    assert plain.others()["Q4_K_M"] == small.weights
    with pytest.raises(ConversionError, match="there is no quantisation 'Q9'"):
        read_figures(str(path), quantisation="Q9", store=store)


QUANTISED = [
    ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "INT4_G128"),
    ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "INT4_G128"),
    ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "INT8_G32"),
    ({"quant_method": "awq", "bits": 4, "group_size": 64}, "INT4_G64"),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "FP8_G128"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "NF4_G64"),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "INT8_ROW"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4_ROW"),
    (
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"a": {"weights": {"num_bits": 4, "group_size": 32, "type": "int"}}},
        },
        "INT4_G32",
    ),
    (
        {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {"a": {"weights": {"num_bits": 8, "type": "float"}}},
        },
        "FP8_G128",
    ),
]


@pytest.mark.parametrize(("settings", "kind"), QUANTISED)
def test_quantised_checkpoints_by_their_method(
    settings: dict[str, Any], kind: str, tmp_path: Path, store: Store
) -> None:
    """As their tensors are read (tests/formats/test_quantised_checkpoints.py)."""
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4}
    path = tmp_path / "config.json"
    config = Recorded.read("llama").config | sizes | {"quantization_config": settings}
    path.write_text(json.dumps(config))
    assert read_figures(str(path), store=store).quantisation == kind


def test_architectures_that_nothing_computes(tmp_path: Path, store: Store) -> None:
    """The general arithmetic holds for them: files' bytes, and layers that attend."""
    config = {
        "model_type": "novel",
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "hidden_size": 128,
        "max_position_embeddings": 1000,
        "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention", "linear_attention", "conv"],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="'novel' is not supported"):  # how large is it?
        read_figures(str(tmp_path / "config.json"), store=store)
    write_safetensors(tmp_path / "model.safetensors", {"x": np.zeros(1000, np.float32)})
    figures = read_figures(str(tmp_path), store=store)
    assert figures.obstacle is not None
    assert [(each.window, each.numbers) for each in figures.kv_layers] == [(64, 64), (None, 64)]
    assert figures.weights == (tmp_path / "model.safetensors").stat().st_size

    metadata: dict[str, Any] = {
        **bpe_metadata(),
        "general.architecture": "novel",
        "novel.block_count": 3,
        "novel.context_length": 1000,
        "novel.embedding_length": 128,
        "novel.attention.head_count": 8,
        "novel.attention.head_count_kv": np.array([2, 0, 2], np.int32),
    }
    tensors = {"x": (TensorType.F32, (32,), bytes(128))}
    figures = read_figures(str(write_gguf(tmp_path / "novel.gguf", metadata, tensors)), store=store)
    assert [each.numbers for each in figures.kv_layers] == [64, 64]
    assert figures.context_length == 1000


def test_what_is_not_here_is_not_fetched(store: Store) -> None:
    with pytest.raises(ModelNotFoundError, match=r"caudal pull smollm2 \(98 MB\)"):
        read_figures("smollm2", store=store)
    with pytest.raises(ModelNotFoundError):
        read_figures("./nothing.gguf", store=store)


def test_an_encoder_needs_its_files(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "modernbert"}))
    with pytest.raises(ModelLoadError, match="doesn't say what an encoder computes"):
        read_figures(str(path), store=store)


HUB = """
import sys
from pathlib import Path
from caudal.errors import CaudalError
from caudal.planning.reading import read_figures
from caudal.store import Store
from caudal.store.hub import configuration
configuration.FIRST_BYTES = 3000
for name in sys.argv[2:]:
    try:
        figures = read_figures(name, store=Store(Path(sys.argv[1])))
        print(figures.architecture, figures.file_bytes, figures.served_as, figures.weights)
    except CaudalError as error:
        print(error)
"""


def test_of_the_hub_no_weights_are_fetched(tmp_path: Path, store: Store) -> None:
    """Of a folder config.json, of a GGUF file the header, and what says how positions turn."""
    recorded = Recorded.read("gemma3")
    config = json.dumps(recorded.config).encode()
    files = {"config.json": config, "tokenizer.json": b"{}", "model.safetensors": b"w" * 5000}
    tiny = TinyModel(
        architecture="llama",
        vocab_size=259,
        hidden=256,
        metadata=bpe_metadata(),
        rope_divisors=(1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0),
    )
    gguf = tiny.write(tmp_path / "tiny.gguf")
    size = gguf.stat().st_size
    named = {"Tiny-Q8_0.gguf": gguf.read_bytes(), "Bad-Q4_0.gguf": b"GGML" * 9000}
    local = LocalHub({"me/Tiny": files, "me/Tiny-GGUF": named})
    names = ("hf:me/Tiny", "hf:me/Tiny-GGUF:Q8_0", "hf:me/Tiny-GGUF:Q4_0", "hf:me/Nothing")
    try:
        environment = {key: value for key, value in os.environ.items() if key[:3] != "HF_"}
        environment |= {"HF_ENDPOINT": local.url, "HF_HOME": str(tmp_path), "NO_PROXY": "*"}
        result = subprocess.run(
            [sys.executable, "-c", HUB, tmp_path / "store", *names],
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        asked = local.requests
    finally:
        local.close()
    folder, file, bad, none = result.stdout.splitlines()
    write_folder(recorded, tmp_path / "whole")
    weights = read_figures(str(tmp_path / "whole"), store=store).weights
    assert folder == f"gemma3 5000 hf:me/Tiny {weights}"
    weights = read_figures(str(gguf), store=store).weights
    assert file == f"llama {size} hf:me/Tiny-GGUF:Q8_0 {weights}"
    assert "not a GGUF file" in bad or "GGML" in bad
    assert "has no me/Nothing" in none
    ranges = [
        re.fullmatch(r"bytes=(\d+)-(\d+)", wanted)
        for _, path, wanted in asked
        if path.endswith("Tiny-Q8_0.gguf")
    ]
    fetched = sum(int(each[2]) - int(each[1]) + 1 for each in ranges if each)
    assert 3000 < fetched < size / 4
    assert all(each for each in ranges)
    assert not [path for _, path, _ in asked if path.endswith((".safetensors", "tokenizer.json"))]


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": -1},
        {"hidden_size": "many"},
        {"dtype": "float7"},
        {"vocab_size": 0},
        {"quantization_config": {"quant_method": "gptq", "bits": 3}},
        {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {}}},
        {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 7}},
    ],
)
def test_configurations_that_no_model_has(
    wrong: dict[str, Any], tmp_path: Path, store: Store
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(Recorded.read("llama").config | wrong))
    with pytest.raises(ModelLoadError):
        read_figures(str(path), store=store)
