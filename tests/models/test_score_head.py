"""Scores that are made of the mean of a pair's states: by weights that aren't in the program."""

from __future__ import annotations

from pathlib import Path

from caudal.formats.tensor_types import TensorType
from references.checks import open_reference
from references.encoders import RecordedEncoder, vectors, write_encoder
from references.weights import tokenizer_metadata
from support.gguf_writer import write_gguf
from support.quantised_weights import numbers, random_weights


def test_its_matrix_may_be_quantised(tmp_path: Path) -> None:
    """As it is in files that llama.cpp's tools make."""
    folder = write_encoder(RecordedEncoder.read("modernbert_pairs_mean"), tmp_path / "it")
    with open_reference(folder) as file:
        metadata = {**file.metadata, **tokenizer_metadata()}
        tensors = {
            name: (info.type, info.shape, file.tensor_bytes(name).tobytes())
            for name, info in file.tensors.items()
        }
    shape = tensors["cls.weight"][1]
    blocks = random_weights("Q8_0", *shape)
    scores = []
    for kind, data in (("Q8_0", blocks), ("F32", numbers("Q8_0", blocks).astype("<f4"))):
        tensors["cls.weight"] = (TensorType[kind], shape, data.tobytes())
        scores.append(vectors(write_gguf(tmp_path / f"{kind}.gguf", metadata, tensors)))
    assert scores[0] == scores[1]
