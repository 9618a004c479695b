"""StarCoder 2 (arXiv 2402.19173): LayerNorms, an MLP without a gate, and biases everywhere."""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.hyperparameters import positive
from caudal.models.program import Program

_BIASED = (
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_output",
    "ffn_norm",
    "ffn_up",
    "ffn_down",
    "output_norm",
)


def build(file: ModelFile) -> Program:
    """The program; a window that the file names holds for all layers."""
    key = "starcoder2.attention.sliding_window"
    window = positive(file, key) if file.get_int(key, 0) else None
    decoder = Decoder(file, norms="layer", always=[f"{name}.bias" for name in _BIASED])
    rope = decoder.rope(interleaved=False)
    decoder.embed_tokens()
    for layer in decoder.layers():
        heads = layer.project(layer.norm("attn_norm"))
        layer.rotate(heads, rope)
        layer.add(layer.attend(heads, window=window), "attn_output")
        layer.add(layer.mlp(layer.norm("ffn_norm"), "gelu_tanh"), "ffn_down")
    return decoder.finish()
