"""What an encoder's own configuration says: sizes, and how its embeddings are made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.formats.model_folder import CONFIG, ModelFolder
from caudal.models.hyperparameters import (
    MAX_HEAD_DIM,
    check_epsilon,
    context_length,
    epsilon,
    positive,
)
from caudal.models.pooling import POOLING_TYPES, Pooling, PoolingKind
from caudal.models.program import ActivationName

_RANK = 4  # pooling_type of GGUF files that score pairs

_ACTIVATIONS: dict[str, ActivationName] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
_POOLING_MODES: dict[str, PoolingKind | None] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": None,
    "pooling_mode_mean_sqrt_len_tokens": None,
    "pooling_mode_weightedmean_tokens": None,
}


_MODULES = [
    ["Transformer", "Pooling", *rest]
    for rest in ([], ["Normalize"], ["Dense"], ["Dense", "Normalize"])
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLayer:
    """A linear layer on the pooled state, as sentence-transformers' `Dense` module.

    Attributes:
        path: Its folder within the model's.
        width: Components it gives.
        activation: What follows, or None.
    """

    path: str
    width: int
    activation: Literal["tanh"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """Sizes and switches of an encoder.

    Attributes:
        layers: Blocks.
        hidden: Width of the residual stream.
        feed_forward: Width inside the MLP.
        heads: Attention heads.
        eps: Added to the variance in LayerNorm.
        activation: Inside the MLP.
        context_length: Longest input, in tokens.
        pooling: How embeddings are made.
        dense: A layer after the pooling, or None.
        lowercase: Text is put in lower case before the tokenizer sees it.
    """

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    eps: float
    activation: ActivationName
    context_length: int
    pooling: Pooling
    dense: DenseLayer | None = None
    lowercase: bool = False

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        return self.hidden // self.heads

    @classmethod
    def from_gguf(cls, file: ModelFile) -> EncoderConfig:
        """Read the `bert.*` keys.

        Raises:
            ModelLoadError: A key is missing, has a wrong type, or asks for what isn't supported.
        """
        arch = file.architecture
        if file.get_bool(f"{arch}.attention.causal", False):
            raise ModelLoadError(
                str(file.path), f"{arch}.attention.causal is true; BERT attends both ways"
            )
        number = file.get_int(f"{arch}.pooling_type", 1)
        if number == _RANK:
            pooling = Pooling(kind="cls", normalize=False, scores_pairs=True)
        elif number in POOLING_TYPES:
            pooling = Pooling(kind=POOLING_TYPES[number], normalize=True)
        else:
            raise ModelLoadError(
                str(file.path),
                f"{arch}.pooling_type is {number}; supported are 1 (mean), 2 (cls), 3 (last) and "
                "4 (rank)",
            )
        config = cls(
            layers=positive(file, f"{arch}.block_count"),
            hidden=positive(file, f"{arch}.embedding_length"),
            feed_forward=positive(file, f"{arch}.feed_forward_length"),
            heads=positive(file, f"{arch}.attention.head_count"),
            eps=epsilon(file, f"{arch}.attention.layer_norm_epsilon"),
            activation="gelu",
            context_length=context_length(file, f"{arch}.context_length"),
            pooling=pooling,
        )
        config._check(str(file.path))
        return config

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> EncoderConfig:
        """Read `config.json` and what sentence-transformers keeps beside it.

        Without `modules.json` nothing says how to pool: it is the mean then, normalised.

        Raises:
            ModelLoadError: A key is missing, has a wrong type, or asks for what isn't supported.
        """
        config = folder.read_object(CONFIG)
        source = config.source
        kind = config.get("model_type", str)
        if kind != "bert":
            raise ModelLoadError(
                source, f"model_type {kind!r} is not supported; supported is 'bert'"
            )
        positions = config.get("position_embedding_type", str, "absolute")
        if positions != "absolute":
            raise ModelLoadError(
                source, f"position_embedding_type is {positions!r}; only 'absolute' is supported"
            )
        if config.get("is_decoder", bool, False):
            raise ModelLoadError(source, "is_decoder is true; only encoders are supported")
        activation = config.get("hidden_act", str, "gelu")
        if activation not in _ACTIVATIONS:
            known = ", ".join(_ACTIVATIONS)
            raise ModelLoadError(source, f"hidden_act is {activation!r}; supported are {known}")
        result = cls(
            layers=config.positive("num_hidden_layers"),
            hidden=config.positive("hidden_size"),
            feed_forward=config.positive("intermediate_size"),
            heads=config.positive("num_attention_heads"),
            eps=check_epsilon(source, "layer_norm_eps", config.get("layer_norm_eps", float, 1e-12)),
            activation=_ACTIVATIONS[activation],
            context_length=config.positive("max_position_embeddings"),
            pooling=Pooling(kind="mean", normalize=True),
        )
        result._check(source)
        classes = config.get("architectures", list, [])
        if any(str(name).endswith("ForSequenceClassification") for name in classes):
            sigmoid = "Identity" not in _score_activation(folder)
            pooling = Pooling(kind="cls", normalize=False, scores_pairs=True, score_sigmoid=sigmoid)
            return replace(result, pooling=pooling)
        matryoshka = config.get("matryoshka_dimensions", list, [])
        if not all(type(size) is int and size > 0 for size in matryoshka):
            raise ModelLoadError(source, "matryoshka_dimensions must be a list of sizes")
        return _with_modules(result, folder, tuple(sorted(matryoshka)))

    def _check(self, source: str) -> None:
        if self.hidden % self.heads != 0:
            raise ModelLoadError(
                source, f"the width {self.hidden} is not a multiple of the {self.heads} heads"
            )
        if self.head_dim % 8 != 0 or self.head_dim > MAX_HEAD_DIM:
            raise ModelLoadError(
                source,
                f"heads of {self.head_dim} channels; supported are multiples of 8, up to "
                f"{MAX_HEAD_DIM}",
            )


def _score_activation(folder: ModelFolder) -> str:
    """What a cross-encoder's configuration applies to its scores, by the name of its class."""
    content = folder.read_json(CONFIG)
    newer = content.get("sentence_transformers")
    name = newer.get("activation_fn") if isinstance(newer, dict) else None
    return str(name or content.get("sbert_ce_default_activation_function") or "Sigmoid")


