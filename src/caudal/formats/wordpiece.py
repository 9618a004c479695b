"""WordPiece (BERT): tokenizers from a GGUF vocabulary or from Hugging Face's `tokenizer.json`."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.formats.model_folder import TOKENIZER, ModelFolder
from caudal.formats.tokenizer_steps import check_steps
from caudal.formats.vocabulary import (
    TokenKind,
    Vocabulary,
    check_token_lengths,
    library_errors,
)

CONTINUATION = "##"
"""Begins a token that continues a word."""

_PHANTOM_SPACE = "\u2581"
_MAX_WORD = 100
_MAX_VOCABULARY = 1 << 22
_ROLES = {"bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]", "pad": "[PAD]"}


def with_continuations(vocabulary: Vocabulary, file: ModelFile) -> Vocabulary:
    """A GGUF file's vocabulary as BERT spells it, with [CLS] as BOS and [SEP] as EOS.

    Converters mark the beginning of words (`\u2581`) instead of their continuation (`##`).

    Raises:
        ModelLoadError: [CLS], [SEP] or [UNK] can't be found.
    """
    kinds = bytearray(vocabulary.kinds)
    texts = [
        text
        if kinds[token] != TokenKind.NORMAL or _is_bracketed(text)
        else text.removeprefix(_PHANTOM_SPACE)
        if text.startswith(_PHANTOM_SPACE)
        else CONTINUATION + text
        for token, text in enumerate(vocabulary.texts)
    ]
    by_text = {text: token for token, text in reversed(list(enumerate(texts)))}
    separator = file.get_int("tokenizer.ggml.seperator_token_id", None)  # spelt so in the format
    if separator is not None and not 0 <= separator < len(texts):
        raise ModelLoadError(
            vocabulary.source,
            f"tokenizer.ggml.seperator_token_id is {separator}, but token ids are 0 to "
            f"{len(texts) - 1}",
        )
    ids = {
        "bos": vocabulary.bos_id,
        "eos": separator,
        "unk": vocabulary.unk_id,
        "pad": vocabulary.pad_id,
    }
    for role, text in _ROLES.items():
        if ids[role] is None:
            ids[role] = by_text.get(text)
    return _with_roles(dataclasses.replace(vocabulary, texts=texts, kinds=bytes(kinds)), ids)


def build_wordpiece(vocabulary: Vocabulary) -> Backend:
    """A tokenizer for text without special tokens.

    A GGUF file doesn't say whether its model knows upper case; like others who read these files
    we take it that it doesn't.
    """
    normal = vocabulary.ids_of_kind(TokenKind.NORMAL, TokenKind.USER_DEFINED)
    ids = {vocabulary.texts[token]: token for token in reversed(normal)}
    assert vocabulary.unk_id is not None  # `with_continuations` has seen to it
    unknown = vocabulary.texts[vocabulary.unk_id]
    ids[unknown] = vocabulary.unk_id
    with library_errors(vocabulary.source, "not a tokenizer"):
        backend = Backend(
            models.WordPiece(
                vocab=ids,
                unk_token=unknown,
                continuing_subword_prefix=CONTINUATION,
                max_input_chars_per_word=_MAX_WORD,
            )
        )
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return backend


def wordpiece_token_bytes(text: str) -> bytes:
    """The bytes a token adds to the text: a word brings the space before it."""
    if text.startswith(CONTINUATION):
        return text.removeprefix(CONTINUATION).encode()
    return f" {text}".encode()


def read_tokenizer_json(folder: ModelFolder, *, lowercase: bool) -> tuple[Vocabulary, Backend]:
    """The vocabulary and the tokenizer, for text without special tokens, of a model's folder.

    Truncation and padding that the file may ask for are left out: how long an input may be is
    the server's to decide, and rows of a batch need no equal length.

    Args:
        folder: The model.
        lowercase: Text is put in lower case before all else (`do_lower_case`).

    Raises:
        ModelLoadError: The tokenizer is of another kind, or damaged.
    """
    source = str(folder.path(TOKENIZER))
    content = folder.read_json(TOKENIZER)
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict):
        # Unigram's vocabulary is a list; its kind is in the message, if there is one.
        kind = model.get("type") if isinstance(model, dict) else None
        raise ModelLoadError(source, f"model.type is {kind!r}; only 'WordPiece' is supported")
    if model.get("type", "WordPiece") != "WordPiece":
        raise ModelLoadError(
            source, f"model.type is {model['type']!r}; only 'WordPiece' is supported"
        )
    check_steps(source, content)
    vocabulary = _vocabulary_of(source, content, model)
    plain = {**content, "truncation": None, "padding": None, "decoder": None}
    _check_frame(source, plain, vocabulary)
    # Without added tokens, text that spells one stays text.
    plain |= {"added_tokens": [], "post_processor": None}
    backend = _load(source, plain)
    if lowercase:
        steps = [normalizers.Lowercase(), *([backend.normalizer] if backend.normalizer else [])]
        backend.normalizer = normalizers.Sequence(steps)
    return vocabulary, backend


def _vocabulary_of(source: str, content: dict[str, Any], model: dict[str, Any]) -> Vocabulary:
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise ModelLoadError(source, "added_tokens must be a list of objects")
    texts: dict[int, str] = {}
    special = set()
    for text, token in [
        *model["vocab"].items(),
        *((entry.get("content"), entry.get("id")) for entry in added),
    ]:
        if not isinstance(text, str) or type(token) is not int or not 0 <= token < _MAX_VOCABULARY:
            raise ModelLoadError(
                source, f"the vocabulary has the entry {text!r:.50}: {token!r:.50}"
            )
        texts[token] = text
    special = {entry["id"] for entry in added if entry.get("special")}
    size = max(texts, default=-1) + 1
    if size == 0 or len(texts) != size:
        raise ModelLoadError(source, f"the vocabulary has {len(texts)} of the ids 0 to {size - 1}")
    check_token_lengths(source, "the vocabulary", list(texts.values()))
    kinds = bytes(
        TokenKind.CONTROL if token in special else TokenKind.NORMAL for token in range(size)
    )
    by_text = {text: token for token, text in texts.items()}
    ids = {role: by_text.get(text) for role, text in _ROLES.items()}
    unknown = model.get("unk_token")
    if isinstance(unknown, str):
        ids["unk"] = by_text.get(unknown)
    return _with_roles(
        Vocabulary(
            source=source,
            model="bert",
            pre="",
            texts=[texts[token] for token in range(size)],
            kinds=kinds,
            bos_id=None,
            eos_id=None,
            unk_id=None,
            pad_id=None,
            eos_ids=frozenset(),
        ),
        ids,
    )


def _with_roles(vocabulary: Vocabulary, ids: dict[str, int | None]) -> Vocabulary:
    for role in ("bos", "eos", "unk"):
        if ids[role] is None:
            raise ModelLoadError(
                vocabulary.source, f"the vocabulary has no token {_ROLES[role]}, which BERT needs"
            )
    kinds = bytearray(vocabulary.kinds)
    for role, token in ids.items():
        if token is not None:
            kinds[token] = TokenKind.UNKNOWN if role == "unk" else TokenKind.CONTROL
    return dataclasses.replace(
        vocabulary,
        kinds=bytes(kinds),
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        unk_id=ids["unk"],
        pad_id=ids["pad"],
        eos_ids=frozenset(token for token in (ids["eos"],) if token is not None),
    )


def _check_frame(source: str, content: dict[str, Any], vocabulary: Vocabulary) -> None:
    """The file must frame a text as BERT does, with [CLS] and [SEP]: we add these ourselves."""
    backend = _load(source, content)
    with library_errors(source, "the tokenizer does not work"):
        framed = backend.encode("", add_special_tokens=True).ids
    if framed != [vocabulary.bos_id, vocabulary.eos_id]:
        raise ModelLoadError(
            source,
            f"post_processor frames texts with the tokens {framed}, not with [CLS] and [SEP]",
        )


def _load(source: str, content: dict[str, Any]) -> Backend:
    with library_errors(source, "not a tokenizer"):
        return Backend.from_str(json.dumps(content))


def _is_bracketed(text: str) -> bool:
    return text.startswith("[") and text.endswith("]") and len(text) > 2
