"""What tensors are called at Hugging Face, family by family, and what at llama.cpp.

Programs ask for llama.cpp's names (models/), GGUF files have them; safetensors files are read
through one of the tables here. A name is that of a module and a kind, such as `weight`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

_KINDS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """One family's names.

    Attributes:
        prefix: What some files have before every name.
        layer: What the names of a layer's modules begin with, before its number.
        of_layer: Modules of a layer: Hugging Face's name after the number, and llama.cpp's.
        others: All other modules.
        left_out: Tensors and modules that files have and programs don't use.
    """

    prefix: str = ""
    layer: str = ""
    of_layer: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, str]
    left_out: tuple[str, ...] = ()

    def new_name(self, name: str) -> str | None:
        """A tensor's name at llama.cpp.

        None if it is left out; the name as it is if the family has none such, so that whoever
        reads the file says that it isn't part of the model.
        """
        plain = name.removeprefix(self.prefix)
        if any(plain == each or plain.startswith(f"{each}.") for each in self.left_out):
            return None
        module, _, kind = plain.rpartition(".")
        kind = _KINDS.get(kind, kind)
        if module in self.others:
            return f"{self.others[module]}.{kind}"
        if module.startswith(self.layer):
            number, _, of_layer = module.removeprefix(self.layer).partition(".")
            if number.isdecimal() and of_layer in self.of_layer:
                return f"blk.{number}.{self.of_layer[of_layer]}.{kind}"
        return name


BERT_PAIRS = TensorNames(
    prefix="bert.",
    layer="encoder.layer.",
    of_layer={
        "attention.self.query": "attn_q",
        "attention.self.key": "attn_k",
        "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output",
        "attention.output.LayerNorm": "attn_output_norm",
        "intermediate.dense": "ffn_up",
        "output.dense": "ffn_down",
        "output.LayerNorm": "layer_output_norm",
    },
    others={
        "embeddings.word_embeddings": "token_embd",
        "embeddings.position_embeddings": "position_embd",
        "embeddings.token_type_embeddings": "token_types",
        "embeddings.LayerNorm": "token_embd_norm",
        "pooler.dense": "cls",
        "classifier": "cls.output",
    },
    # Constants, and the head for guessing masked words.
    left_out=("embeddings.position_ids", "cls"),
)
"""BERT with a head that scores pairs."""

BERT = replace(BERT_PAIRS, left_out=(*BERT_PAIRS.left_out, "pooler.dense"))
"""BERT that makes embeddings."""

DENSE = TensorNames(others={"linear": "dense"})
"""The module `Dense` of sentence-transformers."""
