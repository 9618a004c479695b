from __future__ import annotations

import os
from pathlib import Path

import pytest

from caudal.errors import ModelLoadError, ParameterError
from caudal.loading.load import load_model
from caudal.loading.options import LoadOptions
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


@pytest.mark.parametrize("rows", [258, 260, 320])
def test_tokens_and_embeddings_must_be_equal_in_number(tmp_path: Path, rows: int):
    path = write_model(tmp_path / "tiny.gguf", rows)
    with pytest.raises(ModelLoadError, match=rf"259 tokens.*{rows} rows.*must be equal"):
        load_model(str(path), OPTIONS)


def test_more_kv_memory_than_the_machine_has_is_refused(tmp_path: Path):
    path = write_model(tmp_path / "tiny.gguf", 259)
    for size in (100 * 2**40, -1):
        with pytest.raises(ParameterError, match="kv_memory is ") as bad:
            load_model(str(path), LoadOptions(kv_memory=size))
        assert bad.value.param == "kv_memory"
