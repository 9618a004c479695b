"""StableLM 3B and StableLM 2 (arXiv 2402.17834): Llama with LayerNorms, rotating part of a head.

Without a norm of its own, an MLP reads what the attention beside it reads (12B, where heads have
LayerNorms, too: each its own).
"""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.program import Program

_ALWAYS = ("attn_norm.bias", "ffn_norm.bias", "output_norm.bias")


def build(file: ModelFile) -> Program:
    """The program."""
    decoder = Decoder(file, norms="layer", always=_ALWAYS)
    rope = decoder.rope(interleaved=False)
    decoder.embed_tokens()
    for layer in decoder.layers():
        normed = layer.norm("attn_norm")
        heads = layer.project(normed)
        norms = {layer.tensor("attn_q_norm"): heads.q, layer.tensor("attn_k_norm"): heads.k}
        decoder.b.require_all_or_none([f"{name}.weight" for name in norms])
        for name, x in norms.items():
            if decoder.b.has_optional(f"{name}.weight"):
                decoder.b.layer_norm(x, name, x, eps=layer.eps, group=heads.dim)
        layer.rotate(heads, rope)
        layer.add(layer.attend(heads), "attn_output")
        if decoder.b.has(layer.tensor("ffn_norm.weight")):
            normed = layer.norm("ffn_norm")
        layer.add(layer.gated_mlp(normed, "silu"), "ffn_down")
    return decoder.finish()
