"""Packed weights on their way to the disk, while the model runs already."""

from __future__ import annotations

import contextlib
import logging
import os
import threading

from caudal import _native
from caudal.errors import StoreError
from caudal.store.packed import PackedModel

logger = logging.getLogger(__name__)

_WRITTEN_BYTES = 8 << 20
_SYNCHRONISED_BYTES = 256 << 20
"""Written in pieces of so many bytes, and put to the disk after so many."""

_LOW_PRIORITY = 10


class KeepingThread:
    """Writes packed weights to the disk in the processors' idle time.

    That they can't be kept is said once in the log, and changes nothing.

    Args:
        weights: Weights in memory.
        kept: Where they may be kept.
        contents: What they are; see `PackedModel.find`.
        source: The model's file, for the log.
    """

    def __init__(
        self, weights: _native.Weights, kept: PackedModel, contents: str, source: str
    ) -> None:
        self._weights = weights
        self._kept = kept
        self._contents = contents
        self._source = source
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="caudal-keep", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Give it up if it isn't done, and wait until the weights aren't used any more."""
        self._stopping.set()
        self.wait()

    def wait(self) -> None:
        """Wait until it is done."""
        self._thread.join()

    def _run(self) -> None:
        if hasattr(os, "sched_getaffinity"):  # Linux, where threads have priorities of their own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_PRIORITY)
        try:
            with contextlib.suppress(_BusyError):
                self._keep()
        except StoreError as error:
            logger.warning(
                "The packed weights of %s can't be kept on the disk, so that the next start takes "
                "as long: %s",
                self._source,
                error,
            )

    def _keep(self) -> None:
        checksums, image = self._weights.checksums, self._weights.image
        with self._kept.writing(
            self._contents, len(image), len(checksums), needed=False, waiting=_leave_to_others
        ) as writer:
            dirty = 0
            for begin in range(0, len(image), _WRITTEN_BYTES):
                if self._stopping.is_set():
                    return
                piece = image[begin : begin + _WRITTEN_BYTES]
                writer.write(begin, piece.data)
                dirty += len(piece)
                if dirty >= _SYNCHRONISED_BYTES:  # so that stopping never takes long
                    os.fsync(writer.descriptor)
                    dirty = 0
            writer.finish(checksums)


class _BusyError(Exception):
    """Another process is writing packed weights; this model's can be kept another time."""


def _leave_to_others() -> None:
    raise _BusyError
