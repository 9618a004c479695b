"""Tiny encoders, and what was said of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caudal.loading.load import load_model
from caudal.loading.options import LoadOptions
from caudal.service.embedding import Embedder
from caudal.service.work import EmbedWork
from references.reference import FOLDER, SIZES, TOKENS, VOCABULARY, Reference
from references.weights import random_weight, tokenizer_json
from support.safetensors_writer import write_safetensors

INPUTS = [TOKENS[:1], TOKENS[5:40], TOKENS]
OPTIONS = LoadOptions(activations="f32", kv_type="f32", threads=2)

PADDING = next(token for token in range(VOCABULARY) if token and token not in TOKENS)
"""A token that inputs don't have: those of RoBERTa have no position of their own."""

_SIZES = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
_NOMIC_SIZES = {
    "n_embd": 64,
    "n_inner": 96,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 512,
    "vocab_size": 320,
    "layer_norm_epsilon": 1e-5,
}


@dataclass(frozen=True, kw_only=True)
class EncoderReference(Reference):
    """A tiny encoder.

    Attributes:
        dense: Widths of linear layers after the pooling.
        tensors: Shapes of a model that transformers doesn't have.
    """

    dense: Sequence[int] = ()
    tensors: Mapping[str, Sequence[int]] | None = None


def _nomic_with_experts() -> dict[str, list[int]]:
    shapes = {
        "embeddings.word_embeddings.weight": [320, 64],
        "embeddings.token_type_embeddings.weight": [1, 64],
        "emb_ln.weight": [64],
        "emb_ln.bias": [64],
    }
    for layer in range(4):
        inside = {
            "attn.Wqkv.weight": [192, 64],
            "attn.Wqkv.bias": [192],
            "attn.out_proj.weight": [64, 64],
            "attn.out_proj.bias": [64],
            **{f"norm{each}.{kind}": [64] for each in (1, 2) for kind in ("weight", "bias")},
        }
        if layer % 2:
            inside |= {
                "mlp.router.layer.weight": [4, 64],
                "mlp.experts.mlp.w1": [4 * 96, 64],
                "mlp.experts.mlp.w2": [4 * 96, 64],
            }
        else:
            inside |= {
                "mlp.fc1.weight": [96, 64],
                "mlp.fc1.bias": [96],
                "mlp.fc2.weight": [64, 96],
                "mlp.fc2.bias": [64],
            }
        shapes |= {f"encoder.layers.{layer}.{name}": shape for name, shape in inside.items()}
    return shapes


ENCODERS = {
    "bert": EncoderReference(config={"model_type": "bert", **_SIZES}, auto="AutoModel"),
    "xlm_roberta": EncoderReference(
        config={
            "model_type": "xlm-roberta",
            **_SIZES,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
            "pad_token_id": PADDING,
        },
        auto="AutoModel",
    ),
    "xlm_roberta_pairs": EncoderReference(
        config={
            "model_type": "xlm-roberta",
            **_SIZES,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
            "pad_token_id": PADDING,
            "num_labels": 1,
        },
        auto="AutoModelForSequenceClassification",
        llama_cpp=False,
    ),
    "nomic_bert": EncoderReference(
        config={"model_type": "nomic_bert", **_SIZES, "layer_norm_eps": 1e-6}, auto="AutoModel"
    ),
    "nomic_bert_moe": EncoderReference(
        config={
            "model_type": "nomic_bert",
            **_NOMIC_SIZES,
            "activation_function": "gelu",
            "rotary_emb_base": 10000.0,
            "moe_every_n_layers": 2,
            "num_experts": 4,
            "moe_top_k": 2,
        },
        tensors=_nomic_with_experts(),
    ),
    "modernbert": EncoderReference(
        config={
            "model_type": "modernbert",
            **_SIZES,
            "num_hidden_layers": 5,
            "local_attention": 48,
        },
        auto="AutoModel",
    ),
    "modernbert_pairs": EncoderReference(
        config={
            "model_type": "modernbert",
            **_SIZES,
            "local_attention": 48,
            "num_labels": 1,
            "classifier_pooling": "cls",
        },
        auto="AutoModelForSequenceClassification",
        llama_cpp=False,
    ),
    "modernbert_pairs_mean": EncoderReference(
        config={
            "model_type": "modernbert",
            **_SIZES,
            "local_attention": 48,
            "num_labels": 1,
            "classifier_pooling": "mean",
        },
        auto="AutoModelForSequenceClassification",
        llama_cpp=False,
    ),
    "embedding_gemma": EncoderReference(
        config={
            "model_type": "gemma3_text",
            **SIZES,
            "num_hidden_layers": 7,
            "head_dim": 32,
            "sliding_window": 48,
            "query_pre_attn_scalar": 32,
            "use_bidirectional_attention": True,
        },
        auto="AutoModel",
        dense=(96, 64),
    ),
}


