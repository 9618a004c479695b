"""ModernBERT (arXiv 2412.13663): pre-norm blocks without biases, gated MLPs, rotary positions.

One layer of three sees all tokens, the first among them; the others see a window both ways, and
rotate with a base of their own. The first layer's attention has no norm: the embedding's precedes.
"""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.encoder import Encoder
from caudal.models.hyperparameters import positive, positive_number
from caudal.models.program import Program

_GLOBAL_EVERY = 3
_ALWAYS = ("cls.norm.weight", "cls.output.bias")


def build(file: ModelFile) -> Program:
    """The program."""
    encoder = Encoder(file, always=_ALWAYS)
    b, hidden, arch, eps = encoder.b, encoder.hidden, file.architecture, encoder.config.eps
    window = positive(file, f"{arch}.attention.sliding_window")
    every = positive(file, f"{arch}.attention.sliding_window_pattern", _GLOBAL_EVERY)
    global_rope = encoder.rope(positive_number(file, f"{arch}.rope.freq_base", 160000.0))
    local_rope = encoder.rope(positive_number(file, f"{arch}.rope.freq_base_swa", 10000.0))
    normed = b.buffer("normed", hidden.width)
    encoder.embed_tokens()
    for layer in encoder.layers():
        is_global = layer.index % every == 0
        x = hidden
        if layer.index > 0 or b.has(layer.tensor("attn_norm.weight")):
            x = normed
            b.layer_norm(hidden, layer.tensor("attn_norm"), x, eps=eps)
        heads = layer.project(x)
        layer.rotate(heads, global_rope if is_global else local_rope)
        attended = layer.attend(heads, causal=False, window=None if is_global else window)
        layer.add(attended, "attn_output")
        b.layer_norm(hidden, layer.tensor("ffn_norm"), normed, eps=eps)
        layer.add(layer.gated_mlp(normed, encoder.config.activation), "ffn_down")
    encoder.norm_hidden("output_norm")
    # llama.cpp's files don't say it; its scores are made of the mean.
    return encoder.finish(score_activation="gelu", score_pooling="mean")
