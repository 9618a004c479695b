"""Who is measured: which program it is, what it says of itself, how its tokenizer counts words."""

from __future__ import annotations

import json
from http import HTTPStatus
from random import Random
from typing import Any
from urllib.parse import quote

import msgspec
from httptools import HttpParserError

from caudal.bench.serving.http_client import StreamClient, StreamedAnswer
from caudal.bench.serving.settings import Api, LoadSettings, Wording
from caudal.bench.serving.streams import StreamError, read_stream
from caudal.bench.serving.words import text
from caudal.errors import CaudalError

PATHS: dict[Api, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}

_OWNERS = {"caudal": "caudal", "vllm": "vllm", "llamacpp": "llama.cpp", "sglang": "sglang"}
"""Programs by `owned_by` of their models; all of these take token ids, and `ignore_eos`."""

_DEFAULT_VOCABULARY = 32_000
"""Most vocabularies are larger, so all of these ids exist."""

_MOST_VOCABULARY = 2**31

_PROBES = (40, 240)
"""Words of the prompts that show how words are counted."""


class NobodyThereError(CaudalError):
    """The server can't be asked what it has."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The server.

    Attributes:
        url: Its address.
        model: Its name for the model.
        program: `caudal`, `vllm`, `llama.cpp`, `sglang`, `ollama`, or `unknown`.
        version: The program's.
        card: What it says of the model.
        info: What it says of itself: engine, weights, kernels, machine.
    """

    url: str
    model: str
    program: str
    version: str | None = None
    card: dict[str, Any] = {}
    info: dict[str, Any] = {}

    @property
    def takes_ids(self) -> bool:
        """Whether prompts may be token ids, and answers go on behind their end."""
        return self.program in _OWNERS.values()

    @property
    def names(self) -> frozenset[str]:
        """What it may call the model."""
        aliases = self.card.get("aliases")
        aliases = aliases if isinstance(aliases, list) else ()
        return frozenset({self.model, str(self.card.get("root", self.model)), *map(str, aliases)})


async def find_target(client: StreamClient, url: str, model: str | None) -> Target:
    """Ask a server what it is.

    Args:
        client: Leads to it.
        url: Its address.
        model: Its name for the model; None for the first that it lists, of those that generate.

    Raises:
        NobodyThereError: It doesn't answer, or lists no models where none is named.
    """
    try:
        answer = await client.get("/v1/models")
    except (OSError, HttpParserError) as error:
        raise NobodyThereError(f"nobody answers at {url}: {error}") from error
    if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise NobodyThereError(f"{url} asks for a key that may list its models (--api-key).")
    listed = (_object(answer) or {}).get("data")
    cards = listed if isinstance(listed, list) else []
    cards = [card for card in cards if isinstance(card, dict) and "id" in card]
    if model is None:
        if not cards:
            raise NobodyThereError(
                f"{url} lists no models (/v1/models answers {answer.status}): say which one is "
                "meant, or another address."
            )
        model = str(next(filter(_generates, cards), cards[0])["id"])
    owners = {str(card.get("owned_by")) for card in cards}
    program = next((name for owner, name in _OWNERS.items() if owner in owners), "unknown")
    if program == "unknown" and (await _get(client, "/api/version") or {}).get("version"):
        program = "ollama"
    card: dict[str, Any] = next((card for card in cards if card["id"] == model), {})
    version, info = await _about(client, program, model)
    return Target(url=url, model=model, program=program, version=version, card=card, info=info)


def _generates(card: dict[str, Any]) -> bool:
    """Whether a model generates, as far as its server says what it does (as Caudal's do)."""
    tasks = card.get("capabilities")
    return not isinstance(tasks, list) or "generate" in tasks


async def settle(client: StreamClient, target: Target, settings: LoadSettings) -> LoadSettings:
    """Fill in what depends on the server; what is given already stays, so a replay is the same.

    Raises:
        NobodyThereError: The server doesn't answer any more.
    """
    prompts = settings.workload in ("random", "shared-prefix", "repeat")
    api = settings.api or ("completions" if prompts else "chat")
    takes_ids = api == "completions" and target.takes_ids and settings.workload != "repeat"
    form = settings.prompts or ("ids" if takes_ids else "text")
    settled = msgspec.structs.replace(
        settings,
        api=api,
        prompts=form,
        ignore_eos=target.takes_ids if settings.ignore_eos is None else settings.ignore_eos,
        vocab_size=settings.vocab_size or _vocabulary(target),
    )
    if form == "text" and settled.wording is None:
        wording = await _count_words(client, target, settled)
        settled = msgspec.structs.replace(settled, wording=wording)
    return settled


def _vocabulary(target: Target) -> int:
    meta = target.card.get("meta")
    size = meta.get("n_vocab") if isinstance(meta, dict) else None
    return size if isinstance(size, int) and 0 < size <= _MOST_VOCABULARY else _DEFAULT_VOCABULARY


async def _about(
    client: StreamClient, program: str, model: str
) -> tuple[str | None, dict[str, Any]]:
    """A program's version, and what it says of itself."""
    match program:
        case "caudal":
            found = await _get(client, f"/server_info?model={quote(model, safe='')}") or {}
            return _text(found.get("version")), found
        case "llama.cpp":
            found = await _get(client, "/props") or {}
            kept = ("build_info", "model_path", "total_slots", "chat_template")
            return _text(found.get("build_info")), {k: found[k] for k in kept if k in found}
        case "ollama":
            found = await _get(client, "/api/version") or {}
            return _text(found.get("version")), {}
        case _:
            found = await _get(client, "/version") or {}
            return _text(found.get("version")), {}


async def _get(client: StreamClient, path: str) -> dict[str, Any] | None:
    """A JSON object, or None where there is none at a path."""
    try:
        return _object(await client.get(path))
    except (OSError, HttpParserError):
        return None


def _text(found: Any) -> str | None:
    return found if isinstance(found, str) else None


def _object(answer: StreamedAnswer) -> dict[str, Any] | None:
    if answer.status != HTTPStatus.OK:
        return None
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


async def _count_words(client: StreamClient, target: Target, settings: LoadSettings) -> Wording:
    """See from the usage of two short answers how long everyday words are."""
    counts = []
    random = Random("words")
    for words in _PROBES:
        prompt = text(random, words)
        asked = {
            "model": target.model,
            "max_tokens": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
            **(
                {"messages": [{"role": "user", "content": prompt}]}
                if settings.api == "chat"
                else {"prompt": prompt}
            ),
        }
        assert settings.api is not None
        try:
            answer = await client.post(PATHS[settings.api], json.dumps(asked).encode())
        except (OSError, HttpParserError) as error:
            raise NobodyThereError(f"{target.url} doesn't answer a request: {error}") from error
        try:
            counts.append(read_stream(answer.pieces).prompt_tokens or 0)
        except (ValueError, StreamError):
            counts.append(0)
    per_word = (counts[1] - counts[0]) / (_PROBES[1] - _PROBES[0])
    if not 0.2 < per_word < 8:  # the server doesn't count, or has no such model
        return Wording()
    return Wording(round(per_word, 3), max(0, round(counts[0] - per_word * _PROBES[0])))
