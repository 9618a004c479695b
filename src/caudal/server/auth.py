"""Who may use the server: keys, the names it goes by, and the web pages that may read it.

Where there are keys, every route but the open ones needs one: `Authorization: Bearer KEY`,
`x-api-key: KEY`, or `api-key: KEY`, as Azure's clients send it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from caudal.server.errors import error_response
from caudal.server.open_paths import OPEN_PATHS, PROBES
from caudal.server.proxies import TrustedProxies
from caudal.server.quotas import quota_headers
from caudal.server.tenancy import NOBODY, TENANT, tenant_of
from caudal.tenants.keys import GivenKeys, admin_key
from caudal.tenants.quotas import Quotas
from caudal.tenants.ring import KeyRing


@dataclass(frozen=True)
class Access:
    """Who may use the server.

    Attributes:
        api_key: A key that may do everything; None where there is none such.
        host_names: What the server is called: see `caudal.server.hosts`. Of no account with a key.
        local_only: Whether only this machine reaches the server.
        origins: Web pages that may use it: see `caudal.server.cors`.
        keys: All keys, where there are others than `api_key`.
        open_metrics: Whether `/metrics` needs no key.
        proxies: Whose word on where requests come from is believed.
    """

    api_key: str | None = None
    host_names: Collection[str] = ("localhost",)
    local_only: bool = True
    origins: Collection[str] = ()
    keys: KeyRing | None = None
    open_metrics: bool = False
    proxies: TrustedProxies | None = None

    def ring(self) -> KeyRing | None:
        """All keys; None where nobody needs one."""
        if self.keys is None and self.api_key is not None:
            return KeyRing([GivenKeys([admin_key(self.api_key, "the key")])])
        return self.keys


class KeyAuth:
    """ASGI middleware, so that no route, not even one that does not exist, can forget it.

    It says in the scope whose request it is (`caudal.server.tenancy`). One that comes from within
    the server says so already.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing, quotas: Quotas, *, open_metrics: bool) -> None:
        self._app = app
        self._keys = keys
        self._quotas = quotas
        self._open = PROBES if open_metrics else OPEN_PATHS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and TENANT not in scope:
            for presented in _presented(scope):
                tenant = self._keys.lookup(presented)
                if tenant is not None:
                    scope[TENANT] = tenant
                    break
            else:
                if scope["path"] not in self._open:
                    await _refusal(scope)(scope, receive, send)
                    return
                scope[TENANT] = NOBODY
        tenant = tenant_of(scope)
        if not tenant.rules.has_quota:
            await self._app(scope, receive, send)
            return

        async def send_standings(message: Message) -> None:
            if message["type"] == "http.response.start":
                standings = quota_headers(scope, self._quotas, tenant)
                message["headers"] = [*message["headers"], *standings]
            await send(message)

        await self._app(scope, receive, send_standings)


def _presented(scope: Scope) -> Iterator[bytes]:
    for name, value in scope["headers"]:
        if name in (b"x-api-key", b"api-key"):
            yield value
        elif name == b"authorization":
            scheme, _, token = value.partition(b" ")
            if scheme.lower() == b"bearer":
                yield token.strip()


def _refusal(scope: Scope) -> ASGIApp:
    return error_response(
        scope,
        401,
        "This server needs an API key that it knows: send the header Authorization: Bearer KEY "
        "or x-api-key: KEY.",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
