"""What a family's checkpoints are: keys, names and layouts of one architecture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from caudal.errors import ModelLoadError
from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.huggingface.checkpoint import Checkpoint
from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.methods import Method
from caudal.formats.huggingface.needed import Needed, declared_biases, first_lacking
from caudal.formats.huggingface.rope_keys import check_divided
from caudal.formats.huggingface.rows import Joined, Rows, in_order, mapped
from caudal.formats.huggingface.tensor_rules import Found, Rule, one_plus, permuted_heads, split
from caudal.formats.model_folder import CONFIG
from caudal.formats.tensor_types import TensorType

Keys = Mapping[str, MetadataValue]
Table = Mapping[str, str | Rule]
"""From names without prefixes (`self_attn.q_proj`, or `A_log` of a tensor that is no module's) to
llama.cpp's, or to rules. A number of an expert is `*`: `mlp.experts.*.up_proj`; tensors that differ
in it alone are stacked."""

# What comes before names in models of text alone, and of more; the longest first.
_PREFIXES = (
    "model.language_model.",
    "language_model.model.",
    "language_model.backbone.",
    "language_model.",
    "backbone.",
    "model.",
    "bert.",
    "roberta.",
)
_KINDS = {"gamma": "weight", "beta": "bias"}
"""What older files call the parts of a norm."""
_MAX_EXPERTS = 4096
_AHEAD = ("eh_proj", "enorm", "hnorm")
"""Modules of layers that predict tokens further ahead: what joins a state and an embedding."""
_STACKS = ("experts", "norms", "altup_projections", "altup_unembed_projections")
"""Lists of modules, by number, whose tensors are stacked."""

NOT_TEXT = (
    "vision_tower",
    "vision_model",
    "visual",
    "multi_modal_projector",
    "mm_projector",
    "audio_tower",
    "embed_vision",
    "embed_audio",
    "patch_merger",
    "vision_language_adapter",
    "vision_adapter",
    "vision_embedder",
    "vision_projection",
)
"""Modules of models of more than text, which are left out: text is what is loaded."""

MLP: Table = {
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
EXPERTS: Table = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.*.gate_proj": "ffn_gate_exps",
    "mlp.experts.*.up_proj": "ffn_up_exps",
    "mlp.experts.*.down_proj": "ffn_down_exps",
    "mlp.experts.gate_up_proj": split("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "mlp.experts.down_proj": "ffn_down_exps.weight",
}
SHARED_EXPERT: Table = {
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
SHARED_EXPERTS: Table = {
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
ATTENTION: Table = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}
NORMS: Table = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
"""Names that most families share."""

PERMUTED_ATTENTION: Table = {
    **ATTENTION,
    "self_attn.q_proj": permuted_heads("attn_q", "num_attention_heads"),
    "self_attn.k_proj": permuted_heads("attn_k", "num_key_value_heads"),
}
"""Attention whose RoPE pairs halves of a head here, and neighbours in llama.cpp's files."""

GEMMA_NORMS: Table = {
    "input_layernorm": one_plus("attn_norm"),
    "post_attention_layernorm": one_plus("post_attention_norm"),
    "pre_feedforward_layernorm": one_plus("ffn_norm"),
    "post_feedforward_layernorm": one_plus("post_ffw_norm"),
}
"""Norms before and behind both halves of a layer, with weights relative to 1."""

DECODER: Table = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
}
"""Names outside of layers that most families share."""


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

    def tensors(self, config: Config, checkpoint: Checkpoint, method: Method) -> Tensors:
        """All tensors by llama.cpp's names.

        Raises:
            ModelLoadError: A tensor is of no known name, type or shape; or an expert is missing.
        """
        result: dict[str, Rows] = {}
        origins: dict[str, str] = {}
        experts: dict[str, dict[int, Rows]] = defaultdict(dict)
        left_out: set[str] = set()
        tied = config.get("tie_word_embeddings", bool, self.tied)
        names = list(method.names(checkpoint))
        ahead = _layers_ahead(config, (self._place(_without_prefix(name)) for name in names))

        def add(new: str, rows: Rows, name: str) -> None:
            if new in result:
                raise checkpoint_error(checkpoint, name, f"and {origins[new]} are both {new}")
            result[new] = rows
            origins[new] = name

        for name in names:
            plain = _without_prefix(name)
            outside = _first_of(plain, NOT_TEXT)
            if outside is not None:
                left_out.add(outside)
                continue
            place = self._place(plain)
            if place.layer is not None and place.layer in ahead:
                continue
            if _first_of(place.name, self.left_out) is not None:
                continue
            if tied and place.layer is None and plain.startswith("lm_head."):
                continue
            entry, kind = self._entry(place)
            if entry is None:
                raise checkpoint_error(
                    checkpoint,
                    name,
                    f"is not part of a {self.architecture} model as Caudal knows it",
                )
            rows = method.rows(checkpoint, name)
            if not rows.shape or 0 in rows.shape:
                raise checkpoint_error(checkpoint, name, f"has the shape {list(rows.shape)}")
            found = Found(config, place.layer, kind, rows)
            try:
                news = {found.named(entry): rows} if isinstance(entry, str) else entry(found)
            except ValueError as error:
                raise checkpoint_error(checkpoint, name, str(error)) from error
            for new, made in news.items():
                full = new if place.layer is None else f"blk.{place.layer}.{new}"
                if place.expert is None:
                    add(full, made, name)
                elif place.expert in experts[full]:
                    raise checkpoint_error(checkpoint, name, f"and another are both {full}")
                else:
                    experts[full][place.expert] = made
        for full, parts in experts.items():
            add(full, _stacked(checkpoint, full, parts), parts[min(parts)].name)
        for full, rows in self.made(config).items():
            add(full, rows, "config.json's")
        check_divided(config, result)
        if not tied and not self.is_encoder(config) and "output.weight" not in result:
            raise ModelLoadError(
                checkpoint.source, "tensor lm_head.weight is missing, and not tied to the embedding"
            )
        lacking = first_lacking(self.needed(config), result)
        if lacking is not None:
            raise ModelLoadError(
                checkpoint.source, f"tensor {lacking} is missing, which {CONFIG} says is there"
            )
        # As converters do: vectors are float32, whatever the matrices are.
        plain_vectors = {
            full: mapped(rows, lambda values: values)
            for full, rows in result.items()
            if len(rows.shape) == 1 and rows.type in (TensorType.F16, TensorType.BF16)
        }
        return Tensors({**result, **plain_vectors}, tuple(sorted(left_out)))

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
        place = self._place(_without_prefix(name))
        return Located(place.layer, place.expert, *self._entry(place))

    def _place(self, plain: str) -> _Place:
        return _Place.of(plain, self.layers)

    def _entry(self, place: _Place) -> tuple[str | Rule | None, str]:
        """What the tables have for a tensor, and its kind."""
        table = self.others if place.layer is None else self.layer
        if place.name in table:
            return table[place.name], ""
        module, _, kind = place.name.rpartition(".")
        return table.get(module), _KINDS.get(kind, kind)


