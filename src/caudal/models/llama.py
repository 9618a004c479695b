"""Llama 1 to 3, Mistral, SmolLM and whatever else is converted as `llama`.

Converters permute the query and key rows of this family so that RoPE's pairs are neighbours.
"""

from __future__ import annotations

from caudal.formats.gguf import GGUFFile
from caudal.models.config import positive
from caudal.models.decoder import pre_norm_decoder
from caudal.models.program import Program


def build(file: GGUFFile) -> Program:
    """The program; `attention.sliding_window` (Mistral 7B v0.1) holds for all layers."""
    key = "llama.attention.sliding_window"
    window = positive(file, key) if file.get_int(key, 0) else None
    return pre_norm_decoder(file, interleaved_rope=True, window=window)
