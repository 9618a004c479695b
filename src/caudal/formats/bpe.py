"""Byte-level BPE (`tokenizer.ggml.model` = `gpt2`): builds the tokenizer, decodes its tokens."""

from __future__ import annotations

from functools import cache

from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from caudal.errors import ModelLoadError
from caudal.formats.bpe_pretokenizers import PRE_TOKENIZERS, PreTokenizer
from caudal.formats.model_file import ModelFile
from caudal.formats.vocabulary import TokenKind, Vocabulary, library_errors


def pre_tokenizer_of(vocabulary: Vocabulary) -> PreTokenizer:
    """The rules that `tokenizer.ggml.pre` names.

    Raises:
        ModelLoadError: The name is unknown.
    """
    if vocabulary.pre not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ModelLoadError(
            vocabulary.source,
            f"tokenizer.ggml.pre {vocabulary.pre!r} is unknown; known are {known}",
        )
    return PRE_TOKENIZERS[vocabulary.pre]


def build_bpe(file: ModelFile, vocabulary: Vocabulary) -> Backend:
    """A tokenizer for text without special tokens.

    Raises:
        ModelLoadError: The merges are missing or damaged, or the pre-tokenizer is unknown.
    """
    rules = pre_tokenizer_of(vocabulary)
    # Of duplicates the first counts.
    mergeable = vocabulary.ids_of_kind(TokenKind.NORMAL, TokenKind.USER_DEFINED)
    ids = {vocabulary.texts[token]: token for token in reversed(mergeable)}
    merges = read_merges(file, vocabulary, ids)
    with library_errors(vocabulary.source, "not a tokenizer"):
        backend = Backend(models.BPE(vocab=ids, merges=merges, ignore_merges=rules.ignore_merges))
    if rules.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = build_pre_tokenizer(rules)
    return backend


def build_pre_tokenizer(rules: PreTokenizer) -> pre_tokenizers.PreTokenizer:
    """Cuts text into words, and writes their bytes in the alphabet of `byte_alphabet`."""
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rules.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*splits, byte_level])


def bpe_token_bytes(text: str) -> bytes:
    """The bytes that a byte-level token stands for; a character outside the alphabet is itself."""
    alphabet = byte_alphabet()
    try:
        return bytes([alphabet[character] for character in text])
    except KeyError:
        return b"".join(
            bytes([alphabet[c]]) if c in alphabet else c.encode(errors="replace") for c in text
        )


@cache
def byte_alphabet() -> dict[str, int]:
    """Bytes by the visible character that byte-level BPE writes for them.

    Printable Latin-1 characters stand for themselves; the other bytes, in order, for the code
    points from 256 on.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(visible))
    return {chr(byte): byte for byte in visible} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


def read_merges(
    file: ModelFile, vocabulary: Vocabulary, ids: dict[str, int]
) -> list[tuple[str, str]]:
    """The file's merges, first those that are done first.

    Args:
        file: The model.
        vocabulary: Its tokens.
        ids: Tokens that merges may make, and may be made of; others are left out.

    Raises:
        ModelLoadError: The merges are missing or damaged.
    """
    key = "tokenizer.ggml.merges"
    if key not in file.metadata:
        raise ModelLoadError(
            vocabulary.source,
            f"metadata key {key} is missing, without which its tokens can't be found in a text: "
            "the file was made by an old converter, or without its tokenizer; convert the model "
            "anew",
        )
    known = None
    merges: list[tuple[str, str]] = []
    for index, line in enumerate(file.get_strings(key)):
        cut = line.find(" ", 1)  # a merge's left part may itself be a space, hence not from 0
        left, right = line[:cut], line[cut + 1 :]
        if cut < 1 or not right:
            raise ModelLoadError(
                vocabulary.source, f"{key}[{index}] is {line[:80]!r}, not two parts and a space"
            )
        if left in ids and right in ids and left + right in ids:
            merges.append((left, right))
            continue
        # A merge of or into a control token is left out, so that text can't produce one.
        known = set(vocabulary.texts) if known is None else known
        for part in (left, right, left + right):
            if part not in known:
                raise ModelLoadError(
                    vocabulary.source,
                    f"{key}[{index}] is {line[:80]!r}, but {part[:80]!r} is not in "
                    "tokenizer.ggml.tokens",
                )
    return merges
