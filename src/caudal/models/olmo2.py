"""OLMo 2 and 3 (arXiv 2501.00656): norms behind each sublayer, and over all queries and keys.

OLMo 3 has windows in three of four layers; RoPE is stretched in the others only.
"""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.hyperparameters import positive
from caudal.models.program import Program
from caudal.models.rope import rope_table

_GLOBAL_EVERY = 4


def build(file: ModelFile) -> Program:
    """The program."""
    decoder = Decoder(file)
    config = decoder.config
    key = "olmo2.attention.sliding_window"
    window = positive(file, key) if file.get_int(key, 0) else None
    rope = decoder.rope(interleaved=False)
    local_rope = rope_table(
        file,
        dimensions=config.rope_dimensions,
        base=file.get_float("olmo2.rope.freq_base_swa", config.rope_base),
        interleaved=False,
        scaled=False,
    )
    local = decoder.window_layers(global_every=_GLOBAL_EVERY)
    decoder.embed_tokens()
    for layer in decoder.layers():
        is_local = window is not None and local[layer.index]
        heads = layer.project(layer.hidden)
        layer.norm_heads(heads, together=True)
        layer.rotate(heads, local_rope if is_local else rope)
        attended = layer.attend(heads, window=window if is_local else None)
        layer.add_normed(attended, "attn_output", "post_attention_norm")
        layer.add_normed(layer.gated_mlp(layer.hidden, "silu"), "ffn_down", "post_ffw_norm")
    return decoder.finish()
