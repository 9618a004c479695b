"""Running the server: listen at once, load models beside it, answer, and leave in order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from types import FrameType

import uvicorn

from caudal.batches.batch_service import BatchService
from caudal.errors import CaudalError
from caudal.server.app import create_app
from caudal.server.audit_log import AuditLog
from caudal.server.auth import Access
from caudal.server.batch_state import BatchHome
from caudal.server.certificates import Certificates
from caudal.server.draining import Draining
from caudal.server.last_resort import LastResort
from caudal.server.limits import ChangingLimits, ServerLimits
from caudal.server.protocol import Protocol
from caudal.server.reloading import Reloader, Terminal
from caudal.server.served_store import ServedStore
from caudal.server.server_config import ServerConfig
from caudal.server.service_manager import notify_ready, notify_stopping
from caudal.server.traces import Traces
from caudal.service.models import Models

ENGINE_SECONDS = 0.6
"""How long the engine has to end its answers once the time to drain is over: an iteration."""

LAST_WORDS_SECONDS = 0.2
"""How long clients then have to read it, and what worked for those that didn't to end."""

LAST_RESORT_SECONDS = 2.0
"""How long all of that may take, on a machine that has much else to do."""

THREAD_SECONDS = 1.0
"""How long all else then has to end: threads work whose results nobody waits for any more."""

OTHER_DESCRIPTORS = 256
"""Open files that aren't connections: the model, libraries, what the system wants."""

BACKLOG = 2048
"""Connections that wait to be accepted. Where there is no room, a client's system tries again after
a second, then three: longer than accepting thousands takes."""

UNSENT_BYTES = 128 * 2**10
"""What the kernel buffers for a reader that is slower than its answer; the rest waits here, where
it is counted."""


class ListenError(CaudalError):
    """The server cannot listen where it was told to."""


