"""Parses the values of GGUF metadata; strings of arrays stay bytes."""

from __future__ import annotations

import struct
from array import array

import numpy as np
import numpy.typing as npt

from caudal.formats.gguf_cursor import MAX_ARRAY_STRINGS, U32, U64, Cursor
from caudal.formats.gguf_metadata import MetadataValue, StringArray

_BOOL = 7
STRING = 8
ARRAY = 9
NUMERIC_TYPES: dict[int, tuple[str, struct.Struct, str]] = {
    0: ("uint8", struct.Struct("<B"), "<u1"),
    1: ("int8", struct.Struct("<b"), "<i1"),
    2: ("uint16", struct.Struct("<H"), "<u2"),
    3: ("int16", struct.Struct("<h"), "<i2"),
    4: ("uint32", U32, "<u4"),
    5: ("int32", struct.Struct("<i"), "<i4"),
    6: ("float32", struct.Struct("<f"), "<f4"),
    _BOOL: ("bool", struct.Struct("<B"), "<u1"),
    10: ("uint64", U64, "<u8"),
    11: ("int64", struct.Struct("<q"), "<i8"),
    12: ("float64", struct.Struct("<d"), "<f8"),
}


def parse_value(cursor: Cursor, key: str) -> tuple[MetadataValue, str]:
    """The value at the cursor, and the name of its type, e.g. `array of uint8`.

    Raises:
        ModelLoadError: The value can't be read safely; names the key.
    """
    type_number = cursor.u32(f"type of {key}")
    if type_number == STRING:
        length = cursor.u64(f"length of {key}")
        return cursor.take(length, key).decode(errors="replace"), "string"
    if type_number == ARRAY:
        return _parse_array(cursor, key)
    if type_number not in NUMERIC_TYPES:
        raise cursor.error(f"{key} has unknown value type {type_number}")
    name, layout, _ = NUMERIC_TYPES[type_number]
    (value,) = layout.unpack(cursor.take(layout.size, key))
    if type_number != _BOOL:
        return value, name
    if value > 1:
        raise cursor.error(f"{key} is a bool with value {value}; it must be 0 or 1")
    return bool(value), name


def _parse_array(cursor: Cursor, key: str) -> tuple[MetadataValue, str]:
    type_number = cursor.u32(f"element type of {key}")
    count = cursor.u64(f"length of {key}")
    if type_number == STRING:
        return _skip_strings(cursor, key, count), "array of string"
    if type_number == ARRAY:
        raise cursor.error(f"{key} is an array of arrays, which no model needs")
    if type_number not in NUMERIC_TYPES:
        raise cursor.error(f"{key} has unknown array element type {type_number}")
    name, layout, dtype = NUMERIC_TYPES[type_number]
    cursor.check_fits(count, layout.size, f"{key} with {count} elements")
    values: npt.NDArray[np.generic] = np.frombuffer(cursor.take(count * layout.size, key), dtype)
    if type_number == _BOOL:
        if count and values.max() > 1:
            raise cursor.error(f"{key} holds bools that are neither 0 nor 1")
        values = values.view(np.bool_)
    return values, f"array of {name}"


def _skip_strings(cursor: Cursor, key: str, count: int) -> StringArray:
    """Find where each string starts; decoding waits until somebody reads the array."""
    cursor.check_fits(count, 8, f"{key} with {count} strings")
    if count > cursor.strings_left:
        raise cursor.error(
            f"{key} has {count} strings; at most {MAX_ARRAY_STRINGS} in a file are accepted"
        )
    cursor.strings_left -= count
    # Half a million turns for a large vocabulary: no calls but the one that reads a length.
    buffer, position, unpack = cursor.buffer, cursor.position, U64.unpack_from
    filled = len(buffer)
    bounds = array("Q")
    for index in range(count):
        if position > filled - 8:
            cursor.fill(position + 8)
            filled = len(buffer)
            if position > filled - 8:
                raise cursor.error(
                    f"{key}[{index}] runs past the end of the file: truncated or corrupt"
                )
        (length,) = unpack(buffer, position)
        position += 8
        bounds.append(position)
        position += length
    if position > cursor.size:
        raise cursor.error(
            f"{key}[{count - 1}] runs past the end of the file: truncated or corrupt"
        )
    cursor.fill(position)
    bounds.append(position + 8)
    cursor.position = position
    return StringArray(cursor.source, key, buffer, bounds)
