"""The model files that are measured, and how they come to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.costs import ModelCosts
from benchmarks.hybrid_shapes import LFM2_12B, QWEN35_08B
from benchmarks.llama_tools import installed_tools
from benchmarks.places import MODELS
from benchmarks.random_model import LLAMA_1B, OLMOE_1B_7B, Shape, write_random_model
from caudal.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A GGUF file that is here.

    Attributes:
        name: For the command line, and for servers.
        title: For the report.
        family: The model it is one quantisation of.
        four_bit: Whether most of its weights have about four bits.
        represents_family: Whether peers that can't use its quantisation are measured beside it.
        path: Where it is.
        costs: What computing with it takes.
    """

    name: str
    title: str
    family: str
    four_bit: bool
    represents_family: bool
    path: Path
    costs: ModelCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFile:
    """A file that can be had: `make` writes it to the path it is given."""

    name: str
    title: str
    family: str
    four_bit: bool
    represents_family: bool
    make: Callable[[Path], None]

    def prepare(self) -> ModelFile:
        """The file, made the first time.

        Raises:
            CaudalError: It can't be fetched or read.
            LlamaToolError: llama.cpp's quantiser is needed, and isn't installed or failed.
        """
        path = MODELS / f"{self.name}.gguf"
        if not path.exists():
            MODELS.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(path.name + ".part")
            unfinished.unlink(missing_ok=True)
            self.make(unfinished)
            unfinished.rename(path)
        return ModelFile(
            name=self.name,
            title=self.title,
            family=self.family,
            four_bit=self.four_bit,
            represents_family=self.represents_family,
            path=path,
            costs=ModelCosts.of(path),
        )


def _stored(name: str) -> Callable[[Path], None]:
    """A model of the store; a link, as peers want a name that ends in .gguf."""
    return lambda path: path.symlink_to(Store().ensure(name).path)


def _quantised(tensor_type: str) -> Callable[[Path], None]:
    """SmolLM2 in another type. From weights of four bits it answers no better; it is as fast."""

    def make(path: Path) -> None:
        source = Store().ensure("smollm2").path
        options = ["--allow-requantize", str(source), str(path), tensor_type]
        installed_tools().run("llama-quantize", options)

    return make


def _smollm2(tensor_type: str, *, four_bit: bool) -> KnownFile:
    first = tensor_type == "Q4_1"
    return KnownFile(
        name=f"smollm2-{tensor_type.lower()}",
        title=f"SmolLM2-135M {tensor_type}",
        family="SmolLM2-135M",
        four_bit=four_bit,
        represents_family=first,
        make=_stored("smollm2") if first else _quantised(tensor_type),
    )


def _random(shape: Shape) -> Callable[[Path], None]:
    return lambda path: write_random_model(path, shape, Store().ensure("smollm2").path)


KNOWN_FILES: Sequence[KnownFile] = (
    _smollm2("Q4_1", four_bit=True),
    _smollm2("Q4_0", four_bit=True),
    _smollm2("Q4_K_M", four_bit=True),
    _smollm2("Q8_0", four_bit=False),
    _smollm2("F16", four_bit=False),
    KnownFile(
        name="gemma3-270m-q4_k_m",
        title="Gemma 3 270M Q4_K_M",
        family="Gemma 3 270M",
        four_bit=True,
        represents_family=True,
        make=_stored("gemma3:270m-base"),
    ),
    KnownFile(
        name="llama-1b-q4_k_m",
        title="Llama-3.2-1B's shape, random weights, Q4_K_M",
        family="Llama-3.2-1B's shape",
        four_bit=True,
        represents_family=True,
        make=_random(LLAMA_1B),
    ),
    KnownFile(
        name="olmoe-1b-7b-q4_k_m",
        title="OLMoE-1B-7B's shape (64 experts, 8 a token), random weights, Q4_K_M",
        family="OLMoE-1B-7B's shape",
        four_bit=True,
        represents_family=True,
        make=_random(OLMOE_1B_7B),
    ),
    KnownFile(
        name="qwen35-0.8b-q4_k_m",
        title="Qwen3.5-0.8B's shape (18 gated delta nets, 6 attention layers), random, Q4_K_M",
        family="Qwen3.5-0.8B's shape",
        four_bit=True,
        represents_family=True,
        make=_random(QWEN35_08B),
    ),
    KnownFile(
        name="lfm2-1.2b-q4_k_m",
        title="LFM2.5-1.2B's shape (10 short convolutions, 6 attention layers), random, Q4_K_M",
        family="LFM2.5-1.2B's shape",
        four_bit=True,
        represents_family=True,
        make=_random(LFM2_12B),
    ),
)
"""All files, in the order of the report."""

QUICK = ("smollm2-q4_1",)
"""The files measured unless more are asked for."""
