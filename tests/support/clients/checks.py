"""What must be true after a program has used a tool."""

from __future__ import annotations

from support.clients.home import Finished
from support.clients.recorder import Recorder
from support.clients.scripts import RESULT


def check_round_trip(finished: Finished, record: Recorder) -> None:
    """The program ran the tool, sent the result back, and printed what the model made of it.

    Nothing that it asked for with a key was refused.
    """
    assert finished.code == 0, str(finished)
    assert f"The tool said {RESULT}." in finished.output, str(finished)
    check_accepted(record)


def check_accepted(record: Recorder) -> None:
    """There were requests, and none was refused but those without the key."""
    assert any(exchange.status == 200 for exchange in record.exchanges)
    refused = [exchange for exchange in record.refused() if exchange.has_key]
    assert not refused, "\n".join(map(str, refused))
