"""Reading valid GGUF files: values, views, split models, speed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from caudal._native import kernels
from caudal.errors import ModelLoadError
from caudal.formats.gguf import GGUFFile
from caudal.formats.tensor_types import SUPPORTED_TYPES, TensorType
from support.gguf_writer import Tensor, Typed, random_tensor, write_gguf

F32_ROW: Tensor = (TensorType.F32, (2, 3), np.arange(6, dtype="<f4").tobytes())


def test_scalars_of_every_type(tmp_path: Path) -> None:
    values = {
        "uint8": 200,
        "int8": -100,
        "uint16": 65535,
        "int16": -32768,
        "uint32": 2**32 - 1,
        "int32": -(2**31),
        "uint64": 2**64 - 1,
        "int64": -(2**63),
    }
    metadata = {name: Typed(name, value) for name, value in values.items()}
    metadata |= {"f32": Typed("float32", 0.5), "f64": Typed("float64", 0.1)}
    path = write_gguf(tmp_path / "m.gguf", {**metadata, "yes": True, "text": "¿qué?"})
    with GGUFFile.open(path) as file:
        assert {name: file.get_int(name) for name in values} == values
        assert file.get_float("f32") == 0.5
        assert file.get_float("f64") == 0.1
        assert file.get_float("uint8") == 200.0
        assert file.get_bool("yes") is True
        assert file.get_str("text") == "¿qué?"
        assert set(file.metadata) == {*values, "f32", "f64", "yes", "text"}


def test_arrays(tmp_path: Path) -> None:
    metadata = {
        "words": ["a", "", "日本"],
        "none": [],
        "numbers": np.array([1, 2, 3], np.uint16),
        "fractions": [0.5, 0.25],
        "flags": [True, False],
    }
    with GGUFFile.open(write_gguf(tmp_path / "m.gguf", metadata)) as file:
        assert file.get_strings("words") == ["a", "", "日本"]
        assert file.get_strings("none") == []
        lazy = file.metadata["words"]
        assert not isinstance(lazy, list)
        assert (len(lazy), lazy[-1], lazy[:2]) == (3, "日本", ["a", ""])  # type: ignore[arg-type,index]
        assert file.get_array("numbers", "int").tolist() == [1, 2, 3]
        assert file.get_array("fractions", "float").tolist() == [0.5, 0.25]
        assert file.get_array("flags", "bool").tolist() == [True, False]
        assert not file.get_array("numbers", "int").flags.writeable


def test_getters_name_key_and_types(tmp_path: Path) -> None:
    metadata = {"a": Typed("uint8", 1), "b": "x", "c": [1, 2], "d": True, "nan": float("nan")}
    with GGUFFile.open(write_gguf(tmp_path / "m.gguf", metadata)) as file:
        with pytest.raises(ModelLoadError, match="a has type uint8, not a string"):
            file.get_str("a")
        with pytest.raises(ModelLoadError, match="b has type string, not an integer"):
            file.get_int("b")
        with pytest.raises(ModelLoadError, match="d has type bool, not an integer"):
            file.get_int("d")
        with pytest.raises(ModelLoadError, match="c has type array of int32, not an array of fl"):
            file.get_array("c", "float")
        with pytest.raises(ModelLoadError, match="c has type array of int32, not an array of str"):
            file.get_strings("c")
        with pytest.raises(ModelLoadError, match="nan must be a finite number, but is nan"):
            file.get_float("nan")
        with pytest.raises(ModelLoadError, match="metadata key zz is missing"):
            file.get_int("zz")
        assert file.get_int("zz", 7) == 7
        assert file.get_strings("zz", None) is None


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 64])
def test_tensors_of_every_supported_type(tmp_path: Path, version: int, alignment: int) -> None:
    rng = np.random.default_rng(version)
    tensors = {t.name: random_tensor(rng, t, (3, 256)) for t in sorted(SUPPORTED_TYPES)}
    path = write_gguf(
        tmp_path / "m.gguf",
        {"general.architecture": "llama", "general.alignment": alignment},
        tensors,
        version=version,
        alignment=alignment,
    )
    with GGUFFile.open(path) as file:
        assert file.version == version
        assert file.architecture == "llama"
        assert list(file.tensors) == list(tensors)
        for name, (tensor_type, shape, raw) in tensors.items():
            info = file.tensors[name]
            assert (info.type, info.shape, info.nbytes) == (tensor_type, shape, len(raw))
            assert info.num_elements == 768
            assert file.tensor_bytes(name).tobytes() == raw


def test_bytes_outlive_the_file(tmp_path: Path) -> None:
    file = GGUFFile.open(write_gguf(tmp_path / "m.gguf", {}, {"t": F32_ROW}))
    data = file.tensor_bytes("t")
    descriptor, offset = file.tensor_place("t")
    assert os.pread(descriptor, data.nbytes, offset) == data.tobytes()
    assert not data.flags.writeable
    file.close()
    file.close()
    assert data.view("<f4").tolist() == [0, 1, 2, 3, 4, 5]
    for ask in (file.tensor_bytes, file.tensor_place):
        with pytest.raises(ValueError, match="has been closed"):
            ask("t")


def test_a_file_that_is_cut_while_it_is_open(tmp_path: Path) -> None:
    words = [str(number) for number in range(100_000)]
    path = write_gguf(tmp_path / "m.gguf", {"words": words, "ids": [1, 2]}, {"t": F32_ROW})
    with GGUFFile.open(path) as file:
        os.truncate(path, 100)
        assert file.get_strings("words") == words
        assert file.get_array("ids", "int").tolist() == [1, 2]
        with pytest.raises(ModelLoadError, match=r"it ends at byte .* it was cut or replaced"):
            file.tensor_bytes("t")


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    with (
        GGUFFile.open(write_gguf(tmp_path / "m.gguf", {}, {"t": F32_ROW})) as file,
        pytest.raises(ModelLoadError, match=r"tensor output\.weight is missing"),
    ):
        file.tensor_bytes("output.weight")


def write_split(folder: Path, count: int = 3, total_tensors: int | None = None) -> list[Path]:
    paths = []
    for number in range(count):
        metadata = {
            "general.architecture": "llama",
            "split.no": Typed("uint16", number),
            "split.count": Typed("uint16", count),
            "split.tensors.count": Typed("int32", total_tensors or count),
        }
        raw = np.full(6, number, "<f4").tobytes()
        paths.append(
            write_gguf(
                folder / f"m-{number + 1:05d}-of-{count:05d}.gguf",
                metadata,
                {f"t{number}": (TensorType.F32, (6,), raw)},
            )
        )
    return paths


@pytest.mark.parametrize("part", [0, 2])
def test_split_model_opens_by_any_part(tmp_path: Path, part: int) -> None:
    paths = write_split(tmp_path)
    with GGUFFile.open(paths[part]) as file:
        assert file.path == paths[0]
        assert file.architecture == "llama"
        for number in range(3):
            assert file.tensors[f"t{number}"].part == number
            assert file.tensor_bytes(f"t{number}").view("<f4").tolist() == [number] * 6


def test_parts_may_be_given_whatever_they_are_called(tmp_path: Path) -> None:
    paths = [path.rename(tmp_path / f"sha256-{path.name[2:7]}") for path in write_split(tmp_path)]
    with GGUFFile.open(paths[0], paths) as file:
        assert [file.tensors[f"t{number}"].part for number in range(3)] == [0, 1, 2]
    with pytest.raises(ModelLoadError, match=r"split\.no is 2, but"):
        GGUFFile.open(paths[0], paths[::-1])


def test_split_model_lacks_a_part(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    paths[1].unlink()
    with pytest.raises(ModelLoadError, match=r"part m-00002-of-00003\.gguf .* is missing"):
        GGUFFile.open(paths[0])


def test_split_counts_must_agree(tmp_path: Path) -> None:
    paths = write_split(tmp_path, count=2, total_tensors=5)
    with pytest.raises(ModelLoadError, match=r"split\.tensors\.count is 5, but .* hold 2 tensors"):
        GGUFFile.open(paths[0])
    paths = write_split(tmp_path, count=2)
    paths[1].write_bytes(paths[0].read_bytes())
    with pytest.raises(ModelLoadError, match=r"split\.no is 0, but by its name .* have 1"):
        GGUFFile.open(paths[0])


def test_split_parts_share_a_tensor(tmp_path: Path) -> None:
    paths = write_split(tmp_path, count=2)
    metadata = {"split.no": Typed("uint16", 1), "split.count": Typed("uint16", 2)}
    write_gguf(paths[1], metadata, {"t0": F32_ROW})
    with pytest.raises(ModelLoadError, match=r"tensor t0 is also in part m-00001-of-00002\.gguf"):
        GGUFFile.open(paths[0])


def test_part_without_its_name_is_refused(tmp_path: Path) -> None:
    path = write_split(tmp_path)[0].rename(tmp_path / "model.gguf")
    with pytest.raises(ModelLoadError, match=r"the first of 3 parts .* -00001-of-00003\.gguf"):
        GGUFFile.open(path)


def test_large_vocabulary_opens_fast(tmp_path: Path) -> None:
    """262,144 tokens; the limits are some ten times what it takes."""
    tokens = [f"▁token{i}" for i in range(262_144)]
    path = write_gguf(tmp_path / "m.gguf", {"tokenizer.ggml.tokens": tokens})
    start = time.process_time()
    with GGUFFile.open(path) as file:
        opened = time.process_time()
        assert file.get_strings("tokenizer.ggml.tokens") == tokens
    assert opened - start < 0.3
    assert time.process_time() - opened < 1.0


def test_scales_beside_nvfp4_matrices_are_read_with_their_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    kind, shape, raw = random_tensor(rng, TensorType.NVFP4, (3, 4, 64))
    scales = np.array([0.5, 3.0, 0.25], "<f4")
    tensors: dict[str, Tensor] = {
        "up.weight": (kind, shape, raw),
        "up.scale": (TensorType.F32, (3,), scales.tobytes()),
        "up.input_scale": (TensorType.F32, (1,), bytes(4)),
        "down.weight": (kind, shape, raw),
    }
    with GGUFFile.open(write_gguf(tmp_path / "m.gguf", {}, tensors)) as file:
        assert list(file.tensors) == ["up.weight", "down.weight"]
        assert file.tensors["up.weight"].type is TensorType.NVFP4_ROW
        assert file.tensor_place("up.weight") is None
        assert file.tensor_place("down.weight") is not None
        plain = kernels.dequantize(int(kind), file.tensor_bytes("down.weight")).reshape(shape)
        rows = [file.tensor_rows("up.weight", first, count) for first, count in ((0, 5), (5, 7))]
        scaled = kernels.dequantize(int(TensorType.NVFP4_ROW), np.concatenate(rows))
        np.testing.assert_array_equal(scaled.reshape(shape), plain * scales[:, None, None])
    tensors["up.scale"] = (TensorType.F32, (2,), bytes(8))
    with pytest.raises(ModelLoadError, match=r"up\.scale is F32 of shape \[2\], not 3 F32 for up"):
        GGUFFile.open(write_gguf(tmp_path / "m.gguf", {}, tensors))


def test_blocks_of_one_number_are_told_by_their_size(tmp_path: Path) -> None:
    """Q2_0 is one type in llama.cpp's files, and another in those that had it first."""
    for kind in (TensorType.Q2_0, TensorType.Q2_0_G128):
        tensors = {}
        for number in range(2):
            _, shape, data = random_tensor(np.random.default_rng(number), kind, (8, 512))
            tensors[f"{number}"] = (TensorType.Q2_0, shape, data)
        path = write_gguf(tmp_path / f"{kind.name}.gguf", {}, {**tensors, "last": F32_ROW})
        with GGUFFile.open(path) as file:
            for name, (_, _, data) in tensors.items():
                assert file.tensor(name).type is kind
                assert file.tensor_bytes(name).tobytes() == data
            blocks = np.frombuffer(tensors["1"][2], np.uint8).reshape(-1, kind.block_bytes)
            codes = blocks[:, 2:, None] >> np.arange(0, 8, 2, np.uint8) & 3
            codes = codes.reshape(len(blocks), -1).astype(np.float32)
            scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
            got = kernels.dequantize(int(kind), file.tensor_bytes("1"))
            np.testing.assert_array_equal(got, ((codes - 1) * scales).reshape(-1))
