"""Go's templates: what Go makes of the same source and values, what is refused, and the limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from caudal.errors import TemplateError
from caudal.formats.go_template import evaluator
from caudal.formats.go_template.detection import is_go_template
from caudal.formats.go_template.errors import GoTemplateError
from caudal.formats.go_template.template import GoTemplate
from caudal.formats.go_template.values import json_value

RECORDED = json.loads((Path(__file__).parents[1] / "data/go_templates.json").read_text())


def render(source: str, **values: Any) -> str:
    return GoTemplate.parse(source).render(values)


def outcome(source: str, data: Any) -> Any:
    """The text, or when it is found that there is none."""
    try:
        template = GoTemplate.parse(source)
    except TemplateError:
        return {"fails": "parse"}
    try:
        return template.render(json_value(data))
    except TemplateError:
        return {"fails": "execute"}


def test_what_go_writes() -> None:
    """Nearly three hundred templates, of which Go refuses a third in parsing and a fifth later."""
    wrong = {
        source: made
        for source, expected in RECORDED["cases"]
        if (made := outcome(source, RECORDED["data"])) != expected
    }
    assert wrong == {}


def test_bytes() -> None:
    """Lengths and places count bytes; what is no text any more is told from it."""
    assert render("{{ len .s }} {{ index .s 1 }} {{ slice .s 1 3 }}", s="hé") == "3 195 é"
    assert render("{{ slice .s 2 }}", s="hé") == "\udca9"


@pytest.mark.parametrize(
    ("source", "line", "column", "words"),
    [
        ("a\n{{ .x", 2, 6, "unclosed action"),
        ("{{ if .x }}\n  a\n", 3, 1, "{{end}}"),
        ("{{ range .x }}{{ end }}\n{{ shout .x }}", 2, 4, "function 'shout' not defined"),
        ("{{ 1 + 2 }}", 1, 6, "illegal number syntax: '+'"),
        ("{{ 1+2 }}", 1, 4, "bad number syntax: '1+2'"),
        ("\n\n {{ $y }}", 3, 5, "undefined variable '$y'"),
        ("{{ end }}", 1, 4, "unexpected {{end}}"),
        ("{{ 3i }}", 1, 4, "complex numbers such as 3i are not supported"),
        ("{{ ({{", 1, 5, "unexpected '{' in parenthesized pipeline"),
    ],
)
def test_where_it_is_wrong(source: str, line: int, column: int, words: str) -> None:
    with pytest.raises(GoTemplateError) as raised:
        GoTemplate.parse(source)
    assert words in raised.value.words
    assert raised.value.line == line
    assert str(raised.value) == f"line {line}, column {raised.value.column}: {raised.value.words}"
    assert raised.value.column == column


@pytest.mark.parametrize(
    "source",
    [
        "{{ if .x }}" * 200,
        "{{ " + "(" * 200,
        "{{ with .y }}{{ else }}" * 200,
        "{{ if .x }}" + "{{ else if .x }}" * 200,
    ],
    ids=["if", "parentheses", "else", "else if"],
)
def test_nesting(source: str) -> None:
    with pytest.raises(GoTemplateError, match="nested too deeply"):
        GoTemplate.parse(source)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ .x.y }}", "can't evaluate field y in type string"),
        ("a\n{{ eq .x 1 }}", "incompatible types for comparison: string and int"),
        ("{{ printf `%#v` 1 }}", "%#v is not supported"),
        ("{{ printf `%[1]d` 1 }}", "%[1]d, are not supported"),
    ],
)
def test_what_fails_when_it_runs(source: str, words: str) -> None:
    with pytest.raises(GoTemplateError, match=r"^line \d+, column \d+: ") as raised:
        render(source, x="text")
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ range 1000000000 }}{{ end }}", "steps"),
        ("{{ range 400 }}{{ range 400 }}x{{ end }}{{ end }}", "steps"),
        ('{{ $x := "xxxxxxxx" }}{{ range 40 }}{{ $x = print $x $x }}{{ end }}', "characters"),
        ("{{ range 100 }}{{ printf `%999999d` 1 }}{{ end }}", "characters"),
        ('{{ define "a" }}{{ template "a" . }}{{ end }}{{ template "a" . }}', "within each other"),
    ],
)
def test_limits(source: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert evaluator.MAX_STEPS <= 1_000_000
    monkeypatch.setattr(evaluator, "MAX_STEPS", 5000)
    monkeypatch.setattr(evaluator, "MAX_CHARACTERS", 1 << 20)
    with pytest.raises(GoTemplateError, match=words):
        render(source)


def test_widths_above_a_million_are_wrong_ones() -> None:
    assert render("{{ printf `%99999999d` 1 }}") == "%!(BADWIDTH)1"
    assert evaluator.MAX_CHARACTERS > 1_000_000


@pytest.mark.parametrize(
    ("source", "is_go"),
    [
        ("{{ .Prompt }}", True),
        ("[INST] {{ if .System }}{{ .System }}{{ end }}", True),
        ("{{- range $i, $_ := .Messages }}", True),
        ("{{/* by hand */}}x", True),
        ("{{ json .Messages }} and {% if %} as text", True),
        ("{{- if not (eq 1", True),
        ("{{ currentDate }}", True),
        ("{{ $x", True),
        ("plain text", False),
        ("{{ bos_token }}{{ messages[0].content }}", False),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{{- messages | length }}", False),
        ("{% raw %}{{ .Prompt }}{% endraw %}", False),
        ("{{ 'x' if tools else 'y' }}", False),
        ("{{ ('x' * 3) | join }}", False),
        ("{{ not (tools) }}", False),
        ("{{ not .Tools }}", True),
        ("{{ (index .Messages 0).Role }}", True),
        ("{{ endless }}{{ print_it }}{{ index }}", False),
    ],
)
def test_detection(source: str, is_go: bool) -> None:
    assert is_go_template(source) is is_go
