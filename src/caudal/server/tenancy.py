"""Whose request it is, and what follows from that."""

from __future__ import annotations

from fastapi import Depends, Request
from starlette.exceptions import HTTPException
from starlette.types import Scope

from caudal.tenants.ring import KeyRing
from caudal.tenants.rules import ANYONE, KeyRules, Tenant

TENANT = "caudal.tenant"
"""Where a scope has whose request it is: see `caudal.server.auth`."""

NOBODY = Tenant("nobody", "nobody", KeyRules())
"""Who asks without a key, where there are keys, what is open to everyone."""


def tenant_of(scope: Scope) -> Tenant:
    """Whose request it is; `ANYONE`'s where no keys are set."""
    tenant: Tenant = scope.get(TENANT, ANYONE)
    return tenant


def check_admin(request: Request) -> None:
    """Raises 403 where a key may neither change the server nor see what others do."""
    tenant = tenant_of(request.scope)
    if not tenant.rules.admin:
        raise HTTPException(
            403,
            f"The key {tenant.name!r} may use models only. Ask whoever runs this server, or send a "
            "key with admin rights.",
        )


FOR_ADMINS = Depends(check_admin)
"""A dependency of routes that are for those who may change the server."""


def scope_within(keys: KeyRing | None, identity: str | None) -> dict[str, Tenant] | None:
    """What the scope of a request has that comes from within the server, on somebody's behalf.

    Args:
        keys: All keys; None where nobody needs one.
        identity: The tenant's.

    Returns:
        None where there is no such tenant any more.
    """
    if keys is None:
        return {}
    keys.look()
    found = next((each for each in keys.tenants if each.id == identity), None)
    return None if found is None else {TENANT: found}
