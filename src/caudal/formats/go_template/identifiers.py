"""What a template's syntax tree shows, read off it as Ollama does (template/template.go,
thinking/template.go and tools/template.go in its sources).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from caudal.formats.go_template.errors import GoTemplateError
from caudal.formats.go_template.nodes import (
    Action,
    Body,
    Branch,
    Call,
    Chain,
    Command,
    Field,
    Identifier,
    Literal,
    Node,
    Operand,
    Pipeline,
    Text,
    Variable,
)

RESPONSE = Pipeline(0, (), False, (Command(0, (Field(0, ("Response",)),)),))
"""What templates end with that name neither messages nor a response."""

_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


def identifiers(trees: Mapping[str, Body], source: str) -> frozenset[str]:
    """The names of all fields and variables, in lower case.

    Raises:
        GoTemplateError: Another template is called without a value.
    """
    found: set[str] = set()
    for body in trees.values():
        for node in _nodes(body):
            if isinstance(node, Call) and node.pipeline is None:
                words = f'template {node.name!r} needs a value, such as {{{{template "x" .}}}}'
                raise GoTemplateError(words, source, node.position)
        for operand in _operands(body):
            if isinstance(operand, Field):
                found.update(operand.names)
            elif isinstance(operand, Variable):
                found.update((operand.name, *operand.fields))
    return frozenset(name.lower() for name in found)


def field_names(trees: Mapping[str, Body]) -> frozenset[str]:
    """The names of all fields, as they are written."""
    found: set[str] = set()
    for body in trees.values():
        for operand in _operands(body, chains=True):
            if isinstance(operand, Field):
                found.update(operand.names)
            elif isinstance(operand, Variable | Chain):
                found.update(operand.fields)
            elif isinstance(operand, Literal) and isinstance(operand.value, str):
                found.add(operand.value)  # which `index` may look for
    return frozenset(found)


def compared_texts(trees: Mapping[str, Body], name: str | None = None) -> frozenset[str]:
    """Literals in comparisons: in all of them, or in those of the field `name`."""
    found: set[str] = set()
    for body in trees.values():
        for command in _commands(body):
            first, *others = command.operands
            if not isinstance(first, Identifier) or first.name not in _COMPARISONS:
                continue
            if name is not None and not any(_ends_with(operand, name) for operand in others):
                continue
            for operand in others:
                if isinstance(operand, Literal) and isinstance(operand.value, str):
                    found.add(operand.value)
    return frozenset(found)


def thinking_tags(body: Body) -> tuple[str, str]:
    """What stands around an assistant's thoughts; empty where the template shows none.

    The texts that begin and end the list of nodes in which `.Thinking` of a message is written.
    """
    tags = ("", "")
    for place, ranges in _places_of(body, "Thinking", ()):
        if not ranges or "Messages" not in _first_names(ranges[-1].pipeline):
            continue
        first, last = place[0], place[-1]
        begin = first.text.strip() if isinstance(first, Text) else tags[0]
        end = last.text.strip() if isinstance(last, Text) else tags[1]
        tags = (begin, end)
    return tags


def up_to_response(body: Body) -> Body:
    """The nodes up to where the response is written: what a prompt is that ends for an answer."""
    return _cut(body)[0]


def _cut(body: Body) -> tuple[Body, bool]:
    """The nodes up to the response, and whether that is among them."""
    kept: list[Node] = []
    for node in body:
        if isinstance(node, Branch):
            inner, is_cut = _cut(node.body)
            otherwise = node.otherwise
            if is_cut:
                otherwise = None
            elif otherwise is not None:
                otherwise, is_cut = _cut(otherwise)
            kept.append(replace(node, body=inner, otherwise=otherwise))
        elif isinstance(node, Action):
            pipeline, is_cut = _cut_pipeline(node.pipeline)
            if pipeline is not None:
                kept.append(replace(node, pipeline=pipeline))
        else:
            kept.append(node)
            continue
        if is_cut:
            return kept, True
    return kept, False


def _cut_pipeline(pipeline: Pipeline) -> tuple[Pipeline | None, bool]:
    """Up to the response; None where a command behind it would have nothing left."""
    commands: list[Command] = []
    is_cut = False
    for command in pipeline.commands:
        operands: list[Operand] = []
        for operand in command.operands:
            if is_cut:
                break
            if isinstance(operand, Pipeline):
                inner, is_cut = _cut_pipeline(operand)
                if inner is not None:
                    operands.append(inner)
                continue
            operands.append(operand)
            is_cut = isinstance(operand, Field) and "Response" in operand.names
        if not operands:
            return None, is_cut
        commands.append(replace(command, operands=tuple(operands)))
    return replace(pipeline, commands=tuple(commands)), is_cut


def _nodes(body: Body) -> Iterator[Node]:
    for node in body:
        yield node
        if isinstance(node, Branch):
            yield from _nodes(node.body)
            yield from _nodes(node.otherwise or ())


def _commands(body: Body) -> Iterator[Command]:
    for node in _nodes(body):
        pipeline = getattr(node, "pipeline", None)
        if isinstance(pipeline, Pipeline):
            yield from _commands_of(pipeline)


def _commands_of(pipeline: Pipeline) -> Iterator[Command]:
    for command in pipeline.commands:
        yield command
        for operand in command.operands:
            inner = operand.operand if isinstance(operand, Chain) else operand
            if isinstance(inner, Pipeline):
                yield from _commands_of(inner)


def _operands(body: Body, *, chains: bool = False) -> Iterator[Operand]:
    """All operands, within parentheses too; those that have fields behind these with `chains`."""
    for node in _nodes(body):
        pipeline = getattr(node, "pipeline", None)
        if isinstance(pipeline, Pipeline):
            yield from _operands_of(pipeline, chains)


def _operands_of(pipeline: Pipeline, chains: bool) -> Iterator[Operand]:
    for command in pipeline.commands:
        for operand in command.operands:
            inner = operand.operand if chains and isinstance(operand, Chain) else operand
            if inner is not operand:
                yield operand
            if isinstance(inner, Pipeline):
                yield from _operands_of(inner, chains)
            else:
                yield inner


def _ends_with(operand: Operand, name: str) -> bool:
    if isinstance(operand, Field):
        return operand.names[-1] == name
    return isinstance(operand, Variable | Chain) and operand.fields[-1:] == (name,)


def _first_names(pipeline: Pipeline) -> set[str]:
    return {o.names[0] for o in _operands_of(pipeline, False) if isinstance(o, Field)}


def _places_of(
    body: Body, name: str, ranges: Sequence[Branch]
) -> Iterator[tuple[Body, Sequence[Branch]]]:
    """The lists of nodes in which a field is named, and the ranges that each is in."""
    for node in body:
        pipeline = getattr(node, "pipeline", None)
        inner = (*ranges, node) if isinstance(node, Branch) and node.keyword == "range" else ranges
        if isinstance(pipeline, Pipeline):
            for operand in _operands_of(pipeline, False):
                if isinstance(operand, Field) and operand.names[0] == name:
                    yield body, inner
        if isinstance(node, Branch):
            yield from _places_of(node.body, name, inner)
            yield from _places_of(node.otherwise or (), name, inner)
