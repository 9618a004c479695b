from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from caudal.errors import ModelLoadError
from caudal.formats.gguf import GGUFFile
from caudal.formats.model_folder import ModelFolder
from caudal.formats.tokenizer import Tokenizer
from support.tiny_bert import CLS, SEP, VOCABULARY, TinyBert, tokenizer_json

TEXTS = [
    "",
    "the",
    "The end.",
    "a, b, c!",
    "ABC naïve Ünïcode",
    "going  \t\n the",
    "snowman ☃ 你好",
    "zq" * 60,
    "3.14?",
]


def from_json(directory: Path, content: Any, **options: Any) -> Tokenizer:
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(content))
    return Tokenizer.from_folder(ModelFolder({"tokenizer.json": path}), **options)


@pytest.mark.parametrize("text", TEXTS)
def test_texts_become_what_the_library_makes_of_them(text: str, tmp_path: Path) -> None:
    ours = from_json(tmp_path, tokenizer_json())
    reference = Backend.from_str(json.dumps(tokenizer_json()))
    reference.no_truncation()
    reference.no_padding()
    assert ours.encode(text) == reference.encode(text).ids


@pytest.mark.parametrize("text", TEXTS)
def test_a_gguf_vocabulary_gives_the_same(text: str, tmp_path: Path) -> None:
    with GGUFFile.open(TinyBert().write_gguf(tmp_path / "m.gguf")) as file:
        ours = Tokenizer.from_gguf(file)
    assert ours.vocabulary.texts == VOCABULARY
    assert ours.encode(text) == from_json(tmp_path, tokenizer_json()).encode(text)


def test_control_tokens_in_a_text_stay_text(tmp_path: Path) -> None:
    ours = from_json(tmp_path, tokenizer_json())
    assert SEP not in ours.encode("a [SEP] b", add_special=False)
    assert ours.encode("a [SEP] b", add_special=False, parse_special=True) == [5, SEP, 6]
    assert ours.is_control(CLS)


def test_tokens_become_text_again(tmp_path: Path) -> None:
    ours = from_json(tmp_path, tokenizer_json())
    assert ours.decode(ours.encode("the go ing going")) == " the go ing going"


def test_upper_case_can_be_told_apart_or_not(tmp_path: Path) -> None:
    content = tokenizer_json()
    content["normalizer"]["lowercase"] = False
    unknown = [CLS, 1, SEP]
    assert from_json(tmp_path, content).encode("The") == unknown
    lower = [CLS, VOCABULARY.index("the"), SEP]
    assert from_json(tmp_path, content, lowercase=True).encode("The") == lower


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "model.type is 'BPE'"),
        ({"post_processor": None}, r"frames texts with the tokens \[\], not with"),
        ({"added_tokens": 5}, "added_tokens must be a list"),
        ({"pre_tokenizer": {"type": "Magic"}}, "pre_tokenizer 'Magic' is not supported; supported"),
        ({"pre_tokenizer": {"type": "Digits"}}, "not a tokenizer"),
        ({"normalizer": 3}, "normalizer has a step that is no object with a type: 3"),
        ({"pre_tokenizer": {"type": {}}}, "pre_tokenizer has a step that is no object with a type"),
        ({"normalizer": {"type": "Sequence"}}, "a Sequence without a list of normalizers"),
        ({"normalizer": {"type": "Precompiled"}}, "normalizer 'Precompiled' is not supported"),
    ],
)
def test_another_kind_of_tokenizer_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        from_json(tmp_path, tokenizer_json() | change)


def replace_step(pattern: Any, content: Any) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        # Four of these would make a gigabyte of a character.
        ([replace_step({"String": "a"}, "a" * 1000)] * 4, "makes 1000 characters of 1"),
        ([replace_step({"String": ""}, "")], "for a plain, non-empty String only"),
        ([replace_step({"Regex": "(a+)+b"}, "")], "for a plain, non-empty String only"),
        ([{"type": "Prepend", "prepend": "a" * 1000}], "normalizer 'Prepend' is not supported"),
        ([{"type": "Lowercase"}] * 33, "normalizer has more than 32 steps"),
        ([{"type": "Sequence", "normalizers": [{"type": "Lowercase"}] * 40}], "more than 32"),
    ],
)
def test_normalizers_that_could_be_made_costly_are_refused(
    steps: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        from_json(
            tmp_path,
            tokenizer_json() | {"normalizer": {"type": "Sequence", "normalizers": steps}},
        )


def test_pre_tokenizers_are_bounded_too(tmp_path: Path) -> None:
    regex = {"type": "Split", "pattern": {"Regex": "(a+)+b"}, "behavior": "Isolated"}
    with pytest.raises(ModelLoadError, match="pre_tokenizer 'Split' is not supported"):
        from_json(tmp_path, tokenizer_json() | {"pre_tokenizer": regex})
    content = tokenizer_json()
    content["model"]["max_input_chars_per_word"] = 2**40
    with pytest.raises(ModelLoadError, match="max_input_chars_per_word must be from 1 to 1000"):
        from_json(tmp_path, content)


def test_normalizers_that_shorten_are_taken(tmp_path: Path) -> None:
    steps = [{"type": "NFD"}, replace_step({"String": "``"}, "a"), {"type": "Lowercase"}]
    content = tokenizer_json() | {"normalizer": {"type": "Sequence", "normalizers": steps}}
    assert from_json(tmp_path, content).encode("``", add_special=False) == [VOCABULARY.index("a")]


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ({"[CLS]": 0, "[SEP]": 1, "[UNK]": 3}, "has 3 of the ids 0 to 3"),
        ({"[CLS]": 0, "[SEP]": 1, "[UNK]": -2}, "has the entry '.UNK.': -2"),
        ({"[CLS]": 0, "[SEP]": 1 << 40, "[UNK]": 2}, "has the entry '.SEP.'"),
        ({"[CLS]": 0, "[UNK]": 1}, r"has no token \[SEP\]"),
        (
            {"[CLS]": 0, "[SEP]": 1, "[UNK]": 2, "x" * 1001: 3},
            "the token 'x+'... has 1001 bytes; at most 1000",
        ),
    ],
)
def test_a_damaged_vocabulary_is_explained(
    vocabulary: dict[str, int], message: str, tmp_path: Path
) -> None:
    content = tokenizer_json() | {"added_tokens": []}
    content["model"]["vocab"] = vocabulary
    with pytest.raises(ModelLoadError, match=message):
        from_json(tmp_path, content)
