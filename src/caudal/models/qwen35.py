"""Qwen3-Next, Qwen 3.5 and 3.6: three layers of a gated delta net to one of attention.

Attention's output is gated by a sigmoid, channel by channel; its queries and gates come from one
matrix, head by head. The "1 +" of norm weights is already in the file, where converters have also
put value heads that share a key head `key_heads` apart (not those of Qwen3-Next). What predicts
a token further ahead (a layer after the others, which attends) is a program of its own.
"""

from __future__ import annotations

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.models.decoder import Decoder
from caudal.models.delta_net import DeltaNet
from caudal.models.experts import ExpertsConfig, add_routed
from caudal.models.hyperparameters import positive
from caudal.models.layer import Layer
from caudal.models.program import Buffer, Program
from caudal.models.rope import RopeTable

NEXT = "qwen3next"


def build(file: ModelFile, *, ahead: bool = False) -> Program:
    """The program, or that of what predicts a token further ahead."""
    experts = None if file.architecture == "qwen35" else ExpertsConfig.from_gguf(file)
    decoder = Decoder(file, ahead=ahead)
    rope = decoder.rope(interleaved=False)
    net = DeltaNet.from_gguf(file, tiled=file.architecture != NEXT)
    decoder.embed_tokens()
    attends = attention_layers(file, decoder.config.layers)
    for layer in decoder.layers():
        mix(layer, rope if ahead or attends[layer.index] else net)
        x = layer.norm("post_attention_norm")
        if experts is None:
            layer.add(layer.gated_mlp(x, "silu"), "ffn_down")
        else:
            add_routed(layer, x, experts, weighed=True)
    return decoder.finish()


def attention_layers(file: ModelFile, layers: int) -> list[bool]:
    """Which layers attend; the others are a delta net.

    Raises:
        ModelLoadError: The file says it for fewer layers than there are.
    """
    key = f"{file.architecture}.attention.recurrent_layers"
    recurrent = file.get_array(key, "bool", None)
    if recurrent is not None:
        if len(recurrent) < layers:
            raise ModelLoadError(str(file.path), f"{key} is for {len(recurrent)} of {layers}")
        return [not each for each in recurrent[:layers]]
    interval = positive(file, f"{file.architecture}.full_attention_interval", 4)
    return [index % interval == interval - 1 for index in range(layers)]


def mix(layer: Layer, by: RopeTable | DeltaNet) -> None:
    """Add what a layer takes from earlier tokens: by attention with such a RoPE, or a delta net."""
    x = layer.norm("attn_norm")
    if isinstance(by, DeltaNet):
        layer.add(by.emit(layer, x), "ssm_out")
    else:
        layer.add(_gated_attention(layer, x, by), "attn_output")


def _gated_attention(layer: Layer, x: Buffer, rope: RopeTable) -> Buffer:
    heads, gate = layer.project_gated(x)
    layer.norm_heads(heads)
    layer.rotate(heads, rope)
    attended = layer.attend(heads)
    layer.b.gated(gate, attended, attended, "sigmoid")
    return attended
