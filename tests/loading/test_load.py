from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from caudal.errors import ModelLoadError, ParameterError
from caudal.loading.load import load_model
from caudal.loading.options import LoadOptions, parse_size
from support.reference_model import TinyModel
from support.vocabularies import bpe_metadata

OPTIONS = LoadOptions(kv_memory=2**20, threads=1)


def write_model(path: Path, rows: int) -> Path:
    """A tiny model with 259 tokens and some number of embeddings."""
    return TinyModel(
        architecture="llama", vocab_size=rows, layers=1, metadata=bpe_metadata()
    ).write(path)


def test_a_model_with_a_token_for_each_embedding(tmp_path: Path):
    loaded = load_model(str(write_model(tmp_path / "tiny.gguf", 259)), OPTIONS)
    try:
        assert loaded.tokenizer.vocab_size == loaded.program.vocab_size == 259
    finally:
        loaded.executor.close()


@pytest.mark.parametrize("kept", [0, 0.5, 0.99])
def test_a_file_that_is_cut_while_its_weights_are_packed(tmp_path: Path, kept: float):
    path = write_model(tmp_path / "tiny.gguf", 259)
    size = path.stat().st_size

    def cut(share: float) -> None:
        os.truncate(path, int(kept * size))

    with pytest.raises(ModelLoadError, match="it was cut or replaced while it was being read"):
        load_model(str(path), OPTIONS, progress=cut)


def test_every_token_needs_an_embedding(tmp_path: Path):
    path = write_model(tmp_path / "tiny.gguf", 258)
    with pytest.raises(ModelLoadError, match=r"259 tokens.*258 rows"):
        load_model(str(path), OPTIONS)


@pytest.mark.parametrize("named", [False, True])
def test_rows_that_only_fill_up_are_left_out(tmp_path: Path, named: bool):
    """Whether or not the file has names for them, as converters write."""
    metadata = bpe_metadata()
    if named:
        key = "tokenizer.ggml.tokens"
        metadata |= {
            key: [*metadata[key], *(f"[PAD{token}]" for token in range(259, 320))],
            "tokenizer.ggml.token_type": [*metadata["tokenizer.ggml.token_type"], *[5] * 61],
        }
    model = TinyModel(architecture="llama", vocab_size=320, layers=1, tied=False, metadata=metadata)
    loaded = load_model(str(model.write(tmp_path / "tiny.gguf")), OPTIONS)
    try:
        assert loaded.tokenizer.vocab_size == loaded.executor.info.vocab_size == 259
    finally:
        loaded.executor.close()


def test_more_kv_memory_than_the_machine_has_is_refused(tmp_path: Path):
    path = write_model(tmp_path / "tiny.gguf", 259)
    for size in (100 * 2**40, -1):
        with pytest.raises(ParameterError, match="kv_memory is ") as bad:
            load_model(str(path), LoadOptions(kv_memory=size))
        assert bad.value.param == "kv_memory"


@pytest.mark.parametrize("name", ["prefix_memory", "prefix_store_size"])
def test_a_place_for_prefixes_without_room_for_one_is_refused(tmp_path: Path, name: str):
    path, store = write_model(tmp_path / "tiny.gguf", 259), str(tmp_path / "store")
    sizes = (4,) if name == "prefix_memory" else (0, 4)
    for size in sizes:
        options: dict[str, Any] = {"kv_memory": 2**20, "threads": 1, "prefix_store": store}
        with pytest.raises(ParameterError, match=f"{name} must be at least .* but is {size}"):
            load_model(str(path), LoadOptions(**(options | {name: size})))


def test_a_size_that_no_message_has_room_for_is_refused() -> None:
    assert parse_size("1.5TiB") == 3 << 39
    with pytest.raises(ParameterError, match="'9999999999TiB' is more than any machine has"):
        parse_size("9999999999TiB")
