"""Files and batches of one server: made, carried out, cancelled, taken up again after a restart.

A batch goes from one stage to the next, and each stage can be begun anew: what counts is on the
disk before the next begins. One process at a time has the files and batches of a directory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from filelock import FileLock, Timeout

from caudal.batches.answers import Answer, AnthropicOutput, OpenAIOutput, Outcome, OutputForm, Why
from caudal.batches.batch import Batch, Form
from caudal.batches.batch_store import BatchStore, new_batch_id
from caudal.batches.disk import private_directory
from caudal.batches.errors import BatchesElsewhereError, BatchStateError, TooManyBatchesError
from caudal.batches.files import KEPT_SECONDS, FileStore, new_file_id
from caudal.batches.journal import Journal
from caudal.batches.line_forms import FindExcess, OpenAILines
from caudal.batches.lines import Fault, find_lines
from caudal.batches.options import BatchOptions
from caudal.batches.runner import BatchRunner
from caudal.batches.work import FULL_DISK_SECONDS, BatchWork, WorkParts
from caudal.logs.request import for_no_request
from caudal.service.threads import WorkThreads

logger = logging.getLogger("caudal.batches")

BATCH_PURPOSE = "batch"
OUTPUT_PURPOSE = "batch_output"

_FORMS: Mapping[Form, OutputForm] = {"openai": OpenAIOutput(), "anthropic": AnthropicOutput()}
_PREFIXES: Mapping[Form, str] = {"openai": "batch", "anthropic": "msgbatch"}

_THREADS = 4


class BatchService:
    """Keeps files, and carries batches out. For one event loop.

    Args:
        home: The directory that has `files/` and `batches/`, once there are any.
        answer: Answers a line.
        find_excess: Refuses lines that would cost too much to parse.
        options: What it may all take.
        note: Called with what became of each line.

    Attributes:
        files: The files.
        threads: Read and write them.
    """

    def __init__(
        self,
        home: Path,
        answer: Answer,
        find_excess: FindExcess,
        options: BatchOptions,
        note: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        self._home = home
        self._options = options
        self._find_excess = find_excess
        self._note = note
        self.files = FileStore(home / "files", options.max_bytes)
        self.threads = WorkThreads("batches", _THREADS)
        self._batches = BatchStore(home / "batches")
        self._lock = FileLock(self._batches.directory / "lock", thread_local=False)
        self._opening = asyncio.Lock()
        self._runner = BatchRunner(answer, options.concurrency)
        self._works: dict[str, BatchWork] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = False

    @property
    def num_running(self) -> int:
        """Batches that have not ended."""
        return sum(not each.ended for each in self._batches.all())

    @property
    def num_lines(self) -> int:
        """Lines that are being answered."""
        return self._runner.under_way

    async def start(self) -> None:
        """Go on with what earlier processes left, where there is any and it is nobody else's."""
        if any(each.is_dir() for each in (self._batches.directory, self._home / "files")):
            try:
                await self.open()
            except BatchesElsewhereError as error:
                logger.warning("%s", error)

    async def open(self) -> None:
        """Have the directory for this process. Cheap once it has.

        Raises:
            BatchesElsewhereError: Another process has it.
            OSError: It can't be read or written.
        """
        if self._lock.is_locked or self._stopping:
            return
        async with self._opening:
            if not self._lock.is_locked:
                await self.threads.run(self._load)
                for batch in self._batches.all():
                    if not batch.ended:
                        self._begin(batch)

    def pause(self) -> None:
        """Begin no more lines; those under way go on."""
        self._runner.pause()

    async def stop(self) -> None:
        """Give up what is under way: whoever opens the directory next goes on with it."""
        self._stopping = True
        await self._runner.stop()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._lock.release()
        self.threads.close()

    async def create(
        self,
        *,
        form: Form,
        tenant: str | None,
        endpoint: str,
        input_file_id: str,
        completion_window: str,
        seconds: float,
        metadata: dict[str, str] | None = None,
        output_seconds: float | None = KEPT_SECONDS,
        total: int = 0,
    ) -> Batch:
        """Make a batch of a file, and begin it.

        Args:
            form: Whose API it is made with.
            tenant: Who makes it.
            endpoint: The route that is to answer its lines.
            input_file_id: Has them.
            completion_window: How long it may take, in the maker's words.
            seconds: The same.
            metadata: The maker's.
            output_seconds: How long its output is kept; None: for ever.
            total: Its lines, where they are known to be in order.

        Raises:
            UnknownFileError: There is no such file.
            TooManyBatchesError: The tenant has too many that have not ended.
            NoRoomError, OSError: It can't be kept.
        """
        running = sum(not each.ended for each in self.all(tenant))
        if running >= self._options.max_running:
            raise TooManyBatchesError(running)
        source = self.files.path(input_file_id, tenant)
        batch = Batch(
            id=new_batch_id(_PREFIXES[form]),
            form=form,
            tenant=tenant,
            endpoint=endpoint,
            input_file_id=input_file_id,
            completion_window=completion_window,
            output_seconds=output_seconds,
            expires=0.0,
            metadata=metadata,
            total=total,
        )
        batch.expires = batch.created + seconds
        await self.threads.run(self._batches.add, batch, source)
        self._begin(batch)
        return batch

    def get(self, identity: str, tenant: str | None, form: Form) -> Batch:
        """Find a batch, counted up to now; raises `UnknownBatchError`."""
        batch = self._batches.get(identity, tenant, form)
        self._count(batch)
        return batch

    def all(self, tenant: str | None, form: Form | None = None) -> list[Batch]:
        """The batches of a tenant, the oldest first."""
        found = [
            each
            for each in self._batches.all()
            if each.tenant == tenant and form in (None, each.form)
        ]
        for batch in found:
            self._count(batch)
        return found

    async def cancel(self, batch: Batch) -> None:
        """Answer no more of its lines.

        Raises:
            BatchStateError: It has ended, or is about to.
        """
        if batch.status == "cancelling":
            return
        if batch.status not in ("validating", "in_progress"):
            raise BatchStateError(
                f"Cannot cancel a batch with status '{batch.status}'.",
            )
        batch.enter("cancelling")
        if (work := self._works.get(batch.id)) is not None:
            work.stop()
        await self.threads.run(self._batches.save, batch)

    async def delete(self, batch: Batch) -> None:
        """Forget a batch and its output; raises `BatchStateError` where it hasn't ended."""
        if not batch.ended:
            raise BatchStateError("A batch that has not ended can't be deleted: cancel it first.")
        await self.threads.run(self._delete, batch)

    def _delete(self, batch: Batch) -> None:
        self._batches.delete(batch)
        for identity in (batch.output_file_id, batch.error_file_id):
            if identity is not None and self.files.has(identity, batch.tenant):
                self.files.delete(identity, batch.tenant)

    def _load(self) -> None:
        private_directory(self._batches.directory)
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise BatchesElsewhereError(self._home) from error
        try:
            self.files.load()
            self._batches.load()
        except BaseException:
            self._lock.release()
            raise

    def _begin(self, batch: Batch) -> None:
        task = asyncio.get_running_loop().create_task(self._run(batch), context=for_no_request())
        self._tasks[batch.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(batch.id, None))

    async def _run(self, batch: Batch) -> None:
        """Carry a batch out, again and again where the disk doesn't let it."""
        while not self._stopping:
            try:
                await self._carry_out(batch)
                return
            except Exception:
                logger.exception("%s is held up; trying again.", batch.id)
                await asyncio.sleep(FULL_DISK_SECONDS)

    async def _carry_out(self, batch: Batch) -> None:
        read = OpenAILines((batch.endpoint,), self._find_excess)
        source = self._batches.path(batch, "input.jsonl")
        limits = self._options.limits
        lines, faults = await self.threads.run(
            find_lines, source, read, limits, lambda: self._stopping
        )
        if self._stopping:
            return
        if faults:
            await self._fail(batch, faults)
            return
        if batch.status == "validating":
            batch.total = len(lines)
            batch.model = next(iter(lines.models)) if len(lines.models) == 1 else None
            batch.enter("in_progress")
            await self.threads.run(self._batches.save, batch)
        batch.total = len(lines)
        path = self._batches.path(batch, "journal")
        journal = await self.threads.run(Journal, path, len(lines))
        try:
            work = BatchWork(
                WorkParts(
                    name=batch.id,
                    tenant=batch.tenant,
                    lines=lines,
                    read=read,
                    journal=journal,
                    form=_FORMS[batch.form],
                    threads=self.threads,
                    note=self._note,
                )
            )
            self._works[batch.id] = work
            if batch.ending is None:
                await self._answer_lines(batch, work)
            if not self._stopping:
                await self._finalise(batch, work)
        finally:
            self._works.pop(batch.id, None)
            journal.close()

    async def _answer_lines(self, batch: Batch, work: BatchWork) -> None:
        """Have lines answered until the batch comes to an end, and say to which."""
        if batch.status != "cancelling":
            seconds = batch.expires - time.time()
            try:
                async with asyncio.timeout(max(0.0, seconds)):
                    await self._runner.run(work)
            except TimeoutError:
                pass
            if self._stopping:
                return
        self._count(batch)
        if batch.status == "cancelling":
            batch.ending = "cancelled"
        else:
            batch.ending = "expired" if batch.unanswered else "completed"
        work.stop()
        await work.done.wait()
        self._count(batch)

    async def _finalise(self, batch: Batch, work: BatchWork) -> None:
        """Write the output, in files whose names are known before they are begun."""
        assert batch.ending is not None
        journal = work.parts.journal
        apart = work.parts.form.errors_apart
        has_errors = bool(journal.failed or batch.unanswered)
        if batch.output_file_id is None and (journal.completed or not apart):
            batch.output_file_id = new_file_id()
        if batch.error_file_id is None and has_errors and apart:
            batch.error_file_id = new_file_id()
        if batch.ending != "cancelled" and batch.status != "finalizing":
            batch.enter("finalizing")
        await self.threads.run(self._batches.save, batch)
        await self.threads.run(self._write_output, batch, work)
        if self._stopping:
            return
        batch.enter(batch.ending)
        await self.threads.run(self._close, batch)

    def _write_output(self, batch: Batch, work: BatchWork) -> None:
        why: Why = "cancelled" if batch.ending == "cancelled" else "expired"
        with ExitStack() as stack:
            output = stack.enter_context(self.files.incoming())
            errors = output
            if batch.error_file_id is not None:
                errors = stack.enter_context(self.files.incoming())
            work.parts.journal.write_to(
                output, errors, lambda index: work.unanswered(index, why), lambda: self._stopping
            )
            if self._stopping:
                return
            for file, identity, kind in (
                (output, batch.output_file_id, "output"),
                (errors, batch.error_file_id, "error"),
            ):
                if identity is not None:
                    file.keep(
                        tenant=batch.tenant,
                        filename=f"{batch.id}_{kind}.jsonl",
                        purpose=OUTPUT_PURPOSE,
                        seconds=batch.output_seconds,
                        identity=identity,
                    )

    async def _fail(self, batch: Batch, faults: list[Fault]) -> None:
        batch.errors = [each.described() for each in faults]
        batch.enter("failed")
        await self.threads.run(self._close, batch)

    def _close(self, batch: Batch) -> None:
        """The batch has ended: what only work needed goes."""
        self._batches.save(batch)
        for name in ("input.jsonl", "journal"):
            self._batches.path(batch, name).unlink(missing_ok=True)

    def _count(self, batch: Batch) -> None:
        """Tell a batch that is under way how far it has come."""
        if (work := self._works.get(batch.id)) is not None:
            journal = work.parts.journal
            batch.completed, batch.failed = journal.completed, journal.failed
            batch.usage = journal.usage
