"""A file read piece by piece: it may shrink meanwhile, which a mapped file doesn't survive."""

from __future__ import annotations

import os
from pathlib import Path

from caudal.errors import ModelLoadError

MAX_READ_BYTES = 1 << 30
"""Systems read no more than two gigabytes at once."""


class ByteFile:
    """An open file of known size. Reading from several threads at once is fine.

    Args:
        path: The file.

    Attributes:
        path: The file.
        size: Its size in bytes when it was opened.

    Raises:
        ModelLoadError: It can't be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb", buffering=0)
        except FileNotFoundError:
            raise ModelLoadError(str(path), "no such file") from None
        except IsADirectoryError:
            raise ModelLoadError(str(path), "a directory, not a file") from None
        except OSError as error:
            raise self._unreadable(error) from error
        self.size = os.fstat(self._file.fileno()).st_size

    @property
    def descriptor(self) -> int:
        """The system's number of the file.

        Raises:
            ValueError: It has been closed.
        """
        if self._file.closed:
            raise ValueError(f"{self.path} has been closed")
        return self._file.fileno()

    def read(self, offset: int, length: int) -> bytes:
        """The `length` bytes from `offset` on.

        Raises:
            ModelLoadError: The file ends before, or can't be read.
            ValueError: It has been closed.
        """
        descriptor = self.descriptor
        pieces = []
        while length > 0:
            try:
                piece = os.pread(descriptor, min(length, MAX_READ_BYTES), offset)
            except OSError as error:
                raise self._unreadable(error) from error
            if not piece:
                raise ModelLoadError(
                    str(self.path),
                    f"it ends at byte {offset}, but had {self.size} bytes a moment ago: it was cut "
                    "or replaced while it was being read",
                )
            pieces.append(piece)
            offset += len(piece)
            length -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._file.close()

    def _unreadable(self, error: OSError) -> ModelLoadError:
        return ModelLoadError(str(self.path), f"can't read it: {error.strerror or error}")
