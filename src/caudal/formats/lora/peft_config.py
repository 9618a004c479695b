"""A PEFT adapter's configuration: what it may ask for, and how far its changes are scaled."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from caudal.errors import ModelLoadError
from caudal.formats.model_folder import JsonObject, ModelFolder

CONFIG = "adapter_config.json"

_REFUSED = {
    "use_dora": "DoRA, which changes lengths of rows as well",
    "use_qalora": "QALoRA",
    "lora_bias": "biases of factors",
    "modules_to_save": "modules that are trained and saved whole",
    "trainable_token_indices": "embeddings of tokens that are trained and saved whole",
    "target_parameters": "changes of parameters that are no modules, as stacked experts",
    "layer_replication": "a model with some layers more than once",
    "alora_invocation_tokens": "activated LoRA",
    "arrow_config": "Arrow's routing among adapters",
    "use_bdlora": "block-diagonal LoRA",
    "velora_config": "VeLoRA",
}
"""Keys that have to be null, false or empty, and what they would ask for."""

_CHANGES_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to begin that take something away from the model's own matrices: without the changed model
that such an adapter was trained on, it means nothing."""

_QUANTIFIER = r"[*+?{]"
_MAX_PATTERN = 200
_MAX_QUANTIFIERS = 2
_MAX_REPEATING = 8
"""Patterns are from strangers, and have to be matched against names of modules in bounded time."""


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """What the configuration says of the factors.

    Attributes:
        source: The file, for errors.
        rank: Their rank, where no pattern says otherwise.
        alpha: How far changes are scaled, where no pattern says otherwise.
        rank_patterns: Ranks of some modules.
        alpha_patterns: Alphas of some modules.
        rank_stabilised: Whether alpha is divided by the rank's root instead of the rank (rsLoRA,
            arXiv 2312.03732).
    """

    source: str
    rank: int
    alpha: float
    rank_patterns: Mapping[re.Pattern[str], float]
    alpha_patterns: Mapping[re.Pattern[str], float]
    rank_stabilised: bool

    @classmethod
    def of(cls, folder: ModelFolder) -> PeftConfig:
        """A folder's.

        Raises:
            ModelLoadError: It is missing or damaged, or asks for what isn't computed; names the
                key.
        """
        config = folder.read_object(CONFIG)

        def error(reason: str) -> ModelLoadError:
            return ModelLoadError(config.source, reason)

        kind = config.get("peft_type", str)
        if kind != "LORA":
            raise error(f"peft_type is {kind!r:.80}; supported is 'LORA'")
        for key, what in _REFUSED.items():
            if config.content.get(key):
                raise error(f"{key} asks for {what}, which is not supported")
        bias = config.get("bias", str, "none")
        if bias != "none":
            raise error(f"bias is {bias!r:.80}: trained biases are not supported")
        start = config.content.get("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(_CHANGES_THE_BASE):
            raise error(
                f"init_lora_weights is {start!r:.80}, which changes the model's own matrices; "
                "convert the adapter to plain LoRA when saving it"
            )
        return cls(
            source=config.source,
            rank=config.positive("r", 8),
            alpha=config.get("lora_alpha", float, 8.0),
            rank_patterns=_patterns(config, "rank_pattern"),
            alpha_patterns=_patterns(config, "alpha_pattern"),
            rank_stabilised=config.get("use_rslora", bool, False),
        )

    def rank_of(self, module: str) -> int:
        """The rank of a module's factors."""
        return int(_matching(self.rank_patterns, module, self.rank))

    def scale_of(self, module: str) -> float:
        """What a module's change is multiplied by."""
        rank = self.rank_of(module)
        alpha = _matching(self.alpha_patterns, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.rank_stabilised else rank)


def _matching(patterns: Mapping[re.Pattern[str], float], module: str, default: float) -> float:
    """The value of the first pattern that a module's whole name, or its end, matches."""
    return next((value for key, value in patterns.items() if key.match(module)), default)


def _patterns(config: JsonObject, key: str) -> dict[re.Pattern[str], float]:
    given: dict[str, Any] = config.get(key, dict, {})
    values = JsonObject(f"{config.source}: {key}", given)
    if sum(_quantifiers(name) > 0 for name in given) > _MAX_REPEATING:
        raise ModelLoadError(values.source, f"more than {_MAX_REPEATING} patterns repeat something")
    patterns = {_pattern(values, name): values.get(name, float) for name in given}
    if key == "rank_pattern":
        for name in given:
            values.positive(name)
    return patterns


def _quantifiers(text: str) -> int:
    return len(re.findall(_QUANTIFIER, text))


def _pattern(values: JsonObject, text: str) -> re.Pattern[str]:
    """A regular expression as PEFT applies it; one that could take forever is refused."""
    repeated_group = re.search(rf"\){_QUANTIFIER}", text)
    if len(text) > _MAX_PATTERN or _quantifiers(text) > _MAX_QUANTIFIERS or repeated_group:
        raise ModelLoadError(values.source, f"the pattern {text!r:.80} is too complex")
    try:
        return re.compile(rf"(.*\.)?({text})$")
    except (re.error, OverflowError, RecursionError) as error:
        raise ModelLoadError(
            values.source, f"{text!r:.80} is no regular expression: {error}"
        ) from error
