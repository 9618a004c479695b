"""What guesses bring, as rows of a report."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.cases import Metric
from benchmarks.measure import CaseResults
from benchmarks.peers.caudal import CAUDAL
from benchmarks.tables import markdown_table


@dataclass(frozen=True, slots=True)
class GuessRow:
    """A text at a number of sequences, by everyone, with guesses and without."""

    results: CaseResults

    def median(self, peer: str, metric: Metric) -> float | None:
        """Tokens per second."""
        rates = self.results.peers[peer].rates.get(metric)
        return statistics.median(rates) if rates else None

    def gain(self, peer: str) -> float | None:
        """How many times faster guesses make it: the median of the runs' own ratios."""
        rates = self.results.peers[peer].rates
        pairs = zip(rates.get("guessed", ()), rates.get("alone", ()), strict=False)
        ratios = [guessed / alone for guessed, alone in pairs]
        return statistics.median(ratios) if ratios else None

    def right(self, peer: str) -> float | None:
        """The share of the tokens guessed that were right; None where there is nothing to say."""
        drafts = self.results.peers[peer].drafts
        return drafts.accepted / drafts.proposed if drafts and drafts.proposed else None

    @property
    def ratio_to_best(self) -> float | None:
        """Caudal's rate with guesses over the best peer's, with guesses or without."""
        mine = self.median(CAUDAL, "guessed")
        metrics: Sequence[Metric] = ("alone", "guessed")
        rates = [
            rate
            for peer in self.results.peers
            for metric in metrics
            if peer != CAUDAL and (rate := self.median(peer, metric)) is not None
        ]
        return mine / max(rates) if mine is not None and rates else None

    def cell(self, peer: str) -> str:
        """`alone → with guesses (gain, right)`."""
        alone, guessed = self.median(peer, "alone"), self.median(peer, "guessed")
        gain, right = self.gain(peer), self.right(peer)
        if alone is None or guessed is None or gain is None:
            return "-"
        told = f"{gain:.2f} x" + ("" if right is None else f", {right:.0%} right")
        return f"{alone:.0f} → {guessed:.0f} ({told})"

    def json(self) -> dict[str, object]:
        """For programs, with every run's figures."""
        return {
            "model": self.results.model.name,
            "case": self.results.case.name,
            "ratio_to_best": self.ratio_to_best,
            "peers": {
                peer: {
                    "rates": dict(result.rates),
                    "gain": self.gain(peer),
                    "right": self.right(peer),
                    "missing": result.missing,
                    "facts": dict(result.facts),
                }
                for peer, result in self.results.peers.items()
            },
        }


def guess_table(rows: Sequence[GuessRow], titles: Mapping[str, str]) -> str:
    """All rows, of Caudal and of peers that have figures."""
    known = {peer for row in rows for peer, result in row.results.peers.items() if result.rates} | {
        CAUDAL
    }
    peers = [peer for peer in titles if peer in known]
    head = ["tok/s alone → with guesses, median", "", *(titles[peer] for peer in peers)]
    table = [[*head, "to the best"]]
    last = None
    for row in rows:
        model, ratio = row.results.model.title, row.ratio_to_best
        line = ["" if model == last else model, row.results.case.title]
        line += [row.cell(peer) if peer in row.results.peers else "-" for peer in peers]
        table.append([*line, "-" if ratio is None else f"{ratio:.2f} x"])
        last = model
    return markdown_table(table, align="ll" + "r" * (len(head) - 1))
