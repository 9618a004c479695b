"""A configuration file with everything that it can say, written from what is known of settings."""

from __future__ import annotations

import contextlib
import inspect
import json
import textwrap
from collections.abc import Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any, get_args

from caudal.configuration.effective import key_of
from caudal.configuration.setting import setting_of
from caudal.configuration.settings import TABLES, settings_fields
from caudal.configuration.tables import KINDS, PER_MODEL, in_file

WIDTH = 98

_HEAD = """\
# All that a configuration file of `caudal serve` can say: caudal serve --config caudal.toml
#
# What begins with # and a space explains; what begins with # alone is what holds anyway, or an
# example where that depends on the machine or the model. Options and environment variables go
# before this file. Sizes are like 2GiB, durations like 5m, and relative paths begin from the file's
# folder. SIGHUP (`systemctl reload caudal`) has it be read anew; `caudal config check` says whether
# it can be used.
"""

_REST = """\
# Models. Without any, all that are on this machine are served, each loaded when it is asked for.
#
# `model` is a name as for `caudal pull`, or a path. It may have settings of its own, which go
# before those above: @PER_MODEL@.

#[[models]]
#model = "smollm2"
#names = ["chat", "smollm2"]    # that requests use; its own first
#aliases = ["gpt-4o-mini"]
#lora = { sql = "./sql-lora" }
#keep-alive = -1                # for ever
#pinned = true                  # makes way for nobody
#preload = true                 # loaded at the start, if there is room
#max-model-len = 4096
#
#[[models]]
#model = "minilm"
#preload = false

# Names that lead to models: docs/many-models.md.

#[aliases]
#default = "chat"

#[routes.auto]
#models = [{ model = "chat", max-prompt-tokens = 2000 }, { model = "minilm" }]

# Keys, by their hashes, as `caudal keys add` makes them: docs/keys.md. A key that is somewhere else
# is { env = "NAME" } or { file = "PATH" }; so may be those of [server].

#[key-defaults]
#requests-per-minute = 600

#[keys.alice]
#hash = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
#models = ["chat", "gpt-*"]
#tokens-per-minute = 100000
#priority = 0

#[keys.bob]
#key = { env = "BOBS_KEY" }
"""


def example() -> str:
    """The file."""
    parts = [_HEAD]
    for table in TABLES:
        title = (inspect.getdoc(table) or "").rstrip(".")
        parts.append(f"[{table.table}]  # {title}\n")
        parts += [_entry(name) for name in in_file(table.__annotations__)]
    own = ", ".join(map(key_of, PER_MODEL))
    marked = next(line for line in _REST.splitlines() if "@PER_MODEL@" in line)
    parts.append(_REST.replace(marked, _comment(marked[2:].replace("@PER_MODEL@", own))))
    return "\n".join(parts)


def _entry(name: str) -> str:
    a_field = settings_fields()[name]
    about = setting_of(a_field)
    text = about.text
    if about.default is not None:
        text += f" Default: {about.default}."
    if about.variables:
        text += f" Variable: {about.variables[0]}."
    return f"{_comment(text)}\n#{key_of(name)} = {_written(name, a_field)}\n"


def _comment(text: str) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _written(name: str, a_field: Field[Any]) -> str:
    """The default, or what might be said instead."""
    about, value = setting_of(a_field), a_field.default
    if value is not None:
        return toml(value)
    if about.secret:
        return '{ env = "NAME" }'
    if about.notation is not None:
        with contextlib.suppress(ValueError):
            about.notation.read(about.default or "")
            return toml(about.default)
        return toml(about.notation.example)
    kinds = get_args(KINDS[name]) or (KINDS[name],)
    for kind in (int, float):
        if kind in kinds and about.default is not None:
            with contextlib.suppress(ValueError):
                return toml(kind(about.default))
    examples: Sequence[tuple[type, Any]] = (
        (bool, True),
        (int, max(8, int(about.least or 0))),
        (float, 60.0),
        (Path, "PATH"),
    )
    for each, instead in examples:
        if each in kinds:
            return toml(instead)
    return toml(about.metavar or "WORD")


def toml(value: Any) -> str:
    """A value as it is written in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, float):
        return "inf" if value == float("inf") else repr(value).removesuffix(".0")
    return str(value) if isinstance(value, int) else json.dumps(str(value), ensure_ascii=False)
