from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from caudal.errors import StoreError
from caudal.store.pypi.wheel import (
    CarriedModel,
    extract,
    find_models,
    part_requirements,
    read_metadata,
)
from support.wheels import build_wheel, model_bytes

MODEL = model_bytes()


def wheel(directory: Path, **files: bytes) -> Path:
    return build_wheel(directory, "tiny", "1.0", {f"tiny/{k}": v for k, v in files.items()})


def contents(model: CarriedModel) -> list[bytes]:
    return [b"".join(extract(file, lambda _: None)) for file in model.files]


def test_one_file(tmp_path: Path) -> None:
    path = wheel(tmp_path, **{"data/m.Q4_0.gguf": MODEL, "__init__.py": b"raise SystemExit"})
    (model,) = find_models([path])
    assert (model.name, model.size) == ("m.Q4_0.gguf", len(MODEL))
    assert contents(model) == [MODEL]


def test_nothing(tmp_path: Path) -> None:
    assert find_models([wheel(tmp_path, **{"readme.md": b"a.gguf"})]) == []


@pytest.mark.parametrize("first", [0, 1])
def test_chunks_are_joined_by_number_not_by_name(tmp_path: Path, first: int) -> None:
    pieces = [MODEL[i : i + 20_000] for i in range(0, len(MODEL), 20_000)] + [b"end"]
    path = wheel(
        tmp_path, **{f"m.gguf.part{number}": piece for number, piece in enumerate(pieces, first)}
    )
    (model,) = find_models([path])
    assert model.name == "m.gguf"
    assert contents(model) == [MODEL + b"end"]


def test_chunks_of_several_wheels(tmp_path: Path) -> None:
    one = build_wheel(tmp_path, "tiny-part1", "1.0", {"a/m.gguf.part00": MODEL[:999]})
    two = build_wheel(tmp_path, "tiny-part2", "1.0", {"b/m.gguf.part01": MODEL[999:]})
    (model,) = find_models([two, one])
    assert contents(model) == [MODEL]
    with pytest.raises(StoreError, match="not a GGUF file"):
        contents(find_models([two])[0])
    with pytest.raises(StoreError, match="occurs twice"):
        find_models([one, one])


def test_a_missing_chunk(tmp_path: Path) -> None:
    path = wheel(tmp_path, **{"m.gguf.part00": MODEL, "m.gguf.part03": b"x"})
    with pytest.raises(StoreError, match=r"chunks \[1, 2\] are missing"):
        find_models([path])


def test_a_split_set(tmp_path: Path) -> None:
    path = wheel(
        tmp_path, **{"m-00002-of-00002.gguf": MODEL[:50], "m-00001-of-00002.gguf": MODEL[:60]}
    )
    (model,) = find_models([path])
    assert model.name == "m.gguf"
    assert [file.name for file in model.files] == [
        "m-00001-of-00002.gguf",
        "m-00002-of-00002.gguf",
    ]
    assert contents(model) == [MODEL[:60], MODEL[:50]]


def test_a_split_set_with_a_hole(tmp_path: Path) -> None:
    path = wheel(tmp_path, **{"m-00002-of-00003.gguf": MODEL})
    with pytest.raises(StoreError, match=r"m\.gguf is incomplete: files \[1, 3\] of 3"):
        find_models([path])


def test_several_models(tmp_path: Path) -> None:
    path = wheel(tmp_path, **{"b.gguf": MODEL, "a.gguf": MODEL})
    assert [model.name for model in find_models([path])] == ["a.gguf", "b.gguf"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS pointer"),
        (b"<!doctype html>", "not a GGUF file: it starts with b'<!do'"),
        (b"", "0 bytes"),
    ],
)
def test_not_a_model(tmp_path: Path, content: bytes, complaint: str) -> None:
    (model,) = find_models([wheel(tmp_path, **{"m.gguf": content})])
    with pytest.raises(StoreError, match=complaint):
        contents(model)


def test_content_that_differs_from_the_record(tmp_path: Path) -> None:
    path = build_wheel(
        tmp_path, "tiny", "1", {"m.gguf": MODEL}, record_of={"m.gguf": MODEL[:-1] + b"x"}
    )
    (model,) = find_models([path])
    with pytest.raises(StoreError, match=r"m\.gguf in tiny.* is damaged: its RECORD promises"):
        contents(model)


def test_a_size_that_differs_from_the_record_is_found_before_unpacking(tmp_path: Path) -> None:
    path = build_wheel(tmp_path, "tiny", "1", {"m.gguf": MODEL}, record_of={"m.gguf": b"GGUF"})
    with pytest.raises(StoreError, match=r"RECORD gives m\.gguf 4 bytes, the archive 200000"):
        find_models([path])


def test_a_flipped_bit(tmp_path: Path) -> None:
    path = wheel(tmp_path, **{"m.gguf": MODEL})
    data = bytearray(path.read_bytes())
    data[len(MODEL) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="damaged"):
        contents(find_models([path])[0])


@pytest.mark.parametrize("keep", [0, 10, 0.5, -1])
def test_a_truncated_archive(tmp_path: Path, keep: float) -> None:
    path = wheel(tmp_path, **{"m.gguf": MODEL})
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep) if isinstance(keep, float) else int(keep)])
    with pytest.raises(StoreError, match=r"tiny-1\.0-py3-none-any\.whl is damaged"):
        find_models([path])


def test_a_zip_that_is_no_wheel(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m.gguf", MODEL)
    with pytest.raises(StoreError, match="not a wheel: it has no RECORD"):
        find_models([path])


def test_metadata(tmp_path: Path) -> None:
    path = build_wheel(
        tmp_path,
        "tiny",
        "1",
        {},
        headers=[
            "Summary: A tiny model",
            "License: MIT",
            "Requires-Dist: tiny-part1==1.0",
            "Requires-Dist: Tiny_Part-2 (>=1.0)",
            "Requires-Dist: tiny-part3; extra == 'more'",
            "Requires-Dist: numpy",
            "Requires-Dist: !!!",
        ],
    )
    metadata = read_metadata(path)
    assert (metadata.licence, metadata.summary) == ("MIT", "A tiny model")
    assert part_requirements("tiny", metadata) == ["tiny-part1==1.0", "Tiny_Part-2>=1.0"]
