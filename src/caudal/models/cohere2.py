"""Command R7B, Command A (Cohere 2, arXiv 2504.00698), and with experts: attention and MLP abreast.

Three of four layers have windows, and rotate; the others see all tokens, without positions, but for
those without experts of a model that has some. What is added by the experts that were chosen and by
the one of all tokens is averaged. Logits are scaled.
"""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.experts import ExpertsConfig, add_routed
from caudal.models.hyperparameters import positive, positive_number
from caudal.models.program import Program

EXPERTS = "cohere2moe"

_GLOBAL_EVERY = 4


def build(file: ModelFile) -> Program:
    """The program."""
    arch = file.architecture
    experts = ExpertsConfig.from_gguf(file, scoring="sigmoid") if arch == EXPERTS else None
    has_rms_norms = f"{arch}.attention.layer_norm_rms_epsilon" in file.metadata
    decoder = Decoder(file, norms="rms" if arch == EXPERTS and has_rms_norms else "layer")
    window = positive(file, f"{arch}.attention.sliding_window")
    local = decoder.window_layers(global_every=_GLOBAL_EVERY)
    rope = decoder.rope(interleaved=True)
    decoder.embed_tokens()
    for layer in decoder.layers():
        is_local = local[layer.index]
        has_experts = experts is not None and experts.in_layer(layer.index)
        normed = layer.norm("attn_norm")
        heads = layer.project(normed)
        if is_local or (experts is not None and not has_experts):
            layer.rotate(heads, rope)
        attended = layer.attend(heads, window=window if is_local else None)
        layer.add(attended, "attn_output")
        if experts is not None and has_experts:
            scale = 0.5 if experts.shared_feed_forward else 1.0
            add_routed(layer, normed, experts, scale=scale)
        else:
            layer.add(layer.gated_mlp(normed, "silu"), "ffn_down")
    return decoder.finish(logit_scale=positive_number(file, f"{arch}.logit_scale", 1.0))
