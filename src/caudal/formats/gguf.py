"""GGUF model files: read piece by piece, and checked before anything in them is used."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from caudal.errors import ModelLoadError
from caudal.formats.byte_file import ByteFile
from caudal.formats.gguf_header import Header, parse_header
from caudal.formats.gguf_metadata import TypedMetadata
from caudal.formats.model_file import ModelFile
from caudal.formats.scaled_tensors import ScaledTensors
from caudal.formats.split_names import SplitName
from caudal.formats.tensor_file import StoredTensor


class GGUFFile(ModelFile):
    """An open GGUF model: one file, or all parts of a split one.

    Use `open`; a context manager closes it. Metadata and tensor descriptions are read and checked
    at once; the tensors' bytes stay in the file until asked for.

    Attributes:
        path: The file, or the first part.
        version: The format's version, 2 or 3.
        metadata: Values by key; arrays are read-only numpy arrays or lazy sequences of strings.
        tensors: Descriptions by name, in the file's order.
    """

    def __init__(self, path: Path, parts: list[tuple[ByteFile, Header]]) -> None:
        first = parts[0][1]
        tensors = {name: tensor for _, header in parts for name, tensor in header.tensors.items()}
        self._scaled = ScaledTensors(str(path), tensors)
        super().__init__(path, first.metadata, first.types, self._scaled.tensors)
        self.version = first.version
        self._stored = tensors
        self._files = [file for file, _ in parts]

    @classmethod
    def open(cls, path: str | Path, parts: Sequence[Path] = ()) -> Self:
        """Open a model; of a split model (`…-00001-of-0000N.gguf`) any part will do.

        Args:
            path: The file.
            parts: All files of a split model in order, where names don't tell which they are.

        Raises:
            ModelLoadError: The file can't be read, isn't GGUF, or is damaged; names what is wrong.
        """
        if len(parts) > 1:
            return cls._open_parts(parts)
        path = Path(path)
        name = SplitName.parse(path.name)
        if name is None:
            opened = [_open_part(path, 0)]
            header = opened[0][1]
            count = TypedMetadata(str(path), header.metadata, header.types).get_int(
                "split.count", 1
            )
            if count > 1:
                raise ModelLoadError(
                    str(path),
                    f"the first of {count} parts of a split model, but its name doesn't end in "
                    f"-00001-of-{count:05d}.gguf, so the others can't be found",
                )
            return cls(path, opened)
        return cls._open_split(path, name)

    @classmethod
    def _open_split(cls, path: Path, name: SplitName) -> Self:
        if name.count == 0:
            raise ModelLoadError(str(path), "its name says it is part of a model of 0 parts")
        paths = [path.with_name(part) for part in name.names]
        for part_path in paths:
            if not part_path.exists():
                raise ModelLoadError(
                    str(path), f"part {part_path.name} of the split model is missing beside it"
                )
        return cls._open_parts(paths)

    @classmethod
    def _open_parts(cls, paths: Sequence[Path]) -> Self:
        with contextlib.ExitStack() as on_failure:
            parts: list[tuple[ByteFile, Header]] = []
            for number, part_path in enumerate(paths):
                parts.append(_open_part(part_path, number))
                on_failure.callback(parts[-1][0].close)
            cls._check_parts(paths, [header for _, header in parts])
            on_failure.pop_all()
        return cls(paths[0], parts)

    @staticmethod
    def _check_parts(paths: Sequence[Path], headers: Sequence[Header]) -> None:
        seen: dict[str, Path] = {}
        for number, (part_path, header) in enumerate(zip(paths, headers, strict=True)):
            _check_split_numbers(part_path, header, number, len(paths))
            for tensor in header.tensors:
                if tensor in seen:
                    raise ModelLoadError(
                        str(part_path), f"tensor {tensor} is also in part {seen[tensor].name}"
                    )
                seen[tensor] = part_path
        first = headers[0]
        facts = TypedMetadata(str(paths[0]), first.metadata, first.types)
        expected = facts.get_int("split.tensors.count", None)
        if expected is not None and expected != len(seen):
            raise ModelLoadError(
                str(paths[0]),
                f"split.tensors.count is {expected}, but the parts hold {len(seen)} tensors",
            )

    def tensor_rows(self, name: str, first: int, count: int) -> npt.NDArray[np.uint8]:
        """The bytes of some rows; see `ModelFile.tensor_rows`."""
        self.tensor(name)
        stored = self._stored[name]
        row_bytes = stored.row_bytes
        offset = stored.offset + first * row_bytes
        data = np.frombuffer(self._files[stored.part].read(offset, count * row_bytes), np.uint8)
        if name not in self._scaled.scales or not count:
            return data
        place = self._stored[self._scaled.scales[name].name]
        scales = self._files[place.part].read(place.offset, place.nbytes)
        return ScaledTensors.joined(
            data.reshape(count, -1), np.frombuffer(scales, "<f4"), first, stored.shape[-2]
        )

    def tensor_place(self, name: str) -> tuple[int, int] | None:
        """The descriptor of the open file that holds a tensor, and where in it the tensor begins.

        None where it has scales besides (`ScaledTensors`).

        Raises:
            ModelLoadError: There is no such tensor.
            ValueError: The file has been closed.
        """
        self.tensor(name)
        if name in self._scaled.scales:
            return None
        stored = self._stored[name]
        return self._files[stored.part].descriptor, stored.offset

    def close(self) -> None:
        """Close the file; safe to call twice."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stored_tensors(path: Path) -> Mapping[str, StoredTensor]:
    """What one GGUF file, whole or a part of a split one, says of the tensors in it.

    Raises:
        ModelLoadError: It can't be read, isn't GGUF, or is damaged.
    """
    file, header = _open_part(path, 0)
    file.close()
    return header.tensors


def _open_part(path: Path, number: int) -> tuple[ByteFile, Header]:
    file = ByteFile(path)
    try:
        if not file.size:
            raise ModelLoadError(str(path), "the file is empty")
        return file, parse_header(str(path), file, number)
    except BaseException:
        file.close()
        raise


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
