"""Metadata of a GGUF file: lazy values, and getters that check the types they hand out."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from caudal.errors import ModelLoadError


class StringArray(Sequence[str]):
    """An array of strings left as bytes until somebody reads it.

    Args:
        source: The file's name, for errors.
        key: The metadata key, for errors.
        buffer: The file's first bytes, the array's among them.
        bounds: For string i, `bounds[i]` is where its bytes start, and `bounds[i + 1]` is eight
            bytes (the next string's length) past its end; one more entry than strings.
    """

    def __init__(self, source: str, key: str, buffer: bytearray, bounds: array[int]) -> None:
        self._source = source
        self._key = key
        self._buffer = buffer
        self._bounds = bounds

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        raw = self._buffer[self._bounds[index] : self._bounds[index + 1] - 8]
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise ModelLoadError(
                self._source, f"{self._key}[{index}] is not valid UTF-8: {bytes(raw[:40])!r}"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def tolist(self) -> list[str]:
        """Decode all strings at once: about 0.1 s for 262,144 of them.

        Raises:
            ModelLoadError: A string is not valid UTF-8.
        """
        buffer, bounds = self._buffer, self._bounds
        try:
            return [
                str(buffer[start : following - 8], "utf-8")
                for start, following in itertools.pairwise(bounds)
            ]
        except UnicodeDecodeError:
            return [self[i] for i in range(len(self))]  # finds and names the culprit


ScalarValue: TypeAlias = int | float | bool | str
MetadataValue: TypeAlias = ScalarValue | StringArray | list[str] | npt.NDArray[Any]
ArrayKind: TypeAlias = Literal["int", "float", "bool"]


class Required(Enum):
    """Stands for "no default": the key has to be there."""

    REQUIRED = "required"


REQUIRED = Required.REQUIRED
Default = TypeVar("Default")

_ARRAY_KINDS: dict[ArrayKind, tuple[str, str]] = {
    "int": ("iu", "an array of integers"),
    "float": ("f", "an array of float32 or float64"),
    "bool": ("b", "an array of bool"),
}


class TypedMetadata:
    """Metadata by key, with getters that raise where the file holds another type than expected.

    Args:
        source: The file's name, for errors.
        metadata: Values by key.
        types: Names of the types the values have in the file, e.g. `array of uint8`, by key.

    Attributes:
        metadata: Values by key.
        types: Names of their types.

    Every getter raises `ModelLoadError` naming the key, the type found and the type expected; and
    where the key is missing and no default is given.
    """

    def __init__(
        self, source: str, metadata: Mapping[str, MetadataValue], types: Mapping[str, str]
    ) -> None:
        self._source = source
        self.types = types
        self.metadata = metadata

    @overload
    def get_int(self, key: str) -> int: ...
    @overload
    def get_int(self, key: str, default: Default) -> int | Default: ...
    def get_int(self, key: str, default: object = REQUIRED) -> object:
        """An integer of any width."""
        value = self._get(key, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._mismatch(key, "an integer")
        return value

    @overload
    def get_float(self, key: str) -> float: ...
    @overload
    def get_float(self, key: str, default: Default) -> float | Default: ...
    def get_float(self, key: str, default: object = REQUIRED) -> object:
        """A finite float32 or float64; an integer will do."""
        value = self._get(key, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._mismatch(key, "float32 or float64")
        if not math.isfinite(value):
            raise ModelLoadError(self._source, f"{key} must be a finite number, but is {value}")
        return float(value)

    @overload
    def get_bool(self, key: str) -> bool: ...
    @overload
    def get_bool(self, key: str, default: Default) -> bool | Default: ...
    def get_bool(self, key: str, default: object = REQUIRED) -> object:
        """A truth value."""
        value = self._get(key, default)
        if value is not default and not isinstance(value, bool):
            raise self._mismatch(key, "bool")
        return value

    @overload
    def get_str(self, key: str) -> str: ...
    @overload
    def get_str(self, key: str, default: Default) -> str | Default: ...
    def get_str(self, key: str, default: object = REQUIRED) -> object:
        """A string; bytes in it that are not UTF-8 have become U+FFFD."""
        value = self._get(key, default)
        if value is not default and not isinstance(value, str):
            raise self._mismatch(key, "a string")
        return value

    @overload
    def get_strings(self, key: str) -> list[str]: ...
    @overload
    def get_strings(self, key: str, default: Default) -> list[str] | Default: ...
    def get_strings(self, key: str, default: object = REQUIRED) -> object:
        """An array of strings, decoded."""
        value = self._get(key, default)
        if value is default:
            return value
        if not isinstance(value, StringArray | list):
            raise self._mismatch(key, "an array of strings")
        return value.tolist() if isinstance(value, StringArray) else list(value)

    @overload
    def get_array(self, key: str, kind: ArrayKind) -> npt.NDArray[Any]: ...
    @overload
    def get_array(
        self, key: str, kind: ArrayKind, default: Default
    ) -> npt.NDArray[Any] | Default: ...
    def get_array(self, key: str, kind: ArrayKind, default: object = REQUIRED) -> object:
        """A one-dimensional, read-only numeric array of the width it has in the file."""
        value = self._get(key, default)
        if value is default:
            return value
        numpy_kinds, expected = _ARRAY_KINDS[kind]
        if not isinstance(value, np.ndarray) or value.dtype.kind not in numpy_kinds:
            raise self._mismatch(key, expected)
        return value

    def _get(self, key: str, default: object) -> object:
        value = self.metadata.get(key, default)
        if value is REQUIRED:
            raise ModelLoadError(self._source, f"metadata key {key} is missing")
        return value

    def _mismatch(self, key: str, expected: str) -> ModelLoadError:
        return ModelLoadError(self._source, f"{key} has type {self.types[key]}, not {expected}")
