"""What a user may choose of the native backend; light to import, for the command line's help."""

from __future__ import annotations

from typing import Literal, get_args

KVType = Literal["f16", "f32", "q8"]
"""Number format of keys and values; `q8` is bytes, with a scale for each key and value."""

_ELSEWHERE = {
    **dict.fromkeys(("auto", "bf16", "bfloat16", "float16"), "take f16"),
    **dict.fromkeys(
        ("q8_0", "int8", "fp8", "fp8_e4m3", "fp8_e5m2"), "take q8, for keys and values in 8 bits"
    ),
    **dict.fromkeys(
        ("q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1", "fp4_e2m1"),
        "take q8, as there is nothing below 8 bits",
    ),
}
"""What to take for types of llama.cpp, Ollama, vLLM and SGLang. Their names aren't taken for ours:
the formats are others, and nobody should believe that keys and values are kept in those."""


def kv_type_named(name: str) -> KVType:
    """A type by its name; raises `ValueError`, which says what it must be."""
    known: tuple[KVType, ...] = get_args(KVType)
    for each in known:
        if each == name:
            return each
    *first, last = map(repr, known)
    remedy = _ELSEWHERE.get(str(name).lower())
    raise ValueError(
        f"must be {', '.join(first)} or {last}, not {name!r:.40}"
        + ("" if remedy is None else f": {remedy}")
    )


Activations = Literal["auto", "f32"]
"""`auto` quantises them where the weights' kernels are faster for it; `f32` multiplies dequantised
weights by plain floats: slow, a reference."""

WeightsPlace = Literal["auto", "memory", "mapped"]
"""Packed weights in memory, or mapped from a file on the disk; `auto` maps what doesn't fit."""
