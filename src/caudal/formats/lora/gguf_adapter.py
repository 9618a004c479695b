"""Adapters in GGUF files, as llama.cpp's converter writes them.

Keys say that it is one, and alpha; `NAME.lora_a` and `NAME.lora_b` are the factors of what is added
to the model's tensor NAME, in the layout that GGUF files have that in.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from caudal.formats.gguf import GGUFFile
from caudal.formats.lora.adapter import Adapter, Floats, LowRank
from caudal.formats.lora.base import AdapterBase
from caudal.formats.lora.factors import Checks
from caudal.formats.tensor_values import tensor_values

_FACTORS = (".lora_a", ".lora_b")
_ACTIVATED = "adapter.alora.invocation_tokens"


def read_gguf_adapter(path: Path, base: AdapterBase) -> Adapter:
    """Read an adapter.

    Raises:
        ModelLoadError: The file is damaged, no adapter, or for another model; names what is wrong.
    """
    checks = Checks(str(path), base)
    with GGUFFile.open(path) as file:
        kind = file.get_str("general.type", "model")
        if kind != "adapter":
            raise checks.error(f"it is no adapter: general.type is {kind!r:.80}")
        form = file.get_str("adapter.type")
        if form != "lora":
            raise checks.error(f"adapter.type is {form!r:.80}; supported is 'lora'")
        if file.architecture != base.architecture:
            raise checks.error(
                f"it is for {file.architecture!r:.80} models, but this one is {base.architecture!r}"
            )
        if _ACTIVATED in file.metadata:
            raise checks.error(f"{_ACTIVATED}: activated LoRA is not supported")
        alpha = file.get_float("adapter.lora.alpha")
        matrices = {name: _change(checks, file, name, alpha) for name in _names(checks, file)}
    if not matrices:
        raise checks.error("it changes nothing: it has no tensors")
    return Adapter(str(path), matrices)


def _names(checks: Checks, file: GGUFFile) -> Iterable[str]:
    """The tensors that are changed, both of whose factors are there."""
    names: dict[str, None] = {}
    for tensor in file.tensors:
        name, factor = tensor[:-7], tensor[-7:]
        if factor not in _FACTORS:
            raise checks.error(
                f"tensor {tensor} is no factor of a change; supported are changes of matrices "
                "(.lora_a and .lora_b)"
            )
        names[name] = None
        other = name + _FACTORS[factor == _FACTORS[0]]
        if other not in file.tensors:
            raise checks.error(f"tensor {other} is missing, the other half of {tensor}")
    return names


def _change(checks: Checks, file: GGUFFile, name: str, alpha: float) -> LowRank:
    a, b = (file.tensors[name + factor] for factor in _FACTORS)
    checks.matrix(name, name)
    rank = checks.rank(name, a.shape, b.shape)
    rows = checks.fits(name, name, b.shape[0], a.shape[1])
    second = _floats(checks, file, b.name)[:rows]
    # As llama.cpp does where there is none.
    scale = checks.scale(name, second, alpha / rank if alpha else 1.0)
    return LowRank(_floats(checks, file, a.name), second, scale)


def _floats(checks: Checks, file: GGUFFile, name: str) -> Floats:
    return checks.finite(f"tensor {name}", tensor_values(file, name))
