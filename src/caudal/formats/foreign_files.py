"""Tells what a file is that should have been a GGUF model."""

from __future__ import annotations


def describe_foreign_file(start: bytes) -> str:
    """Say what a file that lacks the GGUF magic seems to be, and what to do about it.

    Args:
        start: The file's first bytes, 512 or as many as it has.
    """
    text = start.lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the model; fetch the real file with `git lfs pull`"
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "an HTML page, not a GGUF file; the download went wrong"
    if start.startswith(b"FUGG"):
        return "a big-endian GGUF file; convert it to little-endian"
    if start[:4] in (b"lmgg", b"fmgg", b"tjgg", b"algg"):
        return "a legacy GGML file from before GGUF; convert it to GGUF"
    if start.startswith(b"PK\x03\x04"):
        return "a zip archive (a PyTorch checkpoint or a wheel?), not a GGUF file"
    # Safetensors begins with the length of its JSON header in eight bytes.
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 1 << 32:
        return "a safetensors file, not a GGUF file"
    if text.startswith(b"{"):
        return "a JSON file, not a GGUF file"
    if not start.strip(b"\0"):
        return "all zeros at its start, not a GGUF file; the download is incomplete or damaged"
    return f"not a GGUF file: it starts with {start[:4]!r} instead of b'GGUF'"
