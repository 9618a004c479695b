"""One repository of a registry: its manifests and blobs (OCI's distribution specification 1.1)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

import httpx2

from caudal.errors import ModelNotFoundError, StoreError
from caudal.store.names import RegistryName
from caudal.store.oci import (
    CONFIG_TYPE,
    MANIFEST_TYPE,
    MAX_MANIFEST_BYTES,
    OCI_MANIFEST_TYPE,
    Layer,
)
from caudal.store.registry.authentication import Authentication
from caudal.store.registry.credentials import Credentials, find_credentials
from caudal.store.transfer.download import RefusedContentError, bounded_body
from caudal.store.transfer.http import Body, is_loopback, origin, sent
from caudal.store.transfer.ranges import Range
from caudal.store.transfer.retries import check_transient, patiently

_MOST_ERROR_BYTES = 1 << 16
_MOST_CHALLENGES = 2
"""To one request: tokens expire, and one for pulling doesn't do for pushing."""
_ELSEWHERE = {"docker.io": "registry-1.docker.io", "index.docker.io": "registry-1.docker.io"}
"""Registries that are called by another host's name."""
_LOGINS = {"registry-1.docker.io": "index.docker.io"}


@dataclass(frozen=True, slots=True)
class Repository:
    """Where a model's versions are.

    Attributes:
        host: The registry, with its port where it isn't the usual one.
        path: The repository within it, e.g. `library/smollm2`.
        insecure: Whether it may be asked without encryption; this machine always may.
    """

    host: str
    path: str
    insecure: bool = False

    @classmethod
    def of(cls, name: RegistryName, *, insecure: bool = False) -> Self:
        """Where a name leads to; one that was given with `http://` may be asked like that."""
        plain = insecure or name.scheme == "http"
        return cls(name.host, f"{name.namespace}/{name.model}", plain)

    @property
    def server(self) -> str:
        """Who is asked."""
        return _ELSEWHERE.get(self.host, self.host)

    @property
    def url(self) -> httpx2.URL:
        """What all addresses begin with."""
        name = httpx2.URL(f"https://{self.server}").host
        scheme = "http" if self.insecure or is_loopback(name) else "https"
        return httpx2.URL(f"{scheme}://{self.server}/v2/{self.path}/")


