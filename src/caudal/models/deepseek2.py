"""DeepSeek V2, V3 and R1 (arXiv 2405.04434, 2412.19437), Kimi K2, GLM-4.7-Flash.

Attention is latent. The first layers are dense, the others have experts, which are chosen from the
best groups, and one that computes for all tokens. DeepSeek V2 scores experts by a softmax and
groups by their best one; the others score by sigmoids, with a bias, and groups by their best two.
What predicts a token further ahead (a layer after the others) is a program of its own.
"""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.experts import SELECTION_BIAS, ExpertsConfig, add_routed
from caudal.models.latent_attention import LatentAttention
from caudal.models.program import Program


def build(file: ModelFile, *, ahead: bool = False) -> Program:
    """The program, or that of what predicts a token further ahead."""
    attention = LatentAttention.from_gguf(file)
    experts = _experts(file) if file.get_int("deepseek2.expert_count", 0) else None
    is_biased = experts is not None and experts.routing.scoring == "sigmoid"
    decoder = Decoder(file, always=(SELECTION_BIAS,) if is_biased else (), ahead=ahead)
    decoder.embed_tokens()
    for layer in decoder.layers():
        layer.add(attention.emit(layer, layer.norm("attn_norm")), "attn_output")
        normed = layer.norm("ffn_norm")
        if experts is not None and experts.in_layer(layer.index):
            add_routed(layer, normed, experts)
        else:
            layer.add(layer.gated_mlp(normed, "silu"), "ffn_down")
    return decoder.finish(state_before_norm=ahead)  # what a layer ahead goes on from itself


def _experts(file: ModelFile) -> ExpertsConfig:
    """How experts are chosen; where files don't say it, a bias says that it is by sigmoids."""
    is_biased = any(name.endswith(".exp_probs_b.bias") for name in file.tensors)
    experts = ExpertsConfig.from_gguf(
        file, scoring="sigmoid" if is_biased else "softmax", normalise=False
    )
    if experts.routing.scoring == "sigmoid":
        return experts
    return ExpertsConfig.from_gguf(file, normalise=False, best_of_group=1)
