"""Sending one blob: in parts, gone on from where the registry has got to, even after a kill."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx2

from caudal.errors import StoreError
from caudal.store.disk import write_atomically
from caudal.store.oci import Layer
from caudal.store.registry.client import RegistryClient, short
from caudal.store.transfer.http import is_loopback
from caudal.store.transfer.retries import Patience, TransientError, check_transient

PART_BYTES = 64 << 20
"""Sent at a time: a broken connection costs as much at most."""
_PIECE_BYTES = 1 << 18
_RANGE = re.compile(r"(?:bytes=)?0-(\d+)")


@dataclass
class UploadNotes:
    """Where an upload goes on after a kill.

    Args:
        path: The file with it.
    """

    path: Path

    @classmethod
    def of(cls, folder: Path, client: RegistryClient, digest: str) -> UploadNotes:
        """The notes on one blob's way to one repository."""
        key = hashlib.sha256(f"{client.repository.url}{digest}".encode()).hexdigest()
        return cls(folder / f"sha256-{key}.upload")

    def read(self) -> str:
        """The upload's address; empty where there is none."""
        try:
            noted = json.loads(self.path.read_bytes())
            location = noted["location"]
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        return location if isinstance(location, str) else ""

    def write(self, location: str) -> None:
        """Note down an address."""
        write_atomically(self.path, json.dumps({"location": location}).encode())

    def forget(self) -> None:
        """There is nothing to go on with."""
        self.path.unlink(missing_ok=True)


class Upload:
    """One blob's.

    Args:
        client: Where to.
        layer: Which.
        path: Its content.
        notes: Where it goes on after a kill.
        mount_from: A repository of the same registry that may have the blob; empty for none.
        tell: Called with the reason when something is tried again.
    """

    def __init__(
        self,
        client: RegistryClient,
        layer: Layer,
        path: Path,
        notes: UploadNotes,
        mount_from: str,
        tell: Callable[[str], None],
    ) -> None:
        self._client = client
        self._layer = layer
        self._path = path
        self._notes = notes
        self._mount_from = mount_from
        self._tell = tell
        self._location = self._at(notes.read())
        self._there = 0
        self._is_sure = False
        self._is_resumed = self._location is not None
        self._is_done = False
        self.sent = 0
        """Bytes that are there, or on the way."""

    async def run(self) -> None:
        """Make the registry have the blob.

        Raises:
            StoreError: It refuses, or fails too often; what it has stays for the next time.
        """
        patience = Patience(self._tell)
        patience.has_progressed()  # the registry has been reached: it was asked for the blob
        while not self._is_done:
            before = self._there
            try:
                await self._step()
            except (TransientError, httpx2.TransportError) as error:
                self._is_sure = False
                self.sent = self._there
                await patience.after(error, f"pushing {short(self._layer.digest)}")
            if self._there > before:
                patience.has_progressed()
        self.sent = self._layer.size
        self._notes.forget()

    async def _step(self) -> None:
        """Do what comes next."""
        if self._location is None:
            await self._begin()
        elif not self._is_sure:
            await self._find_out(self._location)
        elif self._layer.size - self._there > PART_BYTES:
            await self._send_part(self._location)
        else:
            await self._finish(self._location)

    async def _begin(self) -> None:
        url = self._client.url("blobs/uploads/")
        if self._mount_from:
            asked = {"mount": self._layer.digest, "from": self._mount_from}
            url = url.copy_merge_params(asked)
        async with self._client.sent("POST", url, body=lambda: b"") as response:
            if self._mount_from and response.status_code not in (201, 202):
                check_transient(response)
                self._mount_from = ""
                return
            await self._client.check(response, 201, 202)
            if response.status_code == 201:
                self._is_done = True
            else:
                self._go_on(response, 0)

    async def _find_out(self, location: httpx2.URL) -> None:
        """How much of it the registry has."""
        async with self._client.sent("GET", location) as response:
            check_transient(response)
            match = _RANGE.fullmatch(response.headers.get("Range", ""))
            if response.status_code not in (200, 202, 204) or match is None:
                self._start_over()
                return
            # What is empty is said to be 0-0.
            there = int(match[1]) + 1 if match[1] != "0" else 0
            if there > self._layer.size:
                self._start_over()
                return
            self._go_on(response, there)

    async def _send_part(self, location: httpx2.URL) -> None:
        end = self._there + PART_BYTES
        headers = self._headers(end)
        async with self._client.sent("PATCH", location, headers, self._body(end)) as response:
            if response.status_code in (404, 416):
                raise TransientError("the registry has another part of it")
            await self._client.check(response, 201, 202, 204)
            self._go_on(response, end)

    async def _finish(self, location: httpx2.URL) -> None:
        end = self._layer.size
        url = location.copy_merge_params({"digest": self._layer.digest})
        async with self._client.sent("PUT", url, self._headers(end), self._body(end)) as response:
            if response.status_code in (404, 416):
                raise TransientError("the registry has another part of it")
            if response.status_code == 400 and self._is_resumed:
                self._start_over()
                return
            await self._client.check(response, 201, 204)
            self._is_done = True

    def _go_on(self, response: httpx2.Response, there: int) -> None:
        """After an answer: where to send what comes next."""
        self._location = self._at(response.headers.get("Location", "")) or self._location
        if self._location is None:
            raise StoreError(f"{self._client.repository.host} doesn't say where to send a blob to")
        self._there = self.sent = there
        self._is_sure = True
        self._notes.write(str(self._location))

    def _start_over(self) -> None:
        self._notes.forget()
        self._location = None
        self._is_resumed = False
        self._there = self.sent = 0

    def _at(self, location: str) -> httpx2.URL | None:
        """An upload's address. Behind a proxy, registries may not know that it is encrypted."""
        home = self._client.repository.url
        try:
            url = home.join(location) if location else None
        except httpx2.InvalidURL:
            return None
        if url is not None and home.scheme == "https" and url.scheme == "http":
            if url.host != home.host and not is_loopback(url.host):
                raise StoreError(f"{home.host} wants a blob at {url.host}, without encryption")
            url = url.copy_with(scheme="https", port=home.port)
        return url

    def _headers(self, end: int) -> dict[str, str]:
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(end - self._there),
        }
        if end > self._there:
            headers["Content-Range"] = f"{self._there}-{end - 1}"
        return headers

    def _body(self, end: int) -> Callable[[], AsyncIterator[bytes]]:
        """The bytes up to `end`, read as they are sent."""
        start = self._there

        async def pieces() -> AsyncIterator[bytes]:
            self.sent = start
            with self._path.open("rb") as file:
                file.seek(start)
                while self.sent < end:
                    piece = file.read(min(_PIECE_BYTES, end - self.sent))
                    if not piece:
                        raise StoreError(f"{self._path} is shorter than its manifest says")
                    yield piece
                    self.sent += len(piece)

        return pieces
