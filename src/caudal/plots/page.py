"""A page: everything in one file, light or dark as its reader has it, and printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caudal.plots.figure import Figure
from caudal.plots.svg import element, text
from caudal.plots.table import Table

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1c2024; --soft: #5c6570; --rule: #dde1e6;
  --c0: #1f6feb; --c1: #d1570a; --c2: #1a7f4b; --c3: #a8328f; --c4: #8a6d00; --c5: #00808a;
  --c6: #c0262d; --c7: #5b5fc7; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171a; --ink: #e6e9ec; --soft: #9aa4af; --rule: #333a42;
    --c0: #6cabff; --c1: #ff9d57; --c2: #57cf90; --c3: #ee8bdb; --c4: #e2c044; --c5: #4fd0d9;
    --c6: #ff7b80; --c7: #a5a8ff; } }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 60rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
p { max-width: 45rem; } figure { margin: 1.5rem 0; break-inside: avoid; }
figcaption span, caption, summary, .soft { color: var(--soft); }
caption { text-align: left; padding-bottom: .3rem; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums;
  margin: .75rem 0; }
th, td { padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--rule); text-align: right;
  vertical-align: top; }
th { font-weight: 600; } tbody th { font-weight: 400; }
th:first-child, .words th, .words td { text-align: left; overflow-wrap: anywhere; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0;
  margin: .3rem 0; font-size: .9rem; }
.legend li { display: flex; align-items: center; gap: .4rem; } .sample { width: 22px; }
.grid { stroke: var(--rule); } .axis { stroke: var(--soft); fill: none; }
.line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
.dot, .bar { fill: currentColor; } .bar { fill-opacity: .85; }
.band { fill: currentColor; fill-opacity: .15; } .cell { fill: var(--c0); }
.mark { stroke: var(--c6); stroke-width: 1.5; stroke-dasharray: 4 3; }
.whisker { fill: none; stroke: var(--ink); stroke-width: 1.2; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); }
.c3 { color: var(--c3); } .c4 { color: var(--c4); } .c5 { color: var(--c5); }
.c6 { color: var(--c6); } .c7 { color: var(--c7); }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a page.

    Attributes:
        title: Its heading.
        content: Paragraphs of text, tables and plots, in their order.
    """

    title: str
    content: Sequence[str | Table | Figure]


def page(title: str, sections: Sequence[Section], *, lead: str = "") -> str:
    """A whole HTML document.

    Args:
        title: Its title.
        sections: What is in it.
        lead: A sentence below the title.
    """
    parts, figures = [], 0
    for section in sections:
        content = []
        for each in section.content:
            if isinstance(each, Figure):
                figures += 1
                content.append(each.to_html(figures))
            else:
                content.append(each.to_html() if isinstance(each, Table) else _paragraph(each))
        parts.append(element("section", element("h2", text(section.title)), *content))
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        + element("title", text(title))
        + element("style", _STYLE)
    )
    body = element("h1", text(title)) + (_paragraph(lead) if lead else "") + "".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n'
        f"<body><main>{body}</main></body></html>\n"
    )


def _paragraph(words: str) -> str:
    return element("p", text(words))
