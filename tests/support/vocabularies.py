"""Small vocabularies, as the metadata that a GGUF file would hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from caudal.formats.bpe import byte_alphabet
from caudal.formats.gguf import GGUFFile
from caudal.formats.tokenizer import Tokenizer
from caudal.formats.vocabulary import TokenKind
from support.gguf_writer import write_gguf

CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def bpe_metadata(
    merges: Sequence[str] = (),
    *,
    control: Sequence[str] = CHATML_TOKENS,
    user_defined: Sequence[str] = (),
    pre: str = "gpt-2",
) -> dict[str, Any]:
    """Byte-level BPE: a token for each byte, then one per merge, then the special ones.

    The first control token is EOS. There is no BOS.
    """
    alphabet = byte_alphabet()
    tokens = sorted(alphabet, key=lambda character: alphabet[character])
    tokens += [merge.replace(" ", "") for merge in merges]
    normal = len(tokens)
    tokens += [*control, *user_defined]
    kinds = (
        [TokenKind.NORMAL] * normal
        + [TokenKind.CONTROL] * len(control)
        + [TokenKind.USER_DEFINED] * len(user_defined)
    )
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.eos_token_id": normal,
    }


def spm_metadata(
    pieces: Mapping[str, float],
    *,
    user_defined: Sequence[str] = (),
    control: Sequence[str] = (),
    with_bytes: bool = True,
) -> dict[str, Any]:
    """SentencePiece: unk, bos, eos, the 256 bytes, then pieces with their scores, then the rest."""
    tokens = ["<unk>", "<s>", "</s>"]
    kinds = [TokenKind.UNKNOWN, TokenKind.CONTROL, TokenKind.CONTROL]
    if with_bytes:
        tokens += [f"<0x{byte:02X}>" for byte in range(256)]
        kinds += [TokenKind.BYTE] * 256
    scores = [0.0] * len(tokens) + list(pieces.values())
    tokens += pieces
    kinds += [TokenKind.NORMAL] * len(pieces)
    tokens += [*user_defined, *control]
    kinds += [TokenKind.USER_DEFINED] * len(user_defined) + [TokenKind.CONTROL] * len(control)
    scores += [-1000.0] * (len(user_defined) + len(control))
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def make_tokenizer(folder: Path, metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a file with this metadata."""
    with GGUFFile.open(write_gguf(folder / "vocabulary.gguf", metadata)) as file:
        return Tokenizer.from_gguf(file)
