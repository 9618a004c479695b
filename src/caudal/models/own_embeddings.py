"""An embedding of each token for each layer (Gemma 3n and 4)."""

from __future__ import annotations

from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.hyperparameters import positive
from caudal.models.layer import Layer
from caudal.models.program import Buffer


def own_embeddings(file: ModelFile, decoder: Decoder) -> Buffer | None:
    """An embedding of each token for each layer, side by side; None where there are none.

    What the table has for a token is added to what is made of the token's embedding.
    """
    key = f"{file.architecture}.embedding_length_per_layer_input"
    if file.get_int(key, 0) == 0:
        return None
    width = positive(file, key)
    config, b = decoder.config, decoder.b
    projected = b.buffer("projected embeddings", width * config.layers)
    own = b.buffer("own embeddings", width * config.layers)
    b.linear(decoder.hidden, "per_layer_model_proj", projected)
    b.scale(projected, config.hidden**-0.5)
    b.rms_norm(projected, "per_layer_proj_norm", projected, eps=config.norm_eps, period=width)
    b.embed(own, "per_layer_token_embd.weight", scale=width**0.5, rows=config.vocab_size)
    b.add(own, projected, own)
    b.scale(own, 0.5**0.5)
    return own


def own_sublayer(layer: Layer, x: Buffer, own: Buffer, layers: int) -> Buffer:
    """What a layer makes of x and its embedding of the token, to be projected by `proj`.

    Args:
        layer: The layer.
        x: What decides which channels count.
        own: The embeddings of all layers.
        layers: How many there are.
    """
    b, width = layer.b, own.width // layers
    embedding = b.buffer("own embedding", width)
    b.columns(own, embedding, first=layer.index * width)
    gate = b.buffer("own gate", width)
    b.linear(x, layer.tensor("inp_gate"), gate)
    b.gated(gate, embedding, gate, "gelu_tanh")
    return gate
