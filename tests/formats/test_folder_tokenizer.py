"""Tokenizers of decoders' folders give what the tokenizers library gives for the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from caudal.errors import ModelLoadError
from caudal.formats.bpe import byte_alphabet
from caudal.formats.huggingface.chat_templates import chat_template_keys
from caudal.formats.huggingface.tokenizer import read_tokenizer
from caudal.formats.model_folder import ModelFolder
from caudal.formats.tokenizer import Tokenizer

TEXTS = ["Hello world", " it's 12345!\n\n x", "a  b   c", "né 🦙 ▁ <tool> x", "aaab baab", ""]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def added(token: int, text: str, *, special: bool = True, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": text, "special": special, **plain, **flags}


def byte_level(pre_tokenizer: dict[str, Any]) -> dict[str, Any]:
    texts = [*byte_alphabet(), "Ġw", "ll", "aa", "aab", "Ġ1", "12"]
    return {
        "added_tokens": [
            added(262, "<|begin|>"),
            added(263, "<|end|>", rstrip=True),
            added(264, "<tool>", special=False),
            added(266, "<|plain|>", special=False),
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": pre_tokenizer,
        "post_processor": {
            "type": "Sequence",
            "processors": [
                BYTE_LEVEL,
                {
                    "type": "TemplateProcessing",
                    "single": [
                        {"SpecialToken": {"id": "<|begin|>", "type_id": 0}},
                        {"Sequence": {"id": "A", "type_id": 0}},
                    ],
                    "pair": [],
                    "special_tokens": {
                        "<|begin|>": {"id": "<|begin|>", "ids": [262], "tokens": ["<|begin|>"]}
                    },
                },
            ],
        },
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "vocab": {text: token for token, text in enumerate(texts)},
            "merges": [["Ġ", "w"], ["l", "l"], ["a", "a"], ["aa", "b"], ["Ġ", "1"], ["1", "2"]],
        },
    }


def sentencepiece(
    normalizer: dict[str, Any] | None, pre_tokenizer: dict[str, Any] | None
) -> dict[str, Any]:
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    texts += [*"▁abcdelorwH", "▁▁", "▁w", "ll", "▁H", "aa", "aab", "o▁w"]
    return {
        "added_tokens": [
            *(added(token, texts[token]) for token in range(3)),
            added(texts.index("▁▁"), "▁▁", special=False),
            added(len(texts), "<tool>", special=False),
        ],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {text: token for token, text in enumerate(texts)},
            "merges": ["▁ ▁", "o ▁w", "▁ w", "l l", "▁ H", "a a", "aa b"],
        },
    }


PREPEND = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}
REPLACE = PREPEND["normalizers"][1]  # type: ignore[index]
FILES = {
    "GPT-2": byte_level({**BYTE_LEVEL, "use_regex": True}),
    "Llama 3": byte_level(
        {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": LLAMA3},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {**BYTE_LEVEL, "use_regex": False},
            ],
        }
    ),
    "Llama 2": sentencepiece(PREPEND, None),
    "Mistral": sentencepiece(
        None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    ),
    "Mistral, words": sentencepiece(
        None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    ),
    "Gemma": sentencepiece(
        REPLACE,
        {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
    ),
}


def read(folder: Path, content: dict[str, Any], rows: int = 320, **files: Any) -> Tokenizer:
    folder.mkdir(exist_ok=True)
    contents = {"config": {"model_type": "llama"}, "tokenizer": content, **files}
    for name, each in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(each))
    return read_tokenizer(ModelFolder.scan(folder), rows)


@pytest.mark.parametrize("name", FILES)
def test_encodes_as_the_library_does(name: str, tmp_path: Path) -> None:
    content = FILES[name]
    ours = read(tmp_path / "m", content)
    library = Backend.from_str(json.dumps({"version": "1.0", **content}))
    for text in TEXTS:
        if name == "Llama 2" and "<tool>" in text:
            continue  # there a space is put behind added tokens, too
        ids = ours.encode(text, add_special=False)
        assert ids == library.encode(text, add_special_tokens=False).ids, text
        if "Gemma" in name or isinstance(content["decoder"], dict):
            assert ours.decode(ids) == text.replace("▁", " " if "Gemma" in name else "▁")


def test_roles_come_from_the_files_beside_it(tmp_path: Path) -> None:
    content = FILES["GPT-2"]
    bare = read(tmp_path / "bare", content, config={"model_type": "llama", "eos_token_id": [7, 8]})
    assert (bare.bos_id, bare.add_bos, bare.eos_ids) == (None, False, {7, 8, 263})
    full = read(
        tmp_path / "full",
        content,
        tokenizer_config={"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}},
        generation_config={"eos_token_id": [263, 261], "suppress_tokens": [5, 266, 267]},
    )
    assert (full.bos_id, full.add_bos, full.eos_id) == (262, True, 263)
    assert full.eos_ids == {261, 263}
    assert full.suppressed_ids == {5, 266}  # there is no 267
    assert full.encode("<|end|>  \n x", parse_special=True)[:2] == [262, 263]
    assert full.encode("<|end|>  x", parse_special=True, add_special=False)[1] == ord("x") - 33
    assert full.is_control(266)  # looks like one, whatever the file says
    assert not full.is_control(264)
    assert full.vocab_size == 267  # 265 is a hole
    assert full.decode([265, 264]) == "<tool>"
    with pytest.raises(ModelLoadError, match="eos_token_id is 900, but token ids are 0 to 266"):
        read(tmp_path / "bad", content, generation_config={"eos_token_id": 900})
    with pytest.raises(ModelLoadError, match=r"suppress_tokens must be token ids, but is \['a'\]"):
        read(tmp_path / "worse", content, generation_config={"suppress_tokens": ["a"]})


@pytest.mark.parametrize("kind", ["BertProcessing", "RobertaProcessing"])
def test_a_frame_may_be_of_two_tokens_by_name(kind: str, tmp_path: Path) -> None:
    frame = {"type": kind, "cls": ["<|begin|>", 262], "sep": ["<|end|>", 263]}
    content = {**FILES["GPT-2"], "post_processor": frame}
    settings = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    framed = read(tmp_path / "m", content, tokenizer_config=settings)
    assert framed.encode("a") == [262, *framed.encode("a", add_special=False), 263]


def test_what_ends_a_text_to_encode_may_not_be_what_ends_an_answer(tmp_path: Path) -> None:
    content = json.loads(json.dumps(FILES["GPT-2"]))
    template = content["post_processor"]["processors"][1]
    template["single"] = [template["single"][1], {"SpecialToken": {"id": "<|end|>", "type_id": 0}}]
    config = {"bos_token": "<|begin|>", "eos_token": "<|plain|>"}
    made = read(tmp_path, content, tokenizer_config=config)
    assert made.encode("x") == [ord("x") - 33, 263]
    assert made.eos_ids == {263, 266}


def test_added_tokens_without_a_row_are_left_out_but_no_others(tmp_path: Path) -> None:
    assert read(tmp_path / "m", FILES["GPT-2"], rows=264).vocab_size == 264
    with pytest.raises(ModelLoadError, match=r"267 tokens, '12' among them, .* 261 rows"):
        read(tmp_path / "m", FILES["GPT-2"], rows=261)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pre_tokenizer": split("(a+)+$"), "normalizer": None}, "pre_tokenizer 'Split' is not"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split("(a+)+$"), BYTE_LEVEL]}},
         "a regular expression that isn't known"),
        ({"pre_tokenizer": None, "normalizer": None}, "neither ByteLevel nor SentencePiece"),
        ({"pre_tokenizer": {**BYTE_LEVEL, "add_prefix_space": True}}, "add_prefix_space"),
        ({"normalizer": {"type": "Precompiled"}}, "normalizer 'Precompiled' is not supported"),
        ({"model": {"type": "Unigram", "vocab": []}}, "model.type is 'Unigram'"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]}}, "is .* not two parts"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "has the entry 'a': -1"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        read(tmp_path / "m", FILES["GPT-2"] | change)


def test_chat_templates(tmp_path: Path) -> None:
    def keys(**files: Any) -> Any:
        for path in tmp_path.glob("*"):
            path.unlink()
        for name, content in files.items():
            suffix = "jinja" if isinstance(content, str) else "json"
            text = content if isinstance(content, str) else json.dumps(content)
            (tmp_path / f"{name}.{suffix}").write_text(text)
        return chat_template_keys(ModelFolder.scan(tmp_path))

    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    key = "tokenizer.chat_template"
    assert keys() == {}
    assert keys(tokenizer_config={"chat_template": "a"}) == {key: "a"}
    assert keys(tokenizer_config={"chat_template": named}) == {key: "a", f"{key}.tool_use": "b"}
    assert keys(tokenizer_config={"chat_template": "a"}, chat_template="c") == {key: "c"}
    with pytest.raises(ModelLoadError, match="must be a text or a list"):
        keys(tokenizer_config={"chat_template": 1})
