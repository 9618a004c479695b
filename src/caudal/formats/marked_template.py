"""One template with what is needed to tell its special tokens from typed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from caudal.formats.special_tokens import SpecialTokenSplitter
from caudal.formats.template_facts import TemplateFacts
from caudal.formats.template_guard import GuardRules, Marks, looks_like_markup, map_strings
from caudal.formats.tokenizer import Tokenizer, without_surrogates

_MESSAGE_KEYS = frozenset(("role", "content", "type", "text"))


class MarkedTemplate:
    """One template, compiled.

    Args:
        source: Its source.
        facts: What compiling it has shown.
        tokenizer: The model's.
    """

    def __init__(self, source: str, facts: TemplateFacts, tokenizer: Tokenizer) -> None:
        self.source = source
        self.facts = facts
        # Of the user-defined tokens only those the template writes mean structure (<tool_call>,
        # </think>); the others (runs of spaces, HTML) are how the model reads plain text.
        typed = dict(tokenizer.user_defined_tokens)
        written = {t: i for t, i in tokenizer.special_tokens.items() if len(t) > 1}
        for token in tokenizer.user_defined_tokens:
            if looks_like_markup(token) and token in source:
                written[token] = typed.pop(token)
        self._written = SpecialTokenSplitter(written, tokenizer.vocabulary.edges)
        self._typed = SpecialTokenSplitter(typed, tokenizer.vocabulary.edges)
        inspected_strings = "\0".join(facts.inspected_strings)
        inspected = [
            token
            for token, token_id in written.items()
            if token_id not in tokenizer.eos_ids and token in inspected_strings
        ]
        self._rules = GuardRules(written, inspected)
        # A control token may be spelt like a key. What the template looks up by name it has to
        # find, and what it doesn't look up it writes as a key of its own choosing.
        self._kept_keys = _MESSAGE_KEYS | facts.names

    def guard(
        self, request: dict[str, Any], marks: Marks, assistant_markers: Sequence[str] = ()
    ) -> dict[str, Any]:
        """The request's values with guards in all their strings.

        Args:
            request: The values.
            marks: What guards them.
            assistant_markers: Texts that an assistant's content may have as control tokens.
        """
        rules = self._rules.keeping(assistant_markers)

        def guard(text: str) -> str:
            return self._rules.guard(text, marks.guard)

        def guard_assistant(text: str) -> str:
            return rules.guard_assistant_content(text, marks.guard)

        def guard_in(value: Any) -> Any:
            return map_strings(value, guard, kept_keys=self._kept_keys)

        guarded: dict[str, Any] = {
            "messages": guard_in(request["messages"]),
            "tools": guard_in(request["tools"]),
            "kwargs": {name: guard_in(value) for name, value in request["kwargs"].items()},
        }
        for message, copy in zip(request["messages"], guarded["messages"], strict=True):
            if message["role"] == "assistant":
                copy["content"] = map_strings(
                    message["content"], guard_assistant, kept_keys=self._kept_keys
                )
        return guarded

    def guard_text(self, text: str, marks: Marks) -> str:
        """A text with guards."""
        return self._rules.guard(text, marks.guard)

    def tokenize(self, text: str, marks: Marks, tokenizer: Tokenizer) -> list[int]:
        """Token ids of a rendered text that still has its marks, without BOS added."""
        pieces: list[str | int] = []
        # The messages have no lone surrogates any more, but a template may write some itself.
        for piece in self._written.split(without_surrogates(text)):
            if isinstance(piece, int):
                pieces.append(piece)
            else:
                pieces += self._typed.split(marks.remove_from(piece))
        return tokenizer.encode_pieces(pieces)
