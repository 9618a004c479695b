"""Damaged and hostile GGUF files: each gives a load error that names what is wrong."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caudal.errors import ModelLoadError
from caudal.formats.gguf import GGUFFile
from caudal.formats.tensor_types import TensorType
from support.gguf_writer import (
    Raw,
    Tensor,
    Typed,
    encode_gguf,
    encode_tensor_info,
    string,
    write_gguf,
)

ROW: Tensor = (TensorType.F32, (8,), bytes(32))
MAX64 = 2**64 - 1


def header(tensors: int, pairs: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)


def with_tensors(*infos: bytes, data: bytes = bytes(64)) -> bytes:
    head = header(len(infos), 0) + b"".join(infos)
    return head + bytes(-len(head) % 32) + data


def with_value(value: Any) -> bytes:
    return encode_gguf({"key": value}, {})


def info(
    dimensions: Sequence[int], type_number: int = 0, offset: int = 0, name: str = "t"
) -> bytes:
    return encode_tensor_info(name, dimensions, type_number, offset)


def array(type_number: int, count: int, data: bytes = b"") -> Raw:
    return Raw(struct.pack("<IIQ", 9, type_number, count) + data)


NESTED = array(9, 1, struct.pack("<IQ", 9, 1) * 50)

CASES: dict[str, tuple[bytes, str]] = {
    # What the file is instead.
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
    "html": (b"  <!DOCTYPE html><html><body>404</body>", "HTML page"),
    "safetensors": (struct.pack("<Q", 40) + b'{"__metadata__":{}}' + bytes(40), "safetensors"),
    "zip": (b"PK\x03\x04" + bytes(60), "zip archive"),
    "ggml": (b"tjgg" + bytes(60), "legacy GGML"),
    "json": (b'{"error": "not found"}', "JSON file"),
    "zeros": (bytes(64), "all zeros"),
    "noise": (b"\x01\x02\x03\x04" + bytes(60), r"starts with b'\\x01\\x02\\x03\\x04'"),
    "empty": (b"", "file is empty"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "version 1": (b"GGUF" + struct.pack("<III", 1, 0, 0), "version 1"),
    "version 9": (header(0, 0, version=9), "version 9; Caudal reads versions 2 and 3"),
    "only magic": (b"GGUF", "version needs 4 bytes, but only 0 are left"),
    # Counts.
    "tensor count": (header(MAX64, 0), f"claims {MAX64} tensors"),
    "pair count": (header(0, 2**40), "claims 1099511627776 metadata pairs"),
    "pairs past the end": (header(0, 60000), "60000 metadata pairs needs"),
    "tensors past the end": (header(60000, 0), "60000 tensors needs"),
    # Keys.
    "key length": (header(0, 1) + struct.pack("<Q", 2**63) + bytes(20), "claims 92233720368"),
    "long key": (encode_gguf([("k" * 70000, 1)], {}), "claims 70000 bytes; 1 to 65535"),
    "empty key": (encode_gguf([("", 1)], {}), "key of metadata pair 0 claims 0 bytes"),
    "key encoding": (encode_gguf([(b"k\xff", 1)], {}), r"key .* is not valid UTF-8: b'k\\xff'"),
    "key twice": (encode_gguf([("k", 1), ("k", 2)], {}), "key k appears twice"),
    # Values.
    "string length": (
        with_value(Raw(struct.pack("<IQ", 8, 2**62))),
        "key needs 4611686018427387904",
    ),
    "value type": (with_value(Raw(struct.pack("<II", 77, 0))), "key has unknown value type 77"),
    "element type": (with_value(array(77, 1, bytes(8))), "key has unknown array element type 77"),
    "array count": (with_value(array(4, 2**62)), "key with 4611686018427387904 elements needs"),
    "string count": (with_value(array(8, 2**61)), "key with 2305843009213693952 strings needs"),
    "string in array": (
        with_value(array(8, 2, string("a") + struct.pack("<Q", MAX64))),
        r"key\[1\] runs past the end",
    ),
    "string array end": (with_value(array(8, 3, string("a" * 30))), r"key\[\d\] runs past the end"),
    "nested array": (with_value(NESTED), "key is an array of arrays"),
    "bool": (with_value(Raw(struct.pack("<IB", 7, 2))), "key is a bool with value 2"),
    "bool array": (with_value(array(7, 2, b"\x01\x02")), "key holds bools that are neither"),
    # Alignment.
    "alignment 0": (encode_gguf({"general.alignment": 0}, {}), "general.alignment must be a power"),
    "alignment 3": (encode_gguf({"general.alignment": 24}, {}), "between 8 and 65536, but is 24"),
    "alignment huge": (encode_gguf({"general.alignment": 2**31}, {}), "but is 2147483648"),
    "alignment type": (
        encode_gguf({"general.alignment": "32"}, {}),
        "general.alignment has type string, not an integer",
    ),
    # Tensors.
    "overflow": (with_tensors(info([2**63 - 1, 2, 1, 1])), "tensor t with dimensions .* truncated"),
    "overflow to zero": (with_tensors(info([2**32, 2**32])), "takes 73786976294838206464 bytes"),
    "zero dimension": (with_tensors(info([8, 0])), r"tensor t has a zero dimension: \[8, 0\]"),
    "no dimension": (with_tensors(info([])), "tensor t has 0 dimensions"),
    "five dimensions": (with_tensors(info([1, 1, 1, 1, 8])), "tensor t has 5 dimensions; 1 to 4"),
    "unknown type": (with_tensors(info([8], 99)), "tensor t has unknown type 99"),
    "type of our own": (with_tensors(info([256], 258)), "tensor t has unknown type 258"),
    "unsupported type": (with_tensors(info([256], 26)), "tensor t has type I32, .* Q4_K"),
    "intermediate type": (with_tensors(info([256], 9)), "type Q8_1, which holds activations"),
    "removed type": (with_tensors(info([256], 4)), "type Q4_2, .* convert the model anew"),
    "repacked type": (with_tensors(info([256], 31)), "type Q4_0_4_4, .* anew, as Q4_0$"),
    "partial block": (
        with_tensors(info([40], TensorType.Q4_0)),
        "tensor t has rows of 40 weights, not a multiple of Q4_0's block of 32",
    ),
    "misaligned": (with_tensors(info([4], offset=8)), "tensor t is at offset 8, not a multiple"),
    "offset past the end": (with_tensors(info([8], offset=2**40)), "tensor t ends at byte 10995"),
    "offset wraps": (with_tensors(info([8], offset=2**64 - 32)), "tensor t ends at byte 184467440"),
    "truncated data": (encode_gguf({}, {"t": ROW})[:-1], "tensor t ends at byte"),
    "overlap": (
        with_tensors(info([16]), info([4], offset=32, name="u")),
        "tensors t and u overlap",
    ),
    "tensor twice": (with_tensors(info([8]), info([8], offset=32)), "tensor t appears twice"),
    "tensor name length": (
        with_tensors(struct.pack("<Q", 2**60) + bytes(60)),
        "name of tensor 0 claims 1152921504606846976 bytes",
    ),
    "tensor name encoding": (
        with_tensors(string(b"\xc3(") + struct.pack("<IQIQ", 1, 8, 0, 0)),
        "name of tensor 0 is not valid UTF-8",
    ),
    "truncated tensor": (header(1, 0) + info([8])[:-4] + b"", "1 tensors needs"),
}


@pytest.mark.parametrize("case", CASES)
def test_fault_is_named(tmp_path: Path, case: str) -> None:
    data, message = CASES[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(ModelLoadError, match=message) as caught:
        GGUFFile.open(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(caught.value).startswith(f"cannot load {path}: ")
    assert peak < 2 << 20


def test_strings_of_a_file_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caudal.formats.gguf_cursor.MAX_ARRAY_STRINGS", 5)
    path = write_gguf(tmp_path / "m.gguf", {"a": ["x"] * 3, "b": ["y"] * 3})
    with pytest.raises(ModelLoadError, match="b has 3 strings; at most"):
        GGUFFile.open(path)


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no such file"):
        GGUFFile.open(tmp_path / "none.gguf")
    with pytest.raises(ModelLoadError, match="a directory"):
        GGUFFile.open(tmp_path)


def test_string_array_with_bad_encoding_names_the_element(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"words": ["a", b"\xff", "c"]})
    with (
        GGUFFile.open(path) as file,
        pytest.raises(ModelLoadError, match=r"words\[1\] is not valid UTF-8: b'\\xff'"),
    ):
        file.get_strings("words")


VALID = encode_gguf(
    {
        "general.architecture": "llama",
        "general.alignment": 32,
        "count": Typed("uint16", 7),
        "scale": 0.5,
        "flag": True,
        "words": ["one", "two", "three"],
        "numbers": np.arange(5, dtype=np.int64),
    },
    {
        "a.weight": (TensorType.F32, (4, 8), bytes(128)),
        "b.weight": (TensorType.Q8_0, (2, 32), bytes(68)),
    },
)
HEADER_BYTES = 500  # everything but the tensors' bytes

mutations = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, HEADER_BYTES), st.integers(0, 255)),
        st.tuples(
            st.just("number"),
            st.integers(0, HEADER_BYTES),
            st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, MAX64]),
        ),
        st.tuples(st.just("cut"), st.integers(0, len(VALID)), st.just(0)),
        st.tuples(st.just("drop"), st.integers(0, HEADER_BYTES), st.integers(1, 9)),
        st.tuples(st.just("repeat"), st.integers(0, HEADER_BYTES), st.integers(1, 60)),
    ),
    min_size=1,
    max_size=4,
)


@settings(
    max_examples=400, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=mutations)
def test_mutations_load_or_are_refused(tmp_path: Path, steps: list[tuple[str, int, int]]) -> None:
    data = VALID
    for action, position, argument in steps:
        if action == "set":
            data = data[:position] + bytes([argument]) + data[position + 1 :]
        elif action == "number":
            data = data[:position] + struct.pack("<Q", argument) + data[position + 8 :]
        elif action == "cut":
            data = data[:position]
        elif action == "drop":
            data = data[:position] + data[position + argument :]
        else:
            data = data[:position] + data[position : position + argument] + data[position:]
    path = tmp_path / "mutant.gguf"
    path.write_bytes(data)
    try:
        with GGUFFile.open(path) as file:
            for name, tensor in file.tensors.items():
                assert file.tensor_bytes(name).nbytes == tensor.nbytes
            file.get_strings("words", None)
            file.get_array("numbers", "int", None)
            file.get_int("count", None)
            file.get_float("scale", None)
    except ModelLoadError as error:
        assert str(path) in str(error)
