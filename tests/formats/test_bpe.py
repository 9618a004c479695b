"""Byte-level BPE: every pre-tokenizer, and the byte alphabet."""

from __future__ import annotations

import dataclasses
import json
import time
import unicodedata
from pathlib import Path

import pytest

from caudal.formats.bpe import bpe_token_bytes, build_bpe, build_pre_tokenizer, byte_alphabet
from caudal.formats.bpe_pretokenizers import PRE_TOKENIZERS
from caudal.formats.gguf import GGUFFile
from caudal.formats.vocabulary import Vocabulary

DATA = Path(__file__).parent.parent / "data"

# What llama.cpp answers for SmolLM2's vocabulary with each kind of pre-tokenizer put in its place.
REFERENCE = json.loads((DATA / "tokenizer_pre_types.json").read_text())


@pytest.mark.parametrize("pre", REFERENCE["ids"])
def test_reference_ids(smollm2_path: Path, pre: str) -> None:
    with GGUFFile.open(smollm2_path) as file:
        vocabulary = dataclasses.replace(Vocabulary.from_gguf(file), pre=pre)
        backend = build_bpe(file, vocabulary)
    for text, ids in zip(REFERENCE["texts"], REFERENCE["ids"][pre], strict=True):
        assert backend.encode(text, add_special_tokens=False).ids == ids


def test_every_kind_of_pattern_has_reference_ids() -> None:
    referenced = {PRE_TOKENIZERS[pre].patterns for pre in REFERENCE["ids"]}
    assert {rules.patterns for rules in PRE_TOKENIZERS.values()} == referenced


@pytest.mark.parametrize("pre", REFERENCE["ids"])
def test_no_text_makes_a_pattern_slow(pre: str) -> None:
    """Each takes a few hundred milliseconds; a quadratic pattern would take minutes."""
    pre_tokenizer = build_pre_tokenizer(PRE_TOKENIZERS[pre])
    for text in (" " * 200_000 + "x", "\n" * 200_000 + "x", " \n" * 100_000 + "x", "aA" * 100_000):
        start = time.process_time()
        words = pre_tokenizer.pre_tokenize_str(text)
        assert time.process_time() - start < 10
        assert b"".join(bpe_token_bytes(word) for word, _ in words) == text.encode()


def test_byte_alphabet() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert (alphabet["a"], alphabet["Ġ"], alphabet["Ċ"], alphabet["é"]) == (97, 32, 10, 0xE9)
    assert not any(unicodedata.category(character).startswith(("C", "Z")) for character in alphabet)
    assert bpe_token_bytes("Ã©日") == "é日".encode()
