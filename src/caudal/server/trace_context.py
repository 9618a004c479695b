"""Whose trace a request belongs to: `traceparent` and `tracestate`, as in W3C's Trace Context.

https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.types import Scope

_FORM = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")

_NONE = (b"0" * 32, b"0" * 16)
"""Ids that stand for none."""

MOST_STATE = 512
"""Most characters of a state that are passed on: as many as everybody has to."""


@dataclass(frozen=True, slots=True)
class TraceParent:
    """The span that a request belongs to.

    Attributes:
        trace_id: 32 hexadecimal digits.
        parent_id: Of the span, 16 of them.
        flags: Bit 0: the caller records the trace.
        state: What other tracing systems pass on with it.
    """

    trace_id: str
    parent_id: str
    flags: int = 0
    state: str = ""

    @property
    def sampled(self) -> bool:
        """Whether the caller records the trace."""
        return bool(self.flags & 1)


def trace_parent(scope: Scope) -> TraceParent | None:
    """The span that a request says it belongs to; None where it says none, or nonsense."""
    parents: list[bytes] = []
    states: list[bytes] = []
    for name, value in scope.get("headers", ()):
        if name == b"traceparent":
            parents.append(value.strip())
        elif name == b"tracestate":
            states.append(value.strip())
    if len(parents) != 1 or (match := _FORM.fullmatch(parents[0])) is None:
        return None
    version, trace, parent, flags, more = match.groups()
    # Later versions may add to the form; this one may not.
    if version == b"ff" or (version == b"00" and more) or trace == _NONE[0] or parent == _NONE[1]:
        return None
    state = b",".join(states).decode("latin-1")
    if len(state) > MOST_STATE or not (state.isascii() and state.isprintable()):
        state = ""
    return TraceParent(trace.decode(), parent.decode(), int(flags, 16), state)
