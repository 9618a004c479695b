"""`GET /v1/prefix-cache`, and `POST /v1/prefix-cache/reset`: what is cached, and the end of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from caudal.errors import CaudalError, ParameterError
from caudal.reading.fields import RequestObject
from caudal.server.asked import served_models
from caudal.server.body import OptionalBodyReader
from caudal.server.tenancy import FOR_ADMINS, tenant_of
from caudal.service.models import Models
from caudal.service.prefix_figures import (
    PrefixCacheFigures,
    SpaceChoice,
    SpaceTokens,
    TierFigures,
)
from caudal.service.service import Service
from caudal.tenants.rules import ANYONE, Tenant
from caudal.tenants.salts import name_of, salt_within

router = APIRouter()

MODEL_SECONDS = 10.0
"""How long a model may take to answer; between two iterations it does in microseconds."""


@router.get("/v1/prefix-cache")
async def prefix_cache(request: Request, model: str | None = None) -> dict[str, Any]:
    """What the prefix caches of loaded models hold, or that of the one that `?model=` names.

    Who has no admin rights sees what requests of the same key may have from them, and no more.
    """
    tenant = tenant_of(request.scope)
    services = await _loaded(served_models(request), model or None)
    figures = await asyncio.gather(*map(_figures_of, services.values()))
    data = [
        {"model": name, **_told(of_model, tenant)}
        for name, of_model in zip(services, figures, strict=True)
        if of_model is not None
    ]
    return {"object": "list", "data": data}


class ResetRequest(RequestObject):
    """Body of `POST /v1/prefix-cache/reset`.

    Attributes:
        model: The model; None: all that are loaded.
        key: The name of a key: what its requests have left, with whatever salts.
        share_prefixes: The word of keys that share prefixes: likewise.
        salt: Only what requests of this `cache_salt` have left.
    """

    hints: ClassVar[AbstractSet[str]] = frozenset(("timeout",))
    closed: ClassVar[bool] = True  # `{"cache_salt": …}` must not end everybody's

    model: Annotated[str, Field(min_length=1)] | None = None
    key: str | None = None
    share_prefixes: str | None = None
    salt: str | None = None

    def choice(self, *, keyed: bool) -> SpaceChoice:
        """Whose prefixes are meant.

        Args:
            keyed: Whether there are keys.

        Raises:
            ParameterError: It doesn't say whose.
        """
        if self.key is not None and self.share_prefixes is not None:
            raise ParameterError("share_prefixes", "share_prefixes and key exclude each other.")
        named = self.key is not None or self.share_prefixes is not None
        if not keyed:
            if named:
                field = "share_prefixes" if self.key is None else "key"
                raise ParameterError(field, f"{field}: this server has no keys.")
            return SpaceChoice(salt=self.salt)
        if not named:
            if self.salt is not None:
                raise ParameterError("salt", "salt: say whose it is, by key or share_prefixes.")
            return SpaceChoice()
        salt = salt_within(self.key or "", self.share_prefixes, self.salt)
        return SpaceChoice(salt=salt, and_below=self.salt is None)


@router.post("/v1/prefix-cache/reset", dependencies=[FOR_ADMINS])
async def reset_prefix_cache(
    body: Annotated[ResetRequest, Depends(OptionalBodyReader(ResetRequest))], request: Request
) -> dict[str, Any]:
    """Give up what the prefix caches of loaded models hold, but for what running requests use."""
    choice = body.choice(keyed=tenant_of(request.scope) is not ANYONE)
    services = await _loaded(served_models(request), body.model)
    resets = (service.reset_prefix_cache(choice) for service in services.values())
    data = [
        {"model": name, "tokens": dict(of.tokens), "kept_tokens": of.kept_tokens}
        for name, of in zip(services, await asyncio.gather(*resets), strict=True)
    ]
    return {"object": "list", "data": data}


async def _loaded(models: Models, name: str | None) -> Mapping[str, Service]:
    """The models that are meant, of those that are loaded, by name; none is loaded for it.

    Raises:
        UnknownModelError: There is no such model.
    """
    if name is None:
        return {service.names[0]: service for service in models.services}
    status = await models.status(name)
    return {} if status.service is None else {status.names[0]: status.service}


async def _figures_of(service: Service) -> PrefixCacheFigures | None:
    try:
        return await asyncio.wait_for(service.prefix_cache(), MODEL_SECONDS)
    except (CaudalError, TimeoutError):  # it has ended meanwhile, or is about to
        return None


def _told(figures: PrefixCacheFigures, tenant: Tenant) -> dict[str, Any]:
    """What a tenant is told of a model's figures."""
    if tenant.rules.admin:
        return {
            "prompt_tokens": figures.prompt_tokens,
            "cached_tokens": figures.cached_tokens,
            "tiers": [_tier(tier, keyed=tenant is not ANYONE) for tier in figures.tiers],
        }
    shared = tenant.rules.share_prefixes
    # Salts of requests whose prefixes are shared may be another key's, and are nobody else's.
    own = SpaceChoice(salt=salt_within(tenant.id, shared, None), and_below=shared is None)
    tiers = []
    for tier in figures.tiers:
        spaces = [
            space
            for space in tier.spaces
            if own.covers_salt(space.salt)
            and (not space.adapter or tenant.rules.allows_model(space.adapter))
        ]
        tiers.append(
            {
                "tier": tier.tier,
                "tokens": sum(space.tokens for space in spaces),
                "spaces": [_space(space, keyed=True) for space in spaces],
            }
        )
    return {"tiers": tiers}


def _tier(tier: TierFigures, *, keyed: bool) -> dict[str, Any]:
    return {
        "tier": tier.tier,
        "bytes": tier.bytes,
        "tokens": tier.tokens,
        "hits": tier.hits,
        "misses": tier.misses,
        "hit_tokens": tier.hit_tokens,
        "spaces": [_space(space, keyed=keyed) for space in tier.spaces],
    }


def _space(space: SpaceTokens, *, keyed: bool) -> dict[str, Any]:
    name = name_of(space.salt, keyed=keyed) if space.known else None
    return {
        "key": None if name is None else name.key,
        "share_prefixes": None if name is None else name.word,
        "salt": None if name is None else name.salt,
        "adapter": space.adapter or None,  # one that is part of the model has no name
        "known": space.known,
        "tokens": space.tokens,
    }
