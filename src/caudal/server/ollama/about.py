"""`GET /api/version`: which of Ollama's versions the routes under `/api/` are like."""

from __future__ import annotations

from fastapi import APIRouter

from caudal import __version__

router = APIRouter()

OLLAMA_VERSION = "0.33.0"
"""The version whose API this is. Clients compare it with the least that they need, and some can
read nothing but three numbers; ours is told beside it.
"""


@router.get("/api/version")
async def version() -> dict[str, str]:
    """The version of Ollama whose API this is, and Caudal's own."""
    return {"version": OLLAMA_VERSION, "caudal": __version__}
