"""Saying who one is to one registry: nobody, by name and password, or by tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

import httpx2

from caudal.errors import StoreError
from caudal.store.registry.challenge import Challenge, parse_challenges
from caudal.store.registry.credentials import Credentials
from caudal.store.transfer.download import bounded_body
from caudal.store.transfer.http import sent, shown
from caudal.store.transfer.retries import check_transient

_MOST_TOKEN_BYTES = 1 << 20


class Authentication:
    """What goes along with requests to one registry.

    Args:
        client: Fetches tokens.
        host: The registry, with its port.
        find: Gives the user's credentials; called once, and only where they are asked for.
    """

    def __init__(
        self, client: httpx2.AsyncClient, host: str, find: Callable[[str], Credentials | None]
    ) -> None:
        self._client = client
        self._host = host
        self._find = find
        self._credentials: Credentials | None = None
        self._asked = False
        self._header = ""
        self._lock = asyncio.Lock()

    @property
    def header(self) -> str:
        """`Authorization`, or an empty string."""
        return self._header

    async def answer(self, response: httpx2.Response, used: str, scopes: Sequence[str]) -> None:
        """After a 401: find out what to send instead.

        Args:
            response: The 401.
            used: The header that was refused.
            scopes: What is going to be done, where the registry doesn't say.

        Raises:
            StoreError: There is nothing that the registry would take.
        """
        async with self._lock:
            if self._header != used:
                return  # another request has done it already
            challenges = parse_challenges(response.headers.get_list("WWW-Authenticate"))
            bearer = next((each for each in challenges if each.scheme == "bearer"), None)
            basic = any(each.scheme == "basic" for each in challenges)
            if not self._asked:
                # A helper is a program that may ask the user.
                self._credentials = await asyncio.to_thread(self._find, self._host)
                self._asked = True
            known = self._credentials
            if bearer is not None:
                header = f"Bearer {await self._token(response.url, bearer, scopes)}"
            elif basic and known is not None and not known.is_identity_token:
                header = known.basic
            else:
                raise self.refused()
            if header == used:
                raise self.refused()
            self._header = header

    async def _token(
        self, registry: httpx2.URL, challenge: Challenge, scopes: Sequence[str]
    ) -> str:
        realm = self._realm(registry, challenge)
        asked = challenge.parameters.get("scope", "").split()
        service = challenge.parameters.get("service", "")
        named = {"service": service} if service else {}
        wanted = list(dict.fromkeys([*asked, *scopes]))
        known = self._credentials
        if known is not None and known.is_identity_token:
            # distribution.github.io/distribution/spec/auth/oauth
            form = httpx2.QueryParams(
                {
                    "grant_type": "refresh_token",
                    "client_id": "caudal",
                    "refresh_token": known.secret,
                    "scope": " ".join(wanted),
                    **named,
                }
            )
            content = str(form).encode()
            form_type = {"Content-Type": "application/x-www-form-urlencoded"}
            answer = sent(self._client, "POST", realm, form_type, body=lambda: content, secret=True)
        else:
            asks = httpx2.QueryParams({**named, "scope": wanted})
            url = realm.copy_with(params=realm.params.merge(asks))
            basic = known.basic if known is not None else ""
            answer = sent(self._client, "GET", url, {}, authorization=basic)
        async with answer as response:
            check_transient(response)
            if response.status_code in (401, 403):
                raise self.refused()
            if response.status_code != 200:
                raise StoreError(
                    f"{shown(realm)} gives no token: it answered {response.status_code}"
                )
            body = await bounded_body(response, _MOST_TOKEN_BYTES)
        try:
            given = json.loads(body)
            token = given.get("token") or given.get("access_token")
        except (ValueError, AttributeError):
            token = None
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise StoreError(f"{shown(realm)} gives no token")
        return token

    def _realm(self, registry: httpx2.URL, challenge: Challenge) -> httpx2.URL:
        """Who gives tokens: credentials go there, so it has to be as private as the registry."""
        text = challenge.parameters.get("realm", "")
        try:
            realm = httpx2.URL(text)
        except httpx2.InvalidURL:
            realm = httpx2.URL("")
        plain = realm.scheme == registry.scheme == "http"
        if not realm.host or not (realm.scheme == "https" or plain):
            raise StoreError(
                f"{self._host} wants tokens from {text[:80]!r}, which can't be trusted"
            )
        return realm

    def refused(self) -> StoreError:
        """What to say where nothing is taken."""
        if self._host == "registry.ollama.ai":
            return StoreError(
                "registry.ollama.ai has no such model for everybody. Private ones, and pushing, "
                "need the key of an Ollama account: use `ollama pull` or `ollama push`."
            )
        if self._credentials is None:
            return StoreError(
                f"{self._host} wants to know who asks. Log in with: docker login {self._host}, or "
                f"podman login {self._host}"
            )
        return StoreError(
            f"{self._host} refuses {self._credentials.user or 'the identity token'}: it may not do "
            f"this, or its password is another one. Log in again: docker login {self._host}"
        )
