"""A program's sections follow from its operations."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from caudal.errors import ModelLoadError
from caudal.formats.gguf import GGUFFile
from caudal.models.decoder import Decoder
from caudal.models.program import Attention, Linear
from support.reference_model import TinyModel


def test_the_tail_begins_behind_the_last_attention_and_is_handed_what_it_reads(
    tmp_path: Path,
) -> None:
    """Here attention and MLP side by side, the MLP's inside first."""
    with GGUFFile.open(TinyModel(architecture="llama").write(tmp_path / "tiny.gguf")) as file:
        decoder = Decoder(file)
        rope = decoder.rope(interleaved=True)
        decoder.embed_tokens()
        for layer in decoder.layers():
            heads = layer.project(layer.norm("attn_norm"))
            layer.rotate(heads, rope)
            inner = layer.gated_mlp(layer.norm("ffn_norm"), "silu")
            layer.add(layer.attend(heads), "attn_output")
            layer.add(inner, "ffn_down")
        program = decoder.finish()
    assert isinstance(program.body[-1], Attention)
    assert [op.weight for op in program.tail if isinstance(op, Linear)] == [
        "blk.2.attn_output.weight",
        "blk.2.ffn_down.weight",
    ]
    assert len(program.tail) == 2
    assert [buffer.name for buffer in program.carried] == ["hidden", "up", "attended"]
    assert program.hidden.name == "hidden"
    assert program.head[: len(program.states)] == program.states


def test_a_family_that_reads_what_nothing_has_written_is_refused(tmp_path: Path) -> None:
    with GGUFFile.open(TinyModel(architecture="llama").write(tmp_path / "tiny.gguf")) as file:
        decoder = Decoder(file)
        for layer in decoder.layers():
            layer.add(layer.gated_mlp(layer.norm("ffn_norm"), "silu"), "ffn_down")
        with pytest.raises(ValueError, match="hidden is read, but no operation before"):
            decoder.finish()


def test_states_keep_nothing(tmp_path: Path) -> None:
    with GGUFFile.open(TinyModel(architecture="llama").write(tmp_path / "tiny.gguf")) as file:
        decoder = Decoder(file)
        decoder.embed_tokens()
        [layer, *_] = decoder.layers()
        heads = layer.project(layer.norm("attn_norm"))
        decoder.b.begin_states()
        with pytest.raises(ValueError, match="don't see every token"):
            layer.attend(heads)


def test_rows_of_fused_matrices_are_all_used_once(tmp_path: Path) -> None:
    model = TinyModel(architecture="llama", layers=1, feed_forward=64)
    with GGUFFile.open(model.write(tmp_path / "tiny.gguf")) as file:
        for first_rows, problem in (
            ((0, 32), None),
            ((0, 16), "rows from 16 are used twice"),
            ((32,), "rows 0 to 31 aren't used"),
            ((0,), "rows 32 to 63 aren't used"),
            ((40,), "has 64 rows instead of at least 72"),
        ):
            decoder = Decoder(file)
            decoder.embed_tokens()
            with nullcontext() if problem is None else pytest.raises(ModelLoadError, match=problem):
                for first in first_rows:
                    part = decoder.b.buffer("part", 32)
                    decoder.b.linear(decoder.hidden, "blk.0.ffn_up", part, first_row=first)
                for other in ("attn", "ffn_norm", "ffn_gate", "ffn_down"):
                    decoder.b.leave_out(f"blk.0.{other}")
                decoder.finish()
