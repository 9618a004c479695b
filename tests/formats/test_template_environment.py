"""The templates' sandbox: transformers' helpers, and limits on strangers' code."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Any

import jinja2
import pytest

from caudal.formats.template_environment import TemplateEnvironment


def render(source: str, **variables: Any) -> str:
    environment = TemplateEnvironment()
    return environment.render_limited(environment.from_string(source), variables)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # Blocks leave no blank lines; the last line break of a template goes.
        ("  {% if true %}\na\n  {% endif %}\nb\n", "a\nb"),
        ("{{ {'a': '<é>', 'b': [1, none, true]} | tojson }}", '{"a": "<é>", "b": [1, null, true]}'),
        ("{{ {'é': 1} | tojson(ensure_ascii=true) }}", '{"\\u00e9": 1}'),
        ("{{ [missing, {}.a] | tojson }}", "[null, null]"),  # not as transformers, which fails
        ("{{ [1, 2] | tojson(indent=2) }}", "[\n  1,\n  2\n]"),
        ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":2,"b":1}'),
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}"
         "{% if i == 3 %}{% break %}{% endif %}{% endfor %}", "023"),
        ("{% for x in 'abc' %}{{ loop.index0 }}{{ x }}{{ ',' if not loop.last }}{% endfor %}",
         "0a,1b,2c"),
        ("{% for x in [3, 4] %}{{ loop.length }}{{ loop.first }}{% endfor %}", "2True2False"),
        ("{% for x in [] %}{% else %}none{% endfor %}", "none"),
        ("{% for k, v in {'a': 1}.items() %}{{ k ~ '=' ~ v }}{% endfor %}", "a=1"),
        ("{% generation %}{{ 'x' }}{% endgeneration %}y", "xy"),
        ("{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m('x') ~ m('y') }}", "[x][y]"),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}"
         "{{ ns.n }}", "3"),
        ("{{ missing }}{{ 'a' * 3 }}{{ '%s-%d' % ('a', 2) }}{{ '{:>3}'.format(1) }}", "aaaa-2  1"),
        ("{{ '%03d' | format(7) }}{{ 'a' | center(3) }}", "007 a "),
    ],
)  # fmt: skip
def test_as_transformers_renders(source: str, expected: str) -> None:
    assert render(source) == expected


def test_the_date() -> None:
    assert render("{{ strftime_now('%Y') }}") in (
        str(datetime.now().year),
        str(datetime.now().year - 1),
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ items.append(1) }}", "access to attribute 'append' of 'list' object is unsafe"),
        ("{% for i in range(999999) %}{% endfor %}", "Range too big"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "steps"),
        ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
         "{{ f(99) }}",
         "steps"),
        ("{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", "a text of more than"),
        ("{{ 'x' * 10 ** 10 }}", "a text of more than"),
        ("{{ ([0] * 10 ** 9) | length }}", "a text of more than"),
        ("{% set n = namespace(x='x') %}"
         "{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
         "a text of more than"),
        ("{% set n = namespace(x='x') %}"
         "{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
         "a text of more than"),
        ("{{ 'x' | center(10 ** 10) }}", "passes 10000000000 to a function"),
        ("{{ 'x'.ljust(10 ** 10) }}", "passes 10000000000 to a function"),
        ("{{ '{:9999999999}'.format(1) }}", "passes 9999999999 to a function"),
        ("{{ '%9999999999d' % 1 }}", "passes 9999999999 to a function"),
        ("{{ '%9999999999d' | format(1) }}", "passes 9999999999 to a function"),
        ("{{ 7 ** 9999999999 }}", "a text of more than"),
        ("{{ a.b.c }}", "'a' is undefined"),
        ("{{ raise_exception('Roles must alternate') }}", "^Roles must alternate$"),
    ],
)  # fmt: skip
def test_refused(source: str, message: str) -> None:
    start = time.process_time()
    with pytest.raises((jinja2.TemplateError, OverflowError)) as caught:
        render(source, items=[0])
    assert re.search(message, str(caught.value))
    assert time.process_time() - start < 20
