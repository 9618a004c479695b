"""Llama 1 to 3, Mistral, Mixtral, SmolLM and whatever else is converted as `llama`.

Norms before attention and MLP, GQA, RoPE, SwiGLU. Converters permute the query and key rows of this
family so that RoPE's pairs are neighbours. Mixtral has experts in place of the MLP.
"""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.experts import ExpertsConfig, add_routed
from caudal.models.hyperparameters import positive
from caudal.models.program import Program


def build(file: ModelFile) -> Program:
    """The program; `attention.sliding_window` (Mistral 7B v0.1) holds for all layers."""
    key = "llama.attention.sliding_window"
    window = positive(file, key) if file.get_int(key, 0) else None
    experts = ExpertsConfig.from_gguf(file) if file.get_int("llama.expert_count", 0) else None
    decoder = Decoder(file)
    rope = decoder.rope(interleaved=True)
    decoder.embed_tokens()
    for layer in decoder.layers():
        heads = layer.project(layer.norm("attn_norm"))
        layer.rotate(heads, rope)
        layer.add(layer.attend(heads, window=window), "attn_output")
        normed = layer.norm("ffn_norm")
        if experts is not None:
            add_routed(layer, normed, experts)
        else:
            layer.add(layer.gated_mlp(normed, "silu"), "ffn_down")
    return decoder.finish()
