"""A second opinion on BERT: tiny random models, and a float64 forward pass in numpy.

Written from the paper (arXiv 1810.04805) and the published model's description, one token matrix at
a time, without the op vocabulary, the runtime or anything else of Caudal's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caudal.formats.tensor_types import TensorType
from support.gguf_writer import write_gguf
from support.safetensors_writer import write_safetensors

Floats = NDArray[np.float64]

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?"
VOCABULARY = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS[:36]), "the", "##ing"]
CLS, SEP = 2, 3

_GGUF_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}

_ERF = np.vectorize(math.erf)
ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "gelu": lambda x: x / 2 * (1 + _ERF(x / math.sqrt(2))),
    "gelu_new": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


@dataclass(frozen=True, kw_only=True)
class TinyBert:
    """Sizes and switches of a random encoder.

    Attributes:
        pooling: The name of sentence-transformers' pooling mode.
        dense: Width and activation of a Dense module, or None.
        labels: Outputs of a classification head; 0: there is none.
        extra: Further keys of config.json.
    """

    layers: int = 2
    hidden: int = 48
    heads: int = 3
    feed_forward: int = 80
    positions: int = 64
    max_seq_length: int | None = None
    activation: str = "gelu"
    pooling: str = "pooling_mode_mean_tokens"
    normalize: bool = True
    dense: tuple[int, str] | None = None
    labels: int = 0
    eps: float = 1e-12
    extra: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """By Hugging Face's names."""
        rng = np.random.default_rng(self.seed)
        made: dict[str, NDArray[np.float32]] = {}

        def linear(name: str, rows: int, cols: int) -> None:
            made[f"{name}.weight"] = (rng.standard_normal((rows, cols)) / math.sqrt(cols)).astype(
                "f4"
            )
            made[f"{name}.bias"] = (0.2 * rng.standard_normal(rows)).astype("f4")

        def norm(name: str) -> None:
            made[f"{name}.weight"] = (1 + 0.2 * rng.standard_normal(self.hidden)).astype("f4")
            made[f"{name}.bias"] = (0.2 * rng.standard_normal(self.hidden)).astype("f4")

        for name, rows in (
            ("word", len(VOCABULARY)), ("position", self.positions), ("token_type", 2)
        ):  # fmt: skip
            made[f"embeddings.{name}_embeddings.weight"] = rng.standard_normal(
                (rows, self.hidden)
            ).astype("f4")
        norm("embeddings.LayerNorm")
        for layer in range(self.layers):
            block = f"encoder.layer.{layer}"
            for part in ("query", "key", "value"):
                linear(f"{block}.attention.self.{part}", self.hidden, self.hidden)
            linear(f"{block}.attention.output.dense", self.hidden, self.hidden)
            norm(f"{block}.attention.output.LayerNorm")
            linear(f"{block}.intermediate.dense", self.feed_forward, self.hidden)
            linear(f"{block}.output.dense", self.hidden, self.feed_forward)
            norm(f"{block}.output.LayerNorm")
        linear("pooler.dense", self.hidden, self.hidden)
        if self.labels:
            linear("classifier", self.labels, self.hidden)
        if self.dense is not None:
            linear("linear", self.dense[0], self.hidden)
        return made

    def write_folder(self, path: Path, *, modules: bool = True, prefix: str = "") -> Path:
        """Write the model as Hugging Face lays it out; returns the folder."""
        path.mkdir(parents=True, exist_ok=True)
        weights = self.weights()
        dense = {name: weights.pop(name) for name in list(weights) if name.startswith("linear.")}
        weights = {
            (name if name.startswith("classifier") else prefix + name): values
            for name, values in weights.items()
        }
        ids: dict[str, NDArray[Any]] = {
            f"{prefix}embeddings.position_ids": np.arange(self.positions, dtype=np.int64)
        }
        write_safetensors(path / "model.safetensors", ids | weights)
        kind = "BertForSequenceClassification" if self.labels else "BertModel"
        self._dump(
            path / "config.json",
            {
                "architectures": [kind],
                "model_type": "bert",
                "hidden_act": self.activation,
                "hidden_size": self.hidden,
                "intermediate_size": self.feed_forward,
                "layer_norm_eps": self.eps,
                "max_position_embeddings": self.positions,
                "num_attention_heads": self.heads,
                "num_hidden_layers": self.layers,
                **self.extra,
            },
        )
        self._dump(path / "tokenizer.json", tokenizer_json())
        if modules and not self.labels:
            kinds = ["Transformer", "Pooling"]
            kinds += ["Dense"] if self.dense else []
            kinds += ["Normalize"] if self.normalize else []
            self._dump(
                path / "modules.json",
                [
                    {
                        "idx": index,
                        "name": str(index),
                        "path": "" if index == 0 else f"{index}_{kind}",
                        "type": f"sentence_transformers.models.{kind}",
                    }
                    for index, kind in enumerate(kinds)
                ],
            )
            self._dump(path / "1_Pooling/config.json", {self.pooling: True})
            if self.dense:
                module = "torch.nn.modules"
                width, activation = self.dense
                name = "linear.Identity" if activation == "Identity" else f"activation.{activation}"
                self._dump(
                    path / "2_Dense/config.json",
                    {"out_features": width, "activation_function": f"{module}.{name}"},
                )
                write_safetensors(path / "2_Dense/model.safetensors", dense)
            if self.max_seq_length:
                self._dump(
                    path / "sentence_bert_config.json", {"max_seq_length": self.max_seq_length}
                )
        return path

    def write_gguf(self, path: Path, pooling_type: int = 1) -> Path:
        """Write the model as llama.cpp's converter does, in F32."""
        tensors = {}
        for name, values in self.weights().items():
            stem, _, kind = name.rpartition(".")
            if stem in ("pooler.dense", "classifier"):
                if not self.labels:
                    continue
                stem = {"pooler.dense": "cls", "classifier": "cls.output"}[stem]
            elif stem.startswith("encoder.layer."):
                _, _, layer, rest = stem.split(".", 3)
                stem = f"blk.{layer}.{_GGUF_NAMES[rest]}"
            else:
                stem = _GGUF_NAMES[stem]
            tensors[f"{stem}.{kind}"] = (TensorType.F32, values.shape, values.tobytes())
        spelt = [
            text if text in SPECIAL else text[2:] if text.startswith("##") else f"\u2581{text}"
            for text in VOCABULARY
        ]
        kinds = [3 if text in SPECIAL else 1 for text in VOCABULARY]
        return write_gguf(
            path,
            {
                "general.architecture": "bert",
                "bert.block_count": self.layers,
                "bert.context_length": self.positions,
                "bert.embedding_length": self.hidden,
                "bert.feed_forward_length": self.feed_forward,
                "bert.attention.head_count": self.heads,
                "bert.attention.layer_norm_epsilon": self.eps,
                "bert.attention.causal": False,
                "bert.pooling_type": pooling_type,
                "tokenizer.ggml.model": "bert",
                "tokenizer.ggml.tokens": spelt,
                "tokenizer.ggml.token_type": kinds,
                "tokenizer.ggml.bos_token_id": CLS,
                "tokenizer.ggml.seperator_token_id": SEP,
                "tokenizer.ggml.unknown_token_id": 1,
                "tokenizer.ggml.padding_token_id": 0,
                **{f"bert.{key}": value for key, value in self.extra.items()},
            },
            tensors,
        )

    def states(self, tokens: Sequence[int], second: int | None = None) -> Floats:
        """The last hidden states, shape (tokens, hidden)."""
        w = {name: values.astype(np.float64) for name, values in self.weights().items()}
        segments = [int(second is not None and i >= second) for i in range(len(tokens))]

        def linear(name: str, x: Floats) -> Floats:
            return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

        def norm(name: str, x: Floats) -> Floats:
            centred = x - x.mean(axis=-1, keepdims=True)
            variance = (centred**2).mean(axis=-1, keepdims=True)
            return centred / np.sqrt(variance + self.eps) * w[f"{name}.weight"] + w[f"{name}.bias"]

        x = w["embeddings.word_embeddings.weight"][list(tokens)]
        x = x + w["embeddings.position_embeddings.weight"][: len(tokens)]
        x = norm("embeddings.LayerNorm", x + w["embeddings.token_type_embeddings.weight"][segments])
        size = self.hidden // self.heads
        for layer in range(self.layers):
            block = f"encoder.layer.{layer}"
            q, k, v = (
                linear(f"{block}.attention.self.{part}", x).reshape(-1, self.heads, size)
                for part in ("query", "key", "value")
            )
            scores = np.einsum("qhc,khc->hqk", q, k) / math.sqrt(size)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            attended = np.einsum("hqk,khc->qhc", weights, v).reshape(-1, self.hidden)
            attended = linear(f"{block}.attention.output.dense", attended)
            x = norm(f"{block}.attention.output.LayerNorm", x + attended)
            inner = ACTIVATIONS[self.activation](linear(f"{block}.intermediate.dense", x))
            x = norm(f"{block}.output.LayerNorm", x + linear(f"{block}.output.dense", inner))
        return x

    def embedding(self, tokens: Sequence[int]) -> Floats:
        """What the model's own configuration makes of the states."""
        states = self.states(tokens)
        vector = {
            "pooling_mode_mean_tokens": states.mean(axis=0),
            "pooling_mode_cls_token": states[0],
            "pooling_mode_lasttoken": states[-1],
        }[self.pooling]
        if self.dense is not None:
            w = self.weights()
            vector = w["linear.weight"].astype(np.float64) @ vector + w["linear.bias"]
            vector = np.tanh(vector) if self.dense[1] == "Tanh" else vector
        return vector / np.linalg.norm(vector) if self.normalize else vector

    def score(self, tokens: Sequence[int], second: int) -> float:
        """A cross-encoder's logit for a pair."""
        w = {name: values.astype(np.float64) for name, values in self.weights().items()}
        first = self.states(tokens, second)[0]
        pooled = np.tanh(w["pooler.dense.weight"] @ first + w["pooler.dense.bias"])
        return float((w["classifier.weight"] @ pooled + w["classifier.bias"])[0])

    @staticmethod
    def _dump(path: Path, content: Any) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))


def tokenizer_json() -> dict[str, Any]:
    """A WordPiece tokenizer of VOCABULARY, with truncation and padding that nobody asked for."""
    frame = [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
    ]
    return {
        "version": "1.0",
        "truncation": {
            "max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"
        },
        "padding": {
            "strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": None,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]",
        },
        "added_tokens": [
            {
                "id": token, "content": text, "special": True, "single_word": False,
                "lstrip": False, "rstrip": False, "normalized": False,
            }
            for token, text in enumerate(SPECIAL)
        ],
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
            "strip_accents": None, "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": frame,
            "pair": [*frame, {"Sequence": {"id": "B", "type_id": 1}}, frame[2]],
            "special_tokens": {
                text: {"id": text, "ids": [token], "tokens": [text]}
                for text, token in (("[CLS]", CLS), ("[SEP]", SEP))
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {text: token for token, text in enumerate(VOCABULARY)},
        },
    }  # fmt: skip
