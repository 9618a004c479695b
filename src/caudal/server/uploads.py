"""Files that clients send in forms (`multipart/form-data`), to the disk while they come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from caudal.batches.batch_service import BatchService
from caudal.batches.files import Incoming
from caudal.server.body_error import BodyError

FORM = "multipart/form-data"

_MAX_FIELDS = 32
_MAX_FIELD_BYTES = 64 * 2**10

_PIECE_BYTES = 2**20
"""A thread takes so much of a body at a time."""


@dataclass(slots=True)
class Form:
    """What a form has beside its file.

    Attributes:
        fields: The other fields, as text.
        filename: What the file is called; None where there is none.
    """

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None


async def read_form(request: Request, service: BatchService, into: Incoming) -> Form:
    """Read a form with one file.

    Args:
        request: Has the form.
        service: Its threads write.
        into: Gets what is in the field `file`.

    Raises:
        BodyError: It is no form, or none with one file.
        NoRoomError, OSError: The file can't be written.
        ClientDisconnect: It didn't come as a whole.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind.decode("latin-1") != FORM or b"boundary" not in options:
        raise BodyError(f"Send a form with Content-Type: {FORM}.")
    reader = _FormReader(options, into)
    waiting = bytearray()
    async for piece in request.stream():
        waiting += piece
        if len(waiting) >= _PIECE_BYTES:
            await service.threads.run(reader.write, bytes(waiting))
            waiting.clear()
    await service.threads.run(reader.write, bytes(waiting))
    if not reader.is_whole:
        raise BodyError("The form ends before its end.")
    if reader.form.filename is None:
        raise BodyError("The form needs a file in its field file.", "file")
    return reader.form


class _FormReader:
    """Takes a form apart. For one thread at a time.

    Args:
        options: Of its content type.
        into: Gets the file.
    """

    def __init__(self, options: Mapping[bytes, bytes], into: Incoming) -> None:
        self.form = Form()
        self.is_whole = False
        self._into = into
        self._header = (bytearray(), bytearray())
        self._options: Mapping[bytes, bytes] = {}
        self._is_file = False
        self._value = bytearray()
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._begin_part,
                    "on_header_begin": self._begin_header,
                    "on_header_field": self._add_name,
                    "on_header_value": self._add_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._add_data,
                    "on_part_end": self._end_part,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise BodyError(f"The form can't be read: {error}.") from error

    def write(self, data: bytes) -> None:
        """Take more of it; raises `BodyError` where it is no form."""
        if not data:
            return
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise BodyError(f"The form can't be read: {error}.") from error

    def _begin_part(self) -> None:
        self._options = {}
        self._value.clear()

    def _begin_header(self) -> None:
        self._header = (bytearray(), bytearray())

    def _add_name(self, data: bytes, start: int, end: int) -> None:
        self._header[0].extend(data[start:end])

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1].extend(data[start:end])

    def _end_header(self) -> None:
        name, value = self._header
        if name.lower() == b"content-disposition":
            _, self._options = parse_options_header(value.decode("latin-1"))

    def _end_headers(self) -> None:
        self._is_file = self._options.get(b"name") == b"file"
        if self._is_file:
            if self.form.filename is not None:
                raise BodyError("The form has two files; send one at a time.", "file")
            self.form.filename = self._options.get(b"filename", b"").decode(errors="replace")
        elif len(self.form.fields) == _MAX_FIELDS:
            raise BodyError(f"The form has more than {_MAX_FIELDS} fields.")

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._into.write(data[start:end])
        elif len(self._value) + end - start > _MAX_FIELD_BYTES:
            raise BodyError(f"A field of the form has more than {_MAX_FIELD_BYTES} bytes.")
        else:
            self._value += data[start:end]

    def _end_part(self) -> None:
        if not self._is_file:
            name = self._options.get(b"name", b"").decode(errors="replace")
            self.form.fields[name] = self._value.decode(errors="replace")

    def _end(self) -> None:
        self.is_whole = True
