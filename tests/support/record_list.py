"""Records of requests that have ended, for a test to look at."""

from __future__ import annotations

import time

from caudal.server.records import RequestRecord


class RecordList:
    """A `RecordSink` that keeps them."""

    def __init__(self) -> None:
        self._records: list[RequestRecord] = []

    def ended(self, record: RequestRecord) -> None:
        self._records.append(record)

    def next(self) -> RequestRecord:
        """The first that hasn't been looked at; it may end after its answer has been read."""
        deadline = time.monotonic() + 20
        while not self._records:
            assert time.monotonic() < deadline, "no request has ended"
            time.sleep(0.005)
        return self._records.pop(0)

    def only(self) -> RequestRecord:
        """The next, and there is no other."""
        record = self.next()
        time.sleep(0.02)
        assert self._records == []
        return record
