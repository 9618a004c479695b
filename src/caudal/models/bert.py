"""BERT (arXiv 1810.04805): post-norm blocks, learned positions, attention both ways."""

from __future__ import annotations

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.models.encoder import Encoder
from caudal.models.program import Program


def build(file: ModelFile) -> Program:
    """The program."""
    encoder = Encoder(file)
    for name in ("position_embd.weight", "token_types.weight"):
        if not encoder.b.has(name):
            raise ModelLoadError(str(file.path), f"the matrix {name} is missing")
    encoder.embed_tokens()
    for layer in encoder.layers():
        layer.add(layer.attend(layer.project(encoder.hidden), causal=False), "attn_output")
        encoder.norm_hidden(layer.tensor("attn_output_norm"))
        layer.add(layer.mlp(encoder.hidden, encoder.config.activation), "ffn_down")
        encoder.norm_hidden(layer.tensor("layer_output_norm"))
    return encoder.finish()
