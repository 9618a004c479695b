"""SentencePiece Unigram, from GGUF and from `tokenizer.json`, against sentencepiece itself.

The vocabulary is one that sentencepiece made of Caudal's documentation, with a map of few
characters; what it makes of the texts was recorded, in XLM-RoBERTa's numbering.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caudal.errors import ModelLoadError
from caudal.formats.charsmap import check_charsmap
from caudal.formats.gguf import GGUFFile
from caudal.formats.huggingface.unigram import read_unigram
from caudal.formats.model_folder import ModelFolder
from caudal.formats.tokenizer import Tokenizer
from support.gguf_writer import write_gguf
from support.unigram_vocabulary import (
    BOS,
    CHARSMAP,
    CONTROL,
    EOS,
    PIECES,
    RECORDED,
    gguf_metadata,
    tokenizer_json,
)


def from_gguf(path: Path, **changes: Any) -> Tokenizer:
    metadata = gguf_metadata() | changes
    with GGUFFile.open(write_gguf(path / "model.gguf", metadata, {})) as file:
        return Tokenizer.from_gguf(file)


def from_folder(path: Path, **changes: Any) -> Tokenizer:
    (path / "tokenizer.json").write_text(json.dumps(tokenizer_json() | changes))
    (path / "config.json").write_text('{"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}')
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return read_unigram(ModelFolder.scan(path), len(PIECES))


@pytest.mark.parametrize("made", [from_gguf, from_folder])
def test_cuts_text_as_sentencepiece_does(made: Callable[[Path], Tokenizer], tmp_path: Path) -> None:
    tokenizer = made(tmp_path)
    for text, ids in RECORDED["texts"]:
        assert tokenizer.encode(text, add_special=False) == ids, text
        assert tokenizer.encode(text) == [BOS, *ids, EOS]
    assert tokenizer.decode(tokenizer.encode("Caudal  serves")) == " Caudal serves"
    assert tokenizer.kind in ("SentencePiece Unigram", "t5 (default)")
    assert tokenizer.separators == 2
    # What steers the model doesn't come of text, unless it may.
    assert not set(CONTROL) & set(tokenizer.encode("a </s> b <mask>", add_special=False))
    parsed = tokenizer.encode("a</s>", add_special=False, parse_special=True)
    assert parsed == [*tokenizer.encode("a", add_special=False), EOS]


def test_spaces_in_a_row_may_count(tmp_path: Path) -> None:
    texts = []
    for removed in (True, False):
        tokenizer = from_gguf(tmp_path, **{"tokenizer.ggml.remove_extra_whitespaces": removed})
        texts.append(tokenizer.decode(tokenizer.encode("Caudal  serves ", add_special=False)))
    assert texts == [" Caudal serves", " Caudal  serves "]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokenizer.ggml.scores": [0.0]}, "scores has 1 elements"),
        ({"tokenizer.ggml.add_space_prefix": False}, "add_space_prefix is false"),
        (
            {"tokenizer.ggml.precompiled_charsmap": np.array([8, 0, 0, 0, 1], np.int8)},
            "precompiled_charsmap is damaged: a trie of 8 bytes",
        ),
    ],
)
def test_what_a_gguf_file_gets_wrong_is_named(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        from_gguf(tmp_path, **change)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "?"}}, "is damaged"),
        ({"normalizer": {"type": "Prepend", "prepend": "x"}}, "normalizer 'Prepend' is not"),
        (
            {
                "normalizer": {
                    "type": "Replace",
                    "pattern": {"Regex": "(a+)+b"},
                    "content": "",
                }
            },
            "plain, non-empty String",
        ),
        ({"pre_tokenizer": None}, "doesn't write ▁ for spaces"),
        ({"pre_tokenizer": {"type": "Split"}}, "pre_tokenizer 'Split' is not"),
        ({"model": {"type": "Unigram", "vocab": [["a", 0.0]]}}, "model.unk_id is None"),
        ({"model": {"type": "Unigram", "unk_id": 0, "vocab": ["a"]}}, r"model\.vocab\[0\] is 'a'"),
        (
            {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0]], "byte_fallback": True}},
            "byte_fallback is true",
        ),
    ],
)
def test_what_a_folder_gets_wrong_is_named(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        from_folder(tmp_path, **change)


def test_maps_that_would_lead_astray_are_refused() -> None:
    size = int.from_bytes(CHARSMAP[:4], "little")
    texts = CHARSMAP[4 + size :]

    def refusal(units: bytes, texts: bytes) -> str:
        with pytest.raises(ModelLoadError) as caught:
            check_charsmap("model", "map", struct.pack("<I", len(units)) + units + texts)
        return str(caught.value)

    check_charsmap("model", "map", CHARSMAP)
    trie = CHARSMAP[4 : 4 + size]
    assert "leads outside" in refusal(trie[: 4 * 100], texts)
    assert "leads outside" in refusal(struct.pack("<I", 1 << 30) + trie[4:], texts)
    assert "points at no text" in refusal(trie, b"\0")
    assert "of up to 300 bytes" in refusal(trie, texts + b"a" * 300)
    assert "damaged" in refusal(trie, texts + b"\xff")
