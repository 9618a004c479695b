"""SentencePiece tokenization against a plain implementation of its algorithm."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from caudal.formats.tokenizer import Tokenizer
from support.vocabularies import make_tokenizer, spm_metadata


def merge_best_pairs(text: str, scores: dict[str, float]) -> list[str]:
    """Joins, again and again, the neighbours that make the best-scored piece, leftmost first."""
    symbols = list(text)
    while True:
        best = max(
            (
                (scores[symbols[i] + symbols[i + 1]], -i)
                for i in range(len(symbols) - 1)
                if symbols[i] + symbols[i + 1] in scores
            ),
            default=None,
        )
        if best is None:
            return symbols
        left = -best[1]
        symbols[left : left + 2] = [symbols[left] + symbols[left + 1]]


def expected_ids(tokenizer: Tokenizer, text: str, scores: dict[str, float]) -> list[int]:
    ids = []
    for symbol in merge_best_pairs(text.replace(" ", "▁"), scores):
        token = tokenizer.token_id(symbol) if symbol in scores else None
        ids += [token] if token is not None else [3 + byte for byte in symbol.encode()]
    return ids


@pytest.mark.parametrize("seed", range(8))
def test_same_as_the_plain_algorithm(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    alphabet = "ab▁é"[: rng.randint(2, 4)]
    # As in a trained vocabulary, each piece is made of two others; the scores are distinct and in
    # no relation to the order in which pieces were made.
    pieces = list(alphabet)
    for _ in range(rng.randint(5, 60)):
        pieces.append(rng.choice(pieces) + rng.choice(pieces))
    pieces = [piece for piece in dict.fromkeys(pieces) if len(piece) <= 12]
    ranks = rng.sample(range(len(pieces)), len(pieces))
    scores = {piece: -float(rank) for piece, rank in zip(pieces, ranks, strict=True)}
    metadata = {**spm_metadata(scores), "tokenizer.ggml.add_space_prefix": False}
    tokenizer = make_tokenizer(tmp_path, metadata)
    for _ in range(300):
        text = "".join(rng.choices(alphabet + "z日", k=rng.randint(1, 30))).replace("▁", " ")
        ids = tokenizer.encode(text, add_special=False)
        assert ids == expected_ids(tokenizer, text, scores), (text, scores)


def test_space_prefix_follows_every_special_token(tmp_path: Path) -> None:
    scores = {"▁": -1.0, "a": -2.0, "▁a": -3.0}
    tokenizer = make_tokenizer(tmp_path, spm_metadata(scores, user_defined=["<x>"]))
    prefixed, x = tokenizer.token_id("▁a"), tokenizer.token_id("<x>")
    assert tokenizer.encode("a<x>a", add_special=False) == [prefixed, x, prefixed]


def test_text_never_becomes_control_or_byte_tokens(tmp_path: Path) -> None:
    pieces = ["▁", "<", "/", "s", ">", "0", "x", "A", "</", "</s", "<0", "<0x", "<0xA", "<0xAA"]
    scores = {piece: -float(i) for i, piece in enumerate(pieces)}
    tokenizer = make_tokenizer(tmp_path, spm_metadata(scores))
    ids = tokenizer.encode("</s> <0xAA>", add_special=False)
    assert tokenizer.eos_id not in ids
    assert 3 + 0xAA not in ids
    assert tokenizer.decode(ids) == " </s> <0xAA>"


def test_unknown_characters_without_byte_tokens(tmp_path: Path) -> None:
    metadata = spm_metadata({"▁": -1.0, "a": -2.0}, with_bytes=False)
    tokenizer = make_tokenizer(tmp_path, metadata)
    assert tokenizer.encode("a日a", add_special=False) == [3, 4, 0, 4]


def test_gemma4_has_merges_instead_of_scores(tmp_path: Path) -> None:
    merges = ["a b", "▁ ▁", "▁▁ ▁", "▁ ab", "b a"]
    pieces = ["▁", "a", "b", "\n", *(merge.replace(" ", "") for merge in merges if merge != "▁▁ ▁")]
    metadata = {
        **spm_metadata(dict.fromkeys(pieces, 0.0), user_defined=["▁▁▁", "\n\n", "<x>"]),
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": True,
    }
    tokenizer = make_tokenizer(tmp_path, metadata)
    text = "ab ab   aba\n\n<x> é"
    ids = tokenizer.encode(text)
    spelt = ["<s>", "ab", "▁ab", "▁▁▁", "ab", "a", "\n\n", "<x>", "▁", "<0xC3>", "<0xA9>"]
    assert [tokenizer.token_text(token) for token in ids] == spelt
    assert tokenizer.decode(ids[1:]) == text
