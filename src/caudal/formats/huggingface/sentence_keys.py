"""What sentence-transformers keeps beside a model: how embeddings are made of its states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caudal.errors import ModelLoadError
from caudal.formats import embedding_keys
from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.huggingface.config import Config
from caudal.formats.model_folder import CONFIG, ModelFolder

_MODULES = "modules.json"
_SETTINGS = "sentence_bert_config.json"
_PROMPTS = "config_sentence_transformers.json"
_MOST_DENSE = 8
_MOST_PROMPTS, _LONGEST_PROMPT = 256, 4096

_POOLING_TYPES: dict[str, int | None] = {
    "mean_tokens": 1,
    "cls_token": 2,
    "lasttoken": 3,
    "max_tokens": None,
    "mean_sqrt_len_tokens": None,
    "weightedmean_tokens": None,
}
_NEWER_NAMES = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceModules:
    """What follows the states of tokens.

    Attributes:
        pooling_type: GGUF's number of the pooling; None where nothing says how to pool.
        normalize: Whether embeddings have length 1; None likewise.
        dense: Folders of linear layers on the states, in order, each with what follows it.
        max_length: Longest input, where a file says so.
        lowercase: Text is put in lower case before the tokenizer sees it.
        prompts: What comes before texts, by name.
        default_prompt: The name of what comes before texts of which nothing is said.
    """

    pooling_type: int | None = None
    normalize: bool | None = None
    dense: Mapping[str, str]
    max_length: int | None = None
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None

    @classmethod
    def read(cls, folder: ModelFolder) -> SentenceModules:
        """Read a folder's.

        Raises:
            ModelLoadError: It asks for modules or modes that aren't computed; names them.
        """
        if _MODULES not in folder:
            return cls(dense={})
        source = str(folder.path(_MODULES))
        modules = folder.read_json(_MODULES)
        if not isinstance(modules, list) or not all(isinstance(each, dict) for each in modules):
            raise ModelLoadError(source, "expected a list of modules")
        kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
        paths = [str(module.get("path", "")) for module in modules]
        between = kinds[2:-1] if kinds[-1:] == ["Normalize"] else kinds[2:]
        if (
            kinds[:2] != ["Transformer", "Pooling"]
            or any(kind != "Dense" for kind in between)
            or len(between) > _MOST_DENSE
        ):
            raise ModelLoadError(
                source,
                f"the modules are {', '.join(kinds)}; supported are Transformer, Pooling and then, "
                "where wanted, Dense and Normalize",
            )
        pooling_type = _pooling_type(folder, f"{paths[1]}/{CONFIG}")
        dense = {
            path: _dense_activation(folder, f"{path}/{CONFIG}", pooling_type)
            for path in paths[2 : 2 + len(between)]
        }
        if len(dense) != len(between):
            raise ModelLoadError(source, "two modules have the same path")
        max_length, lowercase = None, False
        if _SETTINGS in folder:
            settings = folder.read_object(_SETTINGS)
            if "max_seq_length" in settings:
                max_length = settings.positive("max_seq_length")
            lowercase = settings.get("do_lower_case", bool, False)
        prompts, default_prompt = _prompts(folder, f"{paths[1]}/{CONFIG}")
        return cls(
            pooling_type=pooling_type,
            normalize="Normalize" in kinds,
            dense=dense,
            max_length=max_length,
            lowercase=lowercase,
            prompts=prompts,
            default_prompt=default_prompt,
        )


def embedding_metadata(
    config: Config, modules: SentenceModules, architecture: str, *, is_encoder: bool
) -> dict[str, MetadataValue]:
    """The keys of how a folder's model makes embeddings, or scores pairs.

    Without modules nothing says how to pool: it is the normalised mean then, or what the family
    of a model that generates does.

    Raises:
        ModelLoadError: config.json has values that it can't have.
    """
    keys: dict[str, MetadataValue] = {}
    if is_encoder and scores_pairs(config):
        keys[f"{architecture}.pooling_type"] = embedding_keys.RANK
        keys[embedding_keys.SIGMOID] = "Identity" not in _score_activation(config.content)
        return keys
    if modules.pooling_type is not None:
        keys[f"{architecture}.pooling_type"] = modules.pooling_type
    if modules.normalize is not None:
        keys[embedding_keys.NORMALIZE] = modules.normalize
    if modules.dense:
        keys[embedding_keys.DENSE] = list(modules.dense.values())
    if modules.lowercase and is_encoder:
        keys[embedding_keys.LOWERCASE] = True
    if modules.prompts:
        keys[embedding_keys.PROMPT_NAMES] = list(modules.prompts)
        keys[embedding_keys.PROMPTS] = list(modules.prompts.values())
    if modules.default_prompt is not None:
        keys[embedding_keys.DEFAULT_PROMPT] = modules.default_prompt
    sizes = config.get("matryoshka_dimensions", list, [])
    if not all(type(size) is int and 0 < size < 2**31 for size in sizes):
        raise config.error("matryoshka_dimensions must be a list of sizes")
    if sizes:
        keys[embedding_keys.DIMENSIONS] = np.array(sorted(sizes), np.int32)
    return keys


def scores_pairs(config: Config) -> bool:
    """Whether a configuration is that of a cross-encoder."""
    classes = config.get("architectures", list, [])
    return any(str(name).endswith("ForSequenceClassification") for name in classes)


def _score_activation(content: Mapping[str, Any]) -> str:
    """What a cross-encoder's configuration applies to its scores, by the name of its class."""
    newer = content.get("sentence_transformers")
    name = newer.get("activation_fn") if isinstance(newer, dict) else None
    return str(name or content.get("sbert_ce_default_activation_function") or "Sigmoid")


