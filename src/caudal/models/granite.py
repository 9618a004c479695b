"""Granite 3 and 4: Llama with four multipliers; of 4.0-h, most layers are Mamba-2.

The multipliers are those of the embedding, of what each sublayer adds, of attention's scores, and
of logits, which are divided by theirs. Hybrids' layers without key and value heads are Mamba-2, and
the others have no positions as a rule. Both may have experts.
"""

from __future__ import annotations

from dataclasses import replace

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.experts import ExpertsConfig, add_routed
from caudal.models.hyperparameters import positive_number
from caudal.models.layer import Layer
from caudal.models.mamba2 import StateSpace
from caudal.models.program import Buffer, Program
from caudal.models.rope import RopeTable

HYBRID = "granitehybrid"


def build(file: ModelFile) -> Program:
    """The program."""
    arch = file.architecture
    has_experts = file.get_int(f"{arch}.expert_count", 0) != 0
    experts = ExpertsConfig.from_gguf(file) if has_experts else None
    decoder = Decoder(file)
    config = decoder.config
    space = StateSpace.from_gguf(file) if arch == HYBRID else None
    kv_heads = decoder.per_layer("attention.head_count_kv", config.heads)
    # Granite's converters say by this key whether there are rotary positions at all.
    rotates = file.get_bool(f"{arch}.rope.scaling.finetuned", True)
    rope = decoder.rope(interleaved=True) if rotates else None
    scale = positive_number(file, f"{arch}.attention.scale", config.head_dim**-0.5)
    residual = positive_number(file, f"{arch}.residual_scale", 1.0)
    decoder.embed_tokens(scale=positive_number(file, f"{arch}.embedding_scale", 1.0))
    for layer in decoder.layers():
        layer = replace(layer, kv_heads=kv_heads[layer.index])
        x = layer.norm("attn_norm")
        if space is not None and layer.kv_heads == 0:
            layer.add(space.emit(layer, x), "ssm_out", scale=residual)
        else:
            layer.add(_attention(layer, x, rope, scale), "attn_output", scale=residual)
        x = layer.norm("ffn_norm")
        if experts is None:
            layer.add(layer.gated_mlp(x, "silu"), "ffn_down", scale=residual)
        else:
            add_routed(layer, x, experts, scale=residual)
    return decoder.finish(logit_scale=1 / positive_number(file, f"{arch}.logit_scale", 1.0))


def _attention(layer: Layer, x: Buffer, rope: RopeTable | None, scale: float) -> Buffer:
    heads = layer.project(x)
    if rope is not None:
        layer.rotate(heads, rope)
    return layer.attend(heads, scale=scale)
