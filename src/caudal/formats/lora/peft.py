"""Adapters in folders, as PEFT saves them.

`base_model.model.MODULE.lora_A.weight` and `….lora_B.weight` are the factors of what is added to a
module of Hugging Face's model; its family's tables say which of the model's matrices that is, and
how rows lie in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from caudal.errors import ModelLoadError
from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.families import families_of
from caudal.formats.huggingface.rows import as_floats
from caudal.formats.lora.adapter import Adapter, Floats, LowRank
from caudal.formats.lora.base import AdapterBase
from caudal.formats.lora.factors import Checks
from caudal.formats.lora.layouts import Layout, layouts
from caudal.formats.lora.peft_config import CONFIG, PeftConfig
from caudal.formats.model_folder import ModelFolder
from caudal.formats.safetensors import SafetensorsFile

WEIGHTS = "adapter_model.safetensors"
_PICKLED = "adapter_model.bin"

_MAX_NAME = 250
_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"
_OTHERS = {
    ".lora_embedding_A": "changes an embedding",
    ".lora_embedding_B": "changes an embedding",
    ".lora_magnitude_vector": "is DoRA's",
    ".lora_magnitude_vector.weight": "is DoRA's",
    ".lora_A.bias": "is a bias of a factor",
    ".lora_B.bias": "is a bias of a factor",
}


def read_peft_adapter(directory: Path, base: AdapterBase) -> Adapter:
    """Read an adapter.

    Raises:
        ModelLoadError: A file is missing or damaged, or for another model; names what is wrong.
    """
    names = (CONFIG, WEIGHTS)
    folder = ModelFolder({name: directory / name for name in names if (directory / name).exists()})
    if CONFIG not in folder:
        raise ModelLoadError(str(directory), f"it is no adapter's folder: it has no {CONFIG}")
    config = PeftConfig.of(folder)
    if WEIGHTS not in folder:
        pickled = (directory / _PICKLED).exists()
        what = f"only {_PICKLED}, a pickle, which may run code" if pickled else f"no {WEIGHTS}"
        raise ModelLoadError(str(directory), f"it has {what}; save the adapter as safetensors")
    return _read(str(directory), folder, config, base)


def read_peft_files(source: str, folder: ModelFolder, base: AdapterBase) -> Adapter:
    """Read an adapter whose files may lie anywhere.

    Args:
        source: What the adapter is, for errors.
        folder: Its configuration and its weights.
        base: The model.

    Raises:
        ModelLoadError: A file is damaged, or for another model; names what is wrong.
    """
    return _read(source, folder, PeftConfig.of(folder), base)


def _read(source: str, folder: ModelFolder, config: PeftConfig, base: AdapterBase) -> Adapter:
    with SafetensorsFile.open(folder.path(WEIGHTS)) as file:
        checks = Checks(str(file.path), base)
        reader = _Reader(checks, config, file)
        matrices: dict[str, LowRank] = {}
        for module in _modules(checks, file):
            for name, change in reader.changes(module).items():
                if name in matrices:
                    raise checks.error(f"module {module} and another both change {name}")
                matrices[name] = change
    if not matrices:
        raise checks.error("it changes nothing: it has no tensors")
    return Adapter(source, matrices)


def _modules(checks: Checks, file: SafetensorsFile) -> Iterable[str]:
    """The modules that are changed, both of whose factors are there."""
    modules: dict[str, None] = {}
    for name in file.entries:
        for end, what in _OTHERS.items():
            if name.endswith(end):
                raise checks.error(f"tensor {name} {what}, which is not supported")
        module, end = name[: -len(_A)], name[-len(_A) :]
        if end not in (_A, _B) or len(name) > _MAX_NAME:
            raise checks.error(
                f"tensor {name} is no factor of a change; supported are changes of matrices "
                "(lora_A and lora_B), without modules saved whole"
            )
        other = module + (_A if end == _B else _B)
        if other not in file.entries:
            raise checks.error(f"tensor {other} is missing, the other half of {name}")
        modules[module] = None
    return modules


class _Reader:
    """Reads changes, module by module.

    Args:
        checks: Refuses what doesn't fit.
        config: The adapter's configuration.
        file: Its factors.

    Raises:
        ModelLoadError: Checkpoints of such a model aren't known.
    """

    def __init__(self, checks: Checks, config: PeftConfig, file: SafetensorsFile) -> None:
        self._checks = checks
        self._config = config
        self._file = file
        self._families = families_of(checks.base.architecture)
        if not self._families:
            raise checks.error(
                f"adapters of this form are not supported for {checks.base.architecture} models"
            )
        self._sizes = _sizes(checks)
        self._known: dict[tuple[object, ...], Mapping[str, Layout]] = {}

    def changes(self, module: str) -> dict[str, LowRank]:
        """What a module's factors change, by the matrices' names in the model's file.

        Raises:
            ModelLoadError: They don't fit.
        """
        checks, short = self._checks, module.removeprefix(_PREFIX)
        shapes = [self._file.entries[module + end].shape for end in (_A, _B)]
        rank = checks.rank(f"module {short}", *shapes)
        if rank != self._config.rank_of(short):
            raise checks.error(
                f"module {short} has rank {rank}, but {CONFIG} says {self._config.rank_of(short)}"
            )
        found = self._layouts(short, (shapes[1][0], shapes[0][1]))
        a, b = self._floats(module + _A), self._floats(module + _B)
        scale = checks.scale(f"module {short}", b, self._config.scale_of(short))
        result = {}
        for name, layout in found.items():
            rows = layout.rows[: checks.matrix(name, f"module {short}")[0]]
            result[name] = LowRank(
                np.ascontiguousarray(a[:, layout.columns]), np.ascontiguousarray(b[rows]), scale
            )
        return result

    def _layouts(self, module: str, shape: tuple[int, int]) -> dict[str, Layout]:
        """The matrices that a module's weight becomes, checked for their shapes."""
        checks, what = self._checks, f"module {module}"
        tensor = f"{module}.weight"
        located = [family.locate(tensor) for family in self._families]
        place = next((each for each in located if each.entry is not None), located[0])
        if place.entry is None:
            raise checks.error(
                f"{what} is not part of a {checks.base.architecture} model as Caudal knows it"
            )
        if place.expert is not None:
            raise checks.error(f"{what} changes an expert, which is not supported")
        key = (place.entry, place.kind, shape)
        if key not in self._known:
            self._check_size(what, shape)
            try:
                self._known[key] = layouts(place, self._sizes, shape)
            except (ValueError, ModelLoadError) as error:
                reason = error.reason if isinstance(error, ModelLoadError) else error
                raise checks.error(f"{what} doesn't fit the model: {reason}") from error
        made = self._known[key]
        result = {}
        for short, layout in made.items():
            name = short if place.layer is None else f"blk.{place.layer}.{short}"
            checks.fits(what, name, len(layout.rows), len(layout.columns))
            result[name] = layout
        return result

    def _check_size(self, what: str, shape: tuple[int, int]) -> None:
        """Before a rule is shown a matrix: it may be several of the model's, but not any size."""
        largest = max(np.prod(each, dtype=float) for each in self._checks.base.shapes.values())
        if shape[0] * shape[1] > 4 * largest:
            raise self._checks.error(
                f"{what} changes a matrix of {shape[0]} x {shape[1]}, and the model has none so "
                "large: is it for another model?"
            )

    def _floats(self, name: str) -> Floats:
        tensor = self._file.tensors.get(name)
        if tensor is None:
            raise self._checks.error(
                f"tensor {name} is {self._file.entries[name].dtype}; supported are F32, F16, BF16"
            )
        rows = self._file.tensor_bytes(name).reshape(tensor.rows, -1)
        return self._checks.finite(f"tensor {name}", as_floats(rows, tensor.type))


def _sizes(checks: Checks) -> Config:
    """The sizes that rules ask for, by the keys of config.json."""
    sizes = checks.base.sizes
    experts = sizes.get("expert_count", 0)
    heads = sizes.get("ssm.time_step_rank", 0)
    given = {
        "hidden_size": sizes.get("embedding_length"),
        "num_hidden_layers": sizes.get("block_count"),
        "intermediate_size": sizes.get("feed_forward_length"),
        "num_attention_heads": sizes.get("attention.head_count"),
        "num_key_value_heads": sizes.get("attention.head_count_kv"),
        "head_dim": sizes.get("attention.key_length"),
        "num_local_experts": experts,
        "linear_num_value_heads": heads or None,
        "linear_num_key_heads": sizes.get("ssm.group_count"),
        "linear_key_head_dim": sizes.get("ssm.state_size"),
        "linear_value_head_dim": sizes.get("ssm.inner_size", 0) // heads if heads else None,
    }
    return Config(checks.source, {key: value for key, value in given.items() if value is not None})
