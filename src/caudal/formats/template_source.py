"""Compiles a chat template of Jinja's, and reads off it what can be told without running it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2 import meta, nodes

from caudal.formats.template_environment import TemplateEnvironment
from caudal.formats.template_facts import TemplateFacts


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """A compiled template.

    Attributes:
        compiled: Ready to render.
        facts: What its syntax tree shows.
    """

    compiled: jinja2.Template
    facts: TemplateFacts

    @classmethod
    def compile(cls, environment: TemplateEnvironment, source: str) -> TemplateSource:
        """Parse and compile a template.

        Raises:
            jinja2.TemplateSyntaxError: Its syntax is wrong.
            SyntaxError: Python can't run what it compiles to, which is nested too deeply.
            RecursionError: It is nested too deeply.
        """
        tree = environment.parse(source)
        compiled = environment.from_string(source)
        variables = frozenset(meta.find_undeclared_variables(tree))
        takes_parts = _loops_over_content(tree)
        facts = TemplateFacts(
            variables=variables,
            names=_names(tree),
            takes_parts=takes_parts,
            takes_text=not takes_parts
            or any(t.name == "string" for t in tree.find_all(nodes.Test)),
            inspected_strings=_inspected_strings(tree),
            joins_arguments=_joins_arguments(tree),
            choices=_choices(tree, variables),
        )
        return cls(compiled, facts)

    def render(self, variables: Mapping[str, Any]) -> str:
        """What the template makes of variables.

        Raises:
            Exception: Whatever the template, which is a stranger's code, brings about.
        """
        environment = self.compiled.environment
        assert isinstance(environment, TemplateEnvironment)
        return environment.render_limited(self.compiled, dict(variables))


def _names(tree: nodes.Template) -> frozenset[str]:
    found = {node.attr for node in tree.find_all(nodes.Getattr)}
    for node in tree.find_all(nodes.Const):
        if isinstance(node.value, str):  # also `attribute='function.name'`
            found.update(filter(str.isidentifier, node.value.split(".")))
    return frozenset(found)


def _loops_over_content(tree: nodes.Template) -> bool:
    aliases = {"content"}
    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, aliases):
            aliases.add(assignment.target.name)
    return any(_is_content(loop.iter, aliases) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node | None, aliases: set[str]) -> bool:
    while isinstance(node, nodes.Filter):
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in aliases


def _joins_arguments(tree: nodes.Template) -> bool:
    operands = [operand for add in tree.find_all(nodes.Add) for operand in (add.left, add.right)]
    # The environment has made a list of what `~` joins.
    operands += (item for joined in tree.find_all(nodes.List) for item in joined.items)
    return any(
        (isinstance(operand, nodes.Getattr) and operand.attr == "arguments")
        or (
            isinstance(operand, nodes.Getitem)
            and isinstance(operand.arg, nodes.Const)
            and operand.arg.value == "arguments"
        )
        for operand in operands
    )


def _inspected_strings(tree: nodes.Template) -> frozenset[str]:
    found = set()
    for node in tree.find_all((nodes.Compare, nodes.Call)):
        # The value compared or called may be any expression; only what it is compared with or
        # given counts.
        if isinstance(node, nodes.Call):
            arguments: list[nodes.Node] = [*node.args]
        elif isinstance(node, nodes.Compare):
            arguments = [node.expr, *(operand.expr for operand in node.ops)]
        for argument in arguments:
            if isinstance(argument, nodes.Const) and isinstance(argument.value, str):
                found.add(argument.value)
    return frozenset(found)


def _choices(tree: nodes.Template, variables: frozenset[str]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for compare in tree.find_all(nodes.Compare):
        compared = compare.expr
        while isinstance(compared, nodes.Filter) and compared.node is not None:
            compared = compared.node
        if not isinstance(compared, nodes.Name) or compared.name not in variables:
            continue
        texts = found.setdefault(compared.name, set())
        for operand in compare.ops:
            for node in (operand.expr, *operand.expr.find_all(nodes.Const)):
                if isinstance(node, nodes.Const):  # Jinja makes one of a list of them
                    values = node.value if isinstance(node.value, list | tuple) else [node.value]
                    texts.update(value for value in values if isinstance(value, str))
    return {name: frozenset(texts) for name, texts in found.items() if texts}
