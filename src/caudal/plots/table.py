"""Tables of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caudal.plots.svg import element, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text. The first column says what a row is, the others are aligned like numbers.

    Attributes:
        title: Its caption; empty for none.
        headings: One for each column.
        rows: Cells, as many as there are headings.
        words: Whether the cells are words, which begin where they are read from, and not numbers.
    """

    title: str = ""
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: bool = False

    def to_html(self) -> str:
        """As markup."""
        head = "".join(element("th", text(each), scope="col") for each in self.headings)
        body = "".join(element("tr", *self._cells(row)) for row in self.rows)
        caption = element("caption", text(self.title)) if self.title else ""
        rows = element("thead", element("tr", head)) + element("tbody", body)
        table = element("table", caption, rows, class_="words" if self.words else None)
        return element("div", table, class_="wide")

    @staticmethod
    def _cells(row: Sequence[str]) -> list[str]:
        first, *others = row
        return [
            element("th", text(first), scope="row"),
            *(element("td", text(cell)) for cell in others),
        ]
