"""What a model's files say of it, in the words of Ollama's lists of models."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from caudal.errors import ModelLoadError
from caudal.formats.gguf import GGUFFile
from caudal.formats.huggingface.checkpoint import open_checkpoint
from caudal.formats.model_folder import CONFIG, ModelFolder
from caudal.store.oci import ImageConfig

# llama_ftype of llama.cpp's include/llama.h; numbers that are missing have no name in use.
_FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    40: "Q1_0",
    41: "Q2_0",
}


def config_of(files: Mapping[str, Path]) -> ImageConfig:
    """What a model says of itself.

    Args:
        files: Where its files lie, by their names within it, the first one first.
    """
    if CONFIG in files:
        return config_of_folder(ModelFolder(files))
    return config_of_gguf(tuple(files.values()))


def config_of_gguf(paths: Sequence[Path]) -> ImageConfig:
    """What a GGUF model says of itself; of a damaged one, or one that isn't known, only the format.

    Args:
        paths: Its file, or all parts of a split one in order.
    """
    try:
        with GGUFFile.open(paths[0], paths) as file:
            number = file.get_int("general.file_type", None)
            weights = sum(tensor.num_elements for tensor in file.tensors.values())
            return ImageConfig(
                model_format="gguf",
                model_family=file.architecture,
                model_families=(file.architecture,),
                model_type=weights_in_words(weights),
                file_type=_FILE_TYPES.get(-1 if number is None else number)
                or _most(
                    (tensor.type.name, tensor.nbytes)
                    for tensor in file.tensors.values()
                    if len(tensor.shape) > 1
                ),
            )
    except ModelLoadError:
        return ImageConfig(model_format="gguf")


def config_of_folder(folder: ModelFolder) -> ImageConfig:
    """What a model that is a folder says of itself; of a damaged one only the format."""
    try:
        family = folder.read_object(CONFIG).get("model_type", str, "")
        with open_checkpoint(folder) as checkpoint:
            entries = [checkpoint.entry(name) for name in checkpoint]
    except ModelLoadError:
        return ImageConfig(model_format="safetensors")
    kind = _most((entry.dtype, entry.nbytes) for entry in entries)
    weights = sum(math.prod(entry.shape) for entry in entries)
    return ImageConfig(
        model_format="safetensors",
        model_family=family,
        model_families=(family,) if family else (),
        # Elements of other types are parts of weights, or several in one.
        model_type=weights_in_words(weights) if kind in _WEIGHTS else "",
        file_type=kind,
    )


_WEIGHTS = ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


def _most(sizes: Iterable[tuple[str, int]]) -> str:
    """The type that most bytes have."""
    sums: Counter[str] = Counter()
    for name, size in sizes:
        sums[name] += size
    return max(sums, key=sums.__getitem__, default="unknown")


def weights_in_words(count: int) -> str:
    """A number of weights as Ollama writes it: `134.52M`, `7B`, `3.2B`."""
    for unit, letter, decimals in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if count >= unit:
            return f"{count / unit:.{0 if count % unit == 0 else decimals}f}{letter}"
    return str(count)
