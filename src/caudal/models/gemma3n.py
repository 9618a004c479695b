"""Gemma 3n, of text: E2B and E4B.

A token has several residual streams side by side (AltUp, arXiv 2301.13310). Layers compute with the
first: before one, all are predicted from each other, and behind it corrected by how far the
first's prediction was from what the layer made of it. Beside its attention a layer has a second
way of low rank (Laurel, arXiv 2411.07501); of the gates of the first layers' MLPs only the largest
count; and to all streams but the first it adds what it makes of an embedding of its own of the
token. Attention is Gemma 4's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.models.builder import ProgramBuilder
from caudal.models.decoder import Decoder
from caudal.models.gemma_attention import GemmaAttention
from caudal.models.hyperparameters import MOST, cap, positive
from caudal.models.layer import Layer
from caudal.models.own_embeddings import own_embeddings, own_sublayer
from caudal.models.program import Buffer, Program

_GLOBAL_EVERY = 5
_MOST_STREAMS = 16
_LOGIT_CAP = 30.0
_FLOOR = 1e-5
"""Least mean of squares of a stream that is made as long as the first."""


def build(file: ModelFile) -> Program:
    """The program."""
    decoder = Decoder(file)
    config, b = decoder.config, decoder.b
    attention = GemmaAttention(
        file,
        decoder,
        global_every=_GLOBAL_EVERY,
        proportional=False,
        keys_as_values=False,
    )
    deviations = _deviations(file, config.layers)
    decoder.embed_tokens(scale=config.hidden**0.5)
    own = own_embeddings(file, decoder)
    if own is None:
        raise ModelLoadError(
            str(file.path), "gemma3n.embedding_length_per_layer_input is missing, or 0"
        )
    streams = _Streams.begin(file, decoder)
    for layer in attention.layers():
        predicted = streams.predict(layer)
        activated = _sublayers(
            replace(layer, hidden=predicted[0]), attention, deviations[layer.index]
        )
        streams.correct(layer, predicted, activated)
        first = b.buffer("first stream", config.hidden)
        b.columns(layer.hidden, first, first=0)
        b.scale_by(first, layer.tensor("altup_correct_scale.weight"))
        made = b.buffer("sublayer", config.hidden)
        b.linear(own_sublayer(layer, first, own, config.layers), layer.tensor("proj"), made)
        b.rms_norm(made, layer.tensor("post_norm"), made, eps=layer.eps)
        for stream in streams.others:
            b.add(stream, made, stream)
    streams.end()
    return decoder.finish(logit_cap=cap(file, "gemma3n.final_logit_softcapping", _LOGIT_CAP))


def _deviations(file: ModelFile, layers: int) -> list[float | None]:
    """How far above their mean gates of each layer's MLP have to be; None where all count."""
    key = "gemma3n.activation_sparsity_scale"
    values = [float(value) for value in file.get_array(key, "float")]
    if len(values) != layers:
        raise ModelLoadError(
            str(file.path), f"{key} has {len(values)} numbers, but there are {layers} layers"
        )
    if not all(value <= MOST for value in values):  # nor NaN
        raise ModelLoadError(str(file.path), f"{key} must be at most {MOST:.0e}, and numbers")
    return [value if value > -MOST else None for value in values]


def _sublayers(layer: Layer, attention: GemmaAttention, deviations: float | None) -> Buffer:
    """What attention, Laurel and MLP make of the first stream's prediction, `layer.hidden`."""
    b, width = layer.b, layer.hidden.width
    normed = layer.norm("attn_norm")
    left = b.buffer("laurel", b.rows(layer.tensor("laurel_l.weight")))
    laurel, out = b.buffer("laurel output", width), b.buffer("activated", width)
    b.linear(normed, layer.tensor("laurel_l"), left)
    b.linear(left, layer.tensor("laurel_r"), laurel)
    b.rms_norm(laurel, layer.tensor("laurel_post_norm"), laurel, eps=layer.eps)
    b.add(laurel, normed, laurel)
    b.linear(attention.emit(layer, normed), layer.tensor("attn_output"), out)
    b.rms_norm(out, layer.tensor("post_attention_norm"), out, eps=layer.eps)
    for other in (layer.hidden, laurel):
        b.add(out, other, out)
    b.scale(out, 0.5**0.5)
    layer = replace(layer, hidden=out)
    inner = layer.gated_mlp(layer.norm("ffn_norm"), "gelu_tanh", deviations=deviations)
    layer.add_normed(inner, "ffn_down", "post_ffw_norm")
    return out


