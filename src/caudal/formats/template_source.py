"""What can be read off a chat template without running it."""

from __future__ import annotations

from dataclasses import dataclass

import jinja2
from jinja2 import meta, nodes

from caudal.errors import TemplateError
from caudal.formats.template_environment import TemplateEnvironment


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """A compiled template and the facts its syntax tree shows.

    Attributes:
        source: The template's text.
        compiled: Ready to render.
        variables: Names it reads without defining them.
        takes_parts: It loops over a message's content: content may be a list of parts.
        takes_text: It writes content as it is, or tells strings from lists.
        inspected_strings: Literals it compares content with or passes to functions, like the
            `</think>` of `content.split('</think>')`.
        joins_arguments: It joins a call's arguments to other texts, so that they have to be one.
    """

    source: str
    compiled: jinja2.Template
    variables: frozenset[str]
    takes_parts: bool
    takes_text: bool
    inspected_strings: frozenset[str]
    joins_arguments: bool

    @classmethod
    def compile(cls, environment: TemplateEnvironment, source: str) -> TemplateSource:
        """Parse and compile a template.

        Raises:
            TemplateError: Its syntax is wrong; says where.
        """
        try:
            tree = environment.parse(source)
            compiled = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the model's chat template is wrong in line {error.lineno}: {error.message}"
            ) from None
        except RecursionError:
            raise TemplateError("the model's chat template is nested too deeply") from None
        takes_parts = _loops_over_content(tree)
        return cls(
            source=source,
            compiled=compiled,
            variables=frozenset(meta.find_undeclared_variables(tree)),
            takes_parts=takes_parts,
            takes_text=not takes_parts
            or any(t.name == "string" for t in tree.find_all(nodes.Test)),
            inspected_strings=_inspected_strings(tree),
            joins_arguments=_joins_arguments(tree),
        )


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
