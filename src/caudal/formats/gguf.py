"""GGUF model files: memory-mapped, lazy, and checked before anything in them is used."""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from caudal.errors import ModelLoadError
from caudal.formats.gguf_header import Header, TensorInfo, parse_header
from caudal.formats.gguf_metadata import TypedMetadata

__all__ = ["GGUFFile", "TensorInfo"]

_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.ASCII)


class GGUFFile(TypedMetadata):
    """An open GGUF model: one file, or all parts of a split one.

    Use `open`; a context manager closes it. Metadata and tensor descriptions are read and checked
    at once; arrays of metadata and the tensors' bytes stay in the mapped file until asked for.

    Attributes:
        path: The file, or the first part.
        version: The format's version, 2 or 3.
        metadata: Values by key; arrays are read-only numpy arrays or lazy sequences of strings.
        tensors: Descriptions by name, in the file's order.
    """

    def __init__(self, path: Path, parts: list[tuple[mmap.mmap, Header]]) -> None:
        first = parts[0][1]
        super().__init__(str(path), first.metadata, first.types)
        self.path = path
        self.version = first.version
        self.tensors: Mapping[str, TensorInfo] = {
            name: tensor for _, header in parts for name, tensor in header.tensors.items()
        }
        self._maps = [mapped for mapped, _ in parts]

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a model; of a split model (`…-00001-of-0000N.gguf`) any part will do.

        Raises:
            ModelLoadError: The file can't be read, isn't GGUF, or is damaged; names what is wrong.
        """
        path = Path(path)
        name = _SPLIT_NAME.fullmatch(path.name)
        if name is None:
            parts = [_open_part(path, 0)]
            header = parts[0][1]
            count = TypedMetadata(str(path), header.metadata, header.types).get_int(
                "split.count", 1
            )
            if count > 1:
                raise ModelLoadError(
                    str(path),
                    f"the first of {count} parts of a split model, but its name doesn't end in "
                    f"-00001-of-{count:05d}.gguf, so the others can't be found",
                )
            return cls(path, parts)
        return cls._open_split(path, name["stem"], int(name["count"]))

    @classmethod
    def _open_split(cls, path: Path, stem: str, count: int) -> Self:
        if count == 0:
            raise ModelLoadError(str(path), "its name says it is part of a model of 0 parts")
        paths = [path.with_name(f"{stem}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]
        for part_path in paths:
            if not part_path.exists():
                raise ModelLoadError(
                    str(path), f"part {part_path.name} of the split model is missing beside it"
                )
        parts: list[tuple[mmap.mmap, Header]] = []
        seen: dict[str, Path] = {}
        for number, part_path in enumerate(paths):
            mapped, header = _open_part(part_path, number)
            _check_split_numbers(part_path, header, number, count)
            for tensor in header.tensors:
                if tensor in seen:
                    raise ModelLoadError(
                        str(part_path), f"tensor {tensor} is also in part {seen[tensor].name}"
                    )
                seen[tensor] = part_path
            parts.append((mapped, header))
        first = parts[0][1]
        facts = TypedMetadata(str(paths[0]), first.metadata, first.types)
        expected = facts.get_int("split.tensors.count", None)
        if expected is not None and expected != len(seen):
            raise ModelLoadError(
                str(paths[0]),
                f"split.tensors.count is {expected}, but the parts hold {len(seen)} tensors",
            )
        return cls(paths[0], parts)

    @property
    def architecture(self) -> str:
        """The model family, e.g. `llama`.

        Raises:
            ModelLoadError: `general.architecture` is missing or not a string.
        """
        return self.get_str("general.architecture")

    def tensor_bytes(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes as a read-only view of the mapped file, shape (nbytes,), no copy.

        Raises:
            ModelLoadError: There is no such tensor.
            ValueError: The file has been closed.
        """
        tensor = self._tensor(name)
        return np.frombuffer(
            self._part(tensor), np.uint8, count=tensor.nbytes, offset=tensor.offset
        )

    def release_pages(self, name: str) -> None:
        """Give a tensor's pages back to the system; they are read again if touched again.

        Raises:
            ModelLoadError: There is no such tensor.
            ValueError: The file has been closed.
        """
        tensor = self._tensor(name)
        part = self._part(tensor)
        if hasattr(part, "madvise"):  # not on Windows
            start = tensor.offset - tensor.offset % mmap.PAGESIZE
            part.madvise(mmap.MADV_DONTNEED, start, tensor.offset + tensor.nbytes - start)

    def close(self) -> None:
        """Unmap the file. Views handed out stay valid and keep it mapped until they are gone."""
        maps, self._maps = self._maps, []
        for mapped in maps:
            try:
                mapped.close()
            except BufferError:  # views are alive; the last one to go unmaps it
                continue

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _tensor(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise ModelLoadError(str(self.path), f"tensor {name} is missing")
        return self.tensors[name]

    def _part(self, tensor: TensorInfo) -> mmap.mmap:
        if not self._maps:
            raise ValueError(f"{self.path} has been closed")
        return self._maps[tensor.part]


def _open_part(path: Path, number: int) -> tuple[mmap.mmap, Header]:
    try:
        with path.open("rb") as file:
            if not file.seek(0, 2):
                raise ModelLoadError(str(path), "the file is empty")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelLoadError(str(path), "no such file") from None
    except IsADirectoryError:
        raise ModelLoadError(str(path), "a directory, not a GGUF file") from None
    except OSError as error:
        raise ModelLoadError(str(path), f"can't read it: {error.strerror or error}") from error
    return mapped, parse_header(str(path), mapped, number)


def _check_split_numbers(path: Path, header: Header, number: int, count: int) -> None:
    facts = TypedMetadata(str(path), header.metadata, header.types)
    for key, expected in (("split.no", number), ("split.count", count)):
        # A file of one part may be named like a part without being marked as one.
        value = facts.get_int(key, expected if count == 1 else None)
        if value != expected:
            found = "is missing" if value is None else f"is {value}"
            raise ModelLoadError(
                str(path), f"{key} {found}, but by its name the file must have {expected}"
            )
