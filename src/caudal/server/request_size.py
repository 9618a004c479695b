"""How much of a request has come, and whether that is more than it may have."""

from __future__ import annotations

from caudal.server.limits import ServerLimits

FREE_CHUNKS = 1000
LEAST_CHUNK = 64
"""Bytes that a body's chunks have on average, beyond the first so many: each costs as much as 1,000
bytes."""


class RefusedError(Exception):
    """A request is over a limit, or can't be read. Raised into the parser, which stops there.

    Args:
        status: HTTP's.
        message: What is wrong.
        limit: The limit's name, where it is over one that has a name.
        retry_after: Seconds after which it is sensible to try again, where it ever is.
    """

    def __init__(
        self,
        status: int,
        message: str,
        limit: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.limit = limit
        self.retry_after = retry_after


class RequestSize:
    """Counts one request after the other, piece by piece as the parser tells of them.

    Args:
        limits: What it may have; every method that counts raises `RefusedError` beyond them.

    Attributes:
        body_bytes: Bytes of the body so far.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self.body_bytes = 0
        self._url_bytes = 0
        self._header_bytes = 0
        self._headers = 0
        self._unparsed_bytes = 0
        self._chunks = 0

    def begin(self) -> None:
        """A request begins."""
        self._url_bytes = self._header_bytes = self._headers = 0
        self.begin_body()

    def begin_body(self) -> None:
        """All of its headers are there."""
        self.body_bytes = self._unparsed_bytes = self._chunks = 0

    def count_url(self, size: int) -> None:
        """A piece of the request's target."""
        self._url_bytes += size
        limit = self._limits.url_bytes
        if self._url_bytes > limit:
            raise RefusedError(
                414, f"The URL is longer than the limit of {limit} bytes.", "max_url"
            )

    def count_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        self.count_trailer(name, value)
        self._headers += 1
        limit = self._limits.header_count
        if self._headers > limit:
            raise RefusedError(
                431, f"There are more headers than the limit of {limit}.", "max_headers"
            )

    def count_trailer(self, name: bytes, value: bytes) -> None:
        """A trailer, which is as large as a header."""
        self._header_bytes += len(name) + len(value) + 4
        self._check_headers(self._header_bytes + self._url_bytes)

    def count_unparsed(self, size: int) -> None:
        """Bytes that the parser keeps or skips without telling of them: a header that goes on and
        on, extensions of chunks, trailers.
        """
        self._unparsed_bytes += size
        self._check_headers(self._unparsed_bytes)

    def count_body(self, size: int) -> None:
        """A piece of the body."""
        self.body_bytes += size
        self._chunks += 1
        if self._chunks > FREE_CHUNKS + self.body_bytes // LEAST_CHUNK:
            raise RefusedError(400, "The body's chunks are too small.")

    def _check_headers(self, size: int) -> None:
        limit = self._limits.header_bytes
        if size > limit:
            message = f"The headers are larger than the limit of {limit} bytes."
            raise RefusedError(431, message, "max_header_bytes")
