"""What clients may cost before they are answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caudal.service.context import RequestContext


@dataclass(frozen=True)
class ServerLimits:
    """Bounds in time, memory and connections for whatever reaches the server's socket.

    Attributes:
        max_connections: Connections at a time. One more takes the place of the one that has
            waited longest for its client; where none waits, it is answered 503.
        keep_alive_seconds: How long a connection may be idle between two requests. Longer than
            clients' pools keep them, so that none is closed under a request that is just sent.
        header_seconds: How long a request's line and headers may take, and the first byte.
        header_bytes: Of a request's line and headers together.
        header_count: Headers of a request, trailers included.
        url_bytes: Of a request's target.
        connections_per_address: Connections of one address at a time; None for as many as there may
            be. Those of trusted proxies don't count.
        pipelined_requests: Requests that may wait on a connection for the answer before theirs.
        body_seconds: How long a body may pause, also in total where it is slower than `min_rate`.
        body_bytes: Largest body: several times the text of a prompt of a million tokens.
        all_bodies_bytes: Of the bodies of all requests that are being read or answered.
        file_bytes: Largest file that is sent for the store, where clients may change that.
        upload_bytes: Largest form with a file for a batch.
        max_prompt_tokens: Most tokens of a request's prompts together; None: what the model has
            room for.
        max_n: Most answers of a request.
        max_output_tokens: Most tokens of an answer.
        unread_seconds: How long an answer's next bytes may wait for their reader.
        min_rate: Bytes per second of which a body or a reader has to be capable.
        linger_seconds: How long a client that is still sending has to read why it is refused.
        notice_seconds: How long requests are still taken after SIGTERM, while `/ready` says 503.
        drain_seconds: How long running answers may go on after that.
    """

    max_connections: int = 1024
    keep_alive_seconds: float = 120.0
    header_seconds: float = 20.0
    header_bytes: int = 64 * 2**10
    header_count: int = 128
    url_bytes: int = 16 * 2**10
    connections_per_address: int | None = None
    pipelined_requests: int = 16
    body_seconds: float = 30.0
    body_bytes: int = 32 * 2**20
    all_bodies_bytes: int = 256 * 2**20
    file_bytes: int = 2**41
    upload_bytes: int = 512 * 2**20
    max_prompt_tokens: int | None = None
    max_n: int | None = None
    max_output_tokens: int | None = None
    unread_seconds: float = 60.0
    min_rate: int = 16 * 2**10
    linger_seconds: float = 3.0
    notice_seconds: float = 0.0
    drain_seconds: float = 10.0

    def applied(self, context: RequestContext) -> RequestContext:
        """What travels with a request's work, held to these limits."""
        return context.held_to(self.max_prompt_tokens, self.max_n, self.max_output_tokens)


@dataclass(frozen=True, slots=True)
class ChangingLimits:
    """Has limits change while the server runs. Connections that there are keep theirs.

    Attributes:
        followers: Called with those that hold from now on.
    """

    followers: list[Callable[[ServerLimits], None]] = field(default_factory=list)

    def change(self, limits: ServerLimits) -> None:
        """Have others."""
        for call in self.followers:
            call(limits)
