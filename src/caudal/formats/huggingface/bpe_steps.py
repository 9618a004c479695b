"""How a `tokenizer.json` cuts text up before BPE merges it: one of two ways that are known.

Byte-level BPE cuts text by regular expressions; those that are known (formats/bpe_pretokenizers.py)
are taken, and no others: a stranger's could take for ever on some text. What SentencePiece made
writes `▁` for spaces, and cuts nothing, or at spaces alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from caudal.errors import ModelLoadError
from caudal.formats.bpe_pretokenizers import GPT2_PATTERN, PreTokenizer, known_pattern
from caudal.formats.spm import SPACE, SpacePrefix
from caudal.formats.tokenizer_steps import steps_of, unsupported

_METASPACE: Mapping[str, SpacePrefix] = {
    "never": "never",
    "first": "first_if_missing",
    "always": "each_if_missing",
}
_INDIVIDUAL_DIGITS, _RUNS_OF_DIGITS = r"\p{N}", r"\p{N}+"


@dataclass(frozen=True, slots=True)
class ByteLevel:
    """Byte-level BPE's steps.

    Attributes:
        rules: Patterns and switches.
    """

    rules: PreTokenizer


@dataclass(frozen=True, slots=True)
class SentencePiece:
    """SentencePiece's steps.

    Attributes:
        space_prefix: Where a space is put before text.
        words: Text is cut before each space.
    """

    space_prefix: SpacePrefix
    words: bool


def read_bpe_steps(source: str, content: Mapping[str, Any]) -> ByteLevel | SentencePiece:
    """Read the steps of a whole `tokenizer.json` whose model is BPE.

    Raises:
        ModelLoadError: A step isn't known; names it.
    """
    normalizers = list(steps_of(source, content, "normalizer", "normalizers"))
    cuts = list(steps_of(source, content, "pre_tokenizer", "pretokenizers"))
    if any(step["type"] == "ByteLevel" for step in [*normalizers, *cuts]):
        return _byte_level(source, content, normalizers, cuts)
    return _sentencepiece(source, normalizers, cuts)


def _byte_level(
    source: str,
    content: Mapping[str, Any],
    normalizers: list[Mapping[str, Any]],
    cuts: list[Mapping[str, Any]],
) -> ByteLevel:
    patterns: list[str] = []
    for step in cuts:
        match step["type"]:
            case "Split":
                patterns.append(_pattern(source, step))
            case "Digits":
                alone = step.get("individual_digits") is True
                patterns.append(_INDIVIDUAL_DIGITS if alone else _RUNS_OF_DIGITS)
            case "ByteLevel":
                if step.get("add_prefix_space") is True:
                    raise ModelLoadError(source, "ByteLevel with add_prefix_space isn't supported")
                if step.get("use_regex", True) is not False:
                    patterns.append(GPT2_PATTERN)
            case kind:
                raise unsupported(source, "pre_tokenizer", kind, {"Split", "Digits", "ByteLevel"})
    nfc = False
    for step in normalizers:
        if step["type"] not in ("NFC", "ByteLevel"):
            raise unsupported(source, "normalizer", step["type"], {"NFC", "ByteLevel"})
        nfc = nfc or step["type"] == "NFC"
    ignore_merges = content["model"].get("ignore_merges") is True
    return ByteLevel(PreTokenizer(tuple(patterns), ignore_merges=ignore_merges, nfc=nfc))


def _pattern(source: str, step: Mapping[str, Any]) -> str:
    pattern = step.get("pattern")
    written = pattern.get("Regex") if isinstance(pattern, dict) else None
    if not isinstance(written, str):
        raise ModelLoadError(source, "pre_tokenizer Split is supported for a Regex only")
    if step.get("behavior") != "Isolated" or step.get("invert") is True:
        # Removing what lies between matches comes to the same, if everything is matched.
        raise ModelLoadError(
            source,
            f"pre_tokenizer Split has behavior {step.get('behavior')!r:.50}; only 'Isolated' is "
            "supported",
        )
    known = known_pattern(written)
    if known is None:
        raise ModelLoadError(
            source,
            f"pre_tokenizer Split has a regular expression that isn't known: {written!r:.200}",
        )
    return known


def _sentencepiece(
    source: str, normalizers: list[Mapping[str, Any]], cuts: list[Mapping[str, Any]]
) -> SentencePiece:
    prefix: SpacePrefix = "never"
    written = False  # spaces have become SPACE
    words = False
    for step in normalizers:
        match step["type"]:
            case "Prepend" if step.get("prepend") == SPACE:
                prefix = "each"
            case "Replace" if _replaces_spaces(step):
                written = True
            case kind:
                raise unsupported(
                    source, "normalizer", kind, {f"Prepend {SPACE}", f"Replace ' ' by {SPACE}"}
                )
    for step in cuts:
        match step["type"]:
            case "Metaspace" if step.get("replacement", SPACE) == SPACE:
                written = True
                words = step.get("split", True) is not False
                prefix = _metaspace_prefix(source, step)
            case "Split" if step.get("pattern") == {"String": " "} and written:
                pass  # there are none any more
            case kind:
                raise unsupported(source, "pre_tokenizer", kind, {f"Metaspace {SPACE}"})
    if not written:
        raise ModelLoadError(
            source,
            "the tokenizer is BPE, but neither ByteLevel nor SentencePiece's: it doesn't write "
            f"{SPACE} for spaces",
        )
    return SentencePiece(prefix, words)


def _metaspace_prefix(source: str, step: Mapping[str, Any]) -> SpacePrefix:
    scheme = step.get("prepend_scheme")
    if scheme is None:
        scheme = "always" if step.get("add_prefix_space", True) else "never"
    if scheme not in _METASPACE:
        raise ModelLoadError(source, f"Metaspace has prepend_scheme {scheme!r:.50}")
    return _METASPACE[scheme]


def _replaces_spaces(step: Mapping[str, Any]) -> bool:
    return step.get("pattern") == {"String": " "} and step.get("content") == SPACE
