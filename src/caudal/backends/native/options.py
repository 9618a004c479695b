"""What a user may choose of the native backend; light to import, for the command line's help."""

from __future__ import annotations

from typing import Literal

KVType = Literal["f16", "f32", "q8"]
"""Number format of keys and values; `q8` is bytes, with a scale for each key and value."""

Activations = Literal["auto", "f32"]
"""`auto` quantises them where the weights' kernels are faster for it; `f32` multiplies dequantised
weights by plain floats: slow, a reference."""

WeightsPlace = Literal["auto", "memory", "mapped"]
"""Packed weights in memory, or mapped from a file on the disk; `auto` maps what doesn't fit."""
