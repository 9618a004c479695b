"""From tokens to the syntax trees of a template and of those that it defines.

It refuses what Go's parser refuses: unknown functions and variables, actions that aren't closed,
`break` outside a `range`. What depends on values is found when the template runs.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NoReturn

from caudal.formats.go_template.errors import GoTemplateError
from caudal.formats.go_template.lexer import Kind, Token, tokenize
from caudal.formats.go_template.literals import number_of, rune_of, text_of
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
    Nil,
    Node,
    Operand,
    Pipeline,
    Text,
    Variable,
)

MAX_NESTING = 64
"""Levels of actions within actions, and of parentheses within parentheses."""

MAIN = ""
"""The name of the template that others are defined in."""

_BRANCHES = frozenset(("if", "with", "range"))
_STARTS = frozenset(
    (
        *(Kind.BOOL, Kind.RUNE, Kind.COMPLEX, Kind.DOT, Kind.FIELD, Kind.IDENTIFIER, Kind.NUMBER),
        *(Kind.NIL, Kind.RAW_STRING, Kind.STRING, Kind.VARIABLE, Kind.OPEN),
    )
)
"""What a command can begin with."""


def parse(source: str, functions: Container[str]) -> Mapping[str, Body]:
    """The trees by their names; that of the template itself is `MAIN`.

    Args:
        source: The template.
        functions: The names of all functions that there are.

    Raises:
        GoTemplateError: It is wrong.
    """
    parser = _Parser(source, functions)
    try:
        parser.parse()
    except RecursionError:
        raise GoTemplateError("nested too deeply", source, parser.position) from None
    return parser.trees


class _Parser:
    """Parses one template.

    Attributes:
        trees: What it has found, by name.
    """

    def __init__(self, source: str, functions: Container[str]) -> None:
        self.trees: dict[str, Body] = {}
        self._source = source
        self._functions = functions
        self._tokens = tokenize(source)
        self._next_index = 0
        self._variables = ["$"]
        self._nesting = 0
        self._ranges = 0
        self._parentheses = 0

    @property
    def position(self) -> int:
        """Where it is, in characters."""
        return self._tokens[min(self._next_index, len(self._tokens) - 1)].position

    def parse(self) -> None:
        nodes: list[Node] = []
        while self._peek().kind is not Kind.END:
            if self._peek().kind is Kind.LEFT:
                start = self._next_index
                self._next()
                if self._take_keyword("define"):
                    self._definition()
                    continue
                self._next_index = start
            node = self._node()
            if isinstance(node, Token):
                self._fail(f"unexpected {{{{{node.text}}}}}", node)
            nodes.append(node)
        self._add(MAIN, nodes, self._peek())

    def _fail(self, words: str, token: Token) -> NoReturn:
        raise GoTemplateError(words, self._source, token.position)

    def _unexpected(self, token: Token, context: str) -> NoReturn:
        if token.kind is Kind.ERROR:
            self._fail(token.text, token)
        if token.kind is Kind.END:
            self._fail("unexpected end of the template: an action lacks its {{end}}", token)
        self._fail(f"unexpected {token.text!r} in {context}", token)

    def _next(self) -> Token:
        token = self._tokens[self._next_index]
        if token.kind not in (Kind.END, Kind.ERROR):  # which are met again and again
            self._next_index += 1
        return token

    def _peek(self) -> Token:
        return self._tokens[self._next_index]

    def _skip_space(self) -> None:
        if self._peek().kind is Kind.SPACE:
            self._next_index += 1

    def _next_visible(self) -> Token:
        self._skip_space()
        return self._next()

    def _peek_visible(self) -> Token:
        self._skip_space()
        return self._peek()

    def _take_keyword(self, *words: str) -> Token | None:
        token = self._peek_visible()
        if token.kind is Kind.KEYWORD and token.text in words:
            return self._next()
        return None

    def _expect_right(self, context: str) -> None:
        token = self._next_visible()
        if token.kind is not Kind.RIGHT:
            self._unexpected(token, context)

    def _add(self, name: str, nodes: Body, token: Token) -> None:
        """Keep a tree; one of white space may be replaced, and replaces nothing."""
        known = self.trees.get(name)
        if known is None or _is_empty(known):
            self.trees[name] = nodes
        elif not _is_empty(nodes):
            self._fail(f"multiple definition of template {name!r}", token)

    def _definition(self) -> None:
        token = self._next_visible()
        name = self._template_name(token, "define clause")
        self._expect_right("define clause")
        self._add(name, self._separate_body("define clause"), token)

    def _separate_body(self, context: str) -> Body:
        """The body of another template, which sees none of this one's variables."""
        outer = self._variables, self._ranges
        self._variables, self._ranges = ["$"], 0
        nodes, end = self._body()
        if end.text != "end":
            self._fail(f"unexpected {{{{{end.text}}}}} in {context}", end)
        self._variables, self._ranges = outer
        return nodes

    def _body(self) -> tuple[list[Node], Token]:
        """All up to an `end` or `else`, and that."""
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            self._fail("nested too deeply", self._peek())
        nodes: list[Node] = []
        while True:
            if self._peek_visible().kind is Kind.END:
                self._unexpected(self._peek(), "template")
            node = self._node()
            if isinstance(node, Token):
                self._nesting -= 1
                return nodes, node
            nodes.append(node)

    def _node(self) -> Node | Token:
        """The next node, or an `end` or `else`."""
        token = self._next_visible()
        if token.kind is Kind.TEXT:
            return Text(token.position, token.text)
        if token.kind is not Kind.LEFT:
            self._unexpected(token, "input")
        word = self._peek_visible()
        if word.kind is not Kind.KEYWORD:
            return Action(word.position, self._pipeline("command", Kind.RIGHT))
        self._next()
        if word.text in _BRANCHES:
            return self._branch(word)
        if word.text in ("break", "continue"):
            self._expect_right(f"{{{{{word.text}}}}}")
            if not self._ranges:
                self._fail(f"{{{{{word.text}}}}} outside {{{{range}}}}", word)
            return Jump(word.position, word.text)
        if word.text == "end":
            self._expect_right("end")
            return word
        if word.text == "else":
            following = self._peek_visible()
            if following.kind is not Kind.KEYWORD or following.text not in ("if", "with"):
                self._expect_right("else")
            return word
        if word.text not in ("template", "block"):
            self._unexpected(word, "command")
        return self._call(word)

    def _branch(self, word: Token) -> Branch:
        seen = len(self._variables)
        pipeline = self._pipeline(word.text, Kind.RIGHT)
        self._ranges += word.text == "range"
        body, end = self._body()
        self._ranges -= word.text == "range"
        otherwise: Body | None = None
        if end.text == "else":
            following = self._peek()
            chained = following.kind is Kind.KEYWORD and following.text in ("if", "with")
            if chained and following.text == word.text:
                self._nesting += 1  # as if it were within {{else}}, whose {{end}} is this one's
                if self._nesting > MAX_NESTING:
                    self._fail("nested too deeply", following)
                otherwise = [self._branch(self._next())]
                self._nesting -= 1
            else:
                otherwise, end = self._body()
                if end.text != "end":
                    self._fail(f"expected end; found {{{{{end.text}}}}}", end)
        del self._variables[seen:]
        return Branch(word.position, word.text, pipeline, body, otherwise)

    def _call(self, word: Token) -> Call:
        context = f"{word.text} clause"
        token = self._next_visible()
        name = self._template_name(token, context)
        pipeline: Pipeline | None = None
        if word.text == "block" or self._peek_visible().kind is not Kind.RIGHT:
            pipeline = self._pipeline(context, Kind.RIGHT)
        else:
            self._next()
        if word.text == "block":
            self._add(name, self._separate_body(context), token)
        return Call(token.position, name, pipeline)

    def _template_name(self, token: Token, context: str) -> str:
        if token.kind not in (Kind.STRING, Kind.RAW_STRING):
            self._unexpected(token, context)
        return self._text_of(token)

    def _pipeline(self, context: str, end: Kind) -> Pipeline:
        position = self._peek_visible().position
        variables, assigns = self._declarations(context)
        commands: list[Command] = []
        while (token := self._peek_visible()).kind is not end:
            if token.kind not in _STARTS:
                self._unexpected(self._next(), context)
            commands.append(self._command())
            first = commands[-1].operands[0]
            if len(commands) > 1 and isinstance(first, Literal | Dot | Nil):
                words = f"non executable command in pipeline stage {len(commands)}"
                raise GoTemplateError(words, self._source, first.position)
        if not commands:
            self._fail(f"missing value for {context}", token)
        self._next()
        return Pipeline(position, variables, assigns, tuple(commands))

    def _declarations(self, context: str) -> tuple[tuple[str, ...], bool]:
        """What a pipeline declares or assigns to, and whether it assigns."""
        names: list[str] = []
        while self._peek_visible().kind is Kind.VARIABLE:
            start = self._next_index
            variable = self._next()
            following = self._peek_visible()
            if following.kind in (Kind.ASSIGN, Kind.DECLARE):
                self._next()
                names.append(variable.text)
                self._variables.append(variable.text)
                return tuple(names), following.kind is Kind.ASSIGN
            if following.kind is not Kind.CHARACTER or following.text != ",":
                self._next_index = start
                break
            self._next()
            names.append(variable.text)
            self._variables.append(variable.text)
            if context != "range" or len(names) > 1:
                self._fail(f"too many declarations in {context}", variable)
            if self._peek_visible().kind not in (Kind.VARIABLE, Kind.RIGHT, Kind.CLOSE):
                self._fail("range can only initialize variables", self._peek())
        return tuple(names), False

    def _command(self) -> Command:
        position = self._peek_visible().position
        operands: list[Operand] = []
        while True:
            self._skip_space()
            operand = self._operand()
            if operand is not None:
                operands.append(operand)
            token = self._peek()
            if token.kind is Kind.SPACE:
                continue
            if token.kind is Kind.PIPE:
                self._next()
            elif token.kind not in (Kind.RIGHT, Kind.CLOSE):
                self._unexpected(token, "operand")
            break
        if not operands:
            self._fail("empty command", token)
        return Command(position, tuple(operands))

    def _operand(self) -> Operand | None:
        term = self._term()
        if term is None:
            return None
        fields: list[str] = []
        while self._peek().kind is Kind.FIELD:
            fields.append(self._next().text[1:])
        if not fields:
            return term
        if isinstance(term, Field):
            return Field(term.position, (*term.names, *fields))
        if isinstance(term, Variable):
            return Variable(term.position, term.name, (*term.fields, *fields))
        if isinstance(term, Literal | Dot | Nil):
            words = "unexpected . after a term that has no fields"
            raise GoTemplateError(words, self._source, term.position)
        return Chain(term.position, term, tuple(fields))

    def _term(self) -> Operand | None:
        token = self._peek_visible()
        match token.kind:
            case Kind.IDENTIFIER:
                if token.text not in self._functions:
                    self._fail(f"function {token.text!r} not defined", token)
                term: Operand = Identifier(token.position, token.text)
            case Kind.DOT:
                term = Dot(token.position)
            case Kind.NIL:
                term = Nil(token.position)
            case Kind.VARIABLE:
                if token.text not in self._variables:
                    self._fail(f"undefined variable {token.text!r}", token)
                term = Variable(token.position, token.text)
            case Kind.FIELD:
                term = Field(token.position, (token.text[1:],))
            case Kind.BOOL:
                term = Literal(token.position, token.text == "true", token.text)
            case Kind.STRING | Kind.RAW_STRING:
                term = Literal(token.position, self._text_of(token), token.text)
            case Kind.RUNE | Kind.NUMBER | Kind.COMPLEX:
                term = Literal(token.position, self._number_of(token), token.text)
            case Kind.OPEN:
                return self._parenthesised()
            case _:
                return None
        self._next()
        return term

    def _parenthesised(self) -> Pipeline:
        self._parentheses += 1
        if self._parentheses > MAX_NESTING:
            self._fail("nested too deeply", self._peek())
        self._next()
        pipeline = self._pipeline("parenthesized pipeline", Kind.CLOSE)
        self._parentheses -= 1
        return pipeline

    def _text_of(self, token: Token) -> str:
        try:
            return text_of(token.text)
        except ValueError as error:
            self._fail(f"{error} in {token.text}", token)

    def _number_of(self, token: Token) -> int | float:
        if token.kind is Kind.COMPLEX or token.text[-1] == "i":
            self._fail(f"complex numbers such as {token.text} are not supported", token)
        try:
            return rune_of(token.text) if token.kind is Kind.RUNE else number_of(token.text)
        except ValueError as error:
            self._fail(str(error), token)


def _is_empty(body: Body) -> bool:
    """Whether it is nothing but white space."""
    return all(isinstance(node, Text) and not node.text.strip() for node in body)
