"""Which steps of a `tokenizer.json` are taken: those that no text, and no file, makes costly.

The format can describe normalizers that multiply a text's length without bound, and regular
expressions that take for ever on some texts. BERT's tokenizers need neither; those of decoders are
read in huggingface/bpe_steps.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from caudal.errors import ModelLoadError

MAX_STEPS = 32
"""Normalizers, and pre-tokenizers, of a file; real ones have one to five."""

MAX_WORD_CHARACTERS = 1000
"""Longest word that is looked up; its tokens are searched for in quadratic time. BERT has 100."""

NORMALIZERS = frozenset(
    ("BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "Strip", "StripAccents")
)
"""None of these gives more than a few characters for one, whatever the order and repetition."""
_PRE_TOKENIZERS = frozenset(
    (
        "BertPreTokenizer",
        "Whitespace",
        "WhitespaceSplit",
        "Punctuation",
        "Digits",
        "CharDelimiterSplit",
        "UnicodeScripts",
    )
)


def check_steps(source: str, content: Mapping[str, Any]) -> None:
    """Refuse a tokenizer with steps that could be made costly.

    Args:
        source: The file's path, for errors.
        content: The whole `tokenizer.json`; its model is WordPiece.

    Raises:
        ModelLoadError: Names the step, or the number, and what is supported.
    """
    normalizers = list(steps_of(source, content, "normalizer", "normalizers"))
    for step in normalizers:
        kind = step.get("type")
        if kind == "Replace":
            check_replace(source, step)
        elif kind not in NORMALIZERS:
            raise unsupported(source, "normalizer", kind, {*NORMALIZERS, "Replace"})
    for step in steps_of(source, content, "pre_tokenizer", "pretokenizers"):
        kind = step.get("type")
        if kind not in _PRE_TOKENIZERS:
            raise unsupported(source, "pre_tokenizer", kind, _PRE_TOKENIZERS)
    longest = content["model"].get("max_input_chars_per_word", 100)
    if type(longest) is not int or not 0 < longest <= MAX_WORD_CHARACTERS:
        raise ModelLoadError(
            source,
            f"model.max_input_chars_per_word must be from 1 to {MAX_WORD_CHARACTERS}, but is "
            f"{longest!r:.50}",
        )


def steps_of(
    source: str, content: Mapping[str, Any], name: str, members: str
) -> Iterator[Mapping[str, Any]]:
    """The steps under a key of the file, those in sequences one by one.

    Raises:
        ModelLoadError: There are too many, or one is no object with a type.
    """
    left = [] if content.get(name) is None else [content[name]]
    seen = 0
    while left:
        step = left.pop()
        seen += 1
        if seen > MAX_STEPS:
            raise ModelLoadError(source, f"{name} has more than {MAX_STEPS} steps")
        if not isinstance(step, dict) or not isinstance(step.get("type"), str):
            raise ModelLoadError(
                source, f"{name} has a step that is no object with a type: {step!r:.50}"
            )
        if step.get("type") != "Sequence":
            yield step
            continue
        inner = step.get(members)
        if not isinstance(inner, list):
            raise ModelLoadError(source, f"{name} has a Sequence without a list of {members}")
        left += reversed(inner)


def check_replace(source: str, step: Mapping[str, Any]) -> None:
    """Refuse a Replace of what isn't a plain text, or by a longer one.

    Raises:
        ModelLoadError: It is such a one.
    """
    pattern = step.get("pattern")
    what = pattern.get("String") if isinstance(pattern, dict) and len(pattern) == 1 else None
    by = step.get("content")
    if not isinstance(what, str) or not what or not isinstance(by, str):
        raise ModelLoadError(
            source, "normalizer Replace is supported for a plain, non-empty String only"
        )
    if len(by) > len(what):
        raise ModelLoadError(
            source,
            f"normalizer Replace makes {len(by)} characters of {len(what)}; only those that don't "
            "lengthen the text are supported",
        )


def unsupported(source: str, name: str, kind: Any, known: frozenset[str] | set[str]) -> Exception:
    """What to raise about a step that isn't taken."""
    return ModelLoadError(
        source,
        f"{name} {kind!r:.50} is not supported; supported are {', '.join(sorted(known))}",
    )
