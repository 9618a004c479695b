"""Whose request it is, and what follows from that."""

from __future__ import annotations

from starlette.types import Scope

from caudal.tenants.rules import ANYONE, KeyRules, Tenant

TENANT = "caudal.tenant"
"""Where a scope has whose request it is: see `caudal.server.auth`."""

NOBODY = Tenant("nobody", "nobody", KeyRules())
"""Who asks without a key, where there are keys, what is open to everyone."""


def tenant_of(scope: Scope) -> Tenant:
    """Whose request it is; `ANYONE`'s where no keys are set."""
    tenant: Tenant = scope.get(TENANT, ANYONE)
    return tenant
