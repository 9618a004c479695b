"""The figures of a model of which little is known: the general arithmetic, of layers that attend.

It serves figures on the command line, and models of architectures that Caudal doesn't compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from caudal.backends.native.costs import BYTES_PER_FLOAT, Passed
from caudal.conversion.mixes import find_mix
from caudal.errors import ModelLoadError, ParameterError
from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.rope_keys import SLIDING
from caudal.formats.model_file import ModelFile
from caudal.models.program import KVLayer, StateLayer
from caudal.planning.figures import SMALLER, ModelFigures

_MOST = 1 << 31
_BITS = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenFigures:
    """What somebody says of a model.

    Attributes:
        layers: Layers that keep keys and values.
        kv_heads: KV heads of a layer.
        head_dim: Channels of a key's head.
        value_dim: Channels of a value's head; None: as many.
        latent: Channels of a latent that is kept instead of keys and values (MLA); None: none.
        window: Tokens that layers with windows see; None: there are none.
        window_layers: How many of the layers have it.
        state_bytes: Bytes of a sequence's recurrent states.
        parameters: Weights.
        active: Weights that a token goes through; None: all.
        bits: Bits of a weight.
        context_length: Tokens that it was trained for; None: nobody says.

    Raises:
        ParameterError: One of them can't be, or some are missing.
    """

    layers: int
    kv_heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    latent: int | None = None
    window: int | None = None
    window_layers: int | None = None
    state_bytes: int = 0
    parameters: int = 0
    active: int | None = None
    bits: float = _BITS
    context_length: int | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_dim", "value_dim", "latent", "window"):
            value = getattr(self, name)
            if value is not None and not 0 < value < _MOST:
                raise ParameterError(name, f"{name} must be positive, but is {value}")
        if self.layers > 1 << 16:
            raise ParameterError("layers", f"{self.layers} layers are more than any model has")
        if self.latent is None and (self.kv_heads is None or self.head_dim is None):
            raise ParameterError(
                "kv_heads", "--layers goes with --kv-heads and --head-dim, or with --latent"
            )
        of_heads = (self.kv_heads, self.head_dim, self.value_dim)
        if self.latent is not None and any(each is not None for each in of_heads):
            raise ParameterError(
                "latent", "--latent is kept instead of heads: without --kv-heads and --*-dim"
            )
        if (self.window is None) != (self.window_layers is None):
            raise ParameterError("window", "--window and --window-layers go together")
        if not 0 <= (self.window_layers or 0) <= self.layers:
            raise ParameterError(
                "window_layers", f"window_layers must be 0 to {self.layers}, the layers there are"
            )
        if not 0 < self.bits <= 64:
            raise ParameterError("bits", f"bits must be more than 0, 64 at most; not {self.bits}")
        if self.state_bytes < 0 or self.parameters < 0:
            raise ParameterError("parameters", "there are no fewer than no weights")
        if not 0 <= (self.active or 0) <= self.parameters:
            raise ParameterError(
                "active_parameters", f"active_parameters must be 0 to {self.parameters}"
            )

    @property
    def kv_layers(self) -> tuple[KVLayer, ...]:
        """The layers, those with windows first."""
        local = self.window_layers or 0
        return (self._layer(self.window),) * local + (self._layer(None),) * (self.layers - local)

    def _layer(self, window: int | None) -> KVLayer:
        if self.latent is not None:
            return KVLayer(1, self.latent, window, latent=True)
        assert self.kv_heads is not None
        assert self.head_dim is not None
        return KVLayer(self.kv_heads, self.head_dim, window, self.value_dim)


def bits_of(quantisation: str) -> float:
    """Bits of a weight by a quantisation: those of its most frequent type.

    Raises:
        ConversionError: There is no such quantisation.
    """
    kind = find_mix(quantisation).type
    return 8 * kind.block_bytes / kind.block_elements


def figures_given(given: GivenFigures, *, name: str, quantisation: str = "") -> ModelFigures:
    """The figures of a model as somebody gives them."""
    weights = round(given.parameters * given.bits / 8)
    active = given.parameters if given.active is None else given.active
    states = (StateLayer(-(-given.state_bytes // BYTES_PER_FLOAT)),) if given.state_bytes else ()
    return ModelFigures(
        name=name,
        source="figures given",
        architecture="",
        parameters=given.parameters,
        quantisation=quantisation or f"{given.bits:g} bits",
        weights=weights,
        file_bytes=None,
        kv_layers=given.kv_layers,
        state_layers=states,
        context_length=given.context_length,
        workspace=None,
        passed=Passed(round(active * given.bits / 8), ()),
        active=active,
        others=lambda: _others(given.parameters, weights),
    )


def _others(parameters: int, weights: int) -> Mapping[str, int]:
    sizes = {name: round(parameters * bits_of(name) / 8) for name in SMALLER}
    return {name: size for name, size in sizes.items() if size < weights}


def figures_of_foreign(
    layers: tuple[KVLayer, ...],
    *,
    name: str,
    source: str,
    architecture: str,
    reason: str,
    context_length: int | None,
    file_bytes: int,
    parameters: int = 0,
) -> ModelFigures:
    """The figures of a model that Caudal doesn't compute: its files' bytes, and its layers'."""
    return ModelFigures(
        name=name,
        source=source,
        architecture=architecture,
        parameters=parameters,
        quantisation="as in its files",
        weights=file_bytes,
        file_bytes=file_bytes,
        kv_layers=layers,
        state_layers=(),
        context_length=context_length,
        workspace=None,
        passed=Passed(file_bytes, ()),
        active=parameters,
        obstacle=reason,
    )


