"""A batch without a server: one file in, two files out, and what it takes to go on after a stop."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from caudal.batches.answers import Answer, OpenAIOutput, Outcome
from caudal.batches.errors import JobRunsError
from caudal.batches.journal import Journal
from caudal.batches.lines import Lines, ReadLine
from caudal.batches.runner import BatchRunner
from caudal.batches.work import BatchWork, WorkParts
from caudal.service.threads import WorkThreads
from caudal.store.disk import move_into_place

_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFiles:
    """The files of a job.

    Attributes:
        lines: What is asked.
        output: Where lines with an answer go, once all are done.
        errors: Where the others go.
    """

    lines: Path
    output: Path
    errors: Path

    def partial(self, variant: str) -> Path:
        """Where is noted what is done so far: of this input, and no other.

        Args:
            variant: What else the answers depend on.

        Raises:
            OSError: The input can't be read.
        """
        digest = hashlib.sha256(variant.encode())
        with self.lines.open("rb") as file:
            while piece := file.read(2**20):
                digest.update(piece)
        return self.output.with_name(f"{self.output.name}.{digest.hexdigest()[:12]}.partial")


class FileJob:
    """A job, of which some may be done already.

    Args:
        files: Its files.
        lines: Its input.
        read: Reads a line of it.
        variant: See `JobFiles.partial`.

    Raises:
        JobRunsError: Another process is at it.
        OSError: What is done so far can't be read or written.

    Attributes:
        journal: What is done.
    """

    def __init__(self, files: JobFiles, lines: Lines, read: ReadLine, variant: str) -> None:
        self._files = files
        self._lines = lines
        self._read = read
        self._partial = files.partial(variant)
        try:
            self.journal = Journal(self._partial, len(lines))
        except BlockingIOError as error:
            raise JobRunsError(files.output) from error

    async def run(self, answer: Answer, concurrency: int, note: Callable[[Outcome], None]) -> None:
        """Have the lines answered that aren't yet. Where this is cancelled, what is done stays.

        Args:
            answer: Answers a line.
            concurrency: Most lines that are being answered at a time.
            note: Called with what became of each.

        Raises:
            InputChangedError: The input isn't what it was; what is done stays.
        """
        threads = WorkThreads("batch", _THREADS)
        runner = BatchRunner(answer, concurrency)
        work = BatchWork(
            WorkParts(
                name=str(self._files.lines),
                tenant=None,
                lines=self._lines,
                read=self._read,
                journal=self.journal,
                form=OpenAIOutput(),
                threads=threads,
                note=note,
            )
        )
        try:
            await runner.run(work)
        finally:
            await asyncio.shield(runner.stop())
            threads.close()

    def finish(self) -> None:
        """Write the output; all lines are done. Without lines that failed there is no file of them.

        Raises:
            OSError: It can't be written; what is done stays.
        """
        with ExitStack() as stack:
            paths = [
                path.with_name(f".{path.name}.new")
                for path in (self._files.output, self._files.errors)
            ]
            for path in paths:
                stack.callback(path.unlink, missing_ok=True)
            output, errors = (stack.enter_context(path.open("wb")) for path in paths)
            self.journal.write_to(output, errors, _never)
            for file in (output, errors):
                file.close()
            move_into_place(paths[0], self._files.output)
            if self.journal.failed:
                move_into_place(paths[1], self._files.errors)
            else:
                self._files.errors.unlink(missing_ok=True)
        self._partial.unlink(missing_ok=True)

    def close(self) -> None:
        """Let what is noted go."""
        self.journal.close()


def _never(index: int) -> bytes:
    raise RuntimeError("a line of which nothing is known")
