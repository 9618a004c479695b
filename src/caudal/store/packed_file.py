"""A file of packed weights: a header that says what it is, and then an image of them.

A file under its final name is whole: it is written under another one, and renamed once everything
is on the disk. What happens to it later is noticed by its size and the header's checksum, and by
the sums that the header has of what is in the image.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import msgspec

from caudal.errors import StoreError
from caudal.store.disk import move_into_place

_MAGIC = b"CaudalPW"
FORMAT_VERSION = 1
_PREFIX = struct.Struct("<8sIII")
"""The magic, the version, the header's length and its CRC-32; the header follows."""

_ALIGNMENT = 2 << 20
"""Where the image begins: at a whole large page, so that it can be mapped in such."""

_MOST_HEADER_BYTES = 64 << 20

PACKED = ".packed"
UNFINISHED = ".new"
"""How names end, of whole files, and of those that are being written."""


class Source(msgspec.Struct, frozen=True):
    """A file of a model.

    Attributes:
        path: Where it is.
        identity: Its hash, where that is known; else what the system says of it, which changes
            whenever somebody writes to it.
    """

    path: str
    identity: str

    @classmethod
    def of(cls, path: Path, sha256: str | None) -> Self:
        """The file as it is now.

        Raises:
            OSError: There is no such file.
        """
        if sha256 is not None:
            return cls(str(path), f"sha256:{sha256}")
        status = path.stat()
        return cls(str(path), f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}")

    @property
    def is_as_it_was(self) -> bool:
        """Whether it is still there, and the same."""
        path = Path(self.path)
        if self.identity.startswith("sha256:"):
            return path.exists()
        try:
            return Source.of(path, None) == self
        except OSError:
            return False


class PackedHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says of itself.

    Attributes:
        key: The hash that is its name.
        model: The model's name.
        sources: The model's files.
        image_bytes: Bytes of the image.
        checksums: The backend's sums over what is in it, 64 bits each.
    """

    key: str
    model: str
    sources: tuple[Source, ...]
    image_bytes: int
    checksums: bytes


class PackedFile:
    """An open file of packed weights, whole as far as its header tells.

    Attributes:
        path: The file.
        descriptor: The system's number of it.
        offset: Where its image begins.
        checksums: The backend's sums, 64 bits each.
    """

    def __init__(self, path: Path, descriptor: int, offset: int, checksums: Sequence[int]) -> None:
        self.path = path
        self.descriptor = descriptor
        self.offset = offset
        self.checksums = checksums

    @classmethod
    def open(cls, path: Path, key: str) -> Self | None:
        """Open a file; None where there is none, or it is damaged: then it is deleted.

        Args:
            path: The file.
            key: What its header must say.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        header = read_header(descriptor)
        if header is None or header.key != key:
            with cls(path, descriptor, 0, ()) as file:
                file.discard()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # it has been used
        sums = struct.unpack(f"<{len(header.checksums) // 8}Q", header.checksums)
        return cls(path, descriptor, _image_offset(_encode(header)), sums)

    def discard(self) -> None:
        """Delete it: it isn't what it says."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close it. A mapping stays."""
        os.close(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PackedWriter:
    """A file of packed weights that is being written.

    Attributes:
        descriptor: The system's number of it.
        offset: Where its image begins.
    """

    def __init__(self, path: Path, descriptor: int, header: PackedHeader) -> None:
        self._path = path
        self._header = header
        self.descriptor = descriptor
        self.offset = _image_offset(_encode(header))

    def write(self, begin: int, piece: memoryview) -> None:
        """Write a piece of the image, which begins at byte `begin` of it.

        Raises:
            OSError: The disk doesn't take it.
        """
        while piece:
            count = os.pwrite(self.descriptor, piece, self.offset + begin)
            begin, piece = begin + count, piece[count:]

    def finish(self, checksums: Sequence[int]) -> None:
        """Say that the image is written: from now on others find it.

        Raises:
            StoreError: The disk doesn't take it.
        """
        packed = struct.pack(f"<{len(checksums)}Q", *checksums)
        content = _encode(msgspec.structs.replace(self._header, checksums=packed))
        if _image_offset(content) != self.offset:
            raise ValueError("another number of sums than was announced")
        with explained_refusals(self._path.parent):
            os.fsync(self.descriptor)
            os.pwrite(self.descriptor, content, 0)
            os.fsync(self.descriptor)
            move_into_place(self._path, self._path.with_suffix(PACKED))


def _encode(header: PackedHeader) -> bytes:
    content = msgspec.msgpack.encode(header)
    return _PREFIX.pack(_MAGIC, FORMAT_VERSION, len(content), zlib.crc32(content)) + content


def _image_offset(encoded: bytes) -> int:
    return -(-len(encoded) // _ALIGNMENT) * _ALIGNMENT


def read_header(descriptor: int) -> PackedHeader | None:
    """What an open file says of itself; None where it isn't whole."""
    try:
        size = os.fstat(descriptor).st_size
        prefix = os.pread(descriptor, _PREFIX.size, 0)
        if len(prefix) < _PREFIX.size:
            return None
        magic, version, length, checksum = _PREFIX.unpack(prefix)
        if magic != _MAGIC or version != FORMAT_VERSION or length > _MOST_HEADER_BYTES:
            return None
        content = os.pread(descriptor, length, _PREFIX.size)
        if zlib.crc32(content) != checksum:
            return None
        header = msgspec.msgpack.decode(content, type=PackedHeader)
    except (OSError, msgspec.DecodeError):
        return None
    return header if size == _image_offset(prefix + content) + header.image_bytes else None


@contextlib.contextmanager
def explained_refusals(directory: Path) -> Iterator[None]:
    """Turn what the operating system refuses into a `StoreError`."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{error.strerror or error} ({directory})") from error