@dataclass(frozen=True, slots=True)
class _Streams:
    """The residual streams.

    Attributes:
        b: Takes the operations.
        first: The one that layers compute with.
        others: Those beside it.
    """

    b: ProgramBuilder
    first: Buffer
    others: Sequence[Buffer]

    @classmethod
    def begin(cls, file: ModelFile, decoder: Decoder) -> _Streams:
        """They start as the embedding, through a matrix each, and as long as it."""
        count, active = "gemma3n.altup.num_inputs", "gemma3n.altup.active_idx"
        found = positive(file, count)
        if not 2 <= found <= _MOST_STREAMS or file.get_int(active, 0) != 0:
            raise ModelLoadError(
                str(file.path),
                f"{count} is {found} and {active} {file.get_int(active, 0)}; supported are 2 to "
                f"{_MOST_STREAMS} streams of which the first is active",
            )
        b, first = decoder.b, decoder.hidden
        others = [b.buffer(f"stream {number}", first.width) for number in range(1, found)]
        streams = cls(b, first, others)
        streams._through([first] * len(others), "altup_proj")
        return streams

    @property
    def _all(self) -> list[Buffer]:
        return [self.first, *self.others]

    def predict(self, layer: Layer) -> list[Buffer]:
        """What a layer finds: each stream, and a weighed sum of all."""
        b, streams = self.b, self._all
        count = len(streams)
        weights = b.buffer("prediction weights", count * count)
        b.linear(self._modalities(layer, self.first), layer.tensor("altup_predict_coef"), weights)
        predicted = [b.buffer(f"predicted {number}", self.first.width) for number in range(count)]
        for place, (stream, sum_) in enumerate(zip(streams, predicted, strict=True)):
            before = stream
            for number, each in enumerate(streams):
                b.add(before, self._weighed(each, weights, place * count + number), sum_)
                before = sum_
        return predicted

    def correct(self, layer: Layer, predicted: Sequence[Buffer], activated: Buffer) -> None:
        """Let each stream follow what was predicted wrongly of the first, some more than others."""
        b = self.b
        weights = b.buffer("correction weights", len(predicted))
        b.linear(self._modalities(layer, activated), layer.tensor("altup_correct_coef"), weights)
        innovation = b.buffer("innovation", activated.width)
        b.columns(predicted[0], innovation, first=0)
        b.scale(innovation, -1.0)
        b.add(innovation, activated, innovation)
        for number, (stream, before) in enumerate(zip(self._all, predicted, strict=True)):
            b.add(before, innovation, stream)
            b.add(stream, self._weighed(innovation, weights, number), stream)

    def end(self) -> None:
        """Make one of them: the mean of the first and what matrices make of the others."""
        self._through(self.others, "altup_unembd_proj")
        for stream in self.others:
            self.b.add(self.first, stream, self.first)
        self.b.scale(self.first, 1 / len(self._all))

    def _through(self, sources: Sequence[Buffer], name: str) -> None:
        """The others become sources, through a matrix each, and as long as the first."""
        b, width = self.b, self.first.width
        joined = sources[0]
        for source in sources[1:]:
            longer = b.buffer("joined streams", joined.width + width)
            b.join(joined, source, longer, heads=1)
            joined = longer
        made = b.buffer("projected streams", joined.width)
        b.head_linear(joined, name, made, heads=len(sources))
        for number, stream in enumerate(self.others):
            b.columns(made, stream, first=number * width)
            b.match_magnitude(stream, self.first, floor=_FLOOR)

    def _modalities(self, layer: Layer, x: Buffer) -> Buffer:
        """What decides the weights of sums, a number for each stream."""
        b = self.b
        normed = b.buffer("router input", x.width)
        b.rms_norm(x, layer.tensor("altup_router_norm"), normed, eps=layer.eps)
        b.scale(normed, 1 / x.width)
        modalities = b.buffer("modalities", len(self._all))
        b.linear(normed, layer.tensor("altup_router"), modalities)
        b.activate(modalities, "tanh")
        return modalities

    def _weighed(self, x: Buffer, weights: Buffer, place: int) -> Buffer:
        """X times one of the weights."""
        weight, weighed = self.b.buffer("weight", 1), self.b.buffer("weighed", x.width)
        self.b.columns(weights, weight, first=place)
        self.b.gated(weight, x, weighed, "none")
        return weighed
