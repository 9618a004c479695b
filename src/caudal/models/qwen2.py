"""Qwen 2 and 2.5: Llama's decoder with biases on queries, keys and values."""

from __future__ import annotations

from caudal.formats.gguf import GGUFFile
from caudal.models.decoder import pre_norm_decoder
from caudal.models.program import Program


def build(file: GGUFFile) -> Program:
    """The program; the biases are picked up from the file."""
    return pre_norm_decoder(file, interleaved_rope=False)
