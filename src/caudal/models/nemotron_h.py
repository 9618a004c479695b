"""Nemotron-H and Nemotron 3 (arXiv 2504.03624): each layer is one of Mamba-2, attention, or MLP.

Layers with key and value heads attend, without positions; of the others those that are wide inside
are MLPs, with the square of a ReLU and no gate, or experts of that kind. Experts may work on a
latent, narrower than the residual stream.
"""

from __future__ import annotations

from dataclasses import replace

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.experts import (
    SELECTION_BIAS,
    ExpertsConfig,
    add_experts,
    route,
    shared_expert,
)
from caudal.models.hyperparameters import positive
from caudal.models.layer import Layer
from caudal.models.mamba2 import StateSpace
from caudal.models.program import ActivationName, Buffer, Program

_ACTIVATION: ActivationName = "relu_squared"


def build(file: ModelFile) -> Program:
    """The program."""
    arch = file.architecture
    decoder = Decoder(file, always=(SELECTION_BIAS,))
    kv_heads = decoder.per_layer("attention.head_count_kv")
    widths = decoder.per_layer("feed_forward_length")
    space = StateSpace.from_gguf(file)
    experts = None
    if file.get_int(f"{arch}.expert_count", 0):
        experts = ExpertsConfig.from_gguf(file, scoring="sigmoid")
    latent_key = f"{arch}.moe_latent_size"
    latent_width = positive(file, latent_key) if file.get_int(latent_key, 0) else 0
    decoder.embed_tokens()
    for layer in decoder.layers():
        heads, width = kv_heads[layer.index], widths[layer.index]
        if heads > 0 and width > 0:
            raise ModelLoadError(
                str(file.path),
                f"layer {layer.index} has both {arch}.attention.head_count_kv and "
                f"{arch}.feed_forward_length; each layer is one of attention and MLP",
            )
        layer = replace(layer, kv_heads=heads, feed_forward=width)
        x = layer.norm("attn_norm")
        if heads > 0:
            layer.add(layer.attend(layer.project(x)), "attn_output")
        elif width == 0:
            layer.add(space.emit(layer, x), "ssm_out")
        elif experts is None or not decoder.b.has(layer.tensor("ffn_gate_inp.weight")):
            layer.add(layer.mlp(x, _ACTIVATION), "ffn_down")
        else:
            _add_experts(layer, x, experts, latent_width)
    return decoder.finish()


def _add_experts(layer: Layer, x: Buffer, experts: ExpertsConfig, latent_width: int) -> None:
    """Add experts to the residual stream: those chosen, on a latent if there is one, and all's."""
    b = layer.b
    logits = route(layer, x, experts)
    inside = None
    if experts.shared_feed_forward:
        inside = shared_expert(layer, x, experts, _ACTIVATION, gated=False)
    if latent_width:
        latent, result = b.buffer("latent", latent_width), b.buffer("latent_sum", latent_width)
        b.linear(x, layer.tensor("ffn_latent_down"), latent)
        add_experts(layer, latent, logits, experts, _ACTIVATION, gated=False, out=result)
        layer.add(result, "ffn_latent_up")
    else:
        add_experts(layer, x, logits, experts, _ACTIVATION, gated=False)
    if inside is not None:
        layer.add(inside, "ffn_down_shexp")
