"""Files that Caudal writes: read by another implementation, and never half."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from caudal.formats.gguf import GGUFFile
from caudal.formats.gguf_writer import GGUFWriter
from caudal.formats.tensor_file import TensorInfo
from caudal.formats.tensor_types import TensorType
from support.gguf_writer import Typed, write_gguf

TENSORS = [
    TensorInfo("a.weight", (3, 5), TensorType.F32),
    TensorInfo("nothing", (0,), TensorType.F32),
    TensorInfo("b.weight", (2, 64), TensorType.Q8_0),
]
METADATA = {
    "general.architecture": "llama",
    "whole": 7,
    "negative": -7,
    "large": 2**40,
    "fraction": 0.5,
    "yes": True,
    "words": ["a", "", "日本"],
    "numbers": np.array([1, -2], np.int64),
    "bytes": np.array([1, 255], np.uint8),
}


def write(path: Path) -> list[np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    data = [np.arange(tensor.nbytes, dtype=np.uint8) for tensor in TENSORS]
    types = {"bytes": "array of uint8"}
    with GGUFWriter.create(path, METADATA, TENSORS, types=types) as writer:
        writer.write(data[0][:7])
        writer.write(data[0][7:])
        writer.write(data[2])
    return data


def test_others_read_it(tmp_path: Path) -> None:
    data = write(tmp_path / "m.gguf")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    kinds = {name: field.types[0].name for name, field in reader.fields.items() if field.types}
    assert kinds["whole"] == "UINT32"
    assert kinds["negative"] == "INT32"
    assert kinds["large"] == "UINT64"
    assert kinds["fraction"] == "FLOAT32"
    assert reader.fields["words"].contents() == ["a", "", "日本"]
    assert reader.fields["bytes"].types[-1].name == "UINT8"
    for tensor, mine, expected in zip(reader.tensors, TENSORS, data, strict=True):
        assert (tensor.name, tensor.tensor_type.name) == (mine.name, mine.type.name)
        assert tensor.data.tobytes() == expected.tobytes()


def test_types_of_what_was_read_are_kept(tmp_path: Path) -> None:
    odd = {"small": Typed("uint8", 3), "signed": Typed("int32", 3), "wide": Typed("float64", 0.1)}
    source = write_gguf(
        tmp_path / "a.gguf", {**odd, "many": np.array([1, 2], np.uint16), "flags": [True, False]}
    )
    with GGUFFile.open(source) as file:
        copy = tmp_path / "b.gguf"
        with GGUFWriter.create(copy, file.metadata, [], types=file.types):
            pass
        with GGUFFile.open(copy) as again:
            assert again.types == file.types
            assert str(again.metadata) == str(file.metadata)


def test_what_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"before")
    for count, message in ((60, "b.weight isn't all there"), (61, "61 bytes are more than are")):
        with (
            pytest.raises(ValueError, match=message),
            GGUFWriter.create(path, METADATA, TENSORS) as writer,
        ):
            writer.write(np.zeros(count, np.uint8))
    with pytest.raises(KeyboardInterrupt), GGUFWriter.create(path, METADATA, TENSORS):
        raise KeyboardInterrupt
    assert [each.name for each in tmp_path.iterdir()] == ["m.gguf"]
    assert path.read_bytes() == b"before"