def listen(host: str, port: int, *, choose: str = "--port", where: str = "--host") -> socket.socket:
    """Open a listening socket.

    Args:
        host: The address.
        port: The port; 0 for a free one.
        choose: What another port is chosen with.
        where: What another address is chosen with.

    Raises:
        ListenError: The port is taken, or the address is not one of this machine's.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = str(error)
        if error.errno == errno.EADDRINUSE:
            reason = f"another program is using that port; choose one with {choose}"
        elif error.errno == errno.EACCES:
            reason = f"ports below 1024 need special rights; choose another with {choose}"
        elif isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            reason = f"this machine has no such address; choose one with {where}"
        raise ListenError(f"cannot listen on {host}:{port}: {reason}") from error
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return sock


class Server(uvicorn.Server):
    """Leaves in order, and in time whatever clients do.

    Running answers are ended through the engine, so that each gets its proper last event.

    Args:
        config: What to serve, and how.
        models: What is served.
        last_resort: Told of signals, where there is one.
        batches: Begin no more lines once the server drains, and end before the models do.
    """

    def __init__(
        self,
        config: ServerConfig,
        models: Models,
        last_resort: LastResort | None = None,
        batches: BatchService | None = None,
    ) -> None:
        super().__init__(config)
        config.metrics.follow(self.server_state, config.draining)
        self._models = models
        self._config = config
        self._draining = config.draining
        self._gives_notice = False
        self._last_resort = last_resort
        self._batches = batches
        self._hurry = asyncio.Event()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain; of SIGTERM, notice is given. Second: end running answers now."""
        self._draining.begin()
        if self._last_resort is not None:
            self._last_resort.hurry()
        if self.should_exit:
            asyncio.get_running_loop().call_soon_threadsafe(self._hurry.set)
        elif sig == signal.SIGTERM:
            self._gives_notice = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain; what still runs after that is ended, first politely."""
        notify_stopping()
        if self._batches is not None:
            self._batches.pause()
        self._draining.begin()
        if self._gives_notice:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), self._config.limits.notice_seconds)
        self._draining.refuse()
        for connection in self.server_state.connections:
            assert isinstance(connection, Protocol)
            connection.end_with_answer()
        ending = asyncio.ensure_future(self._end_answers())
        idle = asyncio.ensure_future(self._draining.wait_until_idle())
        await asyncio.wait({ending, idle}, return_when=asyncio.FIRST_COMPLETED)
        idle.cancel()
        await super().shutdown(sockets)  # stops listening
        ending.cancel()
        await self._end_batches()

    async def _end_answers(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), self._config.limits.drain_seconds)
        # First: what is cut short from here on is no answer.
        await self._end_batches()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._models.shutdown(), ENGINE_SECONDS)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wait_for_connections(), LAST_WORDS_SECONDS)
        # Half a request, or an answer that nobody reads.
        for connection in list(self.server_state.connections):
            assert isinstance(connection, Protocol)
            connection.abort()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wait_for_tasks(), LAST_WORDS_SECONDS)
        for task in list(self.server_state.tasks):
            task.cancel()
        self.force_exit = True

    async def _end_batches(self) -> None:
        if self._batches is not None:
            await self._batches.stop()

    async def _wait_for_connections(self) -> None:
        while self.server_state.connections:
            await asyncio.sleep(0.02)

    async def _wait_for_tasks(self) -> None:
        while self.server_state.tasks:
            await asyncio.sleep(0.02)


def serve(
    sock: socket.socket,
    models: Models,
    start: Callable[[], Awaitable[None]],
    *,
    access: Access | None = None,
    limits: ServerLimits | None = None,
    strict_fields: bool = False,
    allow_runtime_lora: bool = False,
    ollama: socket.socket | None = None,
    store: ServedStore | None = None,
    reloader: Reloader | None = None,
    changing: ChangingLimits | None = None,
    audit_log: AuditLog | None = None,
    traces: Traces | None = None,
    certificates: Certificates | None = None,
    log_prompts: bool = False,
    normalise_prompts: Sequence[str] = (),
    root_path: str = "",
    vllm_metrics: bool = False,
    batch_home: BatchHome | None = None,
    on_ready: Callable[[], None],
) -> None:
    """Serve until SIGINT or SIGTERM; or SIGHUP, where there is nothing to be read anew, or the
    terminal has closed. What then does not end in time ends the process; and so does, soon after
    this returns, what has not ended by itself.

    Args:
        sock: A listening socket, from `listen`.
        models: What is served.
        start: Loads what is to be there at the start, while `/health` says 503.
        access: See `create_app`.
        limits: What clients may cost.
        strict_fields: See `create_app`.
        allow_runtime_lora: See `create_app`.
        ollama: Another one, where Ollama would listen.
        store: See `create_app`.
        reloader: What SIGHUP has be read anew, once requests can be answered.
        changing: Has `limits` change.
        vllm_metrics: See `create_app`.
        audit_log: Told of all requests; closed at the end.
        traces: Likewise.
        log_prompts: See `create_app`.
        normalise_prompts: See `create_app`.
        root_path: See `create_app`.
        certificates: What connections are encrypted with; None: they aren't.
        batch_home: See `create_app`.
        on_ready: Called once requests can be answered.

    Raises:
        CaudalError: Loading failed.
    """
    limits = limits or ServerLimits()
    reloader = Reloader() if reloader is None else reloader
    draining = Draining()
    app = create_app(
        models,
        access=access,
        limits=limits,
        strict_fields=strict_fields,
        allow_runtime_lora=allow_runtime_lora,
        ollama_port=None if ollama is None else ollama.getsockname()[1],
        store=store,
        vllm_metrics=vllm_metrics,
        batch_home=batch_home,
        sinks=[sink for sink in (audit_log, traces) if sink is not None],
        log_prompts=log_prompts,
        normalise_prompts=normalise_prompts,
        root_path=root_path,
        draining=draining,
    )
    if audit_log is not None:
        app.state.metrics.registry.register(audit_log)
        reloader.add("audit log", audit_log.reopen)
    batches: BatchService | None = app.state.batches
    if certificates is not None:
        reloader.add("certificates", certificates.reload)
    config = ServerConfig(
        app,
        limits,
        certificates,
        draining,
        None if access is None else access.proxies,
        records=app.state.records,
        metrics=app.state.metrics,
    )
    last_resort = LastResort(_patience(limits), LAST_RESORT_SECONDS)
    server = Server(config, models, last_resort, batches)
    _allow_descriptors(limits.max_connections + OTHER_DESCRIPTORS)

    def change_limits(limits: ServerLimits) -> None:
        app.state.limits = limits
        config.change_limits(limits)
        last_resort.allow(_patience(limits))
        _allow_descriptors(limits.max_connections + OTHER_DESCRIPTORS)

    if changing is not None:
        changing.followers.append(change_limits)

    async def begin() -> None:
        try:
            await start()
        except BaseException:
            if server.should_exit:  # what was being loaded was given up
                return
            server.should_exit = True
            raise
        if batches is not None and not server.should_exit:
            await batches.start()
        # What is there now stays: a full collection would look at all of it, and stop every stream
        # for some 50 ms.
        gc.collect()
        gc.freeze()
        if not server.should_exit:
            notify_ready()
            on_ready()

    async def reload_once_ready(beginning: asyncio.Future[None]) -> None:
        await asyncio.wait([beginning])
        await reloader.run()

    async def run() -> None:
        beginning = asyncio.ensure_future(begin())
        reloading = asyncio.ensure_future(reload_once_ready(beginning))
        try:
            await server.serve(sockets=[sock] if ollama is None else [sock, ollama])
            if not beginning.done():
                last_resort.hurry()  # there is nothing left to wait for
                await models.shutdown()
            await beginning
        finally:
            reloading.cancel()
            await models.shutdown()
            if audit_log is not None:
                audit_log.close()
            if traces is not None:
                traces.close()
        last_resort.finish(THREAD_SECONDS)

    # uvicorn handles the signals while it serves, and then raises them again for whoever handled
    # them before. Nobody needs to: a server that was told to stop and did has not failed.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    if sys.platform != "win32":
        _heed_hangups(server, reloader)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(run())


def _patience(limits: ServerLimits) -> float:
    """Seconds from the first signal to the end, at most."""
    return limits.notice_seconds + limits.drain_seconds + LAST_RESORT_SECONDS


def _heed_hangups(server: Server, reloader: Reloader) -> None:
    """SIGHUP has everything be read anew; it ends the server where the terminal has closed, which
    under nohup is to be overlooked, and where there is nothing to be read.
    """
    no_hangup, terminal = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, Terminal()

    def hang_up(number: int, frame: FrameType | None) -> None:
        if reloader and (no_hangup or not terminal.closed):
            with contextlib.suppress(RuntimeError):  # before there is a loop, all of it is new
                asyncio.get_running_loop().call_soon_threadsafe(reloader.ask)
        elif not no_hangup:
            server.handle_exit(number, frame)

    signal.signal(signal.SIGHUP, hang_up)


def _allow_descriptors(wanted: int) -> None:
    """Let the process have so many files open, as far as the system does."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
