"""Which type each tensor of a model gets: llama.cpp's mixes, by their names.

A mix has a type that most matrices get; some, which the answers depend on more, get more bits. The
rules are those of llama.cpp (src/llama-quant.cpp), which has weighed them by measurements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from caudal.conversion.shapes import ModelShape, dimensions
from caudal.errors import ConversionError
from caudal.formats.tensor_file import TensorInfo
from caudal.formats.tensor_types import TensorType


@dataclass(frozen=True, slots=True)
class Mix:
    """A way of quantising a model.

    Attributes:
        name: What it is called, e.g. `Q4_K_M`.
        file_type: Its number in `general.file_type`.
        type: What most matrices become.
    """

    name: str
    file_type: int
    type: TensorType

    @property
    def quantises(self) -> bool:
        """Whether it is more than another type of floats."""
        return self.type not in FLOATS


FLOATS = (TensorType.F32, TensorType.F16, TensorType.BF16)

MIXES: Mapping[str, Mix] = {
    name: Mix(name, file_type, kind)
    for name, file_type, kind in (
        ("F32", 0, TensorType.F32),
        ("F16", 1, TensorType.F16),
        ("BF16", 32, TensorType.BF16),
        ("Q8_0", 7, TensorType.Q8_0),
        ("Q4_0", 2, TensorType.Q4_0),
        ("Q4_1", 3, TensorType.Q4_1),
        ("Q5_0", 8, TensorType.Q5_0),
        ("Q5_1", 9, TensorType.Q5_1),
        ("Q2_K", 10, TensorType.Q2_K),
        ("Q3_K_S", 11, TensorType.Q3_K),
        ("Q3_K_M", 12, TensorType.Q3_K),
        ("Q3_K_L", 13, TensorType.Q3_K),
        ("Q4_K_S", 14, TensorType.Q4_K),
        ("Q4_K_M", 15, TensorType.Q4_K),
        ("Q5_K_S", 16, TensorType.Q5_K),
        ("Q5_K_M", 17, TensorType.Q5_K),
        ("Q6_K", 18, TensorType.Q6_K),
    )
}
"""What models can become, by name."""

_SHORT = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
"""Names that stand for others, as in `llama-quantize`."""


def find_mix(name: str) -> Mix:
    """A mix by its name, upper or lower case.

    Raises:
        ConversionError: There is no such; names those that there are.
    """
    wanted = name.strip().upper()
    mix = MIXES.get(_SHORT.get(wanted, wanted))
    if mix is None:
        raise ConversionError(
            f"there is no quantisation {name!r:.40}; there are {', '.join(MIXES)}"
        )
    return mix


def in_order(names: Iterable[str]) -> list[str]:
    """Tensors' names by layer, those of none first: the order in which rules count layers."""
    return sorted(names, key=lambda name: (_layer_of(name), name.encode()))


def choose_types(
    mix: Mix, shape: ModelShape, tensors: Sequence[TensorInfo]
) -> dict[str, TensorType]:
    """The type that each tensor becomes, by name.

    Args:
        mix: What is wanted.
        shape: The model.
        tensors: All tensors, in the order of `in_order`, of the types that they stay of if nothing
            is chosen for them.
    """
    rules = _Rules(mix, shape, tensors)
    return {tensor.name: rules.type_of(tensor) for tensor in tensors}


class _Part(Enum):
    """What a tensor does, as far as it matters here."""

    EMBEDDING = "token_embd"
    OUTPUT = "output"
    VALUES = "values"
    KEYS_AND_VALUES = "keys and values"  # and queries
    KEYS = "keys"
    ATTENTION_OUTPUT = "attention output"
    DOWN = "down"
    OTHER = "other"


_PARTS_BY_NAME = (
    ("attn_qkv.weight", _Part.KEYS_AND_VALUES),
    ("attn_kv_b.weight", _Part.VALUES),
    ("attn_v.weight", _Part.VALUES),
    ("attn_k.weight", _Part.KEYS),
    ("attn_output.weight", _Part.ATTENTION_OUTPUT),
    ("ffn_down", _Part.DOWN),
)
_VALUES = (_Part.VALUES, _Part.KEYS_AND_VALUES)

_NEVER = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
)
"""Parts of the names of matrices that are small, and that much depends on."""

_NEVER_AT_ALL = ("position_embd.weight", "token_types.weight")

_NARROWER = {
    TensorType.Q2_K: TensorType.Q4_0,
    TensorType.Q3_K: TensorType.Q4_0,
    TensorType.Q4_K: TensorType.Q5_0,
    TensorType.Q5_K: TensorType.Q5_1,
    TensorType.Q6_K: TensorType.Q8_0,
}
"""What takes a type's place where rows aren't whole blocks of it."""


def may_be_quantised(tensor: TensorInfo) -> bool:
    """Whether a mix says what becomes of a tensor: of matrices of linear layers it does."""
    name = tensor.name
    return (
        dimensions(tensor) >= 2
        and name.endswith("weight")
        and name not in _NEVER_AT_ALL
        and not any(part in name for part in _NEVER)
    )


