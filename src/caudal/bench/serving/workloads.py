"""What is asked for: conversations without end, the same ones for the same seed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import assert_never

from caudal.bench.serving import agent, dataset, json_answers, repeating
from caudal.bench.serving.conversation import Conversation, Prompt, Turn
from caudal.bench.serving.settings import LoadSettings, Wording
from caudal.bench.serving.words import text


def conversations(settings: LoadSettings, stream: str) -> Iterator[Conversation]:
    """Conversations of a workload.

    Args:
        settings: The load, with nothing left to find out.
        stream: Which of the conversations that a seed stands for: those of warming up are others
            than those that are measured.

    Raises:
        ParameterError: The data set can't be read.
    """
    random = Random(f"{settings.seed}/{stream}")
    match settings.workload:
        case "random" | "shared-prefix":
            return _prompts(settings, random)
        case "multi-turn":
            return _multi_turn(settings, random)
        case "agent":
            return agent.conversations(settings, random)
        case "json":
            return json_answers.conversations(settings, random)
        case "repeat":
            return repeating.conversations(settings, random)
        case "dataset":
            assert settings.dataset is not None
            return dataset.conversations(settings, Path(settings.dataset), random)
        case _:
            assert_never(settings.workload)


def _prompts(settings: LoadSettings, random: Random) -> Iterator[Conversation]:
    """Prompts of one turn that have nothing in common, or one of some beginnings."""
    outputs = settings.output_lengths
    assert outputs is not None
    ids = settings.api == "completions" and settings.prompts == "ids"
    prefixes = [
        _draw(settings, random, settings.prefix_tokens, framed=False, ids=ids)
        for _ in range(settings.prefixes)
    ]
    for number in count():
        tokens = settings.prompt_lengths.draw(random)
        prompt = _draw(settings, random, tokens, framed=True, ids=ids)
        if prefixes:
            prompt = _joined(prefixes[number % len(prefixes)], prompt)
            tokens += settings.prefix_tokens
        chat = settings.api == "chat"
        turn = Turn(
            prompt=None if chat else prompt,
            messages=[{"role": "user", "content": prompt}] if chat else (),
            max_tokens=outputs.draw(random),
            exact_length=bool(settings.ignore_eos),
            prompt_tokens=tokens,
        )
        yield Conversation([turn])


def _draw(
    settings: LoadSettings, random: Random, tokens: int, *, framed: bool, ids: bool
) -> Prompt:
    if ids:
        assert settings.vocab_size is not None
        return [random.randrange(settings.vocab_size) for _ in range(tokens)]
    wording = settings.wording or Wording()
    return text(random, wording.words(tokens, framed=framed))


def _joined(first: Prompt, second: Prompt) -> Prompt:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first} {second}"
    assert not isinstance(first, str)
    assert not isinstance(second, str)
    return [*first, *second]


def _multi_turn(settings: LoadSettings, random: Random) -> Iterator[Conversation]:
    """Chats whose history has what the server answered, behind one of some system prompts."""
    outputs, wording = settings.output_lengths, settings.wording or Wording()
    assert outputs is not None
    systems = [
        text(random, wording.words(settings.prefix_tokens, framed=False))
        for _ in range(settings.prefixes)
    ]
    for number in count():
        history = settings.prefix_tokens
        turns = []
        for place in range(settings.turns):
            tokens = settings.prompt_lengths.draw(random)
            messages = [{"role": "user", "content": text(random, wording.words(tokens))}]
            if systems and place == 0:
                system = systems[number % len(systems)]
                messages.insert(0, {"role": "system", "content": system})
            history += tokens
            turn = Turn(
                messages=messages,
                max_tokens=outputs.draw(random),
                exact_length=bool(settings.ignore_eos),
                think=settings.think if place else 0.0,
                prompt_tokens=history,
            )
            history += turn.max_tokens
            turns.append(turn)
        yield Conversation(turns)
