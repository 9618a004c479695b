"""Modelfiles are read as Ollama reads them; cases are facts from its `parser/parser_test.go`."""

from __future__ import annotations

import pytest

from caudal.packaging.modelfile import (
    MAX_BYTES,
    Command,
    Instruction,
    ModelfileError,
    parse_modelfile,
)


def instructions(text: str | bytes) -> list[tuple[str, str, str]]:
    return [
        (each.command.value, each.name, each.value) for each in parse_modelfile(text).instructions
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('FROM "FOO  BAR  "', "FOO  BAR  "),
        ("FROM     FOOO BAR    ", "FOOO BAR"),
        ("FROM /what/is/the path ", "/what/is/the path"),
        ("from llama3:7b-instruct-q4_K_M", "llama3:7b-instruct-q4_K_M"),
        ("FROM\tfoo\r\n", "foo"),
        ("\n# comment\n  # another\nFROM foo\n\t", "foo"),
        ("FROM foo # no comment", "foo # no comment"),
    ],
)
def test_values_end_with_their_line(text: str, value: str) -> None:
    assert instructions(text) == [("FROM", "", value)]


@pytest.mark.parametrize(
    ("system", "value"),
    [
        ('"""\nThis is a\nmultiline system.\n"""\n\t\t\t', "\nThis is a\nmultiline system.\n"),
        ('"""\nThis is a\nmultiline system."""', "\nThis is a\nmultiline system."),
        ('"""This is a multiline system."""  ', "This is a multiline system."),
        ('"""\nwith "quotes".\n"""', '\nwith "quotes".\n'),
        ('""""""', ""),
        ('""', ""),
        ("", ""),
        ('"\'"', "'"),
        ('"""\'\'"\'""\'""\'"\'\'\'\'\'""\'""\'"""', "''\"'\"\"'\"\"'\"'''''\"\"'\"\"'"),
        ('"two\nlines"', "two\nlines"),
        ('"""a\r\nb"""', "a\r\nb"),
        ('"quoted" and not\nclosed"', 'quoted" and not\nclosed'),
        ("你好👩‍🚀\u00a0!", "你好👩‍🚀\u00a0!"),
        ("no\x00 \x1b[31mcontrol", "no [31mcontrol"),
    ],
)
def test_quotes_span_lines(system: str, value: str) -> None:
    text = f"FROM foo\nSYSTEM {system}\nPARAMETER top_k 1\n"
    expected = [("FROM", "", "foo"), ("SYSTEM", "", value), ("PARAMETER", "top_k", "1")]
    assert instructions(text) == expected
    assert instructions(parse_modelfile(text).to_text()) == expected


def test_every_command_is_read_and_printed() -> None:
    text = (
        "PARAMETER stop ### User: \n"
        'parameter stop "### User: "\n'
        'PARAMETER stop """### User:\n"""\n'
        "PARAMETER stop <|im_end|>\n"
        "FROM foo\nfrom ./mmproj.gguf\n"
        'ADAPTER      adapter3\nLICENSE "MIT       "\n'
        'TEMPLATE """{{ .Prompt }}\n "quoted" """    \n'
        "MESSAGE system You are: terse.\n"
        'MESSAGE user """\nHi\n"""\n'
        "RENDERER r\nPARSER p\nREQUIRES 0.14.0\nDRAFT ./d\n"
    )
    modelfile = parse_modelfile(text)
    assert instructions(text) == [
        ("PARAMETER", "stop", "### User:"),
        ("PARAMETER", "stop", "### User: "),
        ("PARAMETER", "stop", "### User:\n"),
        ("PARAMETER", "stop", "<|im_end|>"),
        ("FROM", "", "foo"),
        ("FROM", "", "./mmproj.gguf"),
        ("ADAPTER", "", "adapter3"),
        ("LICENSE", "", "MIT       "),
        ("TEMPLATE", "", '{{ .Prompt }}\n "quoted" '),
        ("MESSAGE", "system", "You are: terse."),
        ("MESSAGE", "user", "\nHi\n"),
        ("RENDERER", "", "r"),
        ("PARSER", "", "p"),
        ("REQUIRES", "", "0.14.0"),
        ("DRAFT", "", "./d"),
    ]
    assert [each.line for each in modelfile.instructions][:6] == [1, 2, 3, 5, 6, 7]
    printed = modelfile.to_text()
    assert parse_modelfile(printed) == modelfile
    assert printed.startswith('PARAMETER stop ### User:\nPARAMETER stop "### User: "\n')


@pytest.mark.parametrize("value", ['"quoted" first', "\ttab", " ", 'say "hi"', '"', 'a\n"b"\n'])
def test_what_is_printed_is_read_again(value: str) -> None:
    text = "FROM x\n" + Instruction(Command.SYSTEM, value).to_text()
    assert parse_modelfile(text).last(Command.SYSTEM) == value


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be"])
def test_byte_order_marks_say_the_encoding(encoding: str) -> None:
    mark = "\ufeff" if encoding.startswith("utf-16") else ""
    raw = f"{mark}FROM test\n\tSYSTEM 你好👋".encode(encoding)
    assert instructions(raw) == [("FROM", "", "test"), ("SYSTEM", "", "你好👋")]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", None, "no FROM line"),
        ("PARAMETER param1 value1", None, "no FROM line"),
        ("\nFROM foo\nBADCOMMAND param1 value1\n", 3, "'BADCOMMAND' is no command; there are FROM"),
        ("FROM foo\nPARAMETER param1\n", 2, "needs a name and a value"),
        ("FROM foo\nPARAMETER top-k 1\n", 2, "needs a name and a value"),
        ("FROM foo\nMESSAGE badguy I'm a bad guy!\n", 2, "one of system, user, assistant"),
        ("FROM foo\nMESSAGE system\n", 2, "needs a name and a value"),
        ("FROM", 1, "FROM lacks"),
        ('FROM foo\r\n\r\nSYSTEM """one\r\ntwo""\r\n', 3, 'opens with """, which nothing closes'),
        ('FROM foo\nSYSTEM "\n\t\t\t', 2, 'opens with ", which nothing closes'),
        ('FROM foo\nSYSTEM """"', 2, "nothing closes"),
        (b"FROM foo\nSYSTEM \xff\xfe", 2, "UTF-8"),
        (b"\xff\xfeF\0R\0O\0M\0 \0x\0\n\0y", 2, "UTF-16"),
        ("FROM foo\n" + "#" * MAX_BYTES, None, "larger than 4 MiB"),
    ],
)
def test_errors_name_the_line(text: str | bytes, line: int | None, words: str) -> None:
    with pytest.raises(ModelfileError) as caught:
        parse_modelfile(text)
    assert caught.value.line == line
    assert words in str(caught.value)
