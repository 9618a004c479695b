"""What came of the requests, and what was wrong with any."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

EXPLAINED = {429, 503, 504}
"""How a server that has too much to do may answer, as long as it says why and when to come back."""

MOST_SHOWN = 20


@dataclass
class Findings:
    """Of all clients together."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    probes: list[float] = field(default_factory=list)

    def count(self, who: str, outcome: str) -> None:
        """What a client got that is as it should be."""
        self.outcomes[f"{who}: {outcome}"] += 1

    def blame(self, who: str, what: str) -> None:
        """What a client got that is not."""
        self.wrong[f"{who}: {what[:300]}"] += 1

    def refused(self, who: str, status: int, headers: Any, error: Any) -> None:
        """A refusal, which must be explained."""
        message = error.get("message") if isinstance(error, dict) else None
        code = error.get("code") if isinstance(error, dict) else None
        if status not in EXPLAINED or not message:
            self.blame(who, f"status {status}: {error}")
        elif "retry-after" not in headers:
            self.blame(who, f"status {status} without Retry-After: {message}")
        else:
            self.count(who, f"{status} {code}")

    def table(self) -> str:
        """All of it, for reading."""
        lines = [f"{times:9,d}  {what}" for what, times in sorted(self.outcomes.items())]
        if self.probes:
            ordered = sorted(self.probes)
            worst = [ordered[int(len(ordered) * share)] for share in (0.5, 0.99)]
            lines.append(
                f"/health and /ready: p50 {worst[0] * 1000:.1f} ms, p99 {worst[1] * 1000:.1f} ms, "
                f"worst {ordered[-1] * 1000:.1f} ms of {len(ordered)}"
            )
        lines += [
            f"WRONG {times:6,d}  {what}" for what, times in self.wrong.most_common(MOST_SHOWN)
        ]
        return "\n".join(lines)
