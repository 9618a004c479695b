"""Gemma 3 (arXiv 2503.19786): norms around each sublayer, five local layers to one global; and
EmbeddingGemma (arXiv 2509.20354), whose tokens see those after them too.

Local layers see a sliding window and rotate with a base of their own; the embedding is scaled by
sqrt(hidden). The "1 +" of Gemma's norm weights is already in the file.
"""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.encoder import finish_encoder
from caudal.models.encoder_config import check_attends_both_ways
from caudal.models.hyperparameters import cap, positive, positive_number
from caudal.models.program import Program
from caudal.models.rope import rope_table

_GLOBAL_EVERY = 6
_LAYERS_OF_27B = 62


EMBEDDING = "gemma-embedding"


def build(file: ModelFile) -> Program:
    """The program."""
    decoder = Decoder(file)
    _emit_layers(file, decoder, causal=True)
    return decoder.finish(logit_cap=cap(file, "gemma3.final_logit_softcapping"))


def build_encoder(file: ModelFile) -> Program:
    """The program of EmbeddingGemma."""
    check_attends_both_ways(file)
    decoder = Decoder(file)
    _emit_layers(file, decoder, causal=False)
    config, b, hidden = decoder.config, decoder.b, decoder.hidden
    b.rms_norm(hidden, "output_norm", hidden, eps=config.norm_eps)
    return finish_encoder(
        b,
        file,
        hidden,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        eps=config.norm_eps,
    )


def _emit_layers(file: ModelFile, decoder: Decoder, *, causal: bool) -> None:
    config, arch = decoder.config, file.architecture
    window = positive(file, f"{arch}.attention.sliding_window")
    dimensions = config.rope_dimensions
    global_rope = rope_table(file, dimensions=dimensions, base=config.rope_base, interleaved=False)
    local_base = file.get_float(f"{arch}.rope.freq_base_swa", 10000.0)
    local_rope = rope_table(
        file, dimensions=dimensions, base=local_base, interleaved=False, scaled=False
    )
    # The 27B model scales by its hidden size per head, which differs from its head size.
    scaled_by = (
        config.hidden // config.heads if config.layers == _LAYERS_OF_27B else config.head_dim
    )
    scale = positive_number(file, f"{arch}.attention.scale", scaled_by**-0.5)

    decoder.embed_tokens(scale=config.hidden**0.5)
    for layer in decoder.layers():
        is_global = (layer.index + 1) % _GLOBAL_EVERY == 0
        heads = layer.project(layer.norm("attn_norm"))
        layer.norm_heads(heads)
        layer.rotate(heads, global_rope if is_global else local_rope)
        attended = layer.attend(
            heads, scale=scale, window=None if is_global else window, causal=causal
        )
        layer.add_normed(attended, "attn_output", "post_attention_norm")
        inner = layer.gated_mlp(layer.norm("ffn_norm"), "gelu_tanh")
        layer.add_normed(inner, "ffn_down", "post_ffw_norm")
