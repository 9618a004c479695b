"""Trouble that passes: what counts as such, and how long to wait before trying again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import httpx2

from caudal.errors import StoreError

TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
MOST_ATTEMPTS = 8
MOST_CONNECT_ATTEMPTS = 2
"""Where nothing has ever been reached: most likely there is no network, or no such host."""
_MOST_QUESTIONS = 5
"""Whoever waits for an answer, and not for gigabytes, wants to know sooner."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 20.0
LONGEST_ASKED_PAUSE_SECONDS = 120.0
"""Of a server that asks for more patience, nobody wants to wait for the answer."""

Result = TypeVar("Result")


class TransientError(Exception):
    """Something failed in a way that trying again may cure.

    Args:
        reason: What happened.
        pause: Seconds that the server asks to wait.
    """

    def __init__(self, reason: str, pause: float = 0) -> None:
        self.pause = pause
        super().__init__(reason)


class Patience:
    """How often in a row something may fail, and how long to wait each time.

    Args:
        tell: Called with the reason before every pause.
        most: Attempts in a row.
    """

    def __init__(self, tell: Callable[[str], None], most: int = MOST_ATTEMPTS) -> None:
        self._tell = tell
        self._most = most
        self._failures = 0
        self._has_reached = False

    def has_progressed(self) -> None:
        """Something went well: failures count from here."""
        self._failures = 0
        self._has_reached = True

    async def after(self, error: Exception, what: str) -> None:
        """Wait as long as is sensible after a failure.

        Args:
            error: A `TransientError` or one of the transport.
            what: What failed.

        Raises:
            StoreError: It has failed often enough, or the server asks for too much patience.
        """
        reason = _IN_WORDS.get(type(error)) or str(error) or type(error).__name__
        asked = error.pause if isinstance(error, TransientError) else 0.0
        self._failures += 1
        unreachable = isinstance(error, httpx2.ConnectError) and not self._has_reached
        most = MOST_CONNECT_ATTEMPTS if unreachable else self._most
        if self._failures >= most or asked > LONGEST_ASKED_PAUSE_SECONDS:
            later = f", and asks to try again in {asked:.0f} s" if asked else ""
            raise StoreError(f"{what} failed: {reason}{later}") from error
        self._tell(reason)
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (self._failures - 1))
        await asyncio.sleep(max(asked, pause * random.uniform(0.5, 1)))


_IN_WORDS: dict[type[Exception], str] = {
    httpx2.ReadTimeout: "the server stopped sending",
    httpx2.WriteTimeout: "the server stopped receiving",
    httpx2.ConnectTimeout: "the server can't be reached in time",
    httpx2.RemoteProtocolError: "the connection broke off",
    httpx2.ReadError: "the connection broke off",
    httpx2.WriteError: "the connection broke off",
}


async def patiently(
    action: Callable[[], Awaitable[Result]], what: str, tell: Callable[[str], None]
) -> Result:
    """Do something that may be tried again as a whole.

    Args:
        action: What to do.
        what: The same in words.
        tell: Called with the reason before every further attempt.

    Raises:
        StoreError: It failed too often.
    """
    patience = Patience(tell, _MOST_QUESTIONS)
    while True:
        try:
            return await action()
        except (TransientError, httpx2.TransportError) as error:
            await patience.after(error, what)


def pause_asked_for(response: httpx2.Response) -> float:
    """The seconds that `Retry-After` asks for; none where it doesn't."""
    text = response.headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text[:9])
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def check_transient(response: httpx2.Response) -> None:
    """Let whoever asked try again, where that may help.

    Raises:
        TransientError: It may.
    """
    if response.status_code in TRANSIENT_STATUS:
        reason = f"{response.status_code} {response.reason_phrase}".strip()
        raise TransientError(f"the server answered {reason}", pause_asked_for(response))
