"""The tokens of a `tokenizer.json`: its model's vocabulary, and those added to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from caudal.errors import ModelLoadError
from caudal.formats.vocabulary import TokenEdges, check_token_lengths

MAX_VOCABULARY = 1 << 22


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is found in text before the model sees it.

    Attributes:
        id: Its id.
        text: What it is spelt like.
        special: It steers the model and is no text.
        normalized: It is looked for in normalised text.
        lstrip: White space before it belongs to it.
        rstrip: White space behind it does.
        single_word: It is found only where no letter or digit is beside it.
    """

    id: int
    text: str
    special: bool
    normalized: bool
    lstrip: bool
    rstrip: bool
    single_word: bool


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The tokens of a file.

    Attributes:
        source: The file's path, for errors.
        model: Ids of the model's own tokens by text.
        added: The others, and those of them that are treated like these.
        texts: All texts by id; None for ids that no token has.
    """

    source: str
    model: Mapping[str, int]
    added: tuple[AddedToken, ...]
    texts: list[str | None]

    @classmethod
    def read(cls, source: str, content: Mapping[str, Any]) -> Self:
        """Read and check the tokens of a whole `tokenizer.json`, whose vocabulary is an object.

        Raises:
            ModelLoadError: An entry makes no sense, a token is too long, or there is none.
        """
        vocabulary = content["model"]["vocab"]
        added = tuple(_added_tokens(source, content))
        size = 0
        for text, token in vocabulary.items():
            if type(token) is not int or not 0 <= token < MAX_VOCABULARY:
                raise ModelLoadError(
                    source, f"the vocabulary has the entry {text!r:.50}: {token!r:.50}"
                )
            size = max(size, token + 1)
        size = max([size, *(token.id + 1 for token in added)])
        if size == 0:
            raise ModelLoadError(source, "the vocabulary is empty")
        texts: list[str | None] = [None] * size
        for text, token in vocabulary.items():
            texts[token] = text
        for entry in added:
            texts[entry.id] = entry.text
        check_token_lengths(source, "the vocabulary", [text for text in texts if text is not None])
        return cls(source, vocabulary, added, texts)

    def limited(self, rows: int) -> Self:
        """The same without added tokens of ids from `rows` on.

        Raises:
            ModelLoadError: The model's own vocabulary has such ids.
        """
        if len(self.texts) <= rows:
            return self
        beyond = next((text for text, token in self.model.items() if token >= rows), None)
        if beyond is not None and beyond not in {token.text for token in self.added}:
            raise ModelLoadError(
                self.source,
                f"the tokenizer has {len(self.texts)} tokens, {beyond!r:.50} among them, but the "
                f"embedding has {rows} rows",
            )
        return replace(
            self,
            model={text: token for text, token in self.model.items() if token < rows},
            added=tuple(token for token in self.added if token.id < rows),
            texts=self.texts[:rows],
        )

    def id_of(self, text: str) -> int | None:
        """The id of a text, an added token's first."""
        for token in self.added:
            if token.text == text:
                return token.id
        return self.model.get(text)


def token_edges(added: AddedToken) -> TokenEdges | None:
    """What counts at an added token's edges; None where its text alone does."""
    if not (added.lstrip or added.rstrip or added.single_word):
        return None
    return TokenEdges(lstrip=added.lstrip, rstrip=added.rstrip, single_word=added.single_word)


def _added_tokens(source: str, content: Mapping[str, Any]) -> list[AddedToken]:
    entries = content.get("added_tokens") or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ModelLoadError(source, "added_tokens must be a list of objects")
    result = []
    for entry in entries:
        token, text = entry.get("id"), entry.get("content")
        if not isinstance(text, str) or type(token) is not int or not 0 <= token < MAX_VOCABULARY:
            raise ModelLoadError(
                source, f"the vocabulary has the entry {text!r:.50}: {token!r:.50}"
            )
        result.append(
            AddedToken(
                id=token,
                text=text,
                special=entry.get("special") is True,
                normalized=entry.get("normalized") is True,
                lstrip=entry.get("lstrip") is True,
                rstrip=entry.get("rstrip") is True,
                single_word=entry.get("single_word") is True,
            )
        )
    return result
