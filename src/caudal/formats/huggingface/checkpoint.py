"""The safetensors files of a folder as one: a single file, or shards with an index."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy.typing as npt

from caudal.errors import ModelLoadError
from caudal.formats.huggingface.rows import Bytes, Rows
from caudal.formats.model_folder import WEIGHTS, WEIGHTS_INDEX, ModelFolder
from caudal.formats.safetensors import SafetensorsEntry, SafetensorsFile


class Checkpoint:
    """All tensors that a folder's files hold, by their names there.

    Args:
        source: The file that names the others, or the only one, for errors.
        files: The open file of each tensor.
    """

    def __init__(self, source: str, files: Mapping[str, SafetensorsFile]) -> None:
        self.source = source
        self._files = files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def entry(self, name: str) -> SafetensorsEntry:
        """What the file says of a tensor.

        Raises:
            ModelLoadError: There is no such tensor.
        """
        return self._file(name).entries[name]

    def array(self, name: str) -> npt.NDArray[Any]:
        """All of a tensor, of the numpy type with as many bits: BF16 as uint16, 8-bit floats as
        uint8.

        Raises:
            ModelLoadError: There is no such tensor, or the file is shorter than it was.
        """
        return self._file(name).array(name)

    def rows(self, name: str) -> Rows:
        """A tensor of floats as it is.

        Raises:
            ModelLoadError: There is no such tensor, or it isn't of floats that are computed with.
        """
        file = self._file(name)
        if name not in file.tensors:
            raise ModelLoadError(
                str(file.path),
                f"tensor {name} has type {file.entries[name].dtype}; supported are F32, F16 and "
                "BF16",
            )
        return _Stored(file, name)

    def error(self, name: str, reason: str) -> ModelLoadError:
        """What to raise about a tensor."""
        return ModelLoadError(str(self._file(name).path), f"tensor {name} {reason}")

    def _file(self, name: str) -> SafetensorsFile:
        found = self._files.get(name)
        if found is None:
            raise ModelLoadError(self.source, f"tensor {name} is missing")
        return found


class _Stored(Rows):
    """A tensor as a file has it."""

    def __init__(self, file: SafetensorsFile, name: str) -> None:
        tensor = file.tensors[name]
        super().__init__(name, tensor.type, tensor.shape)
        self._file = file

    @property
    def place(self) -> tuple[int, int] | None:
        """See `Rows.place`."""
        return self._file.tensor_place(self.name)

    def read(self, first: int, count: int) -> Bytes:
        """See `Rows.read`."""
        return self._file.tensor_rows(self.name, first, count).reshape(count, -1)


@contextlib.contextmanager
def open_checkpoint(folder: ModelFolder) -> Iterator[Checkpoint]:
    """Open a folder's weights, and close them at the end.

    Raises:
        ModelLoadError: A file is missing or damaged, or the index says something else than they do.
    """
    with contextlib.ExitStack() as stack:
        if WEIGHTS in folder:
            file = stack.enter_context(SafetensorsFile.open(folder.path(WEIGHTS)))
            yield Checkpoint(str(file.path), dict.fromkeys(file.entries, file))
            return
        index = folder.read_object(WEIGHTS_INDEX)
        weight_map = index.get("weight_map", dict)
        files: dict[str, SafetensorsFile] = {}
        for shard in sorted(_shards(index.source, weight_map)):
            if shard not in folder:
                raise ModelLoadError(
                    index.source, f"the model's folder lacks {shard}, one of the files of weights"
                )
            file = stack.enter_context(SafetensorsFile.open(folder.path(shard)))
            for name in file.entries:
                if weight_map.get(name) != shard:
                    where = weight_map.get(name, "no file")
                    raise ModelLoadError(
                        str(file.path),
                        f"tensor {name} is in this file, but in {where} by the index",
                    )
                files[name] = file
        missing = [name for name in weight_map if name not in files]
        if missing:
            raise ModelLoadError(
                index.source,
                f"tensor {missing[0]} (and {len(missing) - 1} more) is not in the file "
                f"{weight_map[missing[0]]}, where the index has it",
            )
        yield Checkpoint(index.source, files)


def _shards(source: str, weight_map: Mapping[Any, Any]) -> set[str]:
    shards = set()
    for name, shard in weight_map.items():
        if not isinstance(shard, str):
            raise ModelLoadError(source, f"weight_map[{name!r:.100}] is no file: {shard!r:.100}")
        shards.add(shard)
    if not shards:
        raise ModelLoadError(source, "weight_map is empty")
    return shards
