"""Prompts that answers repeat: code after an edit, quotes, records.

Each breaks off where the repetition has begun: to be gone on with, or in a chat behind words that
ask for that. What servers make of it shows what guessing tokens brings them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from random import Random

from caudal.bench.repeating import REPEATING
from caudal.bench.serving.conversation import Conversation, Turn
from caudal.bench.serving.settings import LoadSettings

_ASKED = "Go on exactly where this breaks off, with nothing before it:\n\n"

_NUMBERS = 1 << 30
"""So many prompts of each kind there are."""


def conversations(settings: LoadSettings, random: Random) -> Iterator[Conversation]:
    """Prompts of each kind in turn."""
    outputs = settings.output_lengths
    assert outputs is not None
    chat = settings.api == "chat"
    for make in cycle(REPEATING.values()):
        prompt = make(random.randrange(_NUMBERS))
        turn = Turn(
            prompt=None if chat else prompt,
            messages=[{"role": "user", "content": _ASKED + prompt}] if chat else (),
            max_tokens=outputs.draw(random),
            exact_length=bool(settings.ignore_eos),
        )
        yield Conversation([turn])
