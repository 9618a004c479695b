"""Begins and ends the record of each request."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from caudal.logs.request import work_for
from caudal.server.batch_lines import BATCH_LINE
from caudal.server.records import Records
from caudal.server.tenancy import tenant_of
from caudal.tenants.rules import ANYONE


class Recording:
    """ASGI middleware around all others, so that what they refuse has a record too.

    Args:
        app: What it is around.
        records: Who is told.
        routes: The application's, those of its routers included.
    """

    def __init__(self, app: ASGIApp, records: Records, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._records = records
        self._routes = [route for route in routes if isinstance(route, Route)]
        self._paths = frozenset(route.path for route in self._routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = self._records.begin(scope)
        record.batch = BATCH_LINE in scope
        work_for(record.id)

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        finally:
            record.route = self._route(scope)
            tenant = tenant_of(scope)
            if tenant is not ANYONE:
                record.tenant, record.tenant_name = tenant.id, tenant.name
            record.release()

    def _route(self, scope: Scope) -> str:
        """The path of the route that a request led to, or would have."""
        route, path = scope.get("route"), scope["path"]
        if isinstance(route, Route):
            return route.path
        if path in self._paths:
            return str(path)
        for each in self._routes:  # of what was refused before it was there
            if each.matches(scope)[0] is not Match.NONE:
                return each.path
        return ""
