"""Modelfiles: Ollama's recipes for models, read and written as Ollama does.

What a Modelfile may say, and how values are quoted, is what Ollama's `parser/parser.go` reads, but:
every error names its line; text that is neither UTF-8 nor, behind a byte order mark, UTF-16 is
refused, and not read with holes in it; and of characters that don't show only control characters
are left out, so that joined emoji and no-break spaces stay.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from caudal.errors import CaudalError

MAX_BYTES = 4 << 20
"""Of a Modelfile: the longest licences have 100 kB."""

ROLES = ("system", "user", "assistant")


class Command(StrEnum):
    """What an instruction says something about, in the word that it begins with."""

    FROM = "FROM"
    PARAMETER = "PARAMETER"
    TEMPLATE = "TEMPLATE"
    SYSTEM = "SYSTEM"
    ADAPTER = "ADAPTER"
    DRAFT = "DRAFT"
    LICENSE = "LICENSE"
    MESSAGE = "MESSAGE"
    RENDERER = "RENDERER"
    PARSER = "PARSER"
    REQUIRES = "REQUIRES"


_NAMED = (Command.PARAMETER, Command.MESSAGE)
"""Commands with a word between them and their value."""


class ModelfileError(CaudalError):
    """A Modelfile can't be read, or asks for what there isn't.

    Args:
        line: The line, from 1; None where it is the file as a whole.
        reason: What is wrong, and what would be right.
    """

    def __init__(self, line: int | None, reason: str) -> None:
        self.line = line
        self.reason = reason
        place = "Modelfile" if line is None else f"Modelfile, line {line}"
        super().__init__(f"{place}: {reason}")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        command: Its command.
        value: What stands behind it, without quotes.
        name: Of a PARAMETER its name, of a MESSAGE its role; empty otherwise.
        line: The line that it begins in, from 1; 0 where it wasn't read from a file.
    """

    command: Command
    value: str
    name: str = ""
    line: int = field(default=0, compare=False)

    def to_text(self) -> str:
        """The instruction in a Modelfile's form, which is read as the same.

        A value with a line that ends in three quotes has no such form: Modelfiles have no way to
        write it.
        """
        words = [self.command.value, self.name] if self.name else [self.command.value]
        return " ".join([*words, _quoted(self.value)])


@dataclass(frozen=True, slots=True)
class Modelfile:
    """A recipe for a model, instruction by instruction in the order in which they stand."""

    instructions: tuple[Instruction, ...]

    def all(self, command: Command) -> Sequence[Instruction]:
        """Those that begin with a command."""
        return [each for each in self.instructions if each.command is command]

    def last(self, command: Command) -> str | None:
        """What the last of a command's instructions says, which is the one that counts."""
        values = self.all(command)
        return values[-1].value if values else None

    def to_text(self) -> str:
        """The file."""
        return "".join(f"{each.to_text()}\n" for each in self.instructions)


def parse_modelfile(source: str | bytes) -> Modelfile:
    """Read a Modelfile.

    Args:
        source: Its text, or its bytes: UTF-8, or UTF-16 with a byte order mark.

    Raises:
        ModelfileError: It isn't one, or has no FROM; names the line.
    """
    if len(source) > MAX_BYTES:
        raise ModelfileError(None, f"larger than {MAX_BYTES >> 20} MiB, which no Modelfile is")
    text = _decoded(source) if isinstance(source, bytes) else source.removeprefix("\ufeff")
    instructions = tuple(_read(_Lines(text)))
    if not any(each.command is Command.FROM for each in instructions):
        raise ModelfileError(
            None, "no FROM line. It says what the model is made from, e.g. FROM smollm2"
        )
    return Modelfile(instructions)


_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def _decoded(raw: bytes) -> str:
    mark, encoding = next(
        ((mark, encoding) for mark, encoding in _MARKS if raw.startswith(mark)), (b"", "utf-8")
    )
    body = raw[len(mark) :]
    try:
        return body.decode(encoding)
    except UnicodeDecodeError as error:
        line = body[: error.start].decode(encoding, "ignore").count("\n") + 1
        raise ModelfileError(
            line, "this isn't text in UTF-8, nor, with a byte order mark, in UTF-16"
        ) from error


_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|$)")
_HIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_COMMAND = re.compile(r"[ \t]*([A-Za-z]+)(?:[ \t]+(.*))?", re.DOTALL)
_NAME = re.compile(r"([A-Za-z0-9_]+)[ \t](.*)", re.DOTALL)


class _Lines:
    """Lines with their ends, one after the other, and the number of the one that came last."""

    def __init__(self, text: str) -> None:
        self._matches = _LINE.finditer(text)
        self._size = len(text)
        self.number = 0

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return self

    def __next__(self) -> tuple[str, str]:
        match = next(self._matches)
        if match.start() == self._size:
            raise StopIteration
        self.number += 1
        return _HIDDEN.sub("", match[1]), match[2]


def _read(lines: _Lines) -> Iterator[Instruction]:
    for line, end in lines:
        if not line.strip(" \t") or line.lstrip(" \t").startswith("#"):
            continue
        number = lines.number
        command, rest = _command(line, number)
        name = ""
        if command in _NAMED:
            name, rest = _name(command, rest, number)
        yield Instruction(command, _value(command, rest, end, lines), name, number)


def _command(line: str, number: int) -> tuple[Command, str]:
    match = _COMMAND.fullmatch(line)
    word = line.split()[0]
    try:
        command = Command(word.upper())
    except ValueError:
        raise ModelfileError(
            number, f"{word[:40]!r} is no command; there are {', '.join(Command)}"
        ) from None
    if match is None or match[2] is None:
        raise ModelfileError(number, f"{command} lacks what should stand behind it")
    return command, match[2]


def _name(command: Command, rest: str, number: int) -> tuple[str, str]:
    word = rest.split()[0] if rest.split() else ""
    if command is Command.MESSAGE and word not in ROLES:
        raise ModelfileError(
            number, f"a message's role must be one of {', '.join(ROLES)}, not {word[:40]!r}"
        )
    match = _NAME.fullmatch(rest)
    if match is None:
        example = (
            "MESSAGE user Hello" if command is Command.MESSAGE else "PARAMETER temperature 0.7"
        )
        raise ModelfileError(number, f"{command} needs a name and a value, e.g. {example}")
    return match[1], match[2]


def _value(command: Command, rest: str, end: str, lines: _Lines) -> str:
    """A value from where it begins, to the end of its line or of its quotes."""
    begin, number = rest.lstrip(), lines.number
    quotes = next((each for each in ('"""', '"') if begin.startswith(each)), "")
    if not quotes:
        return begin.rstrip()
    last, pieces = begin, [begin]
    while True:
        closed = last.rstrip()
        room = len(closed) >= 2 * len(quotes) or len(pieces) > 1
        if closed.endswith(quotes) and room:
            pieces[-1] = closed
            return "".join(pieces)[len(quotes) : -len(quotes)]
        pieces[-1] += end
        following = next(lines, None)
        if following is None:
            raise ModelfileError(
                number, f"{command} opens with {quotes}, which nothing closes at the end of a line"
            )
        last, end = following
        pieces.append(last)


def _quoted(value: str) -> str:
    begins_quoted = value.startswith('"')
    if not value or value != value.strip() or "\n" in value or "\r" in value or begins_quoted:
        return f'"""{value}"""' if '"' in value else f'"{value}"'
    return value
