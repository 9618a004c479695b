"""Tokenizers: reference ids on real models, special tokens, damaged vocabularies."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caudal.errors import ModelLoadError, ParameterError
from caudal.formats.fill_tokens import FillTokens
from caudal.formats.gguf import GGUFFile
from caudal.formats.tokenizer import Tokenizer
from support.vocabularies import bpe_metadata, make_tokenizer, spm_metadata

DATA = Path(__file__).parent.parent / "data"


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    with GGUFFile.open(smollm2_path) as file:
        return Tokenizer.from_gguf(file)


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path) -> Tokenizer:
    with GGUFFile.open(gemma3_path) as file:
        return Tokenizer.from_gguf(file)


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    metadata = bpe_metadata(
        ["h i", "Ġ hi", "l l", "ll o"], user_defined=["</think>", "<tool_call>", "   "]
    )
    return make_tokenizer(tmp_path_factory.mktemp("chatml"), metadata)


def check_golden(tokenizer: Tokenizer, name: str) -> None:
    rows = json.loads((DATA / f"tokenizer_{name}.json").read_text())
    assert len(rows) >= 20
    for row in rows:
        assert tokenizer.encode(row["text"], add_special=False) == row["ids"], row["text"]
        assert tokenizer.decode(row["ids"]) == row["text"]


def test_golden_smollm2(smollm2: Tokenizer) -> None:
    check_golden(smollm2, "smollm2")
    assert (smollm2.vocab_size, smollm2.bos_id, smollm2.eos_id) == (49152, 1, 2)
    assert smollm2.eos_ids == {0, 2}
    assert not smollm2.add_bos


def test_golden_gemma3(gemma3: Tokenizer) -> None:
    check_golden(gemma3, "gemma3")
    assert (gemma3.vocab_size, gemma3.bos_id, gemma3.eos_id) == (262144, 2, 1)
    # <eos> and <end_of_turn>; </s> is HTML in this vocabulary.
    assert gemma3.eos_ids == {1, 106}
    assert gemma3.encode("Hello") == [2, 9259]


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(text=st.text())
def test_round_trip(smollm2: Tokenizer, gemma3: Tokenizer, text: str) -> None:
    # SentencePiece reads ▁ as a space, and SmolLM2 has no tokens for some control characters.
    assert gemma3.decode(gemma3.encode(text)) == text.replace("▁", " ")
    printable = "".join(character for character in text if character.isprintable())
    assert smollm2.decode(smollm2.encode(printable)) == printable


def test_control_tokens_in_text_are_text(chatml: Tokenizer) -> None:
    start, end = chatml.special_tokens["<|im_start|>"], chatml.special_tokens["<|im_end|>"]
    text = "<|im_start|>hi<|im_end|>"
    plain = chatml.encode(text)
    assert not {start, end} & set(plain)
    assert chatml.decode(plain) == text
    parsed = chatml.encode(text, parse_special=True)
    assert [parsed[0], parsed[-1]] == [start, end]
    assert chatml.decode(parsed) == "hi"
    assert chatml.decode(parsed, skip_special_tokens=False) == text


def test_user_defined_tokens_always_match(chatml: Tokenizer) -> None:
    think = chatml.token_id("</think>")
    assert think in chatml.encode("a</think>b")
    assert not chatml.is_control(think or 0)
    assert chatml.token_bytes(think or 0) == b"</think>"
    assert chatml.token_id("   ") in chatml.encode("a   b")


def test_end_tokens_by_text_and_kind(tmp_path: Path) -> None:
    metadata = bpe_metadata(["< /", "s >", "</ s>"], control=["<|eos|>", "<|eot_id|>"])
    tokenizer = make_tokenizer(tmp_path, metadata)
    # The vocabulary's "</s>" comes from a merge: it is text.
    assert tokenizer.token_id("</s>") is not None
    assert tokenizer.eos_ids == {tokenizer.eos_id, tokenizer.token_id("<|eot_id|>")}


def test_end_of_message_is_no_end_of_answer(tmp_path: Path) -> None:
    metadata = bpe_metadata(control=["<|return|>", "<|end|>", "<|call|>"])
    tokenizer = make_tokenizer(tmp_path, metadata)
    assert {tokenizer.token_text(i) for i in tokenizer.eos_ids} == {"<|return|>", "<|call|>"}
    metadata = bpe_metadata(control=["<|endoftext|>", "<|end|>"])
    tokenizer = make_tokenizer(tmp_path, metadata)
    assert {tokenizer.token_text(i) for i in tokenizer.eos_ids} == {"<|endoftext|>", "<|end|>"}


@pytest.mark.parametrize(
    ("control", "ends"),
    [
        (["<eos>", "<turn|>", "<|tool_response>", "<|turn>"], 3),
        (["<|endoftext|>", "<|user|>", "<|observation|>", "<|assistant|>"], 3),
        (["<|endoftext|>", "<|user|>", "<|assistant|>"], 1),
        (["<|end_of_text|>", "<|eot|>", "<|eom|>"], 2),
    ],
)
def test_what_ends_an_answer_in_each_family(control: list[str], ends: int, tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, bpe_metadata(control=control))
    assert {tokenizer.token_text(i) for i in tokenizer.eos_ids} == set(control[:ends])


def test_what_is_written_around_a_gap(tmp_path: Path) -> None:
    texts = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    by_text = make_tokenizer(tmp_path, bpe_metadata(control=("<|end|>", *texts)))
    found = by_text.fill_tokens
    assert found is not None
    assert [found.prefix, found.suffix, found.middle] == [*map(by_text.token_id, texts)]
    keys = ("fim_pre", "suffix", "fim_mid")  # one of them as older files call it
    ids = {f"tokenizer.ggml.{key}_token_id": 65 + place for place, key in enumerate(keys)}
    by_key = make_tokenizer(tmp_path, bpe_metadata() | ids)
    assert by_key.fill_tokens == FillTokens(65, 66, 67)
    assert make_tokenizer(tmp_path, bpe_metadata()).fill_tokens is None


def test_one_bos_only(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, spm_metadata({"▁": -1.0, "a": -2.0}))
    assert tokenizer.add_bos
    assert tokenizer.encode("a")[0] == 1
    assert tokenizer.encode("<s>a", parse_special=True).count(1) == 1
    assert tokenizer.encode("a", add_special=False).count(1) == 0
    assert tokenizer.encode("") == [1]


def test_eos_is_added_where_the_model_wants_it(tmp_path: Path) -> None:
    metadata = {**bpe_metadata(), "tokenizer.ggml.add_eos_token": True}
    tokenizer = make_tokenizer(tmp_path, metadata)
    eos = tokenizer.eos_id
    assert tokenizer.encode("a") == [ord("a"), eos]
    assert tokenizer.encode("<|endoftext|>", parse_special=True) == [eos]


def test_surrogates_never_crash(chatml: Tokenizer, gemma3: Tokenizer) -> None:
    for tokenizer in (chatml, gemma3):
        assert tokenizer.decode(tokenizer.encode("a\ud800b \ud83d\ude00")) == "a\ufffdb 😀"


def test_ids_are_checked(chatml: Tokenizer) -> None:
    size = chatml.vocab_size
    for bad in (-1, size, 2**40):
        with pytest.raises(ParameterError, match=rf"token id {bad} is outside .*0 to {size - 1}"):
            chatml.decode([0, bad])


def test_token_bytes(chatml: Tokenizer, gemma3: Tokenizer) -> None:
    assert chatml.token_bytes(255) == b"\xff"
    assert chatml.token_bytes(chatml.encode(" hi")[0]) == b" hi"
    ids = gemma3.encode(" Hello 🦙", add_special=False)
    assert b"".join(map(gemma3.token_bytes, ids)) == " Hello 🦙".encode()
    assert len(ids) > 4  # the llama is bytes


@pytest.mark.parametrize("text", ["a", " ", "\n", "<"])
def test_a_megabyte_of_one_character(smollm2: Tokenizer, gemma3: Tokenizer, text: str) -> None:
    """Linear, or nearly: about half a second each."""
    for tokenizer in (smollm2, gemma3):
        start = time.process_time()
        tokenizer.encode(text * 1_000_000 + "x")
        assert time.process_time() - start < 10


def load(folder: Path, **changes: Any) -> Tokenizer:
    """A tokenizer from a good SentencePiece vocabulary with some keys changed or removed."""
    metadata = spm_metadata({"▁": -1.0, "a": -2.0})
    for name, value in changes.items():
        metadata["tokenizer.ggml." + name] = value
    return make_tokenizer(folder, {k: v for k, v in metadata.items() if v is not None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "rwkv"}, r"tokenizer\.ggml\.model 'rwkv' is not supported; supported are gpt2"),
        ({"model": None}, r"metadata key tokenizer\.ggml\.model is missing"),
        ({"tokens": None}, r"metadata key tokenizer\.ggml\.tokens is missing"),
        ({"tokens": []}, r"tokenizer\.ggml\.tokens is empty"),
        (
            {"scores": np.zeros(261, np.uint8)},
            r"tokenizer\.ggml\.scores has type array of uint8, not an array of float32",
        ),
        ({"scores": None}, r"metadata key tokenizer\.ggml\.scores is missing"),
        ({"scores": [0.0] * 9}, r"scores has 9 elements, but tokenizer\.ggml\.tokens has 261"),
        ({"scores": [0.0] * 260 + [float("nan")]}, r"scores\[260\] is not a number"),
        ({"tokens": ["\u2581" * 334] + ["a"] * 260}, r"has 1002 bytes; at most 1000 are supported"),
        ({"token_type": [1] * 9}, r"token_type has 9 elements, but tokenizer\.ggml\.tokens has"),
        ({"token_type": [1] * 260 + [9]}, r"token_type\[260\] is 9; 0 to 6 are defined"),
        ({"token_type": [6] * 261}, "byte token '<unk>' is not of the form <0xNN>"),
        ({"eos_token_id": 261}, r"eos_token_id is 261, but token ids are 0 to 260"),
        ({"bos_token_id": "x"}, r"bos_token_id has type string, not an integer"),
        ({"suppress_tokens": 5}, r"suppress_tokens has type uint32, not an array of integers"),
        ({"add_bos_token": 1}, r"add_bos_token has type uint32, not bool"),
    ],
)
def test_damaged_vocabulary_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        load(tmp_path, **changes)


def test_what_no_answer_has_is_told_by_the_file(tmp_path: Path) -> None:
    named = np.array([-1, 7, 260, 261], np.int32)
    assert load(tmp_path, suppress_tokens=named).suppressed_ids == {7, 260}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "martian"}, r"tokenizer\.ggml\.pre 'martian' is unknown; known are .*llama-bpe"),
        (
            {"merges": None},
            r"tokenizer\.ggml\.merges is missing, .* convert the model anew",
        ),
        ({"merges": ["ab"]}, r"merges\[0\] is 'ab', not two parts and a space"),
        ({"merges": ["a b"]}, r"merges\[0\] is 'a b', but 'ab' is not in tokenizer\.ggml\.tokens"),
        ({"add_bos_token": True}, r"add_bos_token is true, but .*bos_token_id is missing"),
    ],
)
def test_damaged_bpe_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    metadata = bpe_metadata()
    for name, value in changes.items():
        metadata["tokenizer.ggml." + name] = value
    with pytest.raises(ModelLoadError, match=message):
        make_tokenizer(tmp_path, {k: v for k, v in metadata.items() if v is not None})
