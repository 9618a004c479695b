"""How checkpoints keep weights: as they are, or quantised by a method that config.json names.

A method says which stored tensors make up a matrix, and in which of ggml's blocks its rows come.
Families see none of that: they ask for `model.layers.0.mlp.up_proj.weight`, whatever there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from caudal.errors import ModelLoadError
from caudal.formats.huggingface.checkpoint import Checkpoint
from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.quantised.bitsandbytes import BitsAndBytes
from caudal.formats.huggingface.quantised.compressed import CompressedTensors
from caudal.formats.huggingface.quantised.floats import FP8, GptOss, ModelOpt
from caudal.formats.huggingface.quantised.gptq import AWQ, GPTQ
from caudal.formats.huggingface.rows import Rows
from caudal.formats.model_folder import JsonObject


class Method(Protocol):
    """What a checkpoint's stored tensors stand for."""

    def names(self, checkpoint: Checkpoint) -> Iterable[str]:
        """The names of all tensors, as they would be if nothing were quantised.

        Raises:
            ModelLoadError: Stored tensors are missing that belong together.
        """

    def rows(self, checkpoint: Checkpoint, name: str) -> Rows:
        """One of them; its bytes are read when they are asked for.

        Raises:
            ModelLoadError: It has a type or a shape that it can't have.
        """


class AsStored:
    """Tensors of floats, each as it is (a `Method`)."""

    def names(self, checkpoint: Checkpoint) -> Iterable[str]:
        """See `Method.names`."""
        return checkpoint

    def rows(self, checkpoint: Checkpoint, name: str) -> Rows:
        """See `Method.rows`."""
        return checkpoint.rows(name)


METHODS: Mapping[str, Callable[[JsonObject], Method]] = {
    "awq": AWQ,
    "bitsandbytes": BitsAndBytes,
    "compressed-tensors": CompressedTensors,
    "fbgemm_fp8": FP8,
    "fp8": FP8,
    "gptq": GPTQ,
    "modelopt": ModelOpt,
    "mxfp4": GptOss,
}
"""By `quant_method`: what makes a method of the object `quantization_config`."""


def find_method(config: Config) -> Method:
    """The method that a configuration names.

    Raises:
        ModelLoadError: It isn't supported; names it.
    """
    settings = config.part("quantization_config")
    if not settings.content:
        return AsStored()
    name = settings.get("quant_method", str)
    if name not in METHODS:
        known = ", ".join(sorted(METHODS))
        raise ModelLoadError(
            settings.source,
            f"quant_method {name!r} is not supported; "
            + (f"supported are {known}, and " if known else "supported are ")
            + "weights that aren't quantised (BF16, F16, F32)",
        )
    return METHODS[name](settings)
