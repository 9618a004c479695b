"""Finds whole tokens in text: control tokens and user-defined ones, which no merge may produce."""

from __future__ import annotations

from collections.abc import Mapping

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel

from caudal.formats.vocabulary import TokenEdges

_TEXT = ""
"""The matcher's only ordinary token: it stands for a stretch of text without matches."""


_PLAIN = TokenEdges()


class SpecialTokenSplitter:
    """Splits text at the tokens it knows: leftmost first, the longest where several start.

    The search is one pass of an Aho-Corasick automaton, so thousands of tokens cost no more than
    one, and no text can make it slow.

    Args:
        tokens: Ids by text; the empty text is ignored.
        edges: By id, what counts beside the texts of some.
    """

    def __init__(
        self, tokens: Mapping[str, int], edges: Mapping[int, TokenEdges] | None = None
    ) -> None:
        contents = [text for text in tokens if text != _TEXT]
        self._matcher: Backend | None = None
        self._ids: dict[int, int] = {}
        if contents:
            # A tokenizer whose model knows nothing: all it does is to find its added tokens.
            self._matcher = Backend(WordLevel({_TEXT: 0}, unk_token=_TEXT))
            self._matcher.add_tokens(
                [_added(text, (edges or {}).get(tokens[text], _PLAIN)) for text in contents]
            )
            for text in contents:
                found = self._matcher.token_to_id(text)
                assert found is not None  # it has just been added
                self._ids[found] = tokens[text]

    def split(self, text: str) -> list[str | int]:
        """Pieces in order: token ids, and the non-empty texts between them."""
        if not text:
            return []
        if self._matcher is None:
            return [text]
        found = self._matcher.encode(text, add_special_tokens=False)
        return [
            self._ids[token] if token in self._ids else text[start:end]
            for token, (start, end) in zip(found.ids, found.offsets, strict=True)
        ]


def _added(text: str, edges: TokenEdges) -> AddedToken:
    return AddedToken(
        text,
        normalized=False,
        lstrip=edges.lstrip,
        rstrip=edges.rstrip,
        single_word=edges.single_word,
    )