class _Rules:
    """What to do with each tensor, asked in order: some rules count what came before."""

    def __init__(self, mix: Mix, shape: ModelShape, tensors: Sequence[TensorInfo]) -> None:
        self._mix = mix
        self._shape = shape
        self._values = sum(_part_of(tensor.name) in _VALUES for tensor in tensors)
        self._tied = not any(_part_of(tensor.name) is _Part.OUTPUT for tensor in tensors)
        self._seen: Counter[str] = Counter()

    def type_of(self, tensor: TensorInfo) -> TensorType:
        """The type that a tensor becomes."""
        if not may_be_quantised(tensor):
            return tensor.type
        if not self._mix.quantises:
            return self._mix.type
        return _fitting(self._preferred(tensor), tensor)

    def _preferred(self, tensor: TensorInfo) -> TensorType:
        part = _part_of(tensor.name)
        if part is _Part.OUTPUT or (self._tied and part is _Part.EMBEDDING):
            return self._of_output(tensor)
        match part:
            case _Part.VALUES | _Part.KEYS_AND_VALUES:
                return self._of_values()
            case _Part.KEYS if self._shape.experts == 8:
                return TensorType.Q8_0
            case _Part.DOWN:
                return self._of_down(tensor)
            case _Part.ATTENTION_OUTPUT:
                return self._of_attention_output()
        return self._mix.type

    def _of_output(self, tensor: TensorInfo) -> TensorType:
        kind = self._mix.type
        if self._shape.architecture == "falcon" or tensor.shape[-1] % kind.block_elements:
            return TensorType.Q8_0
        return kind if kind is TensorType.Q8_0 else TensorType.Q6_K

    def _of_values(self) -> TensorType:
        index = self._seen["values"]
        self._seen["values"] += 1
        kind = self._mix.type
        match self._mix.name:
            case "Q2_K":
                kind = TensorType.Q4_K if self._shape.sharing >= 4 else TensorType.Q3_K
            case "Q3_K_M":
                kind = TensorType.Q5_K if index < 2 else TensorType.Q4_K
            case "Q3_K_L":
                kind = TensorType.Q5_K
            case "Q4_K_M" | "Q5_K_M" if _gets_more_bits(index, self._values):
                kind = TensorType.Q6_K
            case "Q4_K_S" if index < 4:
                kind = TensorType.Q5_K
        if self._shape.is_70b and kind in (TensorType.Q3_K, TensorType.Q4_K):
            kind = TensorType.Q5_K
        return TensorType.Q8_0 if self._shape.experts == 8 else kind

    def _of_down(self, tensor: TensorInfo) -> TensorType:
        index = self._seen["down"]
        self._seen["down"] += 1
        layers = self._shape.layers
        if self._shape.experts > 1:
            index = _layer_of(tensor.name)
            if not 0 <= index < layers:
                raise ConversionError(
                    f"{tensor.name} should be of one of {layers} layers, as its name says"
                )
        falcon = self._shape.architecture == "falcon"
        more = _gets_more_bits(index, layers)
        match self._mix.name:
            case "Q2_K":
                return TensorType.Q3_K
            case "Q3_K_M":
                if index < layers // 16:
                    return TensorType.Q5_K
                return TensorType.Q4_K if more or not falcon else TensorType.Q3_K
            case "Q3_K_L":
                return TensorType.Q4_K if falcon else TensorType.Q5_K
            case "Q4_K_M" if falcon:
                if index < layers // 16:
                    return TensorType.Q6_K
                return TensorType.Q5_K if more else TensorType.Q4_K
            case "Q4_K_M" | "Q5_K_M" if more:
                return TensorType.Q6_K
            case "Q4_K_S" if index < layers // 8 and not falcon:
                return TensorType.Q5_K
        return self._mix.type

    def _of_attention_output(self) -> TensorType:
        kinds: Mapping[str, TensorType]
        if self._shape.architecture == "falcon":
            kinds = {"Q3_K_L": TensorType.Q4_K}
        elif self._shape.experts == 8:
            kinds = dict.fromkeys(("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M"), TensorType.Q5_K)
        else:
            kinds = {"Q2_K": TensorType.Q3_K, "Q3_K_M": TensorType.Q4_K, "Q3_K_L": TensorType.Q5_K}
        return kinds.get(self._mix.name, self._mix.type)


def _fitting(kind: TensorType, tensor: TensorInfo) -> TensorType:
    """The type, or another where rows aren't whole blocks of it."""
    columns = tensor.shape[-1]
    if columns % kind.block_elements:
        kind = _NARROWER.get(kind, kind)
    return TensorType.F16 if columns % kind.block_elements else kind


def _part_of(name: str) -> _Part:
    if name == "output.weight":
        return _Part.OUTPUT
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return _Part.EMBEDDING
    return next((part for text, part in _PARTS_BY_NAME if text in name), _Part.OTHER)


def _gets_more_bits(index: int, count: int) -> bool:
    """Whether a layer is among the first or last eighth, or each third one between."""
    eighth = count // 8
    return index < eighth or index >= 7 * count // 8 or (index - eighth) % 3 == 2


def _layer_of(name: str) -> int:
    """The layer that a tensor is of; -1 where it is of none."""
    match name.split(".", 2):
        case ["blk", number, _] if number.isdecimal():
            return int(number)
    return -1