def _prompts(folder: ModelFolder, pooling: str) -> tuple[Mapping[str, str], str | None]:
    """What comes before texts, by name, and the name of what does where nothing is said.

    Models whose embeddings leave out the prompt's own tokens (INSTRUCTOR) are as if they had none:
    which tokens those are isn't known any more where states are added up.
    """
    if _PROMPTS not in folder or not folder.read_object(pooling).get("include_prompt", bool, True):
        return {}, None
    settings = folder.read_object(_PROMPTS)
    prompts = settings.get("prompts", dict, {})
    texts = (*prompts, *prompts.values())
    if len(prompts) > _MOST_PROMPTS or not all(
        isinstance(text, str) and len(text) <= _LONGEST_PROMPT for text in texts
    ):
        raise ModelLoadError(
            settings.source,
            f"prompts must be up to {_MOST_PROMPTS} texts of up to {_LONGEST_PROMPT} letters, by "
            "name",
        )
    default = settings.get("default_prompt_name", str, None)
    if default is not None and default not in prompts:
        raise ModelLoadError(
            settings.source, f"default_prompt_name is {default!r:.50}, which prompts doesn't have"
        )
    return prompts, default


def _pooling_type(folder: ModelFolder, name: str) -> int:
    settings = folder.read_object(name)
    chosen = [mode for mode in _POOLING_TYPES if settings.get(f"pooling_mode_{mode}", bool, False)]
    newer = settings.get("pooling_mode", str, "")
    if newer:
        chosen = [_NEWER_NAMES.get(newer, newer)]
    numbers = [_POOLING_TYPES.get(mode) for mode in chosen]
    if len(numbers) != 1 or numbers[0] is None:
        modes = " and ".join(f"pooling_mode_{mode}" for mode in chosen)
        raise ModelLoadError(
            settings.source,
            f"it asks for {modes or 'no pooling'}; supported is one of mean_tokens, cls_token and "
            "lasttoken",
        )
    return numbers[0]


def _dense_activation(folder: ModelFolder, name: str, pooling_type: int) -> str:
    settings = folder.read_object(name)
    given = settings.get("activation_function", str, "torch.nn.modules.activation.Tanh")
    activation = given.rpartition(".")[2]
    # A linear layer gives the same before the mean as after it; with Tanh it doesn't.
    if activation not in ("Identity", "Tanh") or (activation == "Tanh" and pooling_type == 1):
        pooling = {1: "mean", 2: "cls", 3: "last"}[pooling_type]
        raise ModelLoadError(
            settings.source,
            f"activation_function is {given} after {pooling} pooling; supported are Identity, and "
            "Tanh after cls or last",
        )
    return activation.lower()
