"""Reads the bytes of a GGUF header one after the other, never past the file's end."""

from __future__ import annotations

import struct
from mmap import mmap

from caudal.errors import ModelLoadError

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")

MAX_ARRAY_STRINGS = 1 << 23
"""Strings accepted in a file's arrays together; large vocabularies have half a million."""


class Cursor:
    """A position in a mapped file. Whatever it can't read is a `ModelLoadError` that names it.

    Args:
        source: The file's name, for errors.
        buffer: The mapped file.

    Attributes:
        source: The file's name, for errors.
        buffer: The mapped file.
        position: Where the next byte comes from.
        strings_left: How many of `MAX_ARRAY_STRINGS` are left.
    """

    def __init__(self, source: str, buffer: mmap) -> None:
        self.source = source
        self.buffer = buffer
        self.size = len(buffer)
        self.position = 0
        self.strings_left = MAX_ARRAY_STRINGS

    def take(self, length: int, what: str) -> bytes:
        """The next `length` bytes, which hold `what`."""
        self.check_fits(length, 1, what)
        start = self.position
        self.position += length
        return self.buffer[start : self.position]

    def u32(self, what: str) -> int:
        """An unsigned number of four bytes."""
        (value,) = U32.unpack(self.take(4, what))
        return int(value)

    def u64(self, what: str) -> int:
        """An unsigned number of eight bytes."""
        (value,) = U64.unpack(self.take(8, what))
        return int(value)

    def count(self, what: str, limit: int) -> int:
        """How many of something there are, refused above `limit`."""
        count = self.u64(f"number of {what}")
        if count > limit:
            raise self.error(f"claims {count} {what}; at most {limit} are accepted")
        return count

    def name(self, what: str, max_bytes: int) -> str:
        """A non-empty string with its length in front."""
        length = self.u64(f"length of the {what}")
        if not 1 <= length <= max_bytes:
            raise self.error(f"the {what} claims {length} bytes; 1 to {max_bytes} are allowed")
        raw = self.take(length, what)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.error(f"the {what} is not valid UTF-8: {raw[:40]!r}") from None

    def check_fits(self, count: int, smallest: int, what: str) -> None:
        """Refuse `count` things of at least `smallest` bytes that the file can't hold."""
        left = self.size - self.position
        if count * smallest > left:
            raise self.error(
                f"{what} needs {count * smallest} bytes, but only {left} are left: "
                "truncated or corrupt"
            )

    def error(self, reason: str) -> ModelLoadError:
        """An error about this file."""
        return ModelLoadError(self.source, reason)
