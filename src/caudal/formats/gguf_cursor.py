"""Reads the bytes of a GGUF header one after the other, never past the file's end."""

from __future__ import annotations

import struct

from caudal.errors import ModelLoadError
from caudal.formats.byte_file import ByteFile

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")

MAX_ARRAY_STRINGS = 1 << 23
"""Strings accepted in a file's arrays together; large vocabularies have half a million."""

_CHUNK_BYTES = 1 << 20


class Cursor:
    """A position in a file. Whatever it can't read is a `ModelLoadError` that names it.

    Args:
        source: The file's name, for errors.
        file: The file.

    Attributes:
        source: The file's name, for errors.
        buffer: The file's first bytes, as many as have been needed.
        size: Bytes of the whole file.
        position: Where the next byte comes from.
        strings_left: How many of `MAX_ARRAY_STRINGS` are left.
    """

    def __init__(self, source: str, file: ByteFile) -> None:
        self.source = source
        self.buffer = bytearray()
        self.size = file.size
        self._file = file
        self.position = 0
        self.strings_left = MAX_ARRAY_STRINGS

    def take(self, length: int, what: str) -> bytes:
        """The next `length` bytes, which hold `what`."""
        self.check_fits(length, 1, what)
        start = self.position
        self.position += length
        self.fill(self.position)
        return bytes(self.buffer[start : self.position])

    def fill(self, end: int) -> None:
        """Have the file's bytes up to `end` in the buffer, or as many as there are."""
        have = len(self.buffer)
        if have < end:
            filled = min(max(end, have + _CHUNK_BYTES), self.size)
            self.buffer += self._file.read(have, filled - have)

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
