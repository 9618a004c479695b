"""SentencePiece's compiled normalisation: which characters become which, checked before it is used.

It is a double-array trie of UTF-8 (darts-clone's) over the texts that are put for what it finds,
each up to a zero byte. The library that applies it trusts it; a stranger's could lead outside.
"""

from __future__ import annotations

import numpy as np

from caudal.errors import ModelLoadError

MAX_REPLACEMENT = 256
"""Longest text that is put for another, in bytes; NFKC's longest has 33."""

_IS_VALUE, _HAS_VALUE = 1 << 31, 1 << 8


def check_charsmap(source: str, where: str, data: bytes) -> None:
    """Refuse a map that leads outside of itself, or makes long texts of short ones.

    Args:
        source: The file's name, for errors.
        where: What holds the map, for errors.
        data: The map: the trie's bytes, their number before them as 4 bytes, then the texts.

    Raises:
        ModelLoadError: It is damaged, or a replacement is too long.
    """
    size = int.from_bytes(data[:4], "little")
    if len(data) < 4 or size % 4 != 0 or not 0 < size <= len(data) - 4:
        raise ModelLoadError(source, f"{where} is damaged: a trie of {size} bytes")
    units = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64)
    texts = data[4 + size :]
    try:
        texts.decode()
    except UnicodeDecodeError as error:
        raise ModelLoadError(source, f"{where} is damaged: {error}") from None
    longest = max(map(len, texts.split(b"\0")))
    if longest > MAX_REPLACEMENT:
        raise ModelLoadError(
            source,
            f"{where} puts texts of up to {longest} bytes for others; at most {MAX_REPLACEMENT} "
            "are supported",
        )
    # Whoever is at a unit goes on at its base, with the next byte in the lowest bits.
    places = np.arange(len(units))
    bases = places ^ ((units >> 10) << ((units & (1 << 9)) >> 6))
    inner = units & _IS_VALUE == 0
    used = inner & (((units & 0xFF) != 0) | (places == 0))
    if (bases[used] | 0xFF).max(initial=0) >= len(units):
        raise ModelLoadError(source, f"{where} is damaged: the trie leads outside of itself")
    values = units[bases[used & (units & _HAS_VALUE != 0)]] & (_IS_VALUE - 1)
    starts = np.frombuffer(texts, np.uint8)
    if values.max(initial=0) >= len(starts) or (starts[values] & 0xC0 == 0x80).any():
        raise ModelLoadError(source, f"{where} is damaged: it points at no text")
