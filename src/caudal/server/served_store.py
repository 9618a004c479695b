"""The store behind a server, and whether its clients may change what is in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi import Request
from starlette.exceptions import HTTPException

from caudal.server.asked import served_models
from caudal.service.threads import WorkThreads
from caudal.store import Store

UPLOADS = 16
"""Files that are written at a time; others aren't read until one is done."""


@dataclass(slots=True)
class ServedStore:
    """A store.

    Attributes:
        store: It.
        refusal: Why clients may not change it; None: they may. It may be another later.
        uploads: Write what clients send, so that a slow one keeps no other work waiting.
    """

    store: Store
    refusal: str | None
    uploads: WorkThreads = field(default_factory=lambda: WorkThreads("upload", UPLOADS))


def served_store(request: Request) -> Store:
    """The store of this application.

    Raises:
        HTTPException: It has none.
    """
    served: ServedStore | None = request.app.state.store
    if served is None:
        raise HTTPException(403, "This server has no store of models.")
    return served.store


def changeable_store(request: Request) -> Store:
    """The same, to be changed.

    Raises:
        HTTPException: Clients may not do that.
    """
    store = served_store(request)
    served: ServedStore = request.app.state.store
    if served.refusal is not None:
        raise HTTPException(403, served.refusal)
    return store


async def take_note(request: Request) -> None:
    """The store has changed: what there is now is there for the next request."""
    await served_models(request).statuses()
