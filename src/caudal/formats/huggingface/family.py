"""What a family's checkpoints are: keys, names and layouts of one architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from caudal.errors import ModelLoadError
from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.huggingface.checkpoint import Checkpoint
from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.methods import Method
from caudal.formats.huggingface.name_tables import AHEAD, DECODER, Table
from caudal.formats.huggingface.needed import Needed, declared_biases, first_lacking
from caudal.formats.huggingface.renamed_tensors import Renaming, Tensors, with_float_vectors
from caudal.formats.huggingface.rope_keys import check_divided
from caudal.formats.huggingface.rows import Rows
from caudal.formats.huggingface.tensor_names import (
    NOT_TEXT,
    Place,
    first_of,
    layers_ahead,
    placed_ahead,
    without_prefix,
)
from caudal.formats.huggingface.tensor_rules import Found, Rule
from caudal.formats.model_folder import CONFIG

Keys = Mapping[str, MetadataValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Checkpoints of one architecture.

    Attributes:
        model_types: `model_type` in config.json, of the text model where there is more.
        architecture: `general.architecture`.
        keys: The keys below `{architecture}.`; refuses what isn't computed.
        layer: Tensors of layers (`layers.N.`).
        others: All other tensors.
        left_out: Tensors and modules that files have and programs don't use; a layer's as `layer`
            has them.
        made: Tensors that are made of the configuration alone, by full name.
        defaults: What keys of config.json are where they are missing.
        tied: Whether the output matrix is the embedding where config.json doesn't say.
        architecture_of: The architecture of a configuration, where there are several.
        more_architectures: Those that it may give besides `architecture`.
        own_keys: Keys that GGUF has no names for (formats/embedding_keys.py).
        ahead: What a layer that predicts tokens further ahead has besides; nothing where that isn't
            computed.
        layers: What names of layers' tensors begin with, before the number.
        is_encoder: Whether there is no output matrix, as nothing is generated.
        needed: Tensors that have to be beside others.
        lacks: Whether a layer has no tensor of a name that the tables have and programs look for.
        sizes: Rows of matrices that programs ask files for, as config.json has them.
    """

    model_types: tuple[str, ...]
    architecture: str
    keys: Callable[[Config], Keys]
    layer: Table
    others: Table = field(default_factory=lambda: DECODER)
    left_out: tuple[str, ...] = ("rotary_emb", "self_attn.rotary_emb")
    made: Callable[[Config], Mapping[str, Rows]] = lambda _config: {}
    defaults: Mapping[str, Any] = field(default_factory=dict)
    tied: bool = False
    architecture_of: Callable[[Config], str] | None = None
    more_architectures: tuple[str, ...] = ()
    own_keys: Callable[[Config], Keys] = lambda _config: {}
    ahead: Table = field(default_factory=lambda: AHEAD)
    layers: tuple[str, ...] = ("layers.",)
    is_encoder: Callable[[Config], bool] = lambda _config: False
    needed: Callable[[Config], Needed] = declared_biases
    lacks: Callable[[Config, int, str], bool] = lambda _config, _layer, _name: False
    sizes: Callable[[Config], Mapping[str, int]] = lambda _config: {}

    def architecture_for(self, config: Config) -> str:
        """`general.architecture` of a configuration."""
        return self.architecture if self.architecture_of is None else self.architecture_of(config)

    def metadata(self, config: Config) -> dict[str, MetadataValue]:
        """All keys of the architecture, `general.architecture` included.

        Raises:
            ModelLoadError: config.json lacks a key, or asks for what isn't computed.
        """
        keys = self.keys(config)
        architecture = self.architecture_for(config)
        return {
            "general.architecture": architecture,
            **{f"{architecture}.{key}": value for key, value in keys.items()},
            **self.own_keys(config),
        }

    def tensors(
        self, config: Config, checkpoint: Checkpoint, method: Method, *, with_ahead: bool = False
    ) -> Tensors:
        """All tensors by llama.cpp's names.

        Args:
            config: The model's configuration.
            checkpoint: Its tensors.
            method: How they are quantised.
            with_ahead: Also those of layers that predict tokens further ahead.

        Raises:
            ModelLoadError: A tensor is of no known name, type or shape; or one is missing.
        """
        renaming = Renaming(checkpoint)
        with_ahead = with_ahead and bool(self.ahead)
        tied = config.get("tie_word_embeddings", bool, self.tied)
        names = {name: without_prefix(name) for name in method.names(checkpoint)}
        left_out = {first_of(plain, NOT_TEXT) for plain in names.values()}
        places = {
            name: (with_ahead and placed_ahead(plain, config)) or self._place(plain)
            for name, plain in names.items()
            if first_of(plain, NOT_TEXT) is None
        }
        ahead = layers_ahead(config, places.values())
        if with_ahead:
            ahead |= {
                place.layer
                for name, place in places.items()
                if place.layer is not None and place != self._place(names[name])
            }
        for name, place in places.items():
            is_of_head = place.layer is None and place.name.startswith("lm_head.")
            if (
                (with_ahead or place.layer is None or place.layer not in ahead)
                and first_of(place.name, self.left_out) is None
                and not (tied and is_of_head)
            ):
                self._rename(
                    name,
                    place,
                    {**self.layer, **self.ahead} if place.layer in ahead else self._table(place),
                    config,
                    checkpoint,
                    method,
                    renaming,
                )
        result = renaming.finish()
        for full, rows in self.made(config).items():
            renaming.add(full, rows, "config.json's")
        check_divided(config, result)
        self._check_complete(config, checkpoint, result, tied=tied)
        return Tensors(
            with_float_vectors(result),
            tuple(sorted(filter(None, left_out))),
            ahead=len(ahead) if with_ahead else 0,
        )

    def _rename(
        self,
        name: str,
        place: Place,
        table: Table,
        config: Config,
        checkpoint: Checkpoint,
        method: Method,
        renaming: Renaming,
    ) -> None:
        """Add what becomes of a tensor."""
        entry, kind = _entry(place, table)
        if entry is None:
            raise renaming.error(
                name, f"is not part of a {self.architecture} model as Caudal knows it"
            )
        rows = method.rows(checkpoint, name)
        if not rows.shape or 0 in rows.shape:
            raise renaming.error(name, f"has the shape {list(rows.shape)}")
        found = Found(config, place.layer, kind, rows)
        try:
            news = {found.named(entry): rows} if isinstance(entry, str) else entry(found)
        except ValueError as error:
            raise renaming.error(name, str(error)) from error
        for new, made in news.items():
            full = new if place.layer is None else f"blk.{place.layer}.{new}"
            renaming.add(full, made, name, expert=place.expert)

    def _check_complete(
        self, config: Config, checkpoint: Checkpoint, tensors: Mapping[str, Rows], *, tied: bool
    ) -> None:
        """Refuse a checkpoint that lacks what config.json says is there."""
        if not tied and not self.is_encoder(config) and "output.weight" not in tensors:
            raise ModelLoadError(
                checkpoint.source, "tensor lm_head.weight is missing, and not tied to the embedding"
            )
        lacking = first_lacking(self.needed(config), tensors)
        if lacking is not None:
            raise ModelLoadError(
                checkpoint.source, f"tensor {lacking} is missing, which {CONFIG} says is there"
            )

    def declares(self, config: Config) -> Callable[[str], bool]:
        """Whether a model has a tensor that programs look for and may do without, by its full name.

        What rules make of a tensor isn't known before it is there: such tensors are in `needed`
        where programs look for them.
        """
        tied = config.get("tie_word_embeddings", bool, self.tied) or self.is_encoder(config)
        needed = frozenset(self.needed(config).values())
        named = {entry for entry in self.layer.values() if isinstance(entry, str)}

        def declared(full: str) -> bool:
            if full == "output.weight":
                return not tied
            if not full.startswith("blk."):
                return full in needed
            _, layer, name = full.split(".", 2)
            if name in needed or name.endswith(".bias"):
                return name in needed
            in_tables = name in named or name.removesuffix(".weight") in named
            return in_tables and not self.lacks(config, int(layer), name)

        return declared

    def locate(self, name: str) -> Located:
        """What the tables have for a checkpoint's tensor."""
        place = self._place(without_prefix(name))
        return Located(place.layer, place.expert, *_entry(place, self._table(place)))

    def _place(self, plain: str) -> Place:
        return Place.of(plain, self.layers)

    def _table(self, place: Place) -> Table:
        return self.others if place.layer is None else self.layer


def _entry(place: Place, table: Table) -> tuple[str | Rule | None, str]:
    """What a table has for a tensor, and its kind."""
    if place.name in table:
        return table[place.name], ""
    return table.get(place.module), place.kind


@dataclass(frozen=True, slots=True)
class Located:
    """A checkpoint's tensor, as a family's tables have it.

    Attributes:
        layer: The layer that it is of, None if of none.
        expert: The expert, the same.
        entry: What becomes of it: a name, or a rule; None where the tables have nothing.
        kind: See `Found.kind`.
    """

    layer: int | None
    expert: int | None
    entry: str | Rule | None
    kind: str
