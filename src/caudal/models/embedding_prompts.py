"""What a model reads before texts of a kind: the words that it was trained with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from caudal.errors import ParameterError

_KINDS = (
    ("query", "search_query"),
    ("document", "passage", "corpus", "search_document"),
)
"""Names that makers of models, and APIs, have for the same; the most usual first."""


@dataclass(frozen=True, slots=True)
class EmbeddingPrompts:
    """A model's.

    Attributes:
        texts: What comes before a text, by name, e.g. `query`.
        default: The name of what comes before texts of which nothing is said; None: nothing.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None

    def with_prompt(self, text: str, name: str | None) -> str:
        """A text with what comes before it; an empty one stays that.

        Args:
            text: The text.
            name: Of the prompt; None: the default, if there is one.

        Raises:
            ParameterError: There is none of this name.
        """
        name = self.default if name is None else name
        if name is None:
            return text
        prompt = self.texts.get(name)
        if prompt is None:
            there = ", ".join(self.texts) or "none"
            raise ParameterError(
                "prompt_name", f"This model has no prompt {name!r:.50}; it has: {there}."
            )
        return prompt + text if text else text

    def of_type(self, input_type: str) -> str | None:
        """The name of what stands for an API's `input_type`; None where there is no such.

        That is one of the same name, whatever its case, or of another name for the same.
        """
        asked = input_type.lower()
        same = next((kind for kind in _KINDS if asked in kind), ())
        by_name = {name.lower(): name for name in self.texts}
        return next((by_name[each] for each in (asked, *same) if each in by_name), None)


NO_PROMPTS = EmbeddingPrompts()
"""Of a model that was trained without, or whose files don't say."""
