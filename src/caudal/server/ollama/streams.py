"""Answers as JSON lines, or as one object, and how they end where something goes wrong half-way."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Any

from starlette.types import Scope

from caudal.errors import CaudalError, ParameterError, TemplateError
from caudal.server.errors import without_paths
from caudal.server.field_names import field_names
from caudal.server.ollama.errors import error_body, own_words
from caudal.server.streaming import encode_line

logger = logging.getLogger("caudal.server")


async def encoded_lines(
    scope: Scope, lines: AsyncGenerator[bytes | dict[str, Any], None]
) -> AsyncGenerator[bytes, None]:
    """Lines, encoded; after them an error, where they end in one.

    Args:
        scope: Of the request.
        lines: The lines, those that are bytes encoded already; closed in any case.
    """
    try:
        async with contextlib.aclosing(lines):
            async for line in lines:
                yield line if isinstance(line, bytes) else encode_line(line)
    except CaudalError as error:
        message = own_words(scope, error) or without_paths(scope, error)
        if isinstance(error, ParameterError | TemplateError):
            message = field_names(scope).message(error)
        yield encode_line(error_body(message))
    except Exception:
        logger.exception("A stream failed.")
        yield encode_line(error_body("Internal server error."))