def _with_modules(
    config: EncoderConfig, folder: ModelFolder, matryoshka: tuple[int, ...]
) -> EncoderConfig:
    pooling = replace(config.pooling, dimensions=matryoshka)
    if "modules.json" not in folder:
        return replace(config, pooling=pooling)
    source = str(folder.path("modules.json"))
    modules = folder.read_json("modules.json")
    if not isinstance(modules, list) or not all(isinstance(each, dict) for each in modules):
        raise ModelLoadError(source, "expected a list of modules")
    dense: DenseLayer | None = None
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if kinds not in _MODULES:
        raise ModelLoadError(
            source,
            f"the modules are {', '.join(kinds)}; supported are Transformer, Pooling and then, "
            "where wanted, Dense and Normalize",
        )
    for kind, module in zip(kinds, modules, strict=True):
        path = str(module.get("path", ""))
        if kind == "Pooling":
            pooling = replace(pooling, kind=_pooling_kind(folder, f"{path}/{CONFIG}"))
        elif kind == "Dense":
            dense = _dense(folder, path, pooling.kind)
    if "sentence_bert_config.json" in folder:
        settings = folder.read_object("sentence_bert_config.json")
        longest = settings.positive("max_seq_length", config.context_length)
        config = replace(
            config,
            context_length=min(longest, config.context_length),
            lowercase=settings.get("do_lower_case", bool, False),
        )
    pooling = replace(pooling, normalize="Normalize" in kinds)
    return replace(config, pooling=pooling, dense=dense)


def _pooling_kind(folder: ModelFolder, name: str) -> PoolingKind:
    settings = folder.read_object(name)
    chosen = [mode for mode in _POOLING_MODES if settings.get(mode, bool, False)]
    kinds = [_POOLING_MODES[mode] for mode in chosen]
    if len(kinds) != 1 or kinds[0] is None:
        raise ModelLoadError(
            settings.source,
            f"it asks for {' and '.join(chosen) or 'no pooling'}; supported is one of mean_tokens, "
            "cls_token and lasttoken",
        )
    return kinds[0]


def _dense(folder: ModelFolder, path: str, pooling: PoolingKind) -> DenseLayer:
    settings = folder.read_object(f"{path}/{CONFIG}")
    name = settings.get("activation_function", str, "torch.nn.modules.activation.Tanh")
    activation = name.rpartition(".")[2]
    # A linear layer gives the same before the mean as after it; with Tanh it doesn't.
    if activation not in ("Identity", "Tanh") or (activation == "Tanh" and pooling == "mean"):
        raise ModelLoadError(
            settings.source,
            f"activation_function is {name} after {pooling} pooling; supported are Identity, and "
            "Tanh after cls or last",
        )
    return DenseLayer(
        path=path,
        width=settings.positive("out_features"),
        activation="tanh" if activation == "Tanh" else None,
    )
