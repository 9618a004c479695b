"""Numbers of a model's configuration, checked before anything is computed with them."""

from __future__ import annotations

import numpy as np

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile

MAX_HEAD_DIM = 1024
MOST = 1e15
"""No number of a model's is larger, nor smaller than its inverse: thousands of times what any
uses, and far from where arithmetic overflows."""
MOST_OF_ANYTHING = 2**31 - 1
"""No size of a model is larger."""


def positive(file: ModelFile, key: str, default: int | None = None) -> int:
    """A whole number from 1 to 2³¹ - 1 from the file's metadata.

    Raises:
        ModelLoadError: The key is missing without a default, or has another value.
    """
    value = file.get_int(key) if default is None else file.get_int(key, default)
    if not 0 < value <= MOST_OF_ANYTHING:
        raise ModelLoadError(
            str(file.path),
            f"{key} must be positive and at most {MOST_OF_ANYTHING}, but is {value}",
        )
    return value


def per_layer(
    file: ModelFile, key: str, layers: int, default: int | None = None, *, ahead: int = 0
) -> list[int]:
    """A whole number for each layer, at least 0: one for all in the file, or an array.

    Args:
        file: The model.
        key: Where.
        layers: How many layers there are.
        default: For all, where the file doesn't say.
        ahead: So many more layers follow that aren't computed, and that arrays may have, too.

    Raises:
        ModelLoadError: The key is missing without a default, has another value or an array of
            another length, or is 0 for all layers.
    """
    if isinstance(file.metadata.get(key), np.ndarray):
        values = [int(value) for value in file.get_array(key, "int")]
        if len(values) not in (layers, layers + ahead):
            raise ModelLoadError(
                str(file.path), f"{key} has {len(values)} numbers, but there are {layers} layers"
            )
        values = values[:layers]
        if all(0 <= value <= MOST_OF_ANYTHING for value in values) and any(values):
            return values
        raise ModelLoadError(
            str(file.path),
            f"{key} must be numbers from 0 to {MOST_OF_ANYTHING}, and not 0 for all layers",
        )
    return [positive(file, key, default)] * layers


def context_length(file: ModelFile, key: str, default: int | None = None) -> int:
    """A number of tokens; what is larger than 2³¹ - 1, such as 2³² - 1, stands for "no limit".

    Raises:
        ModelLoadError: The key is missing without a default, or isn't positive.
    """
    value = file.get_int(key) if default is None else file.get_int(key, default)
    if value <= 0:
        raise ModelLoadError(str(file.path), f"{key} must be positive, but is {value}")
    return min(value, MOST_OF_ANYTHING)


def positive_number(file: ModelFile, key: str, default: float) -> float:
    """A positive number from the file's metadata.

    Raises:
        ModelLoadError: It isn't between 1 / `MOST` and `MOST`.
    """
    value = file.get_float(key, default)
    if not 1 / MOST <= value <= MOST:
        raise ModelLoadError(
            str(file.path),
            f"{key} must be positive, from {1 / MOST:.0e} to {MOST:.0e}, but is {value}",
        )
    return value


def head_size(file: ModelFile, default: int, *, suffix: str = "") -> int:
    """Channels of a head: `attention.key_length`, which `attention.value_length` has to equal.

    Of latent attention it is what is kept of a token, and of that values are a part.

    Args:
        file: The model.
        default: Where the file doesn't say.
        suffix: Of both keys.

    Raises:
        ModelLoadError: They differ, or aren't a multiple of 8 up to `MAX_HEAD_DIM`.
    """
    prefix = f"{file.architecture}.attention"
    size = positive(file, f"{prefix}.key_length{suffix}", default)
    value_length = positive(file, f"{prefix}.value_length{suffix}", size)
    same = value_length == size or f"{prefix}.kv_lora_rank" in file.metadata
    if not same or size % 8 != 0 or size > MAX_HEAD_DIM:
        raise ModelLoadError(
            str(file.path),
            f"{prefix}: heads of {size} key and {value_length} value channels; "
            f"supported are equal sizes that are a multiple of 8, up to {MAX_HEAD_DIM}",
        )
    return size


def cap(file: ModelFile, key: str, default: float = 0.0) -> float:
    """A bound of scores or logits from the file's metadata; 0: there is none.

    Raises:
        ModelLoadError: It isn't 0, nor between 1 / `MOST` and `MOST`.
    """
    return positive_number(file, key, default) if file.get_float(key, default) else 0.0


def epsilon(file: ModelFile, key: str) -> float:
    """What a norm adds before it takes the root.

    Raises:
        ModelLoadError: The key is missing, or not between 0 and 1.
    """
    return check_epsilon(str(file.path), key, file.get_float(key))


def check_epsilon(source: str, key: str, value: float) -> float:
    """The value, if a norm can use it.

    Raises:
        ModelLoadError: It isn't between 0 and 1.
    """
    if not 0 <= value < 1:
        raise ModelLoadError(source, f"{key} must be between 0 and 1, but is {value}")
    return value


def window_layers(file: ModelFile, layers: int, *, global_every: int, ahead: int = 0) -> list[bool]:
    """Which layers have the file's window: `attention.sliding_window_pattern`.

    Args:
        file: The model.
        layers: How many layers there are.
        global_every: Where the file doesn't say, one layer in so many sees all tokens.
        ahead: See `per_layer`.

    Raises:
        ModelLoadError: The file says it for another number of layers.
    """
    key = f"{file.architecture}.attention.sliding_window_pattern"
    pattern = file.get_array(key, "bool", None)
    if pattern is None:
        return [(layer + 1) % global_every != 0 for layer in range(layers)]
    if len(pattern) not in (layers, layers + ahead):
        raise ModelLoadError(str(file.path), f"{key} is for {len(pattern)} of {layers} layers")
    return [bool(each) for each in pattern[:layers]]


def position_temperature(file: ModelFile) -> tuple[float, int] | None:
    """The scale and the length of what multiplies queries; None where nothing does.

    Raises:
        ModelLoadError: The scale makes no sense, or there is no length.
    """
    key = f"{file.architecture}.attention.temperature_scale"
    scale = file.get_float(key, 0.0)
    if not 0 <= scale <= MOST:
        raise ModelLoadError(str(file.path), f"{key} must be from 0 to {MOST:.0e}, but is {scale}")
    if scale == 0:
        return None
    length = f"{file.architecture}.attention.temperature_length"
    if length not in file.metadata:
        length = f"{file.architecture}.rope.scaling.original_context_length"
    return scale, context_length(file, length)
