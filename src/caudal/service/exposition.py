"""Figures as the text that Prometheus reads, and texts of several put together.

Workers write the text, with their model's name as a label, and the server only sorts its lines: to
parse and write those of ten models would keep the event loop for a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

_BEGAN = "_created"
"""Samples that say when a counter began. Nobody reads them in this format, and they would be as
many series again."""

_HELP = "\n# HELP "


class _Labelled(Collector):
    def __init__(self, families: Iterable[Metric], labels: Mapping[str, str]) -> None:
        self._families = families
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        labels = self._labels
        for family in self._families:
            family.samples = [
                sample._replace(labels={**labels, **sample.labels}) if labels else sample
                for sample in family.samples
                if not sample.name.endswith(_BEGAN)
            ]
            yield family


def exposition(families: Iterable[Metric], labels: Mapping[str, str] | None = None) -> bytes:
    """The text of figures.

    Args:
        families: They.
        labels: Labels that all of them get.
    """
    registry = CollectorRegistry()
    registry.register(_Labelled(families, labels or {}))
    return generate_latest(registry)


@dataclass(slots=True)
class _Family:
    head: str
    samples: list[str]


class Expositions:
    """Several texts in one, in which each name is explained once."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def add(self, text: bytes) -> None:
        """One more. Its figures have other labels than those of the others."""
        for block in f"\n{text.decode()}".split(_HELP)[1:]:
            said, kind, *samples = block.split("\n", 2)
            name = said.partition(" ")[0]
            family = self._families.get(name)
            if family is None:
                family = self._families[name] = _Family(f"# HELP {said}\n{kind}\n", [])
            family.samples += [each.removesuffix("\n") + "\n" for each in samples if each]

    def samples(self, name: str) -> str:
        """The lines of a family, by the name that stands behind `# TYPE`."""
        family = self._families.get(name)
        return "" if family is None else "".join(family.samples)

    def kind(self, name: str) -> str | None:
        """Its type; None where there is none of the name."""
        family = self._families.get(name)
        return None if family is None else family.head.split()[-1]

    def encoded(self) -> bytes:
        """All of it."""
        parts = []
        for family in self._families.values():
            parts += [family.head, *family.samples]
        return "".join(parts).encode()
