"""Tensors get the types that llama.cpp's `llama-quantize` gave them."""

import json
from pathlib import Path
from typing import Any

import pytest

from caudal.conversion.mixes import MIXES, choose_types, find_mix, in_order
from caudal.conversion.shapes import ModelShape, size_label
from caudal.errors import ConversionError
from caudal.formats.tensor_file import TensorInfo
from caudal.formats.tensor_types import TensorType

# By model and mix a letter for each tensor, in order, as `llama-quantize` wrote them; and what the
# letters stand for.
RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "mixes_of_llama_cpp.json").read_text()
)
# What is special about each, over a decoder of 17 layers with grouped queries.
MODELS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "tied": {"tied": True, "layers": 13, "kv_heads": 8},
    "eight_experts": {"experts": 8},
    "sixty_experts": {"architecture": "qwen2moe", "experts": 60, "width": 160},
    "falcon": {"architecture": "falcon", "joined": True},
    "narrow": {"width": 40, "kv_heads": 1},
    "seventy_billion": {"layers": 80},
}


def model(
    *,
    architecture: str = "llama",
    layers: int = 17,
    kv_heads: int = 2,
    experts: int = 0,
    tied: bool = False,
    joined: bool = False,
    width: int = 256,
) -> tuple[ModelShape, list[TensorInfo]]:
    """A model's sizes and tensors; the recording was made of files with the same ones."""
    shape = ModelShape(
        architecture=architecture, layers=layers, heads=8, kv_heads=kv_heads, experts=experts
    )
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (2, 256)}
    if not tied:
        shapes["output"] = (2, 256)
    stack = (experts, 2) if experts else (2,)
    kind = "_exps" if experts else ""
    for layer in range(layers):
        names = ("attn_qkv",) if joined else ("attn_q", "attn_k", "attn_v")
        own = dict.fromkeys((*names, "attn_output", "ssm_conv1d"), (2, 256))
        own |= {f"ffn_{name}{kind}": (*stack, 256) for name in ("gate", "up")}
        own |= {f"ffn_down{kind}": (*stack, width), "attn_norm": (256,), "ffn_norm": (1, 256)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in own.items()}
    floats = ("attn_norm.weight", "ffn_norm.weight")
    tensors = {}
    for name, size in ((f"{name}.weight", size) for name, size in shapes.items()):
        kind_of_it = TensorType.F32 if name.endswith(floats) else TensorType.F16
        tensors[name] = TensorInfo(name, size, kind_of_it)
    return shape, [tensors[name] for name in in_order(tensors)]


@pytest.mark.parametrize("name", MODELS)
def test_types_are_those_of_llama_cpp(name: str) -> None:
    shape, tensors = model(**MODELS[name])
    letters = RECORDED["letters"]
    for mix in MIXES.values():
        chosen = choose_types(mix, shape, tensors)
        assert [chosen[tensor.name].name for tensor in tensors] == [
            letters[letter] for letter in RECORDED["models"][name][mix.name]
        ], mix.name


def test_names_in_either_case_and_short_ones() -> None:
    assert find_mix("q4_K_M") is find_mix("Q4_K") is MIXES["Q4_K_M"]
    assert find_mix("bf16").type is TensorType.BF16
    with pytest.raises(ConversionError, match=r"no quantisation 'IQ4_NL'; there are F32, F16"):
        find_mix("IQ4_NL")


def test_layers_count_by_their_numbers() -> None:
    names = ["output.weight", "blk.10.a", "blk.9.b", "blk.9.a", "rope_freqs.weight"]
    expected = ["output.weight", "rope_freqs.weight", "blk.9.a", "blk.9.b", "blk.10.a"]
    assert in_order(names) == expected


@pytest.mark.parametrize(
    ("experts", "in_experts", "others", "expected"),
    [
        (0, 0, 134_515_008, "135M"),
        (0, 0, 1_235_814_400, "1.2B"),
        (0, 0, 12_000, "12K"),
        (8, 45_097_156_608, 1_605_636_096, "8x7.2B"),
    ],
)
def test_size_labels(experts: int, in_experts: int, others: int, expected: str) -> None:
    tensors = [
        TensorInfo("blk.0.ffn_up_exps.weight", (in_experts,), TensorType.F16),
        TensorInfo("token_embd.weight", (others,), TensorType.F16),
    ]
    assert size_label(tensors, experts) == expected
