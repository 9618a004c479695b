"""Runs a parsed template, within limits: templates come from strangers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from caudal.formats.go_template.errors import GoError, GoTemplateError
from caudal.formats.go_template.functions import FUNCTIONS, SHORT_CIRCUITS
from caudal.formats.go_template.nodes import (
    Action,
    Body,
    Branch,
    Call,
    Chain,
    Command,
    Dot,
    Field,
    Identifier,
    Jump,
    Literal,
    Node,
    Operand,
    Pipeline,
    Text,
    Variable,
)
from caudal.formats.go_template.nodes import Nil as NilNode
from caudal.formats.go_template.printing import printed
from caudal.formats.go_template.values import (
    NIL,
    GoList,
    GoMap,
    field_of,
    held,
    is_true,
    method_of,
    taken,
    type_name,
)

MAX_STEPS = 500_000
"""Nodes that one run may come to; also turns of loops without any."""

MAX_CHARACTERS = 32 << 20
"""Length of what is written, and of any text that is made on the way."""

MAX_DEPTH = 32
"""Templates that may be within each other by `{{template}}`."""

_MISSING = object()
"""In place of the value of the stage before, for the first one of a pipeline."""


class Run:
    """One rendering.

    Args:
        source: The template, for the places of errors.
        trees: Its trees, by name.
    """

    def __init__(self, source: str, trees: Mapping[str, Body]) -> None:
        self._source = source
        self._trees = trees
        self._parts: list[str] = []
        self._length = 0
        self._steps = MAX_STEPS
        self._variables: list[tuple[str, Any]] = []
        self._depth = 0

    def render(self, name: str, dot: Any) -> str:
        """What a template writes.

        Raises:
            GoTemplateError: It failed, or takes too much.
        """
        self._variables = [("$", dot)]
        try:
            self._walk(self._trees[name], dot)
        except RecursionError:
            raise GoTemplateError("nested too deeply", self._source, 0) from None
        return "".join(self._parts)

    def _fail(self, words: str, position: int) -> NoReturn:
        raise GoTemplateError(words, self._source, position)

    def _step(self, position: int) -> None:
        self._steps -= 1
        if self._steps < 0:
            self._fail(f"it takes more than {MAX_STEPS} steps", position)

    def _check_length(self, length: int, position: int) -> None:
        if length > MAX_CHARACTERS:
            self._fail(f"it makes a text of more than {MAX_CHARACTERS} characters", position)

    def _write(self, text: str, position: int) -> None:
        self._length += len(text)
        self._check_length(self._length, position)
        self._parts.append(text)

    def _walk(self, body: Body, dot: Any) -> Jump | None:
        """Run nodes; returns what broke off."""
        for node in body:
            self._step(node.position)
            jump = self._node(node, dot)
            if jump is not None:
                return jump
        return None

    def _node(self, node: Node, dot: Any) -> Jump | None:
        match node:
            case Text():
                self._write(node.text, node.position)
            case Action():
                value = self._pipeline(node.pipeline, dot)
                if not node.pipeline.variables:
                    self._write(printed(value), node.position)
            case Branch():
                seen = len(self._variables)
                jump = self._range(node, dot) if node.keyword == "range" else self._if(node, dot)
                del self._variables[seen:]
                return jump
            case Jump():
                return node
            case Call():
                self._call_template(node, dot)
        return None

    def _if(self, node: Branch, dot: Any) -> Jump | None:
        value = self._pipeline(node.pipeline, dot)
        if is_true(value):
            return self._walk(node.body, value if node.keyword == "with" else dot)
        return None if node.otherwise is None else self._walk(node.otherwise, dot)

    def _range(self, node: Branch, dot: Any) -> Jump | None:
        value = self._pipeline(node.pipeline, dot)
        names = node.pipeline.variables
        seen = len(self._variables)
        ran = False
        for index, item in self._items(value, node):
            ran = True
            self._step(node.position)
            if node.pipeline.assigns:
                if len(names) > 1:
                    self._assign(names[0], index, node.position)
                self._assign(names[-1], item, node.position)
            elif names:
                self._variables[seen - 1] = (names[-1], item)
                if len(names) > 1:
                    self._variables[seen - 2] = (names[0], index)
            jump = self._walk(node.body, item)
            del self._variables[seen:]
            if jump is not None and jump.keyword == "break":
                break
        if not ran and node.otherwise is not None:
            jump = self._walk(node.otherwise, dot)
            # In an else, `break` leaves this range, and `continue` is about the one around it.
            if jump is not None and jump.keyword == "continue":
                return jump
        return None

    def _items(self, value: Any, node: Branch) -> Iterable[tuple[Any, Any]]:
        if isinstance(value, GoList):
            return ((index, held(item)) for index, item in enumerate(value))
        if isinstance(value, GoMap):
            return ((key, held(item)) for key, item in value.ordered())
        if value is None:
            return ()
        if not isinstance(value, int) or isinstance(value, bool):
            self._fail(f"range can't iterate over a {type_name(value)}", node.pipeline.position)
        if len(node.pipeline.variables) > 1:
            words = f"can't use {value} to iterate over more than one variable"
            self._fail(words, node.pipeline.position)
        return ((None, index) for index in range(value))

    def _call_template(self, node: Call, dot: Any) -> None:
        body = self._trees.get(node.name)
        if body is None:
            self._fail(f"template {node.name!r} not defined", node.position)
        if self._depth == MAX_DEPTH:
            self._fail(f"more than {MAX_DEPTH} templates within each other", node.position)
        value = None if node.pipeline is None else self._pipeline(node.pipeline, dot)
        outer = self._variables
        self._variables = [("$", value)]
        self._depth += 1
        self._walk(body, value)
        self._depth -= 1
        self._variables = outer

    def _assign(self, name: str, value: Any, position: int) -> None:
        for index in range(len(self._variables) - 1, -1, -1):
            if self._variables[index][0] == name:
                self._variables[index] = (name, value)
                return
        self._fail(f"undefined variable: {name}", position)

    def _variable(self, name: str, position: int) -> Any:
        found = next((v for known, v in reversed(self._variables) if known == name), _MISSING)
        if found is _MISSING:
            self._fail(f"undefined variable: {name}", position)
        return found

    def _pipeline(self, pipeline: Pipeline, dot: Any) -> Any:
        value: Any = _MISSING
        for command in pipeline.commands:
            value = taken(self._command(command, dot, value))
        for name in pipeline.variables:
            if pipeline.assigns:
                self._assign(name, value, pipeline.position)
            else:
                self._variables.append((name, value))
        return value

    def _command(self, command: Command, dot: Any, final: Any) -> Any:
        """The value of a command, whose last argument is the value of the one before."""
        first, *arguments = command.operands
        if isinstance(first, Identifier):
            return self._call(first, arguments, dot, final)
        has_arguments = bool(arguments) or final is not _MISSING
        if has_arguments and not (
            isinstance(first, Field | Chain) or (isinstance(first, Variable) and first.fields)
        ):
            self._fail("can't give arguments to what is no function", first.position)
        if isinstance(first, NilNode):
            self._fail("nil is not a command", first.position)
        return self._operand(first, dot, has_arguments=has_arguments)

    def _operand(self, operand: Operand, dot: Any, *, has_arguments: bool = False) -> Any:
        match operand:
            case Literal():
                return operand.value
            case Dot():
                return dot
            case NilNode():
                return None
            case Field():
                return self._fields(dot, operand.names, operand, has_arguments)
            case Variable():
                value = self._variable(operand.name, operand.position)
                return self._fields(value, operand.fields, operand, has_arguments)
            case Chain():
                if isinstance(operand.operand, NilNode):
                    self._fail("fields of nil", operand.position)
                value = self._operand(operand.operand, dot)
                return self._fields(value, operand.fields, operand, has_arguments)
            case Pipeline():
                return self._pipeline(operand, dot)
            case Identifier():
                return self._call(operand, [], dot, _MISSING)

    def _fields(
        self, value: Any, names: tuple[str, ...], operand: Operand, has_arguments: bool
    ) -> Any:
        holder = value
        try:
            for name in names:
                holder = value
                method = method_of(value, name)
                value = method(value) if method is not None else field_of(value, name)
        except GoError as error:
            self._fail(str(error), operand.position)
        if has_arguments and holder is not None:
            self._fail(f"{names[-1]} has arguments but is no function", operand.position)
        return value

    def _call(self, function: Identifier, arguments: list[Operand], dot: Any, final: Any) -> Any:
        name, position = function.name, function.position
        self._step(position)
        count = len(arguments) + (final is not _MISSING)
        if name in SHORT_CIRCUITS:
            if not count:
                self._fail(f"wrong number of args for {name}: want at least 1 got 0", position)
            return self._short_circuit(name, arguments, dot, final)
        known = FUNCTIONS[name]
        if not known.least <= count <= known.most:
            least = "at least " if known.most > known.least else ""
            words = f"wrong number of args for {name}: want {least}{known.least} got {count}"
            self._fail(words, position)
        values = [self._operand(argument, dot) for argument in arguments]
        if final is not _MISSING:
            values.append(final)
        for value in values[: known.strings]:
            if not isinstance(value, str):
                self._fail(f"{name} expects a string, not {type_name(value)}", position)
        try:
            result = known.call(*values)
        except GoError as error:
            self._fail(f"error calling {name}: {error}", position)
        if isinstance(result, str):
            self._check_length(len(result), position)
        return result

    def _short_circuit(self, name: str, arguments: list[Operand], dot: Any, final: Any) -> Any:
        value: Any = NIL
        for argument in arguments:
            value = self._operand(argument, dot)
            if is_true(value) == (name == "or"):
                return value
        return value if final is _MISSING else final
