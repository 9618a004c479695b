"""What a server's own processes take besides a model: measured, and a rule of thumb."""

from __future__ import annotations

from caudal.planning.figures import ModelFigures

_PROCESSES = 160 << 20
"""Bytes of the server and of a worker without a model, as measured with Python 3.11 on Linux."""

_OF_TOKEN = 1200
"""Bytes that a tokenizer takes for each token of its vocabulary, merges among them: measured with
those of SmolLM2 (49,152 tokens) and Gemma 3 (262,144)."""


def process_bytes(figures: ModelFigures) -> int:
    """About what server and worker take besides what is planned."""
    return _PROCESSES + _OF_TOKEN * figures.vocabulary
