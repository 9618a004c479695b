from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caudal.errors import ModelLoadError
from caudal.formats.safetensors import SafetensorsFile
from caudal.formats.tensor_types import TensorType
from support.safetensors_writer import as_bfloat16, encode_header, write_safetensors


def test_tensors_are_read_in_place(tmp_path: Path) -> None:
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = write_safetensors(
        tmp_path / "m.safetensors",
        {
            "a": matrix,
            "b": matrix.astype(np.float16),
            "c": as_bfloat16(matrix),
            "ids": np.arange(3, dtype=np.int64),
            "empty": np.zeros((0, 4), np.float32),
        },
    )
    with SafetensorsFile.open(path) as file:
        shapes = {name: (t.type, t.shape, t.nbytes) for name, t in file.tensors.items()}
        assert shapes == {
            "a": (TensorType.F32, (3, 4), 48),
            "b": (TensorType.F16, (3, 4), 24),
            "c": (TensorType.BF16, (3, 4), 24),
            "empty": (TensorType.F32, (0, 4), 0),
        }
        assert file.others == {"ids": "I64"}
        assert file.tensor_bytes("a").view("<f4").tolist() == matrix.ravel().tolist()
        assert file.tensor_bytes("b").view("<f2").tolist() == matrix.ravel().tolist()


def tensor(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HOSTILE: dict[str, tuple[bytes, str]] = {
    "no header": (b"\1\2\3", "too few for a safetensors file"),
    "a header beyond the file": ((1 << 20).to_bytes(8, "little") + b"{}", "a header of 1048576"),
    "a header of 2^63 bytes": (b"\xff" * 8 + b"{}", "truncated, or no safetensors file"),
    "a header over the limit": (
        (200 << 20).to_bytes(8, "little") + b"{}",
        "at most 16777216 are read",
    ),
    "no JSON": (encode_header(b"{nonsense"), "not valid JSON"),
    "no UTF-8": (encode_header(b'{"\xff": 1}'), "not valid JSON"),
    "JSON nested without end": (encode_header(b"[" * 100_000), "not valid JSON"),
    "no object": (encode_header([1, 2]), "not a JSON object"),
    "a key twice": (encode_header(b'{"a": {}, "a": {}}'), "a key occurs twice"),
    "no description": (encode_header({"a": 5}), "'a' is not described by a JSON object"),
    "an unknown dtype": (encode_header({"a": tensor("F31")}) + bytes(8), "unknown dtype 'F31'"),
    "a dtype that is no text": (encode_header({"a": tensor(7)}) + bytes(8), "unknown dtype 7"),
    "a negative size": (encode_header({"a": tensor(shape=[-2])}) + bytes(8), "impossible shape"),
    "a size that is no integer": (
        encode_header({"a": tensor(shape=[2.0])}) + bytes(8),
        "impossible shape",
    ),
    "a shape that overflows": (
        encode_header({"a": tensor(shape=[1 << 40, 1 << 40])}) + bytes(8),
        "impossible shape",
    ),
    "too many dimensions": (
        encode_header({"a": tensor(shape=[1] * 9)}) + bytes(8),
        "impossible shape",
    ),
    "offsets backwards": (
        encode_header({"a": tensor(offsets=[8, 0])}) + bytes(8),
        "impossible data_offsets",
    ),
    "one offset": (encode_header({"a": tensor(offsets=[8])}) + bytes(8), "impossible data_offsets"),
    "a size that doesn't fit": (
        encode_header({"a": tensor(shape=[3])}) + bytes(8),
        r"has 8 bytes, but F32 of shape \[3\] takes 12",
    ),
    "data beyond the file": (encode_header({"a": tensor()}) + bytes(7), "ends at byte 8 of 7"),
    "tensors that overlap": (
        encode_header({"a": tensor(), "b": tensor(offsets=[4, 12])}) + bytes(12),
        "'b' overlaps the tensor before it",
    ),
    "a gap": (
        encode_header({"a": tensor(offsets=[4, 12])}) + bytes(12),
        "'a' leaves a gap before it",
    ),
    "bytes after the end": (encode_header({"a": tensor()}) + bytes(9), "1 bytes follow"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_or_hostile_file_is_explained(name: str, tmp_path: Path) -> None:
    content, message = HOSTILE[name]
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message) as caught:
        SafetensorsFile.open(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no such file"):
        SafetensorsFile.open(tmp_path / "m.safetensors")
