"""Incremental text: its pieces join to the text of all the tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caudal.errors import ParameterError
from caudal.formats.detokenizer import IncrementalDetokenizer
from caudal.formats.tokenizer import Tokenizer
from support.vocabularies import bpe_metadata, make_tokenizer, spm_metadata

VOCABULARIES = {
    "bpe": bpe_metadata(["Ã ©", "ð Ł", "a b"], user_defined=["é"]),
    "spm": {
        **spm_metadata({"▁": -1.0, "é": -2.0, "▁日": -3.0}),
        "tokenizer.ggml.add_space_prefix": False,
    },
}


@pytest.fixture(scope="module", params=VOCABULARIES)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("vocabulary"), VOCABULARIES[request.param])


@settings(max_examples=300)
@given(data=st.data(), skip=st.booleans())
def test_pieces_join_to_the_whole(tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1)))
    incremental = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    pieces = [incremental.push(token) for token in ids]
    joined = "".join(pieces) + incremental.finish()
    assert joined == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=100)
@given(text=st.text())
def test_text_arrives_whole(tokenizer: Tokenizer, text: str) -> None:
    incremental = IncrementalDetokenizer(tokenizer)
    ids = tokenizer.encode(text, add_special=False)
    joined = "".join(map(incremental.push, ids)) + incremental.finish()
    assert joined in (text, text.replace("▁", " "))  # SentencePiece reads ▁ as a space


def test_characters_are_held_back_until_complete(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, bpe_metadata())
    incremental = IncrementalDetokenizer(tokenizer)
    assert [incremental.push(byte) for byte in "é🦙".encode()] == ["", "é", "", "", "", "🦙"]
    assert [incremental.push(byte) for byte in b"\xf0\x9fa"] == ["", "", "\ufffda"]
    assert incremental.push(0xE6) == ""
    assert incremental.finish() == "\ufffd"


def test_unknown_id(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, bpe_metadata())
    with pytest.raises(ParameterError, match="token id 99999 is outside the vocabulary"):
        IncrementalDetokenizer(tokenizer).push(99999)
