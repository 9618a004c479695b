"""Writes the seeds that are binary: `python -m fuzz.make_seeds`. The others are written by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from caudal.formats.tensor_types import TensorType
from fuzz.model_targets import TINY
from fuzz.target import SEEDS
from support.gguf_writer import random_tensor, write_gguf
from support.reference_model import TinyModel
from support.safetensors_writer import write_safetensors
from support.vocabularies import CHATML_TOKENS, bpe_metadata, spm_metadata

F32, F16, BF16, Q8_0 = TensorType.F32, TensorType.F16, TensorType.BF16, TensorType.Q8_0


def main() -> None:
    folder = SEEDS / "gguf"
    folder.mkdir(parents=True, exist_ok=True)
    yarn = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }
    whole = TinyModel(
        architecture="llama", vocab_size=259, metadata=bpe_metadata() | yarn, **TINY
    ).write(folder / "llama.gguf")
    spm = spm_metadata({"\u2581a": -1.0, "b": -2.0, "\u2581ab": -3.0}, with_bytes=False)
    TinyModel(
        architecture="gemma3", vocab_size=6, window=8,
        metadata=spm | {"general.architecture": "gemma3"}, **TINY,
    ).write(folder / "gemma3.gguf")  # fmt: skip
    TinyModel(
        architecture="qwen2", vocab_size=256 + len(CHATML_TOKENS), biases=True,
        metadata=bpe_metadata() | {"general.architecture": "qwen2"},
        **TINY | {"hidden": 32, "feed_forward": 32, "head_dim": 16},
    ).write(folder / "qwen2.gguf", TensorType.Q4_0)  # fmt: skip
    (folder / "bad-cut.gguf").write_bytes(whole.read_bytes()[:3000])
    folder = SEEDS / "safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"a": np.ones((2, 3), np.float32), "b": np.ones(3, np.float16)}
    whole = write_safetensors(folder / "two.safetensors", arrays)
    (folder / "bad-cut.safetensors").write_bytes(whole.read_bytes()[:-1])
    make_adapters(SEEDS / "adapter")


def make_adapters(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    keys = {
        "general.type": "adapter",
        "general.architecture": "llama",
        "adapter.type": "lora",
        "adapter.lora.alpha": 6.0,
    }
    tensors = {
        f"blk.{layer}.{name}.weight.lora_{half}": random_tensor(rng, kind, shape)
        for layer, kinds in enumerate(((F32, F16), (BF16, BF16), (Q8_0, F32)))
        for name, (rows, columns) in {"attn_q": (64, 64), "ffn_up": (96, 64)}.items()
        for half, kind, shape in zip("ab", kinds, ((4, columns), (rows, 4)), strict=True)
    }
    whole = write_gguf(folder / "types.gguf", keys, tensors)
    (folder / "bad-cut.gguf").write_bytes(whole.read_bytes()[:-1])
    head = {
        f"output.weight.lora_{half}": random_tensor(rng, F32, shape)
        for half, shape in zip("ab", ((2, 64), (320, 2)), strict=True)
    }
    write_gguf(folder / "head.gguf", keys, head)
    write_gguf(folder / "bad-type.gguf", keys | {"adapter.type": "control_vector"}, head)


if __name__ == "__main__":
    main()
