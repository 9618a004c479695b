"""Tells Go's templates from Jinja's: both write `{{ }}`."""

from __future__ import annotations

import re

_GO = re.compile(
    r"\{\{(?:-[ \t\r\n])?[\s(]*"
    r"(?:\.|\$|/\*|(?:if|with|range|block|define|template)\s|(?:end|else|break|continue)\b"
    r"|(?:and|or|len|index|slice|printf?|println|html|js|urlquery|call|eq|ne|lt|le|gt|ge|json"
    r"|toTypeScriptType)\s+[.$(\"`]|not\s+[.$]|(?:currentDate|yesterdayDate)\b)"
)


def is_go_template(source: str) -> bool:
    """Whether a template is Go's, by its actions; text without any is taken for Jinja's.

    In Jinja nothing in braces begins with a dot, a dollar sign or a keyword, and in Go there is no
    `{%`. Templates that are wrong are told apart, too, so that what is said of them fits.
    """
    statement = re.search(r"\{%[-+]?\s*\w", source)
    found = _GO.search(source)
    return found is not None and (statement is None or found.start() < statement.start())
