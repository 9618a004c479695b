"""Which tokens begin and end texts, from the files that say so beside `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from caudal.errors import ModelLoadError
from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.token_table import TokenTable
from caudal.formats.model_folder import (
    GENERATION_CONFIG,
    SPECIAL_TOKENS,
    TOKENIZER_CONFIG,
    JsonObject,
    ModelFolder,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialRoles:
    """Ids with a role.

    Attributes:
        bos_id: Begins a sequence.
        eos_id: Ends a sequence.
        unk_id: Stands for what can't be expressed.
        pad_id: Fills batches.
        eos_ids: Every token that ends an answer, as far as the files say so.
        suppressed_ids: Tokens that no answer has.
        add_bos: Whether BOS begins a prompt.
        add_eos: Whether EOS ends a text to encode.
    """

    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    pad_id: int | None
    eos_ids: frozenset[int]
    suppressed_ids: frozenset[int]
    add_bos: bool
    add_eos: bool

    @classmethod
    def read(cls, folder: ModelFolder, content: Mapping[str, Any], table: TokenTable) -> Self:
        """Read a folder's.

        `tokenizer_config.json` names the tokens, else `special_tokens_map.json`. Answers also end
        with what `generation_config.json` says; where there is none, with what config.json does.

        Args:
            folder: The model.
            content: Its whole `tokenizer.json`.
            table: The tokens in it.

        Raises:
            ModelLoadError: A file is damaged, or names an id that doesn't exist.
        """
        empty = JsonObject("", {})
        settings, special, generation = (
            folder.read_object(name) if name in folder else empty
            for name in (TOKENIZER_CONFIG, SPECIAL_TOKENS, GENERATION_CONFIG)
        )
        config = Config.of(folder)
        found = {
            role: _named((settings, special), f"{role}_token", table)
            for role in ("bos", "eos", "unk", "pad")
        }
        ends = set(_token_ids(generation, "eos_token_id", table))
        if found["eos"] is not None:
            ends.add(found["eos"])
        if GENERATION_CONFIG not in folder:
            ends.update(_token_ids(config, "eos_token_id", table))
        if found["bos"] is None:
            found["bos"] = next(iter(_token_ids(config, "bos_token_id", table)), None)
        if found["eos"] is None:
            found["eos"] = min(ends, default=None)
        first, last = frame(content, table)
        if last is not None and "add_eos_token" not in settings:
            # What ends a text to encode; with models for embeddings it isn't what ends an answer.
            found["eos"] = last
        return cls(
            bos_id=found["bos"],
            eos_id=found["eos"],
            unk_id=found["unk"],
            pad_id=found["pad"],
            eos_ids=frozenset(ends),
            suppressed_ids=_suppressed_ids(generation, table),
            add_bos=found["bos"] is not None
            and settings.get("add_bos_token", bool, first == found["bos"]),
            add_eos=found["eos"] is not None
            and settings.get("add_eos_token", bool, last == found["eos"]),
        )


def _named(files: Iterable[JsonObject], key: str, table: TokenTable) -> int | None:
    """The id of a token that the first of the files to do so names, by its text or an object."""
    for settings in files:
        value = settings.content.get(key)
        if isinstance(value, dict):
            value = value.get("content")
        if value is None or value is False:
            continue
        if not isinstance(value, str):
            raise ModelLoadError(settings.source, f"{key} must be a text, but is {value!r:.50}")
        return table.id_of(value)
    return None


def _token_ids(settings: JsonObject, key: str, table: TokenTable) -> list[int]:
    """The ids under a key: none, one, or a list of them."""
    value = settings.content.get(key)
    if value is None:
        return []
    tokens = value if isinstance(value, list) else [value]
    for token in tokens:
        if type(token) is not int or not 0 <= token < len(table.texts):
            raise ModelLoadError(
                settings.source,
                f"{key} is {value!r:.100}, but token ids are 0 to {len(table.texts) - 1}",
            )
    return tokens


def _suppressed_ids(generation: JsonObject, table: TokenTable) -> frozenset[int]:
    """Tokens that no answer has. Those that the table lacks can't come anyway."""
    tokens = generation.get("suppress_tokens", list, [])
    if not all(type(token) is int for token in tokens):
        raise ModelLoadError(
            generation.source, f"suppress_tokens must be token ids, but is {tokens!r:.100}"
        )
    return frozenset(token for token in tokens if 0 <= token < len(table.texts))


def frame(content: Mapping[str, Any], table: TokenTable) -> tuple[int | None, int | None]:
    """The tokens that `tokenizer.json` puts before and behind a text, where they are one each."""
    for processor in _processors(content.get("post_processor")):
        if processor.get("type") in ("BertProcessing", "RobertaProcessing"):
            return _token_in(processor.get("cls"), table), _token_in(processor.get("sep"), table)
        if processor.get("type") != "TemplateProcessing":
            continue
        single = processor.get("single")
        pieces = single if isinstance(single, list) else []
        texts = [
            None if "Sequence" in piece else str(_special_text(piece))
            for piece in pieces
            if isinstance(piece, dict)
        ]
        if None not in texts:
            continue
        at = texts.index(None)
        first, last = texts[:at], texts[at + 1 :]
        return (
            table.id_of(str(first[0])) if len(first) == 1 else None,
            table.id_of(str(last[0])) if len(last) == 1 else None,
        )
    return None, None


def _processors(processor: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    if not isinstance(processor, dict) or depth > 4:
        return
    inner = processor.get("processors")
    if isinstance(inner, list):
        for each in inner:
            yield from _processors(each, depth + 1)
    else:
        yield processor


def _token_in(pair: Any, table: TokenTable) -> int | None:
    """The token that a pair of its text and its id names."""
    match pair:
        case [str() as text, _]:
            return table.id_of(text)
        case _:
            return None


def _special_text(piece: Mapping[str, Any]) -> Any:
    special = piece.get("SpecialToken")
    return special.get("id") if isinstance(special, dict) else None
