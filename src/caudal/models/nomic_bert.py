"""Nomic's BERT (arXiv 2402.01613): BERT with rotary positions and gated MLPs, and its successor
with experts in every so many layers (arXiv 2502.07972), whose other layers have BERT's MLP.
"""

from __future__ import annotations

from caudal.formats import embedding_keys
from caudal.formats.model_file import ModelFile
from caudal.models.encoder import Encoder
from caudal.models.experts import ExpertsConfig, add_experts, route
from caudal.models.hyperparameters import positive, positive_number
from caudal.models.program import Program

WITH_EXPERTS = "nomic-bert-moe"
SHARED_BIAS = "ffn_exps.bias"
"""Of a folder's experts together; GGUF files leave it out."""


_ALWAYS = (
    "token_types.weight",
    *(f"{norm}.bias" for norm in ("token_embd_norm", "attn_output_norm", "layer_output_norm")),
)


def build(file: ModelFile) -> Program:
    """The program."""
    encoder = Encoder(file, always=_ALWAYS)
    b, hidden, arch = encoder.b, encoder.hidden, file.architecture
    rope = encoder.rope(positive_number(file, f"{arch}.rope.freq_base", 10000.0))
    experts, every = None, 0
    if arch == WITH_EXPERTS:
        experts = ExpertsConfig.from_gguf(file, normalise=False)
        every = positive(file, f"{arch}.moe_every_n_layers")
    is_gated = experts is None and embedding_keys.ACTIVATION not in file.metadata
    encoder.embed_tokens()
    for layer in encoder.layers():
        heads = layer.project(hidden)
        layer.rotate(heads, rope)
        layer.add(layer.attend(heads, causal=False), "attn_output")
        encoder.norm_hidden(layer.tensor("attn_output_norm"))
        if experts is not None and layer.index % every == 1 % every:
            logits = route(layer, hidden, experts)
            routed = b.buffer("routed", hidden.width)
            add_experts(
                layer, hidden, logits, experts, encoder.config.activation, gated=False, out=routed
            )
            b.add(hidden, routed, hidden)
            if b.has(layer.tensor(SHARED_BIAS)):
                b.shift_by(hidden, layer.tensor(SHARED_BIAS))
        elif is_gated:
            layer.add(layer.gated_mlp(hidden, "silu"), "ffn_down")
        else:
            layer.add(layer.mlp(hidden, encoder.config.activation), "ffn_down")
        encoder.norm_hidden(layer.tensor("layer_output_norm"))
    return encoder.finish()
