"""Qwen 3 (dense): no biases, but queries and keys are normalised per head."""

from __future__ import annotations

from caudal.formats.gguf import GGUFFile
from caudal.models.decoder import pre_norm_decoder
from caudal.models.program import Program


def build(file: GGUFFile) -> Program:
    """The program."""
    return pre_norm_decoder(file, interleaved_rope=False, qk_norm=True)
