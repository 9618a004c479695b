"""Programs as the native library gets them, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from caudal import _native
from caudal.backends.native.executor import NativeExecutor, NativeOptions
from caudal.errors import ModelLoadError
from caudal.formats.gguf import GGUFFile
from caudal.models import build_program
from caudal.models.program import Attention, Buffer, Op, Program
from support.reference_model import TinyModel

OPTIONS = NativeOptions(num_blocks=1, max_batch_tokens=4, threads=1)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFFile]:
    model = TinyModel(architecture="qwen2", layers=1, biases=True)
    with GGUFFile.open(model.write(tmp_path_factory.mktemp("model") / "tiny.gguf")) as opened:
        yield opened


@pytest.fixture
def program(file: GGUFFile) -> Program:
    return build_program(file)


def refusal(file: GGUFFile, program: Program) -> str:
    with pytest.raises(ModelLoadError) as caught:
        NativeExecutor(file, program, OPTIONS)
    return str(caught.value)


def with_last_op(program: Program, op: Op) -> Program:
    return replace(program, body=(*program.body, op))


@dataclass(frozen=True, slots=True)
class Wish(Op):
    x: Buffer


def test_weights_are_found_in_the_fields_of_operations(program: Program) -> None:
    assert program.matrices[:2] == ("token_embd.weight", "blk.0.attn_q.weight")
    assert program.vectors[:2] == ("blk.0.attn_norm.weight", "blk.0.attn_q.bias")
    assert set(program.matrices).isdisjoint(program.vectors)


def test_an_operation_that_the_library_does_not_know_is_named(
    file: GGUFFile, program: Program
) -> None:
    wish = Wish(program.hidden)
    assert "there is no operation Wish" in refusal(file, with_last_op(program, wish))


def test_buffers_that_do_not_exist_are_refused(file: GGUFFile, program: Program) -> None:
    attention = next(op for op in program.body if isinstance(op, Attention))
    missing = replace(attention, v=Buffer(99, "v", attention.v.width))
    assert "Attention.v refers to something that doesn't exist" in refusal(
        file, with_last_op(program, missing)
    )
    missing = replace(attention, layer=1)
    assert "Attention.layer refers to something that doesn't exist" in refusal(
        file, with_last_op(program, missing)
    )


def test_a_buffer_must_be_filled_before_it_is_read(file: GGUFFile, program: Program) -> None:
    headless = replace(program, body=program.body[1:])
    assert "RMSNorm.x is read before anything was written" in refusal(file, headless)
    forgotten = replace(program, carried=program.carried[:1])
    assert "before anything was written" in refusal(file, forgotten)
    unfinished = replace(program, head=())
    assert "nothing has filled a buffer that others read" in refusal(file, unfinished)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"x": 0}, "Softcap.cap is missing"),
        ({"x": 0, "cap": "high"}, "Softcap.cap can't be 'high'"),
        ({"x": 0, "cap": None}, "Softcap.cap can't be None"),
        ({"x": 0, "cap": 1.0, "floor": 0.0}, "Softcap has fields that aren't known"),
    ],
)
def test_fields_must_be_those_that_the_library_knows(
    fields: dict[str, int | float | str | None], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        _native.Program([8], [], [], [], [("Softcap", fields)], [], [], [], [], 0, None, 0)