@dataclass(frozen=True, slots=True)
class Tensors:
    """A checkpoint under llama.cpp's names.

    Attributes:
        rows: The tensors by name.
        left_out: Modules that aren't loaded, because they aren't for text.
    """

    rows: Mapping[str, Rows]
    left_out: tuple[str, ...]

    def in_order(self) -> Tensors:
        """These, with the columns of all in order."""
        return replace(self, rows={name: in_order(rows) for name, rows in self.rows.items()})

    def joined(self, more: Mapping[str, Rows]) -> Tensors:
        """These, and more."""
        return Tensors({**self.rows, **more}, self.left_out)


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


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor's name taken apart: its layer, its expert (or its place in another stack), and the
    name without either number.
    """

    layer: int | None
    expert: int | None
    name: str

    @classmethod
    def of(cls, plain: str, layers: Iterable[str]) -> _Place:
        layer = expert = None
        for prefix in layers:
            number, _, rest = plain.removeprefix(prefix).partition(".")
            if plain.startswith(prefix) and rest and _is_number(number):
                layer, plain = int(number), rest
                break
        parts = plain.split(".")
        at = next((at for at, part in enumerate(parts[:-1], 1) if part in _STACKS), None)
        if at is not None and _is_number(parts[at]):
            expert = int(parts[at])
            parts = [*parts[:at], "*", *parts[at + 1 :]]
        return cls(layer, expert, ".".join(parts))


def _layers_ahead(config: Config, places: Iterable[_Place]) -> set[int]:
    """Layers behind the others that only predict tokens further ahead, and aren't loaded.

    Those are as many as config.json counts, and which have modules that no others do: tools that
    make new files may leave the key out, and keep the tensors.
    """
    if "num_hidden_layers" not in config:
        return set()
    first = config.positive("num_hidden_layers")
    count = config.get("num_nextn_predict_layers", int, 0)
    return {
        place.layer
        for place in places
        if place.layer is not None
        and place.layer >= first
        and (place.layer < first + count or _first_of(place.name, _AHEAD) is not None)
    }


def checkpoint_error(checkpoint: Checkpoint, name: str, reason: str) -> ModelLoadError:
    """What to raise about a tensor, which may be one that several stored ones make up."""
    if name in checkpoint:
        return checkpoint.error(name, reason)
    return ModelLoadError(checkpoint.source, f"tensor {name} {reason}")


def _stacked(checkpoint: Checkpoint, name: str, parts: Mapping[int, Rows]) -> Rows:
    """The experts' matrices, [experts][rows][columns]; of vectors, [experts][columns]."""
    missing = [expert for expert in range(len(parts)) if expert not in parts]
    if missing:
        raise ModelLoadError(
            checkpoint.source, f"{name}: expert {missing[0]} is missing of {len(parts)}"
        )
    ordered = [in_order(parts[expert]) for expert in range(len(parts))]
    if len({(part.shape, part.type) for part in ordered}) > 1:
        raise ModelLoadError(checkpoint.source, f"{name}: experts differ in shape or type")
    return Joined(name, ordered, (len(ordered), *ordered[0].shape))


def _without_prefix(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _first_of(name: str, modules: Iterable[str]) -> str | None:
    """Which of the modules a tensor is, or is within."""
    for module in modules:
        if name == module or name.startswith(f"{module}."):
            return module
    return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 4
