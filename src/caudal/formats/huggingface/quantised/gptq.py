"""GPTQ (arXiv 2210.17323) as AutoGPTQ and GPTQModel store it, and AWQ (arXiv 2306.00978) as AutoAWQ
does: integers of few bits in 32-bit words, with a scale and a zero for each group of inputs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from caudal.errors import ModelLoadError
from caudal.formats.huggingface.quantised.blocks import Codes, Integers, unpack_words
from caudal.formats.huggingface.quantised.modules import Module, ModuleMethod
from caudal.formats.huggingface.rows import Bytes, ColumnsSorted, Floats, Made, Rows
from caudal.formats.model_folder import JsonObject
from caudal.formats.tensor_types import TensorType

_SCALES = ("F16", "BF16", "F32")
# Where AutoAWQ puts each of eight neighbouring outputs in a word: output ORDER[i] is nibble i.
_AWQ_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])


class GPTQ(ModuleMethod):
    """GPTQ: words of neighbouring inputs, zeros in words of neighbouring outputs.

    Version 1 of the format stores zeros less one. With `desc_act` inputs belong to groups in any
    order (`g_idx`).
    """

    marks = ("qweight",)
    parts = ("qzeros", "scales", "g_idx")

    def __init__(self, settings: JsonObject) -> None:
        self._bits = settings.positive("bits")
        version = settings.get("checkpoint_format", str, "gptq")
        if version not in ("gptq", "gptq_v2"):
            raise ModelLoadError(
                settings.source,
                f"checkpoint_format {version!r} of GPTQ is not supported; supported are 'gptq' and "
                "'gptq_v2'",
            )
        if self._bits not in (2, 4, 8):
            raise ModelLoadError(
                settings.source,
                f"GPTQ of {self._bits} bits is not supported; supported are 2, 4, 8",
            )
        self._less_one = version == "gptq"

    def weight(self, module: Module) -> Rows:
        """See `ModuleMethod.weight`."""
        per_word = 32 // self._bits
        words, outputs = _matrix_shape(module, "qweight")
        groups, _ = _matrix_shape(module, "scales")
        inputs = words * per_word
        module.expect("qweight", ("I32", "U32"), (words, outputs))
        module.expect("scales", _SCALES, (groups, outputs))
        module.expect("qzeros", ("I32", "U32"), (groups, -(-outputs // per_word)))
        scales = module.floats("scales")
        packed_zeros = module.checkpoint.array(module.stored("qzeros"))
        zeros = unpack_words(packed_zeros, self._bits, outputs).astype(np.int16)
        if self._less_one:
            zeros = zeros + 1 & (1 << self._bits) - 1
        _check_groups(module, inputs, groups)

        def codes() -> Codes:
            words_of = module.checkpoint.array(module.stored("qweight"))
            return unpack_words(words_of.T, self._bits, inputs)

        if "g_idx" in module:
            module.expect("g_idx", ("I32", "I64"), (inputs,))
            rows = scattered(module, "g_idx", self._bits, codes, scales, zeros)
            if rows is not None:
                return rows
        return Integers(
            name=module.name,
            bits=self._bits,
            scales=np.ascontiguousarray(scales.T),
            zeros=np.ascontiguousarray(zeros.T),
            columns=inputs,
            codes=codes,
        ).rows()


class AWQ(ModuleMethod):
    """AWQ for matrix products ("GEMM"): words of eight outputs, in an order of their own."""

    marks = ("qweight",)
    parts = ("qzeros", "scales")

    def __init__(self, settings: JsonObject) -> None:
        version = settings.get("version", str, "gemm").lower()
        bits = settings.positive("bits", 4)
        if version != "gemm" or bits != 4:
            raise ModelLoadError(
                settings.source,
                f"AWQ of version {version!r} and {bits} bits is not supported; supported is 'gemm' "
                "of 4 bits",
            )

    def weight(self, module: Module) -> Rows:
        """See `ModuleMethod.weight`."""
        inputs, words = _matrix_shape(module, "qweight")
        groups, outputs = _matrix_shape(module, "scales")
        module.expect("qweight", ("I32", "U32"), (inputs, outputs // 8))
        module.expect("scales", _SCALES, (groups, words * 8))
        module.expect("qzeros", ("I32", "U32"), (groups, words))
        _check_groups(module, inputs, groups)

        def in_order(part: str) -> Codes:
            codes = unpack_words(module.checkpoint.array(module.stored(part)), 4, outputs)
            by_word = codes.reshape(len(codes), words, 8)
            return by_word[..., np.argsort(_AWQ_ORDER)].reshape(len(codes), outputs)

        return Integers(
            name=module.name,
            bits=4,
            scales=np.ascontiguousarray(module.floats("scales").T),
            zeros=np.ascontiguousarray(in_order("qzeros").T).astype(np.int16),
            columns=inputs,
            codes=lambda: np.ascontiguousarray(in_order("qweight").T),
        ).rows()


def scattered(
    module: Module,
    part: str,
    bits: int,
    codes: Callable[[], Codes],
    scales: Floats,
    zeros: npt.NDArray[np.int16],
) -> Rows | None:
    """A matrix whose inputs belong to groups in any order: its columns sorted by group.

    Where no type of blocks holds it so, its values.

    Args:
        module: The module.
        part: The part that has the group of each input, of the right type and shape.
        bits: Bits of a code.
        codes: Reads the codes, shape (outputs, inputs).
        scales: Shape (groups, outputs).
        zeros: Shape (groups, outputs).

    Returns:
        None where groups are inputs that follow each other.

    Raises:
        ModelLoadError: There are other groups than there are scales for.
    """
    owners = module.checkpoint.array(module.stored(part))
    groups, outputs = scales.shape
    inputs = len(owners)
    if owners.min() < 0 or owners.max() >= groups:
        raise module.error(part, f"has groups that aren't 0 to {groups - 1}")
    if np.array_equal(owners, np.arange(inputs) // (inputs // groups)):
        return None
    if np.all(np.bincount(owners, minlength=groups) * groups == inputs):
        order = np.argsort(owners, kind="stable")
        rows = Integers(
            name=module.name,
            bits=bits,
            scales=np.ascontiguousarray(scales.T),
            zeros=np.ascontiguousarray(zeros.T),
            columns=inputs,
            codes=lambda: np.ascontiguousarray(codes()[:, order]),
        ).rows()
        if rows.type is not TensorType.F32:
            return ColumnsSorted(rows, order)

    def make() -> Bytes:
        values = codes().astype(np.float32)
        for group in range(groups):
            columns = np.flatnonzero(owners == group)
            numbers = values[:, columns] - zeros[group][:, None]
            values[:, columns] = numbers * scales[group][:, None]
        return values.view(np.uint8)

    return Made(module.name, TensorType.F32, (outputs, inputs), make)


def _matrix_shape(module: Module, part: str) -> tuple[int, int]:
    shape = module.shape(part)
    if len(shape) != 2 or 0 in shape:
        raise module.error(part, f"has the shape {list(shape)}, not that of a matrix")
    return shape[0], shape[1]


def _check_groups(module: Module, inputs: int, groups: int) -> None:
    if inputs % groups != 0:
        raise module.error("scales", f"has {groups} groups, which don't divide {inputs} inputs")
