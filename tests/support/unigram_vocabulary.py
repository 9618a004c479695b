"""XLM-RoBERTa's kind of tokenizer, of a small vocabulary that sentencepiece made."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "tokenizer_unigram.json").read_text())
PIECES: list[tuple[str, float]] = [(text, score) for text, score in RECORDED["pieces"]]
CHARSMAP = base64.b64decode(RECORDED["charsmap"])
BOS, PAD, EOS, UNKNOWN, MASK = 0, 1, 2, 3, len(PIECES) - 1
CONTROL = (BOS, PAD, EOS, MASK)


def gguf_metadata() -> dict[str, Any]:
    """As llama.cpp's converter writes it for XLM-RoBERTa."""
    kinds = [
        3 if token in CONTROL else 2 if token == UNKNOWN else 1 for token in range(len(PIECES))
    ]
    return {
        "general.architecture": "bert",
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [text for text, _ in PIECES],
        "tokenizer.ggml.scores": [score for _, score in PIECES],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.remove_extra_whitespaces": True,
        "tokenizer.ggml.precompiled_charsmap": np.frombuffer(CHARSMAP, np.uint8),
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.unknown_token_id": UNKNOWN,
        "tokenizer.ggml.padding_token_id": PAD,
    }


def tokenizer_json() -> dict[str, Any]:
    """As XLM-RoBERTa's is."""
    added = [
        {"id": token, "content": PIECES[token][0], "special": True, "lstrip": token == MASK}
        for token in (*CONTROL, UNKNOWN)
    ]
    frame = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": RECORDED["charsmap"]},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [*frame, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
        },
        "model": {"type": "Unigram", "unk_id": UNKNOWN, "vocab": RECORDED["pieces"]},
    }
