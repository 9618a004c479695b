"""What decoders have before and after their layers; families differ in the layers."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.models.builder import ProgramBuilder
from caudal.models.decoder_config import DecoderConfig
from caudal.models.embedding_config import decoder_pooling
from caudal.models.hyperparameters import per_layer, window_layers
from caudal.models.layer import Layer, NormName
from caudal.models.program import Program
from caudal.models.rope import RopeTable, long_rope_factors, rope_table

NOTHING_AHEAD = "it has no layers that predict tokens further ahead (nextn, MTP)"


class Decoder:
    """A decoder in the making: call `embed_tokens`, then blocks of all `layers`, then `finish`.

    Args:
        file: The model.
        served_length: Most tokens of a sequence that will be served; None: the model's own length.
        norms: Of which kind the norms of the residual stream are.
        always: Tensors that all files of the family have; see `UsedTensors`.
        ahead: Make what predicts a token further ahead instead, of the one layer that files have
            for it behind the others: from a state of the model, and the token behind it.

    Attributes:
        config: Its sizes.
        b: Takes the operations.
        hidden: The residual stream.

    Raises:
        ModelLoadError: The file's keys don't make sense.
    """

    def __init__(
        self,
        file: ModelFile,
        served_length: int | None = None,
        *,
        norms: NormName = "rms",
        always: Collection[str] = (),
        ahead: bool = False,
    ) -> None:
        self._file = file
        self._norms = norms
        self.config = DecoderConfig.from_gguf(file, norms)
        self._served_length = served_length or self.config.context_length
        self.b = ProgramBuilder(file, always)
        layers, all_layers = self.config.layers, self.config.layers + self.config.layers_ahead
        self._ahead = layers if ahead else None
        if ahead:
            if layers == all_layers:
                raise ModelLoadError(str(file.path), NOTHING_AHEAD)
            for name in ("token_embd.", "output"):
                self.b.leave_out(name)
        for index in (
            (*range(layers), *range(layers + 1, all_layers)) if ahead else range(layers, all_layers)
        ):
            self.b.leave_out(f"blk.{index}.")
        self.hidden = self.b.buffer("hidden", self.config.hidden)

    def rope(self, *, interleaved: bool) -> RopeTable:
        """The one table of all layers; `interleaved` as families' files order channels."""
        config = self.config
        name = "rope_freqs.weight"
        if self.b.has("rope_factors_long.weight"):
            name = long_rope_factors(self._file, self._served_length)
            if not self.b.has(name):
                raise ModelLoadError(str(self._file.path), f"tensor {name} is missing")
            self.b.leave_out("rope_factors_")
        divisors = self.b.vector_values(name, config.rope_dimensions // 2)
        return rope_table(
            self._file,
            dimensions=config.rope_dimensions,
            base=config.rope_base,
            interleaved=interleaved,
            divisors=divisors,
        )

    def per_layer(self, key: str, default: int | None = None) -> list[int]:
        """A number for each layer, of `{architecture}.{key}`; see there."""
        config, arch = self.config, self._file.architecture
        return per_layer(
            self._file, f"{arch}.{key}", config.layers, default, ahead=config.layers_ahead
        )

    def window_layers(self, *, global_every: int) -> list[bool]:
        """Which layers have a window; see there."""
        config = self.config
        return window_layers(
            self._file, config.layers, global_every=global_every, ahead=config.layers_ahead
        )

    def embed_tokens(self, *, scale: float = 1.0) -> None:
        """Begin the residual stream."""
        if self._ahead is None:
            self.b.embed(self.hidden, "token_embd.weight", scale=scale)
            return
        width, eps = self.config.hidden, self.config.norm_eps
        embedded, given = self.b.buffer("embedded", width), self.b.buffer("given", width)
        both = self.b.buffer("embedded_and_given", 2 * width)
        own = self._tensor_ahead("embed_tokens.weight")
        self.b.embed(embedded, own if self.b.has(own) else "token_embd.weight", scale=scale)
        self.b.given(given)
        for x, name in ((embedded, "enorm"), (given, "hnorm")):
            self.b.rms_norm(x, self._tensor_ahead(name), x, eps=eps)
        self.b.join(embedded, given, both, heads=1)
        self.b.linear(both, self._tensor_ahead("eh_proj"), self.hidden)

    def layers(self) -> Iterator[Layer]:
        """The layers in order, all of the same sizes; what a family calls on each is emitted."""
        config = self.config
        for index in range(config.layers) if self._ahead is None else (self._ahead,):
            yield Layer(
                b=self.b,
                index=index,
                hidden=self.hidden,
                heads=config.heads,
                kv_heads=config.kv_heads,
                head_dim=config.head_dim,
                feed_forward=config.feed_forward,
                eps=config.norm_eps,
                norms=self._norms,
            )

    def _tensor_ahead(self, name: str) -> str:
        """The full name of a tensor of what predicts a token further ahead."""
        return f"blk.{self._ahead}.nextn.{name}"

    def finish(
        self,
        *,
        logit_cap: float = 0.0,
        logit_scale: float = 1.0,
        norm: str = "output_norm",
        state_before_norm: bool = False,
    ) -> Program:
        """The program: after the layers a norm, and the output matrix.

        Args:
            logit_cap: Bound of the logits; 0 for none.
            logit_scale: Multiplies them before.
            norm: The name of the norm's weight.
            state_before_norm: States are what the norm reads, not what it makes of it.

        Raises:
            ModelLoadError: A tensor is missing or not used, or the file asks for pooling that a
                decoder can't do, or for experts where the family has none.
        """
        key = f"{self._file.architecture}.expert_count"
        count = self._file.get_int(key, 0)
        if count != 0 and not self.b.has_experts:
            raise ModelLoadError(
                str(self._file.path), f"{key} is {count}, but this architecture has no experts"
            )
        config, b = self.config, self.b
        # Where the file has no output matrix, it is the embedding.
        head = "output" if "output.weight" in self._file.tensors else "token_embd"
        if self._ahead is not None:
            if b.has(f"{self._tensor_ahead('shared_head_head')}.weight"):
                head = self._tensor_ahead("shared_head_head")
            if b.has(f"{self._tensor_ahead('shared_head_norm')}.weight"):
                norm = self._tensor_ahead("shared_head_norm")
        state = b.buffer("normed", config.hidden)
        logits = b.buffer("logits", config.vocab_size)
        if not state_before_norm:
            b.begin_states()
        else:
            b.begin_head()
        add_norm = b.rms_norm if self._norms == "rms" else b.layer_norm
        add_norm(self.hidden, norm, state, eps=config.norm_eps)
        b.begin_head()
        b.linear(state, head, logits)
        b.scale(logits, logit_scale)
        if logit_cap > 0:
            b.softcap(logits, logit_cap)
        return b.finish(
            state=self.hidden if state_before_norm else state,
            logits=logits,
            vocab_size=config.vocab_size,
            context_length=config.context_length,
            pooling=decoder_pooling(self._file),
        )
