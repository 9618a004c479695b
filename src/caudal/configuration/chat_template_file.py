"""A chat template that the user brings in a file: read and compiled before any model is loaded."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from caudal.formats.template_workers import TemplateFailure, TemplateWorkers

MAX_BYTES = 2**20


def read_chat_template(path: Path) -> str:
    """The template's source.

    Raises:
        ValueError: The file can't be read, or is no template.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        source = content.decode()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text") from error
    if len(content) > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES} bytes")
    if not source.strip():
        raise ValueError(f"{path} is empty")
    with closing(TemplateWorkers(1)) as workers:
        try:
            workers.inspect(source)
        except TemplateFailure as failure:
            raise ValueError(f"{path} {failure.words}") from failure
    return source
