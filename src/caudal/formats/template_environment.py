"""The sandbox chat templates run in: what transformers offers them, and limits on what they take.

Templates come in model files, so they are code from strangers. Jinja's immutable sandbox keeps them
from touching Python; the limits here keep them from running or growing without end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS = 2_000_000
"""Loop turns in one rendering; a call takes about as long as `STEPS_PER_CALL` and counts so."""

STEPS_PER_CALL = 10

MAX_CHARACTERS = 32 << 20
"""Length of the rendered text, and of any string or list a template builds on the way."""

_STEPS = " steps"  # names with a space, which no template can write
_BOUNDED = " bounded"
_JOINED = " joined"


class Steps:
    """What is left of `MAX_STEPS` in one rendering."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def take(self, count: int) -> None:
        """Count steps.

        Raises:
            SecurityError: There are none left.
        """
        self._left -= count
        if self._left < 0:
            raise SecurityError(f"it takes more than {MAX_STEPS} steps")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as transformers sets it up for chat templates, with limits."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        self.filters |= {
            "tojson": _to_json,
            "center": _limited_width(self.filters["center"]),
            "indent": _limited_width(self.filters["indent"]),
            "format": _limited_format(self.filters["format"]),
            _BOUNDED: _bounded,
            _JOINED: _joined,
        }
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _LimitLoops().visit(super()._parse(source, name, filename))
        return tree

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call something from a template."""
        _steps(__context).take(STEPS_PER_CALL)
        if not isinstance(__obj, Macro):
            _check_widths((*args, *kwargs.values()))
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator of `intercepted_binops`, if the result stays small."""
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, str | list | tuple) and isinstance(times, int):
                    _check_length(len(sequence) * times)
        elif operator == "+" and isinstance(left, str | list) and isinstance(right, str | list):
            _check_length(len(left) + len(right))
        elif operator == "**":
            _check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            _check_format(left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Jinja's safe stand-in for a string's `format`, if its layout has no huge width."""
        layout = getattr(value, "__self__", None)
        if isinstance(layout, str):
            _check_format(layout, ())
        return super().wrap_str_format(value)

    def render_limited(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        """Render a template, within the limits.

        Raises:
            jinja2.TemplateError: The template raised, is wrong, or exceeds a limit.
        """
        chunks: list[str] = []
        length = 0
        for chunk in template.generate({**variables, _STEPS: Steps()}):
            length += len(chunk)
            _check_length(length)
            chunks.append(chunk)
        return "".join(chunks)


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`: marks text to train on; it changes nothing here."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration is a plain set

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _LimitLoops(NodeTransformer):
    """Makes each `for` count its turns, and each `~` check the length of what it joins."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - Jinja calls it by this name
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, _BOUNDED, [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, _JOINED, [], [], None, None, lineno=node.lineno)


def _steps(context: Context) -> Steps:
    steps = context.parent[_STEPS]
    assert isinstance(steps, Steps)
    return steps


@jinja2.pass_context
def _bounded(context: Context, iterable: Iterable[Any]) -> Iterator[Any]:
    steps = _steps(context)
    for item in iterable:
        steps.take(1)
        yield item


def _joined(parts: list[Any]) -> str:
    texts = [str(part) for part in parts]
    _check_length(sum(map(len, texts)))
    return "".join(texts)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """`tojson` as transformers has it: unlike Jinja's own, it escapes nothing for HTML.

    What isn't there, where that fails, is null: templates write the description of each tool.
    """
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_null_where_undefined,
    )


def _null_where_undefined(value: object) -> None:
    if not isinstance(value, jinja2.Undefined):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _limited_width(function: Callable[..., Any]) -> Callable[..., Any]:
    def limited(value: Any, *args: Any, **kwargs: Any) -> Any:
        _check_widths((*args, *kwargs.values()))
        return function(value, *args, **kwargs)

    return limited


def _limited_format(function: Callable[..., str]) -> Callable[..., str]:
    def limited(layout: str, *args: Any, **kwargs: Any) -> str:
        _check_format(str(layout), (*args, *kwargs.values()))
        return function(layout, *args, **kwargs)

    return limited


def _check_widths(arguments: Iterable[Any]) -> None:
    """Refuse huge numbers, which as a width or count make huge strings (`ljust`, `center` …)."""
    for argument in arguments:
        if isinstance(argument, int) and abs(argument) > MAX_CHARACTERS:
            raise SecurityError(f"it passes {argument} to a function, which is too large")


def _check_length(length: int) -> None:
    if length > MAX_CHARACTERS:
        raise SecurityError(f"it makes a text of more than {MAX_CHARACTERS} characters")


def _check_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int):
        _check_length(base.bit_length() * max(exponent, 0))


def _check_format(layout: str, arguments: Any) -> None:
    """Refuse huge widths in a `%` or `format` layout, and among what it may take widths from."""
    _check_widths(arguments if isinstance(arguments, tuple) else (arguments,))
    _check_widths(int(digits[:20]) for digits in re.findall("[0-9]+", layout))
