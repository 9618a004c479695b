"""How commands ask a server that runs already."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from caudal.errors import CaudalError

DEFAULT_URL = "http://127.0.0.1:8000"

Url = Annotated[
    str,
    typer.Option(
        envvar="CAUDAL_URL", metavar="URL", help="Where the server is.", show_default=True
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="CAUDAL_API_KEY", help="The server's key, where it has one.", show_default=False
    ),
]


class ServerError(CaudalError):
    """A server can't be asked, or refuses what it is asked."""


class NoServerError(ServerError):
    """There is none where it was looked for."""


def base_url(url: str) -> str:
    """A server's address as users write it, with its scheme, and without /v1 at its end."""
    return (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")


def ask_server(
    url: str,
    api_key: str | None,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    *,
    has: str,
) -> dict[str, Any]:
    """What a server answers, as JSON.

    Args:
        url: Where it is; a scheme may be left out, and /v1 be at the end.
        api_key: Its key, where it has one.
        method: Of HTTP.
        path: What is asked for.
        body: What is sent.
        has: A key that Caudal's answer to this has, and that of others hasn't.

    Raises:
        ServerError: It can't be reached, or refuses; in its own words.
    """
    import httpx2

    base = base_url(url)
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    try:
        response = httpx2.request(method, base + path, json=body, headers=headers, timeout=None)
        answer = response.json()
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise NoServerError(f"there is no server at {base}: {error}") from error
    except ValueError as error:
        raise ServerError(_stranger(base)) from error
    if response.status_code >= 400:
        found = answer.get("error") if isinstance(answer, dict) else None
        message = found.get("message") if isinstance(found, dict) else None
        raise ServerError(str(message or f"{base}{path} answered {response.status_code}"))
    if not isinstance(answer, dict) or has not in answer:
        raise ServerError(_stranger(base))
    return answer


def _stranger(base: str) -> str:
    return f"what answers at {base} is no server of Caudal, or one of another version"
