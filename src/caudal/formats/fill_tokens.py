"""Tokens around the two texts between which a model writes: fill in the middle (arXiv 2207.14255).

Files of GGUF name them by id; elsewhere, and in older files, they are known by their texts, which
are those that llama.cpp looks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_KINDS: tuple[tuple[str, str, str], ...] = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # Granite, StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    ("<PRE>", "<SUF>", "<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    ("<|prefix|>", "<|suffix|>", "<|middle|>"),  # Falcon
)


@dataclass(frozen=True, slots=True)
class FillTokens:
    """Three tokens.

    Attributes:
        prefix: Before what comes before the gap.
        suffix: Before what comes behind it.
        middle: Before what is to be written.
    """

    prefix: int
    suffix: int
    middle: int


def find_fill_tokens(special_tokens: Mapping[str, int]) -> FillTokens | None:
    """Those of a vocabulary, by their texts.

    Args:
        special_tokens: Ids of tokens that are no text, by theirs.
    """
    for texts in _KINDS:
        if all(text in special_tokens for text in texts):
            return FillTokens(*(special_tokens[text] for text in texts))
    return None
