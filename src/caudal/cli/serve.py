"""`caudal serve`: models as a service, with OpenAI's API and Anthropic's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from caudal.cli.serve_options import Config, said_settings, with_settings

if TYPE_CHECKING:
    from caudal.configuration.running import Running

logger = logging.getLogger("caudal.server")


@with_settings
def serve(context: typer.Context, config: Config = None, **settings: Any) -> None:
    """Serve models over HTTP, with the APIs that OpenAI's, Anthropic's and Ollama's clients speak.

    The quickest start, on this machine alone:

        caudal serve smollm2

    All models that have been fetched, each loaded when a request first names it:

        caudal serve

    For others on the network, with a key, and with room for long conversations:

        caudal serve smollm2 --host 0.0.0.0 --api-key SECRET --kv-memory 4GiB

    Any GGUF file, under a name of your own:

        caudal serve ./model.gguf --served-model-name house-model

    A model for embeddings:

        caudal serve minilm

    With adapters, which requests name as their model:

        caudal serve smollm2 --lora sql=./sql-lora --lora poet=./poet.gguf

    All of this, several models, keys and routes from a file (`caudal config example` prints one):

        caudal serve --config caudal.toml

    In Ollama's place, for programs that look for it on port 11434:

        caudal serve --ollama

    Then point any OpenAI client at http://127.0.0.1:8000/v1, or any of Anthropic's at
    http://127.0.0.1:8000. GET /health, /metrics (Prometheus) and /openapi.json are there too;
    `caudal ps` shows what is loaded.
    """
    from caudal.cli.pull_display import ensure_with_display
    from caudal.configuration.effective import effective_settings
    from caudal.configuration.file import read_file
    from caudal.configuration.running import run_server

    said = said_settings(context, settings)
    effective = effective_settings(said, None if config is None else read_file(config))
    # Who collects lines of JSON often gets both outputs in one stream.
    as_json = effective.values.log_format == "json"
    say: Callable[[str], None] = logger.info if as_json else typer.echo
    on_ready = _log_ready if as_json else _show_banner
    run_server(effective, said, fetch=ensure_with_display, say=say, on_ready=on_ready)
    say("Stopped.")


def _show_banner(running: Running) -> None:
    from caudal.cli.banner import banner

    typer.echo(banner(running))


def _log_ready(running: Running) -> None:
    from caudal.logs.formats import fields

    more = fields(address=running.address, ollama=running.ollama)
    logger.info("Ready: %s", running.address, extra=more)
