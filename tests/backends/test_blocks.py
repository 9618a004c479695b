"""Blocks and slots are read as bytes, and mean the same wherever they are written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caudal.backends.backend import BackendOptions, RunLimits
from caudal.backends.executor import Batch, SequenceStep, StateSlots, TokenLogprob
from caudal.backends.native.backend import NativeBackend
from caudal.backends.native.executor import NativeExecutor
from caudal.formats.gguf import GGUFFile
from caudal.models import build_program
from support.reference_hybrids import TinyQwen35
from support.reference_model import TinyModel

MODELS = {
    "llama": TinyModel(architecture="llama"),
    "gemma3": TinyModel(architecture="gemma3", layers=7, window=20, kv_heads=1, head_dim=24),
    "qwen35": TinyQwen35(),
}
PROMPT = [(7 * i * i + 3 * i) % 60 + 1 for i in range(48)]


def opened(path: Path, **options: str) -> NativeExecutor:
    backend = NativeBackend()
    with GGUFFile.open(path) as file:
        program = build_program(file)
        limits = RunLimits(
            max_model_len=64, max_num_seqs=2, max_num_batched_tokens=64, kv_memory=8 << 20
        )
        plan = backend.plan(file, program, BackendOptions(threads=1, **options), limits)
        return backend.open(file, program, plan)


def scores(
    executor: NativeExecutor, blocks: list[int], first: int, end: int, slot: int
) -> list[TokenLogprob]:
    """Computes a part of the prompt, and how likely each of its tokens was."""
    state = StateSlots(slot if first else None, slot) if executor.info.num_slots else None
    step = SequenceStep(
        PROMPT[first:end],
        first,
        blocks,
        score_targets=PROMPT[first + 1 : end + 1],
        window_tables=[blocks] * len(executor.info.windows),
        state=state,
    )
    [result] = executor.execute(Batch([step]))
    return list(result.scores)


@pytest.mark.parametrize("name", MODELS)
def test_blocks_of_one_executor_go_on_in_another(name: str, tmp_path: Path) -> None:
    path = MODELS[name].write(tmp_path / "tiny.gguf")
    one, other = opened(path), opened(path)
    assert one.fingerprint() == other.fingerprint() == one.fingerprint()
    sizes = one.info.block_bytes
    assert len(sizes) == 1 + len(one.info.windows) + (one.info.num_slots > 0)
    scores(one, [0, 1, 2], 0, 32, slot=1)
    for kind, size in enumerate(sizes):
        sources, places = ([0, 1], [3, 2]) if kind <= len(one.info.windows) else ([1], [0])
        data = np.zeros(size * len(sources), np.uint8)
        one.read_blocks(kind, sources, data)
        assert data.any()
        other.write_blocks(kind, places, data.tobytes())
        with pytest.raises(IndexError):
            one.read_blocks(kind, [-1], data[:size])
        with pytest.raises(ValueError, match="another number of bytes"):
            one.write_blocks(kind, sources, data[:-1])
    with pytest.raises(IndexError):
        one.read_blocks(len(sizes), [0], data)
    assert scores(other, [3, 2, 5], 32, 47, slot=0) == scores(one, [0, 1, 2], 32, 47, slot=1)


def test_the_fingerprint_is_of_what_is_computed_and_how(tmp_path: Path) -> None:
    model = MODELS["llama"]
    path = model.write(tmp_path / "tiny.gguf")
    longer = TinyModel(architecture="llama", rope_base=20000.0).write(tmp_path / "longer.gguf")
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    (tmp_path / "other.gguf").write_bytes(changed)
    made = [
        opened(path),
        opened(path, kv_type="f32"),
        opened(path, activations="f32"),
        opened(longer),
        opened(tmp_path / "other.gguf"),
    ]
    assert len({executor.fingerprint() for executor in made}) == len(made)
    (tmp_path / "moved.gguf").write_bytes(path.read_bytes())
    assert opened(tmp_path / "moved.gguf").fingerprint() == made[0].fingerprint()
