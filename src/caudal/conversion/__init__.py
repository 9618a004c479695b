"""Stored models to GGUF files, quantised if that is asked for.

`convert_model` (convert.py) does it, from a Hugging Face folder or a GGUF file (sources.py,
tokenizer_keys.py); which tensor gets which type is decided as llama.cpp decides it (mixes.py).
"""

from caudal.conversion.convert import ConversionProgress, convert_model
from caudal.conversion.mixes import MIXES, find_mix

__all__ = ["MIXES", "ConversionProgress", "convert_model", "find_mix"]
