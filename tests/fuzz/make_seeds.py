"""Writes the seeds that are binary: `python -m fuzz.make_seeds`. The others are written by hand."""

from __future__ import annotations

import numpy as np

from caudal.formats.tensor_types import TensorType
from fuzz.model_targets import TINY
from fuzz.target import SEEDS
from support.reference_model import TinyModel
from support.safetensors_writer import write_safetensors
from support.vocabularies import CHATML_TOKENS, bpe_metadata, spm_metadata


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


if __name__ == "__main__":
    main()
