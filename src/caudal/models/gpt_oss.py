"""gpt-oss (arXiv 2508.10925): experts in every layer, and a window in every second one.

Heads have a learned logit, a sink, that takes weight from what they attend to. The experts' SwiGLU
is clamped, every matrix has a bias, and YaRN's ramp doesn't begin and end at whole pairs.
"""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.experts import ExpertsConfig, add_experts, route
from caudal.models.hyperparameters import positive
from caudal.models.program import Program
from caudal.models.rope import rope_table

_GLOBAL_EVERY = 2
_BIASED = (
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_output",
    "ffn_gate_inp",
    "ffn_gate_exps",
    "ffn_up_exps",
    "ffn_down_exps",
)


def build(file: ModelFile) -> Program:
    """The program."""
    experts = ExpertsConfig.from_gguf(file, scoring="softmax_of_chosen", normalise=False)
    decoder = Decoder(file, always=[f"{name}.bias" for name in _BIASED])
    config = decoder.config
    rope = rope_table(
        file,
        dimensions=config.rope_dimensions,
        base=config.rope_base,
        interleaved=False,
        truncated=False,
    )
    window = positive(file, "gpt-oss.attention.sliding_window")
    local = decoder.window_layers(global_every=_GLOBAL_EVERY)
    decoder.embed_tokens()
    for layer in decoder.layers():
        heads = layer.project(layer.norm("attn_norm"))
        layer.rotate(heads, rope)
        attended = layer.attend(
            heads, window=window if local[layer.index] else None, sinks="attn_sinks.weight"
        )
        layer.add(attended, "attn_output")
        x = layer.norm("post_attention_norm")
        add_experts(layer, x, route(layer, x, experts), experts, "swiglu_clamped")
    return decoder.finish()
