"""What can be read off a chat template without running it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFacts:
    """What a template's syntax tree shows.

    Attributes:
        variables: Names it reads without defining them.
        names: Identifiers by which it looks anything up: `role` in `m.role` and `m['role']`.
        takes_parts: It loops over a message's content: content may be a list of parts.
        takes_text: It writes content as it is, or tells strings from lists.
        inspected_strings: Literals it compares content with or passes to functions, like the
            `</think>` of `content.split('</think>')`.
        joins_arguments: It joins a call's arguments to other texts, so that they have to be one.
        choices: Literals that each of `variables` is compared with.
        thinking_tags: What it writes around thoughts; None where the tree doesn't show it.
        takes_suffix: It can be told what follows the text that is to be written.
    """

    variables: frozenset[str]
    names: frozenset[str]
    takes_parts: bool
    takes_text: bool
    inspected_strings: frozenset[str]
    joins_arguments: bool
    choices: Mapping[str, frozenset[str]]
    thinking_tags: tuple[str, str] | None = None
    takes_suffix: bool = False

    def to_json(self) -> str:
        """For another process."""
        return json.dumps(
            {
                "variables": sorted(self.variables),
                "names": sorted(self.names),
                "takes_parts": self.takes_parts,
                "takes_text": self.takes_text,
                "inspected_strings": sorted(self.inspected_strings),
                "joins_arguments": self.joins_arguments,
                "choices": {name: sorted(texts) for name, texts in self.choices.items()},
                "thinking_tags": self.thinking_tags,
                "takes_suffix": self.takes_suffix,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`."""
        facts = json.loads(text)
        for name in ("variables", "names", "inspected_strings"):
            facts[name] = frozenset(facts[name])
        facts["choices"] = {name: frozenset(texts) for name, texts in facts["choices"].items()}
        if (tags := facts["thinking_tags"]) is not None:
            facts["thinking_tags"] = (tags[0], tags[1])
        return cls(**facts)
