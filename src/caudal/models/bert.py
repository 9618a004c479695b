"""BERT (arXiv 1810.04805): post-norm blocks, learned positions, attention both ways."""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.encoder import Encoder
from caudal.models.program import Program

_ALWAYS = (
    "position_embd.weight",
    "token_types.weight",
    *(
        f"{module}.bias"
        for module in (
            "token_embd_norm",
            "attn_q",
            "attn_k",
            "attn_v",
            "attn_qkv",
            "attn_output",
            "attn_output_norm",
            "ffn_up",
            "ffn_down",
            "layer_output_norm",
            "cls",
            "cls.output",
        )
    ),
)


def build(file: ModelFile) -> Program:
    """The program."""
    encoder = Encoder(file, always=_ALWAYS)
    encoder.embed_tokens()
    for layer in encoder.layers():
        layer.add(layer.attend(layer.project(encoder.hidden), causal=False), "attn_output")
        encoder.norm_hidden(layer.tensor("attn_output_norm"))
        layer.add(layer.mlp(encoder.hidden, encoder.config.activation), "ffn_down")
        encoder.norm_hidden(layer.tensor("layer_output_norm"))
    return encoder.finish()
