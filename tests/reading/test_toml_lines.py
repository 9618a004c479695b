"""Every value of a TOML document has the line of its statement, whatever form that has."""

from __future__ import annotations

import tomllib

import pytest

from caudal.reading.toml_lines import Location, TomlLines

DOCUMENT = '''\
# [not.a.table]
top = 1

a.b.dotted = 2
[server]   # "[x]"
text = """
[looks.like]
a = "table"
"""
literal = \'\'\'
[[no]]\'\'\'
many = [
    1,  # ]
    [2,
     3],
]
inline = { key = "# no comment", deep = { er = [1, { x = 2 }] } }

[[models]]
name = "one"
"quoted key" = 1
[models.more]
x = 1
[[models.parts]]
y = 1
[[models.parts]]
y = 2
[[ models ]]
name = "two"
  [ models . "parts x" ]
z = 1
[empty]
'''


@pytest.mark.parametrize(
    ("location", "line"),
    [
        (("top",), 2),
        (("a",), 4),
        (("a", "b", "dotted"), 4),
        (("server",), 5),
        (("server", "text"), 6),
        (("looks",), None),
        (("server", "literal"), 10),
        (("no",), None),
        (("server", "many", 1, 1), 12),
        (("server", "inline", "deep", "er", 1, "x"), 17),
        (("models",), 19),
        (("models", 0, "name"), 20),
        (("models", 0, "quoted key"), 21),
        (("models", 0, "more"), 22),
        (("models", 0, "more", "x"), 23),
        (("models", 0, "parts", 0, "y"), 25),
        (("models", 0, "parts", 1), 26),
        (("models", 0, "parts", 1, "y"), 27),
        (("models", 1), 28),
        (("models", 1, "name"), 29),
        (("models", 1, "parts x", "z"), 31),
        (("models", 2), None),
        (("empty",), 32),
    ],
)
def test_a_value_has_the_line_of_its_statement(location: Location, line: int | None):
    assert TomlLines(DOCUMENT).line_of(location) == line


def test_everything_in_the_document_has_a_line():
    def places(data: object, path: tuple[str | int, ...]) -> list[tuple[str | int, ...]]:
        parts = enumerate(data) if isinstance(data, list) else ()
        parts = data.items() if isinstance(data, dict) else parts
        below = [each for part, value in parts for each in places(value, (*path, part))]
        return [path, *below] if path else below

    found = places(tomllib.loads(DOCUMENT), ())
    assert len(found) > 25
    lines = TomlLines(DOCUMENT)
    assert all(lines.line_of(place) for place in found)


def test_either_spelling_of_a_key_is_found():
    lines = TomlLines("[key-defaults]\nmax_n = 1\n")
    assert lines.line_of(("key_defaults", "max-n")) == 2
