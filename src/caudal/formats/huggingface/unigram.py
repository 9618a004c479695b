"""`tokenizer.json` of type Unigram: XLM-RoBERTa's, and of other encoders of many languages."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenizers import Tokenizer as Backend

from caudal.errors import ModelLoadError
from caudal.formats.charsmap import check_charsmap
from caudal.formats.huggingface.special_roles import SpecialRoles, frame
from caudal.formats.huggingface.token_table import TokenTable, token_edges
from caudal.formats.model_folder import TOKENIZER, ModelFolder
from caudal.formats.spm import SPACE
from caudal.formats.tokenizer import Tokenizer
from caudal.formats.tokenizer_steps import NORMALIZERS, check_replace, steps_of, unsupported
from caudal.formats.unigram import MODEL, unigram_backend
from caudal.formats.vocabulary import TokenKind, Vocabulary, library_errors

TYPE = "Unigram"
"""`model.type`."""

_MANY_SPACES = {"Regex": " {2,}"}
"""The one regular expression that is taken: none of its matches costs more than its length."""
_NORMALIZERS = NORMALIZERS - {"BertNormalizer"}
_PRE_TOKENIZERS = frozenset(("WhitespaceSplit", "Metaspace"))


def read_unigram(folder: ModelFolder, rows: int) -> Tokenizer:
    """The tokenizer of a folder.

    Args:
        folder: The model.
        rows: Rows of the embedding; see `read_tokenizer`.

    Raises:
        ModelLoadError: It has steps that aren't supported, or is damaged.
    """
    source = str(folder.path(TOKENIZER))
    content = folder.read_object(TOKENIZER).content
    model = content["model"]
    pieces, scores = _pieces(source, model)
    if model.get("byte_fallback") is True:
        raise ModelLoadError(source, "model.byte_fallback is true; supported is false")
    _check_steps(source, content)
    ids = {text: token for token, text in reversed(list(enumerate(pieces)))}
    table = TokenTable.read(source, {**content, "model": {"vocab": ids}}).limited(rows)
    roles = SpecialRoles.read(folder, content, table)
    unknown = model.get("unk_id")
    if type(unknown) is not int or not 0 <= unknown < len(pieces):
        raise ModelLoadError(
            source, f"model.unk_id is {unknown!r:.50}, but token ids are 0 to {len(pieces) - 1}"
        )
    first, last = frame(content, table)
    roles = replace(
        roles,
        bos_id=roles.bos_id if first is None else first,
        eos_id=roles.eos_id if last is None else last,
        add_bos=first is not None,
        add_eos=last is not None,
    )
    vocabulary = _vocabulary(table, roles, unknown)
    scores += [0.0] * (len(vocabulary.texts) - len(scores))
    backend = unigram_backend(vocabulary, scores[: len(vocabulary.texts)])
    _set_steps(source, content, backend)
    return Tokenizer(
        vocabulary,
        backend,
        add_bos=roles.add_bos,
        add_eos=roles.add_eos,
        space_prefix="never",
    )


def _pieces(source: str, model: Mapping[str, Any]) -> tuple[list[str], list[float]]:
    entries = model.get("vocab")
    if not isinstance(entries, list) or not entries:
        raise ModelLoadError(source, "model.vocab is no list of tokens with their scores")
    pieces, scores = [], []
    for index, entry in enumerate(entries):
        match entry:
            case [str() as text, int() | float() as score] if math.isfinite(score):
                pieces.append(text)
                scores.append(float(score))
            case _:
                raise ModelLoadError(
                    source, f"model.vocab[{index}] is {entry!r:.80}, not a token and its score"
                )
    return pieces, scores


def _check_steps(source: str, content: Mapping[str, Any]) -> None:
    for step in steps_of(source, content, "normalizer", "normalizers"):
        match step["type"]:
            case "Precompiled":
                where = "normalizer.precompiled_charsmap"
                try:
                    data = base64.b64decode(str(step.get("precompiled_charsmap")), validate=True)
                except binascii.Error as error:
                    raise ModelLoadError(source, f"{where} is damaged: {error}") from error
                check_charsmap(source, where, data)
            case "Replace" if step.get("pattern") == _MANY_SPACES:
                if step.get("content") not in (" ", SPACE):
                    raise ModelLoadError(source, "normalizer Replace makes no space of spaces")
            case "Replace":
                check_replace(source, step)
            case kind if kind not in _NORMALIZERS:
                known = {*_NORMALIZERS, "Precompiled", "Replace"}
                raise unsupported(source, "normalizer", kind, known)
    kinds = set()
    for step in steps_of(source, content, "pre_tokenizer", "pretokenizers"):
        kinds.add(step["type"])
        if step["type"] not in _PRE_TOKENIZERS:
            raise unsupported(source, "pre_tokenizer", step["type"], _PRE_TOKENIZERS)
        if step["type"] == "Metaspace" and step.get("replacement", SPACE) != SPACE:
            raise ModelLoadError(source, f"Metaspace doesn't write {SPACE} for spaces")
    if "Metaspace" not in kinds:
        raise ModelLoadError(source, f"pre_tokenizer doesn't write {SPACE} for spaces")


def _vocabulary(table: TokenTable, roles: SpecialRoles, unknown: int) -> Vocabulary:
    kinds = bytearray(
        TokenKind.UNUSED if text is None else TokenKind.NORMAL for text in table.texts
    )
    edges = {}
    for added in table.added:
        kinds[added.id] = TokenKind.CONTROL if added.special else TokenKind.USER_DEFINED
        if (each := token_edges(added)) is not None:
            edges[added.id] = each
    for role in (roles.bos_id, roles.eos_id, roles.pad_id, *roles.eos_ids):
        if role is not None:
            kinds[role] = TokenKind.CONTROL
    kinds[unknown] = TokenKind.UNKNOWN
    return Vocabulary(
        source=table.source,
        model=MODEL,
        pre="",
        texts=[f"[PAD{token}]" if text is None else text for token, text in enumerate(table.texts)],
        kinds=bytes(kinds),
        bos_id=roles.bos_id,
        eos_id=roles.eos_id,
        unk_id=unknown,
        pad_id=roles.pad_id,
        eos_ids=roles.eos_ids,
        edges=edges,
    )


def _set_steps(source: str, content: Mapping[str, Any], backend: Backend) -> None:
    """Give the file's steps to a tokenizer, by way of one that has nothing else."""
    steps = {
        "version": "1.0",
        "normalizer": content.get("normalizer"),
        "pre_tokenizer": content.get("pre_tokenizer"),
        "model": {"type": TYPE, "vocab": [["x", 0.0]], "unk_id": 0},
    }
    with library_errors(source, "not a tokenizer"):
        other = Backend.from_str(json.dumps(steps))
    if other.normalizer is not None:
        backend.normalizer = other.normalizer
    backend.pre_tokenizer = other.pre_tokenizer
