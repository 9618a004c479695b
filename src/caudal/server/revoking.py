"""What runs for a key ends with it: requests that wait, streams, what goes on in the background.

Whose answer hasn't begun gets a 401. A stream gets its API's own error event, as where a model
fails; what nobody ends in good order is broken off soon after. Either way the engine gives up what
it was computing.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from caudal.errors import KeyRevokedError
from caudal.logs.request import for_no_request
from caudal.server.errors import caudal_error_response
from caudal.server.records import RecordSink, RequestRecord, record_of
from caudal.server.tenancy import NOBODY, tenant_of
from caudal.tenants import ring
from caudal.tenants.ring import KeyRing
from caudal.tenants.rules import Tenant

logger = logging.getLogger("caudal.keys")

LAST_SECONDS = 2.0
"""How long a stream has for its last event: its reader may be slow."""


@dataclass(slots=True)
class _Running:
    """A request.

    Attributes:
        task: Answers it; None once that is done, and only its background runs.
        begun: Whether anything has been sent.
        revoked: Whether its key isn't one any more.
    """

    task: asyncio.Task[object] | None
    begun: bool = False
    revoked: bool = False

    def cancel(self) -> None:
        """Break off what still runs."""
        if self.task is not None:
            self.task.cancel()


class Revocation(RecordSink):
    """Knows what runs for which key, and ends it when the key isn't one any more.

    Args:
        keys: All keys. They are looked at as long as anything runs.
    """

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys
        self._running: dict[RequestRecord, tuple[str, _Running]] = {}
        self._watching: asyncio.Task[None] | None = None
        keys.on_revoked.append(self.revoke)

    def add(self, record: RequestRecord, tenant: Tenant, running: _Running) -> None:
        """A request runs, until its record ends."""
        self._running[record] = tenant.id, running
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(
                self._watch(), context=for_no_request()
            )

    def ended(self, record: RequestRecord) -> None:
        """See `RecordSink`."""
        self._running.pop(record, None)

    def revoke(self, tenant: Tenant) -> None:
        """End all that runs for a key."""
        ended = 0
        for record, (owner, running) in list(self._running.items()):
            if owner != tenant.id:
                continue
            ended += 1
            running.revoked = True
            record.interrupt(KeyRevokedError())
            if running.begun:
                asyncio.get_running_loop().call_later(LAST_SECONDS, running.cancel)
            else:
                running.cancel()
        if ended:
            logger.info("The key %s has been revoked; %d requests end.", tenant.name, ended)

    async def _watch(self) -> None:
        try:
            while self._running:
                await asyncio.sleep(ring.LOOK_SECONDS)
                self._keys.look()
        finally:
            self._watching = None


class Revocable:
    """ASGI middleware, the innermost: has requests end with their key.

    Args:
        app: What answers.
        revocation: Ends them.
    """

    def __init__(self, app: ASGIApp, revocation: Revocation) -> None:
        self._app = app
        self._revocation = revocation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tenant = tenant_of(scope)
        if scope["type"] != "http" or tenant is NOBODY:
            await self._app(scope, receive, send)
            return
        task = asyncio.current_task()
        assert task is not None
        running = _Running(task)
        self._revocation.add(record_of(scope), tenant, running)

        async def send_noted(message: Message) -> None:
            running.begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except asyncio.CancelledError:
            if not running.revoked or running.begun or task.uncancel() > 0:
                raise
            await caudal_error_response(scope, KeyRevokedError())(scope, receive, send)
        finally:
            running.task = None
