"""A copy of a GGUF file that says its model was trained for a longer context."""

from __future__ import annotations

from pathlib import Path

from caudal.formats.gguf import GGUFFile
from support.gguf_writer import encode_value, string


def raise_context(source: Path, target: Path, tokens: int) -> Path:
    """Copy `source` to `target` with another context length; what it answers means little then."""
    with GGUFFile.open(source) as file:
        key = f"{file.architecture}.context_length"
        length = file.get_int(key)
    content = source.read_bytes()
    old = string(key) + encode_value(length)
    assert content.count(old) == 1
    target.write_bytes(content.replace(old, string(key) + encode_value(tokens)))
    return target
