"""Packed weights on the disk: made once, found again, and never used where they aren't right."""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from caudal import _native
from caudal.backends.executor import Batch, SamplingRow, SequenceStep
from caudal.backends.native import weights as native_weights
from caudal.backends.native.costs import Passed
from caudal.backends.native.disk_reads import read_rate
from caudal.backends.native.executor import NativeExecutor, NativeOptions
from caudal.backends.native.weights import announce, load_weights
from caudal.formats.gguf import GGUFFile
from caudal.formats.tensor_file import TensorInfo
from caudal.formats.tensor_types import TensorType
from caudal.models import build_program
from caudal.sampling_params import SamplingParams
from caudal.store.packed import PackedFiles
from caudal.store.packed_file import Source
from support.quantised_weights import TYPES
from support.reference_model import TinyExperts, TinyModel

MODEL = TinyModel(architecture="qwen3moe", experts=TinyExperts(count=4, used=2))

Answer = Sequence[tuple[int, float]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return MODEL.write(tmp_path / "tiny.gguf")


@pytest.fixture
def packed(tmp_path: Path) -> PackedFiles:
    return PackedFiles(tmp_path / "packed")


def start(
    model: Path, packed: PackedFiles | None, *, mapped: bool = True, memory: int | None = None
) -> Answer:
    """Load a model, and what it answers."""
    with GGUFFile.open(model) as file:
        options = NativeOptions(
            num_blocks=4,
            max_batch_tokens=32,
            threads=2,
            map_weights=mapped,
            weight_memory=memory,
        )
        kept = packed and packed.of_model(model.name, [Source.of(model, None)])
        executor = NativeExecutor(file, build_program(file), options, kept=kept)
    if executor.keeping is not None:
        executor.keeping.wait()
    is_mapped = executor.info.facts.weights_mapped
    assert is_mapped == (mapped and packed is not None and bool(packed.entries()))
    tokens, answer, context = [3, 1, 4, 1, 5, 9, 2, 6], [], 0
    for step in range(6):
        row = SamplingRow(SamplingParams(logprobs=0), seed=1, stream=0, step=step)
        [result] = executor.execute(Batch([SequenceStep(tokens, context, [0], [row])]))
        [sample] = result.samples
        assert sample.logprob is not None
        answer.append((sample.token, sample.logprob.logprob))
        context, tokens = context + len(tokens), [sample.token]
    executor.close()
    return answer


def only_file(packed: PackedFiles) -> Path:
    [entry] = packed.entries()
    assert not entry.is_stale
    return entry.path


def test_weights_are_packed_once_and_answers_are_the_same(
    model: Path, packed: PackedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = start(model, None, mapped=False)
    assert start(model, packed, mapped=False) == expected
    assert packed.entries() == []  # so little isn't worth it
    assert start(model, packed) == expected
    kept = only_file(packed).stat()
    monkeypatch.setattr(_native.Weights, "pack_matrix", None)  # nothing is packed any more
    assert start(model, packed) == expected
    assert start(model, packed, mapped=False) == expected
    assert only_file(packed).stat().st_ino == kept.st_ino


def test_weights_in_memory_are_kept_while_the_model_runs(
    model: Path, packed: PackedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_weights, "KEPT_FROM_BYTES", 0)
    expected = start(model, packed, mapped=False)
    in_memory = only_file(packed).read_bytes()
    only_file(packed).unlink()
    monkeypatch.undo()
    assert start(model, packed) == expected
    assert only_file(packed).read_bytes() == in_memory


class CountedTensors(dict[str, TensorInfo]):
    lookups = 0

    def __getitem__(self, name: str) -> TensorInfo:
        self.lookups += 1
        return super().__getitem__(name)


def test_many_experts_are_looked_at_once_each(tmp_path: Path) -> None:
    many = TinyModel(architecture="qwen3moe", experts=TinyExperts(count=32, used=2))
    shares: list[float] = []
    with GGUFFile.open(many.write(tmp_path / "many.gguf")) as file:
        program = build_program(file)
        counted = CountedTensors(file.tensors)
        file.tensors = counted
        loaded = load_weights(program, file, _native.Weights(1), progress=shares.append)
    assert counted.lookups < 2 * 32 * len(program.experts)
    assert len(loaded.numbers) > len(shares) > len(program.experts)  # not for each expert
    assert shares == sorted(set(shares))
    assert shares[-1] == 1


@pytest.mark.parametrize("experts", [None, TinyExperts(count=8, used=2, inner=512)])
def test_weights_that_memory_has_no_room_for_are_read_for_every_token(
    tmp_path: Path, packed: PackedFiles, experts: TinyExperts | None
) -> None:
    large = TinyModel(
        architecture="llama" if experts is None else "qwen3moe",
        hidden=256,
        feed_forward=1024,
        tied=False,
        experts=experts,
    )
    model = large.write(tmp_path / "large.gguf")
    expected = start(model, None, mapped=False)
    for memory in (0, 6 << 20, 64 << 20):
        assert start(model, packed, memory=memory) == expected
    with GGUFFile.open(model) as file:
        program = build_program(file)
        sizes = announce(program, file, _native.Weights(1)).sizes
    everyone = sum(sizes[name] for name in program.matrices if name != "token_embd.weight")
    once = everyone + sum(sizes[name] // 4 for name in program.experts)
    assert once == Passed.of(program, sizes).missing(0) > 1 << 20
    assert Passed.of(program, sizes).missing(sum(sizes.values())) == 0
    half = sum(sizes[name] for name in (*program.matrices, *program.experts)) // 2
    assert 0 < Passed.of(program, sizes).missing(half) < once


def test_a_disk_is_measured_past_what_is_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(5 << 20))
    assert 1e6 < read_rate(path, seconds=0.01) < 1e12


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(at: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        path.write_bytes(content)

    return change


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize(
    "damage", [cut, flip(0), flip(40), flip(-100)], ids=["cut", "magic", "header", "image"]
)
def test_what_is_damaged_is_made_again(
    model: Path, packed: PackedFiles, damage: Callable[[Path], None], *, mapped: bool
) -> None:
    expected = start(model, packed)
    whole = only_file(packed).read_bytes()
    damage(only_file(packed))
    assert start(model, packed, mapped=mapped) == expected
    assert start(model, packed) == expected
    assert only_file(packed).read_bytes() == whole


def test_another_file_of_the_same_name_has_weights_of_its_own(
    model: Path, packed: PackedFiles
) -> None:
    start(model, packed)
    first = only_file(packed)
    TinyModel(architecture="qwen3moe", experts=MODEL.experts, seed=1).write(model)
    assert packed.entries()[0].is_stale
    assert start(model, packed) == start(model, None, mapped=False)
    assert only_file(packed) != first  # which is gone


@pytest.mark.parametrize("reason", ["no right", "no space", "limit"])
def test_a_model_that_cannot_be_kept_runs_all_the_same(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    packed = PackedFiles(tmp_path / "packed", limit=0 if reason == "limit" else None)
    if reason == "no right":
        (tmp_path / "packed").write_bytes(b"")  # root may write to any directory, but not to this
    if reason == "no space":
        packed = PackedFiles(Path("/dev/full/packed"))
    expected = start(model, None, mapped=False)
    with caplog.at_level(logging.WARNING):
        assert start(model, packed) == expected
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        f"The packed weights of {model} can't be kept on the disk"
    ]


def test_a_killed_writer_leaves_nothing_that_is_used(
    model: Path, packed: PackedFiles, tmp_path: Path
) -> None:
    killed = f"""
import os, signal
from pathlib import Path
from caudal.backends.native.executor import NativeExecutor, NativeOptions
from caudal.formats.gguf import GGUFFile
from caudal.models import build_program
from caudal.store.packed import PackedFiles
from caudal.store.packed_file import PackedWriter, Source

PackedWriter.finish = lambda self, checksums: os.kill(os.getpid(), signal.SIGKILL)
model = Path({str(model)!r})
kept = PackedFiles(Path({str(tmp_path)!r}) / "packed").of_model("x", [Source.of(model, None)])
options = NativeOptions(num_blocks=1, max_batch_tokens=4, threads=1, map_weights=True)
with GGUFFile.open(model) as file:
    NativeExecutor(file, build_program(file), options, kept=kept)
"""
    status = subprocess.run([sys.executable, "-c", killed], check=False).returncode
    assert status == -signal.SIGKILL
    assert packed.entries() == []
    assert list((tmp_path / "packed").glob("*.new"))
    assert start(model, packed) == start(model, None, mapped=False)
    only_file(packed)
    assert not list((tmp_path / "packed").glob("*.new"))


def test_what_was_used_long_ago_gives_way_to_a_limit(tmp_path: Path) -> None:
    unlimited = PackedFiles(tmp_path / "packed")
    models = [
        TinyModel(architecture="llama", seed=seed).write(tmp_path / f"{seed}.gguf")
        for seed in range(3)
    ]
    for seed, model in enumerate(models[:2]):
        start(model, unlimited)
        [path] = [each.path for each in unlimited.entries() if each.model == model.name]
        os.utime(path, (seed, seed))
    size = unlimited.entries()[0].size
    start(models[2], PackedFiles(tmp_path / "packed", limit=2 * size))
    assert [entry.model for entry in unlimited.entries()] == ["1.gguf", "2.gguf"]
    assert len(unlimited.remove(lambda entry: True)) == 2
    assert unlimited.entries() == []


LAYOUTS = "b099282c82c51de9"


def test_a_changed_layout_has_another_number() -> None:
    """If this fails because panels are laid out otherwise, raise `kPanelLayout` (panel.h)."""
    digest = hashlib.sha256()
    for kind in sorted([TensorType[name] for name in TYPES] + [k for k in TensorType if k >= 256]):
        weights = _native.Weights(1)
        weights.add_matrix(kind, 32, 256)
        weights.hold_image()
        size = 32 * 256 // kind.block_elements * kind.block_bytes
        rows = np.random.default_rng(int(kind)).integers(0, 256, size, np.uint8)
        weights.pack_rows(0, 0, rows)
        digest.update(weights.image.tobytes())
    assert (_native.weight_layout(), digest.hexdigest()[:16]) == (1, LAYOUTS)
