"""LFM2 and LFM2.5: short convolutions, gated on both sides, with an attention layer here and there.

Both are dense, or have experts behind a few dense layers. Layers without key and value heads are
convolutions. The norm before the output matrix has the name that other families give to one behind
the embedding.
"""

from __future__ import annotations

from dataclasses import replace

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.experts import SELECTION_BIAS, ExpertsConfig, add_routed
from caudal.models.hyperparameters import positive
from caudal.models.layer import Layer
from caudal.models.program import Buffer, Program

EXPERTS = "lfm2moe"


def build(file: ModelFile) -> Program:
    """The program."""
    arch = file.architecture
    experts = ExpertsConfig.from_gguf(file, scoring="sigmoid") if arch == EXPERTS else None
    decoder = Decoder(file, always=(SELECTION_BIAS,))
    rope = decoder.rope(interleaved=False)
    taps = positive(file, f"{arch}.shortconv.l_cache")
    kv_heads = decoder.per_layer("attention.head_count_kv")
    decoder.embed_tokens()
    for layer in decoder.layers():
        layer = replace(layer, kv_heads=kv_heads[layer.index])
        x = layer.norm("attn_norm")
        if layer.kv_heads == 0:
            layer.add(_short_convolution(layer, x, taps), "shortconv.out_proj")
        else:
            heads = layer.project(x)
            layer.norm_heads(heads)
            layer.rotate(heads, rope)
            layer.add(layer.attend(heads), "attn_output")
        x = layer.norm("ffn_norm")
        if experts is not None and experts.in_layer(layer.index):
            add_routed(layer, x, experts)
        else:
            layer.add(layer.gated_mlp(x, "silu"), "ffn_down")
    return decoder.finish(norm="token_embd_norm")


def _short_convolution(layer: Layer, x: Buffer, taps: int) -> Buffer:
    """The inside of a convolution layer: c · convolution(b · x), all three of one matrix's rows."""
    builder, width = layer.b, layer.hidden.width
    before, after = builder.buffer("conv_before", width), builder.buffer("conv_after", width)
    values, convolved = builder.buffer("conv_x", width), builder.buffer("convolved", width)
    name = layer.tensor("shortconv.in_proj")
    for index, out in enumerate((before, after, values)):
        builder.linear(x, name, out, first_row=index * width)
    builder.gated(before, values, values, "none")
    builder.causal_conv(values, layer.tensor("shortconv.conv"), convolved, "none", taps=taps)
    builder.gated(after, convolved, convolved, "none")
    return convolved