def layers_of_config(config: Config) -> tuple[KVLayer, ...]:
    """Layers that attend, by the keys that most configurations have.

    Raises:
        ModelLoadError: It doesn't have them.
    """
    count = config.positive("num_hidden_layers")
    if count > 1 << 16:
        raise config.error(f"num_hidden_layers is {count}")
    window: int | None = None
    if config.content.get("sliding_window") is not None:
        window = config.positive("sliding_window")
    kinds = config.content.get("layer_types")
    local = [kind == SLIDING for kind in kinds] if isinstance(kinds, list) else [False] * count
    if len(local) != count:
        raise config.error(f"layer_types isn't a kind for each of {count} layers")
    attending = kinds if isinstance(kinds, list) else [""] * count
    return tuple(
        _config_layer(config, window if is_local else None)
        for kind, is_local in zip(attending, local, strict=True)
        if ("attention" in str(kind) and "linear" not in str(kind)) or not kind
    )


def _config_layer(config: Config, window: int | None) -> KVLayer:
    if "kv_lora_rank" in config:
        channels = config.positive("kv_lora_rank") + config.positive("qk_rope_head_dim")
        return KVLayer(1, channels, window, latent=True)
    heads = config.positive("num_attention_heads")
    default = max(config.positive("hidden_size") // heads, 1)
    return KVLayer(
        config.positive("num_key_value_heads", heads), config.positive("head_dim", default), window
    )


def layers_of_gguf(file: ModelFile) -> tuple[KVLayer, ...]:
    """Layers that attend, by the keys that most GGUF files have.

    Raises:
        ModelLoadError: It doesn't have them.
    """
    prefix = file.architecture
    count = file.get_int(f"{prefix}.block_count")
    heads = file.get_int(f"{prefix}.attention.head_count")
    width = file.get_int(f"{prefix}.embedding_length")
    key = f"{prefix}.attention.head_count_kv"
    given: Any = file.metadata.get(key)
    kv_heads = [int(each) for each in given] if isinstance(given, np.ndarray) else None
    kv_heads = kv_heads or [file.get_int(key, heads)] * max(0, min(count, 1 << 16))
    channels = file.get_int(f"{prefix}.attention.key_length", width // heads if heads > 0 else 0)
    values = file.get_int(f"{prefix}.attention.value_length", channels)
    if not 0 < channels < _MOST or not 0 < values < _MOST or max(kv_heads, default=0) >= _MOST:
        raise ModelLoadError(str(file.path), f"{prefix}.attention.*: no sizes that layers can have")
    return tuple(KVLayer(each, channels, None, values) for each in kv_heads if each > 0)
