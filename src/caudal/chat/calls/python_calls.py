"""Calls that are written as Python: `[f(a=1), g(b="x")]`, or in a fenced `tool_code` block."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable
from typing import Any

from caudal.chat.calls.json_calls import MAX_DEPTH, arguments_of, parse_json, write_json
from caudal.chat.calls.reading import (
    BrokenCallError,
    CallArguments,
    CallContext,
    CallDone,
    CallName,
    CallPart,
    Chars,
    Reading,
)
from caudal.formats.tokenizer import without_surrogates

MAX_CODE = 256 * 1024
"""Longest text that is parsed as Python."""

_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_WORDS = {"true": True, "false": False, "null": None}


def read_list(chars: Chars, context: CallContext) -> Reading[None]:
    """A list of Python calls, in brackets; where they are marked, also of JSON objects."""
    yield from chars.space()
    text = yield from _read_brackets(chars, context)
    is_json = text[1:].lstrip().startswith("{")
    yield from _parts((_json_calls if is_json else _parse_calls)(text, context))


def read_marked_list(end: str) -> Any:
    """A list of Python calls, then an end tag that may be missing."""

    def read(chars: Chars, context: CallContext) -> Reading[None]:
        yield from read_list(chars, context)
        yield from chars.optional(end)

    return read


def read_tool_code(chars: Chars, context: CallContext) -> Reading[None]:
    """Gemma's fenced block: Python calls, `print` around them or not, or objects in JSON."""
    code = (yield from chars.until("```", MAX_CODE)).strip()
    if code.startswith(("{", "[{")):
        yield from _parts(_json_calls(code, context))
    else:
        yield from _parts(_parse_calls(code, context))


def _read_brackets(chars: Chars, context: CallContext) -> Reading[str]:
    text: list[str] = []
    closers: list[str] = []
    quote = ""
    name: list[str] | None = []
    while len(text) < MAX_CODE:
        char = yield from chars.take()
        if not char:
            raise BrokenCallError
        text.append(char)
        if quote:
            if char == "\\":
                text.append((yield from chars.take()))
            elif char == quote:
                quote = ""
        elif char in "\"'":
            quote = char
        elif char in _CLOSERS:
            closers.append(_CLOSERS[char])
            if len(closers) > MAX_DEPTH:
                raise BrokenCallError
        elif char in ")]}":
            if not closers or closers.pop() != char:
                raise BrokenCallError
            if not closers:
                return "".join(text)
        # An answer may begin with a bracket too, so it is no call as soon as its name is none.
        if name is not None and len(text) > 1:
            if char == "(":
                context.check_name("".join(name).strip())
                name = None
            elif char.isalnum() or char in "_-." or char.isspace():
                name.append(char)
            elif char == "{" and not context.bare and not "".join(name).strip():
                name = None
            else:
                raise BrokenCallError
    raise BrokenCallError


def parse_literal(text: str) -> Any:
    """The value of a literal of Python's, which JSON has a word for.

    Raises:
        BrokenCallError: It is none, or too long.
    """
    if len(text) > MAX_CODE:
        raise BrokenCallError
    match _parse(text).body:
        case [ast.Expr(value=node)]:
            return _literal(node)
        case _:
            raise BrokenCallError


def _parse(code: str) -> ast.Module:
    try:
        with warnings.catch_warnings():  # about escapes that Python doesn't know
            warnings.simplefilter("ignore")
            return ast.parse(code)
    # SystemError: Python 3.11's parser can trip over another thread that parses at the same time.
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError) as error:
        raise BrokenCallError from error


def _parse_calls(code: str, context: CallContext) -> list[tuple[str, str]]:
    module = _parse(code)
    calls: list[ast.expr] = []
    for statement in module.body:
        if isinstance(statement, ast.Assign | ast.Expr):
            value = statement.value
            calls += value.elts if isinstance(value, ast.List) else [value]
        else:
            raise BrokenCallError
    if not calls:
        raise BrokenCallError
    return [_parse_call(call, context) for call in calls]


def _parse_call(node: ast.expr, context: CallContext) -> tuple[str, str]:
    if not isinstance(node, ast.Call):
        raise BrokenCallError
    name = ast.unparse(node.func)
    if name == "print" and len(node.args) == 1 and name not in context.tools:
        return _parse_call(node.args[0], context)
    name = context.check_name(name)
    names = list(context.schemas_of(name))
    if len(node.args) > len(names):
        raise BrokenCallError
    arguments = {key: _literal(arg) for key, arg in zip(names, node.args, strict=False)}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise BrokenCallError
        arguments[keyword.arg] = _literal(keyword.value)
    return name, write_json(arguments)


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() as text):
            return without_surrogates(text)  # JSON's escapes make pairs of them
        case ast.Constant(value=int() | float() | None as value):
            return value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            names = [None if key is None else _literal(key) for key in keys]
            if not all(isinstance(name, str) for name in names):
                raise BrokenCallError
            return dict(zip(names, map(_literal, values), strict=True))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case _:
            raise BrokenCallError


def _json_calls(text: str, context: CallContext) -> list[tuple[str, str]]:
    value = parse_json(text, strict=False)
    calls = []
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict):
            raise BrokenCallError
        arguments = item.get("arguments", item.get("parameters"))
        calls.append((context.check_name(item.get("name")), arguments_of(write_json(arguments))))
    return calls


def _parts(calls: Iterable[tuple[str, str]]) -> Reading[None]:
    parts: list[CallPart] = []
    for name, arguments in calls:
        parts += (CallName(name), CallArguments(arguments), CallDone())
    yield from parts
