"""Batches on the disk: a directory each, with what it is, its input, and what became of lines."""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
import time
import uuid
from pathlib import Path

import msgspec

from caudal.batches.batch import Batch, Form
from caudal.batches.disk import private_directory, told_when_full
from caudal.batches.errors import NoRoomError, UnknownBatchError
from caudal.batches.files import KEPT_SECONDS
from caudal.store.disk import synchronise_names, write_atomically

logger = logging.getLogger("caudal.batches")

MAX_BATCHES = 10_000

_ID = re.compile(r"(batch|msgbatch)_[0-9a-f]{32}", re.ASCII)


def new_batch_id(prefix: str) -> str:
    """What a batch that is to be made will be called."""
    return f"{prefix}_{uuid.uuid4().hex}"


class BatchStore:
    """The batches in a directory. For any thread.

    Args:
        directory: Where they are. Made with the first batch.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._batches: dict[str, Batch] = {}

    def load(self) -> None:
        """Find out what is there, and forget what ended long ago. For one process at a time.

        Raises:
            OSError: The directory can't be read.
        """
        found: list[Batch] = []
        if self.directory.is_dir():
            for path in self.directory.iterdir():
                if _ID.fullmatch(path.name) is None:
                    continue
                try:
                    batch = msgspec.json.decode((path / "batch.json").read_bytes(), type=Batch)
                except FileNotFoundError:
                    shutil.rmtree(path, ignore_errors=True)  # never was whole
                except (OSError, msgspec.MsgspecError) as error:
                    logger.error("%s can't be read, and is left as it is: %s", path.name, error)
                else:
                    if batch.id == path.name:
                        found.append(batch)
        with self._lock:
            self._batches = {each.id: each for each in sorted(found, key=lambda each: each.created)}
        self.sweep()

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: Batch, source: Path) -> None:
        """Keep a new batch.

        Args:
            batch: It.
            source: Its input, of which it has its own from here on.

        Raises:
            NoRoomError, OSError: It can't be kept.
        """
        self.sweep()
        with self._lock:
            if len(self._batches) >= MAX_BATCHES:
                raise NoRoomError(f"The server keeps {MAX_BATCHES} batches already.", "max_batches")
        private_directory(self.directory)
        place = self.directory / batch.id
        with told_when_full():
            place.mkdir(mode=0o700)
            try:
                _link(source, place / "input.jsonl")
                self.save(batch)
            except BaseException:
                shutil.rmtree(place, ignore_errors=True)
                raise
            synchronise_names(self.directory)
        with self._lock:
            self._batches[batch.id] = batch

    def save(self, batch: Batch) -> None:
        """Write down what has become of a batch; raises `OSError`."""
        with self._saving:  # what is written last is what is true last
            write_atomically(
                self.directory / batch.id / "batch.json", msgspec.json.encode(batch), mode=0o600
            )

    def get(self, identity: str, tenant: str | None, form: Form) -> Batch:
        """Find a batch; raises `UnknownBatchError`, where it is another's too."""
        with self._lock:
            found = self._batches.get(identity)
        if found is None or found.tenant != tenant or found.form != form:
            raise UnknownBatchError(identity)
        return found

    def all(self) -> list[Batch]:
        """All batches, the oldest first."""
        with self._lock:
            return list(self._batches.values())

    def path(self, batch: Batch, name: str) -> Path:
        """Where one of its files is."""
        return self.directory / batch.id / name

    def delete(self, batch: Batch) -> None:
        """Forget a batch that has ended."""
        with self._lock:
            self._batches.pop(batch.id, None)
        place = self.directory / batch.id
        (place / "batch.json").unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)

    def sweep(self) -> None:
        """Forget what ended long ago."""
        now = time.time()
        for batch in self.all():
            if batch.ended and batch.at[batch.status] + KEPT_SECONDS < now:
                self.delete(batch)


def _link(source: Path, name: Path) -> None:
    """Give a file another name; a copy of it, where the file system has one name only for each."""
    try:
        os.link(source, name)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, name)
        name.chmod(0o600)
