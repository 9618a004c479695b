"""Markdown tables that can be read without rendering them."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(lines: Sequence[Sequence[str]], *, align: str) -> str:
    """A table whose columns line up.

    Args:
        lines: The head, then the rows, each of as many cells.
        align: `l` or `r` for each column.
    """
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(cells, widths, align, strict=True)
        ]
        return f"| {' | '.join(padded)} |"

    rule = [
        "-" * (width - 1) + (":" if side == "r" else "-")
        for width, side in zip(widths, align, strict=True)
    ]
    return "\n".join([line(lines[0]), line(rule), *map(line, lines[1:])])
