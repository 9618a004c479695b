"""Conversations from a file: ShareGPT's JSON, or a line of JSON for each request."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from caudal.bench.serving.conversation import Conversation, Turn
from caudal.bench.serving.settings import LoadSettings, Wording
from caudal.errors import ParameterError

_TOKENS = 256
"""Of an answer, where neither the options nor the file say how long it is."""

_USERS = ("human", "user")


def file_hash(path: Path) -> str:
    """SHA-256 of a data set.

    Raises:
        ParameterError: It can't be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ParameterError("dataset", f"{path}: {error.strerror or error}.") from error


def conversations(settings: LoadSettings, path: Path, random: Random) -> Iterator[Conversation]:
    """The conversations of a file in random order, and then again.

    Raises:
        ParameterError: It isn't a data set; says what is wrong where.
    """
    read = [
        each
        for place, entry in _entries(path)
        if (each := _conversation(settings, entry, f"{path}, {place}", random)) is not None
    ]
    if not read:
        raise ParameterError("dataset", f"{path} has no conversation that begins with a user.")
    random.shuffle(read)
    return _endless(read)


def _endless(read: Sequence[Conversation]) -> Iterator[Conversation]:
    while True:
        yield from read


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        written = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError("dataset", f"{path}: {error}.") from error
    if written.lstrip().startswith("["):
        try:
            entries = json.loads(written)
        except (ValueError, RecursionError) as error:
            raise ParameterError("dataset", f"{path} is not JSON: {error}.") from error
        yield from ((f"entry {number}", entry) for number, entry in enumerate(entries, 1))
        return
    for number, line in enumerate(written.split("\n"), 1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ParameterError(
                    "dataset", f"{path}, line {number} is not JSON: {error}."
                ) from error


def _conversation(
    settings: LoadSettings, entry: Any, place: str, random: Random
) -> Conversation | None:
    if not isinstance(entry, dict):
        raise ParameterError("dataset", f"{place} is not an object.")
    if "conversations" in entry:
        return _share_gpt(settings, entry["conversations"], place, random)
    prompt, messages = entry.get("prompt"), entry.get("messages")
    if (prompt is None) == (messages is None):
        raise ParameterError("dataset", f"{place} must have either prompt or messages.")
    if messages is None:
        if not isinstance(prompt, str):
            raise ParameterError("dataset", f"{place}: prompt must be text.")
        if settings.api == "chat":
            messages, prompt = [{"role": "user", "content": prompt}], None
    elif not _are_messages(messages):
        raise ParameterError("dataset", f"{place}: messages must be a list of messages.")
    elif settings.api == "completions":
        raise ParameterError("api", f"{place} has messages, which are for chats.")
    asked = entry.get("max_tokens")
    if asked is not None and not (isinstance(asked, int) and asked > 0):
        raise ParameterError("dataset", f"{place}: max_tokens must be a positive number.")
    tokens = _output(settings, random, asked)
    return Conversation([_turn(settings, prompt, messages or (), tokens, 0)])


def _share_gpt(
    settings: LoadSettings, spoken: Any, place: str, random: Random
) -> Conversation | None:
    """A user's words in turn; what was answered once is only as long as the new answer is to be."""
    if not isinstance(spoken, list) or not all(
        isinstance(each, dict) and isinstance(each.get("value"), str) for each in spoken
    ):
        raise ParameterError("dataset", f"{place}: conversations must have from and value.")
    while spoken and spoken[0].get("from") not in _USERS:
        spoken = spoken[1:]
    turns: list[Turn] = []
    wording = settings.wording or Wording()
    for number, each in enumerate(spoken):
        if each.get("from") not in _USERS or len(turns) == settings.turns:
            continue
        answer = spoken[number + 1]["value"] if number + 1 < len(spoken) else ""
        words = len(answer.split())
        # Written text has about a third more tokens than words, where everyday words have one.
        tokens = _output(settings, random, round(4 / 3 * words * wording.tokens_per_word) or None)
        if settings.api == "completions":
            turns = [_turn(settings, each["value"], (), tokens, 0)]
            break
        message = {"role": "user", "content": each["value"]}
        turns.append(_turn(settings, None, [message], tokens, len(turns)))
    return Conversation(turns) if turns else None


def _turn(
    settings: LoadSettings,
    prompt: str | None,
    messages: Sequence[Mapping[str, Any]],
    tokens: int,
    place: int,
) -> Turn:
    return Turn(
        prompt=prompt,
        messages=messages,
        max_tokens=tokens,
        exact_length=bool(settings.ignore_eos),
        think=settings.think if place else 0.0,
    )


def _output(settings: LoadSettings, random: Random, asked: int | None) -> int:
    lengths = settings.output_lengths
    if lengths is not None:
        return lengths.draw(random)
    return asked or _TOKENS


def _are_messages(messages: Any) -> bool:
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(isinstance(each, dict) and isinstance(each.get("role"), str) for each in messages)
    )
