"""Names of the files of a split model, as llama.cpp's `gguf-split` gives them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Self

_PATTERN = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.ASCII)


@dataclass(frozen=True, slots=True)
class SplitName:
    """The name of one file of a split model: `model-00001-of-00003.gguf`.

    Attributes:
        stem: What stands before the numbers.
        number: Which of the files it is, from 1.
        count: How many files there are; nothing keeps a name from saying 0.
    """

    stem: str
    number: int
    count: int

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """What a file's name says; None where it isn't the name of such a file."""
        match = _PATTERN.fullmatch(name)
        if match is None:
            return None
        return cls(match["stem"], int(match["number"]), int(match["count"]))

    def __str__(self) -> str:
        return f"{self.stem}-{self.number:05d}-of-{self.count:05d}.gguf"

    @property
    def names(self) -> list[str]:
        """The names of all files of the model, in order."""
        return [str(replace(self, number=number)) for number in range(1, self.count + 1)]
