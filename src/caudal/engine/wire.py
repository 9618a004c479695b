"""Requests, updates, answers and errors as bytes, for another process: msgpack, by msgspec.

What can be sent says so by its types: structures and dataclasses of plain data. Arrays of floats go
as their bytes, little-endian; errors as `ErrorData`. Both ends are of the same version of Caudal,
and whatever comes in is checked against the types all the same.

JSON carries in from clients what msgpack can't: half of a surrogate pair in a text, and integers of
more than 64 bits. A message with such a value takes a longer way and begins with a byte that no
other has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar, cast, get_args, get_origin

import msgspec
import numpy as np

from caudal.errors import CaudalError

T = TypeVar("T")

_SPELT = b"\xc1"
"""Begins a message in which values are spelt that msgpack can't carry; no msgpack begins so."""

_TEXT, _INTEGER, _MAP = range(3)
"""What is spelt."""

_FLOATS = np.dtype("<f8")


class ErrorData(msgspec.Struct, frozen=True):
    """An error that Caudal raises on purpose, as plain data.

    Attributes:
        kind: The name of its class.
        message: For the person who reads it.
        fields: Its attributes.
        bases: The names of the classes that its class builds on, the nearest first: it is raised
            again as the first that is known there, where not all modules are loaded that are here.
    """

    kind: str
    message: str
    fields: dict[str, Any]
    bases: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: CaudalError) -> ErrorData:
        """An error's data."""
        fields = {name: value for name, value in vars(error).items() if name[0] != "_"}
        kind, *bases = (
            each.__name__ for each in type(error).__mro__ if issubclass(each, CaudalError)
        )
        return cls(kind, str(error), fields, tuple(bases))

    def error(self) -> CaudalError:
        """The error again.

        Raises:
            ValueError: There is no error of this kind.
        """
        known = {kind.__name__: kind for kind in _kinds(CaudalError)}
        for name in (self.kind, *self.bases):
            if name in known:
                fields = {name: _as_attribute(value) for name, value in self.fields.items()}
                return known[name].restored(self.message, fields)
        raise ValueError(f"there is no error of the kind {self.kind!r}")


def pack(message: object) -> bytes:
    """A message's bytes.

    Raises:
        TypeError: It is not plain data.
    """
    try:
        return _encoder.encode(message)
    except (UnicodeEncodeError, OverflowError):
        plain = msgspec.to_builtins(message, builtin_types=(bytes,), enc_hook=_plain)
        return _SPELT + _encoder.encode(_spelt(plain))


def unpack(data: bytes, kind: type[T]) -> T:
    """The message that was packed.

    Args:
        data: Its bytes.
        kind: Its type.

    Raises:
        msgspec.ValidationError: It is of another type.
        msgspec.DecodeError: It is no message.
        ParameterError: It has sampling parameters that make no sense.
    """
    if data.startswith(_SPELT):
        plain = _speller.decode(data[len(_SPELT) :])
        return msgspec.convert(plain, kind, builtin_types=(bytes,), dec_hook=_from_plain)
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind, dec_hook=_from_plain)
    return cast(T, decoder.decode(data))


def _plain(value: object) -> bytes:
    """What stands for a value that msgpack has no type for."""
    if isinstance(value, np.ndarray):
        return value.astype(_FLOATS, copy=False).tobytes()
    raise TypeError(f"{type(value).__name__} is not plain data")


def _from_plain(kind: Any, value: Any) -> object:
    """The value that `_plain` made plain."""
    if get_origin(kind) is np.ndarray and isinstance(value, bytes):
        [element] = get_args(get_args(kind)[1])
        return np.frombuffer(value, _FLOATS).astype(element, copy=False)
    raise TypeError(f"{kind} is not plain data")


def _spelt(plain: Any) -> Any:
    """Built-in types with the values spelt that msgpack can't carry."""
    if isinstance(plain, str):
        try:
            plain.encode()
        except UnicodeEncodeError:
            return msgspec.msgpack.Ext(_TEXT, plain.encode(errors="surrogatepass"))
    elif isinstance(plain, int) and not -(2**63) <= plain < 2**64:
        size = plain.bit_length() // 8 + 1
        return msgspec.msgpack.Ext(_INTEGER, plain.to_bytes(size, "big", signed=True))
    elif isinstance(plain, dict):
        items = [(_spelt(key), _spelt(value)) for key, value in plain.items()]
        if any(isinstance(key, msgspec.msgpack.Ext) for key, _ in items):
            return msgspec.msgpack.Ext(_MAP, _encoder.encode(items))
        return dict(items)
    elif isinstance(plain, list | tuple):
        return list(map(_spelt, plain))
    return plain


def _read(code: int, data: memoryview) -> str | int | dict[Any, Any]:
    """The value that `_spelt` spelt."""
    if code == _INTEGER:
        return int.from_bytes(data, "big", signed=True)
    if code == _MAP:
        return dict(_speller.decode(data))
    return bytes(data).decode(errors="surrogatepass")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_speller = msgspec.msgpack.Decoder(ext_hook=_read)
_decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {}


def _kinds(base: type[CaudalError]) -> Iterator[type[CaudalError]]:
    yield base
    for kind in base.__subclasses__():
        yield from _kinds(kind)


def _as_attribute(value: Any) -> Any:
    """An attribute as errors have it: msgpack doesn't tell tuples from lists."""
    return tuple(map(_as_attribute, value)) if isinstance(value, list) else value