class RegistryClient:
    """Asks one repository.

    Args:
        client: Sends.
        repository: Which.
        actions: What is going to be done: `pull`, or `pull,push`.
        tell: Called with the reason when something is tried again.
        find: Gives credentials for a host.
    """

    def __init__(
        self,
        client: httpx2.AsyncClient,
        repository: Repository,
        actions: str,
        tell: Callable[[str], None],
        find: Callable[[str], Credentials | None] = find_credentials,
    ) -> None:
        self.repository = repository
        self._client = client
        self._tell = tell
        self._scopes = [f"repository:{repository.path}:{actions}"]
        login = _LOGINS.get(repository.server, repository.server)
        self._authentication = Authentication(client, login, find)

    async def manifest(self, reference: str) -> bytes:
        """A manifest's bytes.

        Args:
            reference: Its tag, or its digest.

        Raises:
            ModelNotFoundError: There is none.
            StoreError: It can't be had, or isn't what it is said to be.
        """

        async def fetch() -> bytes:
            url = self.url(f"manifests/{reference}")
            accepted = {"Accept": f"{MANIFEST_TYPE}, {OCI_MANIFEST_TYPE}"}
            async with self.sent("GET", url, accepted) as response:
                if response.status_code == 404:
                    raise ModelNotFoundError(
                        f"{self.repository.host} has no {self.repository.path}:{reference}"
                    )
                await self.check(response, 200)
                content = await bounded_body(response, MAX_MANIFEST_BYTES)
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            promised = response.headers.get("Docker-Content-Digest", "")
            expected = reference if reference.startswith("sha256:") else promised
            if expected.startswith("sha256:") and expected != digest:
                raise RefusedContentError(
                    f"the manifest of {self.repository.path}:{reference} was refused: "
                    f"{self.repository.host} says that it is {expected}, but it is {digest}"
                )
            return content

        return await patiently(fetch, f"asking {self.repository.host}", self._tell)

    async def put_manifest(self, reference: str, content: bytes, media_type: str) -> None:
        """Make a tag stand for a manifest whose blobs are all there.

        Raises:
            StoreError: The registry doesn't take it.
        """

        async def put() -> None:
            url, headers = self.url(f"manifests/{reference}"), {"Content-Type": media_type}
            async with self.sent("PUT", url, headers, body=lambda: content) as response:
                await self.check(response, 200, 201, 202)

        await patiently(put, f"pushing the manifest to {self.repository.host}", self._tell)

    async def has_blob(self, digest: str) -> bool:
        """Whether the repository has a blob."""

        async def ask() -> bool:
            async with self.sent("HEAD", self.url(f"blobs/{digest}")) as response:
                if response.status_code == 404:
                    return False
                await self.check(response, 200)
                return True

        return await patiently(ask, f"asking {self.repository.host}", self._tell)

    def blob(self, digest: str) -> BlobSource:
        """Where a blob comes from."""
        return BlobSource(self, digest)

    def url(self, rest: str) -> httpx2.URL:
        """An address within the repository."""
        return self.repository.url.join(rest.replace("sha256:", "sha256%3A"))

    @asynccontextmanager
    async def sent(
        self,
        method: str,
        url: httpx2.URL,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
    ) -> AsyncIterator[httpx2.Response]:
        """An answer to a request, with credentials where the registry wants them.

        Raises:
            StoreError: It wants others.
            TransientError: Who gives tokens can't give one now.
            httpx2.TransportError: It didn't come through.
        """
        for attempt in range(_MOST_CHALLENGES + 1):
            used = self._authentication.header if self._is_own(url) else ""
            async with sent(
                self._client, method, url, headers or {}, authorization=used, body=body
            ) as response:
                if response.status_code != 401 or not self._is_own(response.url):
                    yield response
                    return
                if attempt == _MOST_CHALLENGES:
                    raise self._authentication.refused()
                await self._authentication.answer(response, used, self._scopes)

    def _is_own(self, url: httpx2.URL) -> bool:
        """Whether it is the registry's, and not where it leads: only that gets credentials."""
        return origin(url) == origin(self.repository.url)

    async def check(self, response: httpx2.Response, *expected: int) -> None:
        """Refuse any other status, in the registry's own words.

        Raises:
            TransientError: Trying again may help.
            StoreError: It won't.
        """
        if response.status_code in expected:
            return
        check_transient(response)
        status = f"{response.status_code} {response.reason_phrase}".strip()
        words = _words(await bounded_body(response, _MOST_ERROR_BYTES))
        raise StoreError(f"{self.repository.host} answered {status}{words}")


@dataclass(frozen=True, slots=True)
class BlobSource:
    """A blob, in ranges.

    Attributes:
        client: Asks for it.
        digest: Which.
    """

    client: RegistryClient
    digest: str

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"{short(self.digest)} of {self.client.repository.path}"

    @asynccontextmanager
    async def open(self, wanted: Range) -> AsyncIterator[httpx2.Response]:
        """Ask for a range.

        Raises:
            StoreError: The registry hasn't got it, or wants other credentials.
        """
        headers = {"Range": f"bytes={wanted[0]}-{wanted[1] - 1}"}
        url = self.client.url(f"blobs/{self.digest}")
        async with self.client.sent("GET", url, headers) as response:
            if response.status_code not in (200, 206, 416):
                await self.client.check(response)
            yield response


def short(digest: str) -> str:
    """A digest as people see it."""
    return digest.partition(":")[2][:12]


def layer_in_words(layer: Layer) -> str:
    """What people may know a blob by: what it is, or its file's name, and its digest."""
    kind = layer.media_type.rpartition(".")[2].partition("+")[0]
    if layer.media_type == CONFIG_TYPE:
        kind = "config"
    return f"{layer.title or kind} {short(layer.digest)}"


def _words(body: bytes) -> str:
    """What a registry says of an error: `{"errors": [{"code": …, "message": …}]}`."""
    try:
        errors = json.loads(body)["errors"]
        words = "; ".join(str(each.get("message") or each["code"]) for each in errors)
    except (ValueError, KeyError, TypeError, AttributeError):
        words = ""
    words = re.sub(r"\s+", " ", "".join(c if c.isprintable() else " " for c in words)).strip()
    return f": {words[:300]}" if words else ""
