"""The tokenizer of a decoder's folder: `tokenizer.json`, and what is written beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers

from caudal.errors import ModelLoadError
from caudal.formats.bpe import build_pre_tokenizer
from caudal.formats.huggingface.bpe_steps import ByteLevel, SentencePiece, read_bpe_steps
from caudal.formats.huggingface.special_roles import SpecialRoles
from caudal.formats.huggingface.token_table import TokenTable, token_edges
from caudal.formats.model_folder import TOKENIZER, ModelFolder
from caudal.formats.spm import SPACE, is_byte_token
from caudal.formats.tokenizer import Tokenizer
from caudal.formats.vocabulary import (
    TokenEdges,
    TokenKind,
    Vocabulary,
    find_ends,
    library_errors,
)

Steps = ByteLevel | SentencePiece

# Tokens that steer the model, but aren't marked so in some files.
_SPECIAL_TEXTS = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
_SPECIAL_FRAMES = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))


def read_tokenizer(folder: ModelFolder, rows: int) -> Tokenizer:
    """The tokenizer of a folder.

    Args:
        folder: The model.
        rows: Rows of the embedding. Added tokens behind them are left out: they stand for images
            or sounds, in a model that is more than its text.

    Raises:
        ModelLoadError: The tokenizer is of a kind that isn't supported, or damaged.
    """
    source = str(folder.path(TOKENIZER))
    content = folder.read_object(TOKENIZER).content
    model = content.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind != "BPE" or not isinstance(model.get("vocab"), dict):
        raise ModelLoadError(
            source, f"model.type is {kind!r:.50}; for models that generate, 'BPE' is supported"
        )
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise ModelLoadError(source, f"model.{key} is {model[key]!r:.50}, not supported")
    steps = read_bpe_steps(source, content)
    table = TokenTable.read(source, content).limited(rows)
    roles = SpecialRoles.read(folder, content, table)
    vocabulary = _vocabulary(table, model, steps, roles)
    backend = _backend(vocabulary, table, model, steps)
    return Tokenizer(
        vocabulary,
        backend,
        add_bos=roles.add_bos,
        add_eos=roles.add_eos,
        space_prefix=steps.space_prefix if isinstance(steps, SentencePiece) else "never",
    )


def tokenizer_type(folder: ModelFolder) -> str:
    """The type of a folder's tokenizer, as `tokenizer.json` names it; empty where it doesn't."""
    model = folder.read_object(TOKENIZER).content.get("model")
    return str(model.get("type", "")) if isinstance(model, dict) else ""


def _vocabulary(
    table: TokenTable, model: Mapping[str, Any], steps: Steps, roles: SpecialRoles
) -> Vocabulary:
    is_spm = isinstance(steps, SentencePiece)
    texts = [f"[PAD{token}]" if text is None else text for token, text in enumerate(table.texts)]
    kinds = bytearray(
        TokenKind.UNUSED if text is None else TokenKind.NORMAL for text in table.texts
    )
    if model.get("byte_fallback") is True:
        for token, text in enumerate(texts):
            if is_byte_token(text):
                kinds[token] = TokenKind.BYTE
    edges: dict[int, TokenEdges] = {}
    for added in table.added:
        if added.special or _looks_special(added.text):
            kinds[added.id] = TokenKind.CONTROL
        elif is_spm and SPACE in added.text and added.text in table.model and not added.normalized:
            continue  # text never has that character: merges make the token
        else:
            kinds[added.id] = TokenKind.USER_DEFINED
            if is_spm:
                texts[added.id] = added.text.replace(SPACE, " ")
        if (each := token_edges(added)) is not None:
            edges[added.id] = each
    unknown = model.get("unk_token")
    unk_id = table.id_of(unknown) if isinstance(unknown, str) else roles.unk_id
    ends = set(roles.eos_ids) | find_ends(texts, kinds)
    for role in (*ends, roles.bos_id, roles.pad_id):
        if role is not None:
            kinds[role] = TokenKind.CONTROL
    if unk_id is not None and unk_id not in ends:
        kinds[unk_id] = TokenKind.UNKNOWN
    return Vocabulary(
        source=table.source,
        model="llama" if is_spm else "gpt2",
        pre="",
        texts=texts,
        kinds=bytes(kinds),
        bos_id=roles.bos_id,
        eos_id=roles.eos_id,
        unk_id=unk_id,
        pad_id=roles.pad_id,
        eos_ids=frozenset(ends),
        suppressed_ids=roles.suppressed_ids,
        edges=edges,
    )


def _backend(
    vocabulary: Vocabulary, table: TokenTable, model: Mapping[str, Any], steps: Steps
) -> Backend:
    """Encodes text without special tokens; what text has none of can't come of it."""
    kinds = vocabulary.kinds
    ids = {
        text: token
        for text, token in table.model.items()
        if kinds[token] in (TokenKind.NORMAL, TokenKind.USER_DEFINED, TokenKind.BYTE)
    }
    unknown = None
    if vocabulary.unk_id is not None and vocabulary.texts[vocabulary.unk_id] in table.model:
        unknown = vocabulary.texts[vocabulary.unk_id]
        ids[unknown] = vocabulary.unk_id
    merges = [
        (left, right)
        for left, right in read_merges(table.source, model)
        if left in ids and right in ids and left + right in ids
    ]
    with library_errors(table.source, "not a tokenizer"):
        backend = Backend(
            models.BPE(
                vocab=ids,
                merges=merges,
                unk_token=unknown,
                fuse_unk=model.get("fuse_unk") is True,
                byte_fallback=model.get("byte_fallback") is True,
                ignore_merges=model.get("ignore_merges") is True,
            )
        )
    if isinstance(steps, ByteLevel):
        backend.pre_tokenizer = build_pre_tokenizer(steps.rules)
        if steps.rules.nfc:
            backend.normalizer = normalizers.NFC()
    elif steps.words:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "never", split=True)
    return backend


def read_merges(source: str, model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The merges, of either form: two texts, or both in one with a space between them.

    Args:
        source: The file's path, for errors.
        model: The model of a `tokenizer.json`.

    Raises:
        ModelLoadError: One isn't of these.
    """
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise ModelLoadError(source, "model.merges must be a list")
    result = []
    for index, merge in enumerate(merges):
        parts = merge
        if isinstance(merge, str):
            cut = merge.find(" ", 1)
            parts = [merge[:cut], merge[cut + 1 :]] if cut > 0 else []
        if (
            not isinstance(parts, list)
            or len(parts) != 2
            or not all(isinstance(part, str) and part for part in parts)
        ):
            raise ModelLoadError(source, f"model.merges[{index}] is {merge!r:.80}, not two parts")
        result.append((parts[0], parts[1]))
    return result


def _looks_special(text: str) -> bool:
    return text in _SPECIAL_TEXTS or any(
        text.startswith(begin) and text.endswith(end) for begin, end in _SPECIAL_FRAMES
    )
