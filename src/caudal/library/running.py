"""Asynchronous work run from synchronous code, with a progress bar."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, from a thread with or without a running event loop.

    Interrupting the thread cancels it.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()

    async def begin() -> T:
        task = asyncio.current_task()
        assert task is not None
        begun.set_result((asyncio.get_running_loop(), task))
        return await work

    with ThreadPoolExecutor(1) as thread:  # e.g. in a notebook
        result = thread.submit(asyncio.run, begin())
        try:
            return result.result()
        except BaseException:
            if not result.done():  # it is this thread that was interrupted
                loop, task = begun.result()
                with contextlib.suppress(RuntimeError):  # ended just now
                    loop.call_soon_threadsafe(task.cancel)
            raise


async def first_error(work: Coroutine[Any, Any, T]) -> T:
    """Raise what went wrong first instead of a group of everything that did."""
    try:
        return await work
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


async def run_all(
    things: Sequence[S], answer: Callable[[S], Awaitable[T]], most: int, *, show_progress: bool
) -> list[T]:
    """Answer many things, at most so many at once; if one fails, all do.

    Returns:
        The answers, in order.
    """
    places = asyncio.Semaphore(most)
    with progress_bar(len(things), show_progress) as advance:

        async def run_one(thing: S) -> T:
            async with places:
                result = await answer(thing)
            advance()
            return result

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run_one(thing)) for thing in things]
    return [task.result() for task in tasks]


@contextlib.contextmanager
def progress_bar(total: int, show: bool) -> Iterator[Callable[[], None]]:
    """Shows how many of `total` prompts are done, where there is a terminal; yields the step."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    console = Console(stderr=True)
    with Progress(
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        console=console,
        disable=not show or not console.is_terminal,
        transient=True,
    ) as progress:
        bar = progress.add_task("Prompts", total=total)
        yield lambda: progress.advance(bar)
