from __future__ import annotations

import io
import re

from rich.console import Console

from caudal.cli.pull_display import _Lines, progress_display
from caudal.store import PullProgress, PullStage

MB = 1_000_000
DIGEST = f"sha256:{'0' * 64}"


def transfer(item: str, completed: int, stage: PullStage = PullStage.DOWNLOADING) -> PullProgress:
    return PullProgress(stage, item, completed, 100 * MB, digest=DIGEST)


def test_lines_of_transfers_side_by_side() -> None:
    output, now = io.StringIO(), 0.0
    lines = _Lines(Console(file=output, width=200), lambda: now)
    for seconds, event in (
        (0, PullProgress(PullStage.RESOLVING, "tiny")),
        (0, PullProgress(PullStage.RESOLVING, "tiny")),
        (1, transfer("a", 0)),
        (1, transfer("b", 60 * MB)),
        (1, transfer("c", 100 * MB)),
        (6, transfer("a", 10 * MB)),
        (11, transfer("a", 20 * MB)),
        (11, transfer("b", 60 * MB)),
        (12, PullProgress(PullStage.RETRYING, "b", detail="the server answered 500")),
        (21, transfer("a", 100 * MB)),
        (22, transfer("a", 5 * MB, PullStage.VERIFYING)),
    ):
        now = float(seconds)
        lines(event)
    assert output.getvalue().splitlines() == [
        "looking up tiny",
        "downloading a (100 MB)",
        "downloading b (100 MB), 60.0 MB are there",
        "downloading a: 20.0 MB of 100 MB, 2.0 MB/s, 40 s left",
        "retrying b: the server answered 500",
        "verifying a (100 MB)",
    ]


def test_bars_of_transfers_side_by_side() -> None:
    output = io.StringIO()
    with progress_display(Console(file=output, force_terminal=True, width=100)) as progress:
        for event in (
            transfer("a", 0, PullStage.UPLOADING),
            transfer("b", 0, PullStage.UPLOADING),
            transfer("a", 100 * MB, PullStage.UPLOADING),
            transfer("a", 50 * MB, PullStage.VERIFYING),
            transfer("a", 100 * MB, PullStage.VERIFYING),
            transfer("b", 70 * MB, PullStage.UPLOADING),
        ):
            progress(event)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.getvalue().rpartition("\r")[2])
    last = [line.split() for line in plain.splitlines() if "MB" in line]
    assert [(line[0], line[2]) for line in last] == [("a", "100.0/100.0"), ("b", "70.0/100.0")]