@dataclass(frozen=True, kw_only=True)
class RecordedEncoder:
    """What was said of an encoder.

    Attributes:
        config: config.json.
        tensors: Shape, mean and deviation of each tensor.
        dense: Widths of linear layers after the pooling.
        vectors: The embedding of each of INPUTS; of a cross-encoder the score.
        tolerance: How far others may be from them.
    """

    config: dict[str, Any]
    tensors: dict[str, tuple[list[int], float, float]]
    dense: list[int]
    vectors: list[list[float]]
    tolerance: float = 2e-5

    @classmethod
    def names(cls) -> list[str]:
        """All that were recorded."""
        return sorted(path.stem for path in (FOLDER / "encoders").glob("*.json"))

    @classmethod
    def read(cls, name: str) -> RecordedEncoder:
        """One of them."""
        return cls(**json.loads((FOLDER / "encoders" / f"{name}.json").read_text()))

    def write(self, name: str) -> None:
        """Record it."""
        (FOLDER / "encoders").mkdir(exist_ok=True)
        tensors = [f"{json.dumps(key)}: {json.dumps(each)}" for key, each in self.tensors.items()]
        vectors = [json.dumps([round(value, 7) for value in each]) for each in self.vectors]
        lines = [
            f'"config": {json.dumps(self.config, sort_keys=True)}',
            '"tensors": {\n' + ",\n".join(tensors) + "\n}",
            f'"dense": {json.dumps(self.dense)}',
            f'"tolerance": {self.tolerance}',
            '"vectors": [\n' + ",\n".join(vectors) + "\n]",
        ]
        text = "{\n" + ",\n".join(lines) + "\n}\n"
        (FOLDER / "encoders" / f"{name}.json").write_text(text)


def write_encoder(recorded: RecordedEncoder, path: Path) -> Path:
    """The folder of a recorded model."""
    path.mkdir()
    weights = {name: random_weight(name, *spread) for name, spread in recorded.tensors.items()}
    write_safetensors(path / "model.safetensors", weights)
    (path / "config.json").write_text(json.dumps(recorded.config))
    width = recorded.config.get("hidden_size") or recorded.config["n_embd"]
    return write_modules(path, recorded.dense, width)


def write_modules(path: Path, dense: Sequence[int], width: int) -> Path:
    """What is beside a model's own files: a tokenizer, and what makes embeddings of states."""
    (path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    kinds = ["Transformer", "Pooling", *["Dense"] * len(dense), "Normalize"]
    paths = ["", *(f"{place}_{kind}" for place, kind in enumerate(kinds) if place)]
    modules = [{"path": at, "type": f"x.{kind}"} for at, kind in zip(paths, kinds, strict=True)]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    for at, weight in zip(paths[2:], dense_weights(dense, width), strict=False):
        (path / at).mkdir()
        (path / at / "config.json").write_text('{"activation_function": "torch.nn.Identity"}')
        write_safetensors(path / at / "model.safetensors", {"linear.weight": weight})
    return path


def dense_weights(dense: Sequence[int], width: int) -> list[NDArray[np.float32]]:
    """The matrices of the linear layers after the pooling."""
    sizes = zip(dense, [width, *dense], strict=False)
    return [random_weight(f"{i}_Dense", [a, b], 0, b**-0.5) for i, (a, b) in enumerate(sizes)]


def vectors(path: Path, inputs: Sequence[Sequence[int]] = INPUTS) -> list[list[float]]:
    """What Caudal makes of inputs, all in one batch."""
    model = load_model(str(path), OPTIONS)
    engine = model.start_engine()
    embedder = Embedder.of(model, engine)
    # What a cross-encoder says of tokens, which needn't be a pair's.
    embedder.pooling = replace(embedder.pooling, scores_pairs=False)

    async def run() -> list[list[float]]:
        try:
            results = await embedder.embed(EmbedWork(inputs=[list(each) for each in inputs]))
            return [result.vector.tolist() for result in results]
        finally:
            await engine.shutdown()

    return asyncio.run(run())
