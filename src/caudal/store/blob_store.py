"""The files of a store: blobs and how they come in, and who may change what."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from caudal.store.disk import exclusive_lock, explained_os_errors, sha256_of
from caudal.store.incoming import (
    BlobInfo,
    Incoming,
    WrongDigestError,
    checked_digest,
    link_blob,
    write_blob,
)
from caudal.store.layout import StoreLayout, default_home
from caudal.store.old_layout import OldShelf
from caudal.store.pruning import PrunedFile, prune_store


class BlobStore:
    """A store's blobs, and those that Ollama has.

    Reading needs no lock and changes nothing; whoever changes which models there are, or deletes
    blobs, excludes others who do, across processes.

    Args:
        home: The store's directory, created when something is pulled; None for the default.
    """

    def __init__(self, home: Path | None = None) -> None:
        self._layout = StoreLayout((home or default_home()).absolute())
        self._incoming = Incoming(self._layout.incoming)

    @property
    def home(self) -> Path:
        """The store's directory."""
        return self._layout.home

    @property
    def layout(self) -> StoreLayout:
        """Where in its directory everything is."""
        return self._layout

    def without_paths(self, text: str) -> str:
        """What somebody is to read who needn't know where on this machine models are kept."""
        for shelf in (self._layout.shelf, *self._layout.ollama_shelves()):
            text = text.replace(f"{shelf.blobs}/", "")
            text = text.replace(str(shelf.directory), "its directory")
        return text

    def blob(self, digest: str) -> Path | None:
        """Where a blob lies, in our store or in Ollama's; None where neither has it whole.

        Args:
            digest: `sha256:HEX`.

        Raises:
            StoreError: It isn't a digest.
        """
        digest = checked_digest(digest)
        for shelf in (self._layout.shelf, *self._layout.ollama_shelves()):
            path = shelf.blob_path(digest)
            if path.is_file():
                return path
        return None

    def is_whole(
        self, digest: str, size: int, report: Callable[[int], None] = lambda _: None
    ) -> bool:
        """Whether a blob is here, with the content of its hash: it is read unless that is known.

        Args:
            digest: `sha256:HEX`.
            size: Its bytes.
            report: Called with the number of bytes read so far.

        Raises:
            StoreError: It isn't a digest; or the blob can't be read.
        """
        digest = checked_digest(digest)
        sha256 = digest.removeprefix("sha256:")
        with explained_os_errors(self.home):
            for shelf in (self._layout.shelf, *self._layout.ollama_shelves()):
                path, checked = shelf.blob_path(digest), shelf.checked
                if not path.is_file() or path.stat().st_size != size:
                    continue
                if checked.is_whole(path, sha256) or checked.check(path, sha256, report):
                    return True
        return False

    def partial(self, digest: str) -> Path:
        """Where a download of a blob grows, and is found again after a kill.

        When it is all there, `add_blob(path, digest=digest, move=True)` takes it.

        Args:
            digest: `sha256:HEX`.

        Raises:
            StoreError: It isn't a digest; or the store can't be written to.
        """
        name = checked_digest(digest).replace(":", "-")
        with explained_os_errors(self.home):
            self._layout.create()
        return self._layout.downloads / f"{name}.partial"

    def add_blob(
        self,
        source: Path | Iterable[bytes],
        *,
        digest: str | None = None,
        move: bool = False,
        report: Callable[[int], None] = lambda _: None,
    ) -> BlobInfo:
        """Put a blob in the store: whole, on the disk, and under its hash, or not at all.

        Unless a manifest names it in the next days, `prune` deletes it.

        Args:
            source: A file, or its bytes.
            digest: What it has to be, `sha256:HEX`; where the store has it, nothing is read.
            move: Take the file, which must be on the store's file system, rather than a copy. One
                that isn't what it has to be is deleted.
            report: Called with the number of bytes that are done.

        Raises:
            StoreError: It has another hash, or can't be read or written.
        """
        if digest is not None:
            digest = checked_digest(digest)
        with self._writing():
            shelf = self._layout.shelf
            if digest is not None:
                present = shelf.blob_path(digest)
                if present.is_file() and shelf.checked.is_whole(present, digest[7:]):
                    if move and isinstance(source, Path):
                        source.unlink(missing_ok=True)
                    return BlobInfo(digest, present.stat().st_size)
            return write_blob(self._incoming, shelf.blobs, source, digest, move=move, report=report)

    def link_file(
        self,
        source: Path,
        *,
        digest: str | None = None,
        report: Callable[[int], None] = lambda _: None,
    ) -> BlobInfo:
        """Have a file that belongs to another program as a blob, without a copy of it.

        Args:
            source: The file.
            digest: What it has to be, `sha256:HEX`.
            report: Called with the number of bytes read so far.

        Raises:
            StoreError: It has another hash, or can't be read or linked.
        """
        with self._writing():
            source = source.resolve()
            found = f"sha256:{sha256_of(source, report)}"
            if digest is not None and found != checked_digest(digest):
                raise WrongDigestError(source.name, digest, found.removeprefix("sha256:"))
            blob = BlobInfo(found, source.stat().st_size)
            if not self.is_whole(found, blob.size):
                link_blob(source, self._layout.shelf.blob_path(found))
            return blob

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """A directory on the store's file system for files that `add_blob` is to move.

        It goes at the end; after a kill, whoever changes the store next deletes it.

        Raises:
            StoreError: The store can't be written to.
        """
        with self._writing(), self._incoming.directory() as directory:
            yield directory

    def prune(self, grace: float | None = None) -> Sequence[PrunedFile]:
        """Delete what is of no use: blobs that no model has, downloads that nobody came back for.

        Args:
            grace: How many seconds ago something must have been written last; None for some days.

        Raises:
            StoreError: A manifest is damaged, so that nobody knows what it needs; or the store
                can't be written to.
        """
        if not self.home.is_dir():
            return []
        with self._changing():
            return prune_store(self._layout, self._incoming, grace)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with explained_os_errors(self.home):
            self._layout.create()
            yield

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        with self._writing(), exclusive_lock(self._layout.lock, lambda: None):
            OldShelf(self._layout.shelf).move(self._incoming)
            self._incoming.sweep()
            yield

    def _move(self) -> None:
        """Have everything lie where it is kept now. Raises `StoreError` where that can't be."""
        with self._changing():
            pass
