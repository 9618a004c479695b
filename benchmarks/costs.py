"""What a case costs at least: the arithmetic and the memory traffic that its model prescribes.

Divided by the machine's limits this gives the least time anybody could take, and a measured rate
becomes a share of what is possible. A pass takes as long as its arithmetic or its reading, the
longer of the two. Counted are weight matrices, attention, and keys and values as 16-bit numbers,
those of a prefix that sequences of one pass share once; norms, sampling and everything around the
model count as nothing. Keys and values of 8 bits are half as much to read, and are multiplied as
integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cases import EngineCase, HttpCase, KVType, Metric
from benchmarks.limits import Limits
from caudal.formats.gguf import GGUFFile
from caudal.models import build_program
from caudal.models.program import Attention, Experts, KVLayer, Linear, Op, Program

_KV_ELEMENT_BYTES = 2
_FLOAT_TYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """Experts of a layer, those that a token chooses, and the bytes of one of them."""

    count: int
    used: int
    bytes: int

    def read(self, rows: int) -> float:
        """Bytes of the experts that so many tokens choose, if all are equally likely."""
        left = (1 - self.used / self.count) ** rows
        return self.count * (1 - left) * self.bytes


@dataclass(frozen=True, slots=True)
class Matrices:
    """Multiply-adds of one token, by the kind of weight; bytes of weights that all tokens need."""

    quantised: int
    floating: int
    bytes: int
    experts: tuple[ExpertLayer, ...] = ()

    def read(self, rows: int) -> float:
        """Bytes of the weights that so many tokens need."""
        return self.bytes + sum(layer.read(rows) for layer in self.experts)


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """Multiply-adds of one query-key pair (scores and values), bytes of one token, the window."""

    multiply_adds: int
    bytes: int
    window: int | None

    def visible(self, position: int) -> int:
        """Tokens that the token at `position` sees, itself included."""
        return position + 1 if self.window is None else min(position + 1, self.window)

    def seen_of(self, prefix: int, position: int) -> int:
        """Bytes of the first `prefix` tokens that the token at `position` sees."""
        oldest = position + 1 - self.visible(position)
        return max(0, prefix - oldest) * self.bytes


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Prefixes of `tokens` that sequences share: each belongs to one of `different`."""

    different: int
    tokens: int

    def copies(self, sequences: int) -> int:
        """Prefixes of so many sequences that needn't be read beside the first of their kind."""
        return sequences - min(sequences, self.different) if self.different else 0


@dataclass(slots=True)
class Ideal:
    """The least seconds, and how much of them each limit accounts for."""

    seconds: float = 0.0
    bound: dict[str, float] = field(default_factory=dict)

    def add(self, times: Mapping[str, float], count: float = 1) -> None:
        """A pass, `count` times: arithmetic of both kinds after another, beside the reading."""
        compute = times["int8"] + times["fp32"]
        if times["read"] >= compute:
            parts = {"read": times["read"]}
        else:
            parts = {"int8": times["int8"], "fp32": times["fp32"]}
        for name, seconds in parts.items():
            self.seconds += count * seconds
            self.bound[name] = self.bound.get(name, 0.0) + count * seconds

    @property
    def limit(self) -> str:
        """The limit that accounts for most."""
        return max(self.bound, key=self.bound.__getitem__)


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """A model as costs.

    Attributes:
        body: Matrices that every token passes.
        head: Matrices that only sampled tokens pass.
        layers: Attention.
        vocab_size: Token ids are below this.
        context_length: Tokens the model was trained for.
    """

    body: Matrices
    head: Matrices
    layers: tuple[AttentionLayer, ...]
    vocab_size: int
    context_length: int

    @classmethod
    def of(cls, path: Path) -> ModelCosts:
        """Costs of a GGUF file.

        Raises:
            ModelLoadError: Caudal can't read it.
        """
        with GGUFFile.open(path) as file:
            program = build_program(file)
            return cls(
                body=_matrices(file, program.body),
                head=_matrices(file, program.tail + program.head),
                layers=_attention_layers(program),
                vocab_size=program.vocab_size,
                context_length=program.context_length,
            )

    def ideal(self, case: EngineCase | HttpCase, metric: Metric, limits: Limits) -> Ideal:
        """The least time that the tokens of a metric take."""
        ideal = Ideal()
        if isinstance(case, HttpCase):
            self._add_prompt(ideal, limits, case.prefixes, 0, case.prefix_tokens)
            shared = SharedPrefix(case.prefixes, case.prefix_tokens)
            self._add_prompt(
                ideal, limits, case.requests, case.prefix_tokens, case.prompt_tokens, shared
            )
            # A prompt's pass yields the first token; the others come in batches, as wide as can be.
            start = case.prefix_tokens + case.prompt_tokens
            batches = case.requests / case.concurrency
            sequences = case.concurrency
            for step in range(case.output_tokens - 1):
                times = self._pass(limits, sequences, sequences, start + step, 1, shared)
                ideal.add(times, batches)
            return ideal
        if metric in ("all", "prompt"):
            tokens = case.prompt_tokens
            self._add_prompt(ideal, limits, case.sequences, 0, tokens, kv_type=case.kv_type)
        if metric in ("all", "output"):
            for step in range(case.steps):
                sequences, position = case.sequences, case.prompt_tokens + step
                times = self._pass(limits, sequences, sequences, position, 1, kv_type=case.kv_type)
                ideal.add(times)
        return ideal

    def _add_prompt(
        self,
        ideal: Ideal,
        limits: Limits,
        sequences: int,
        start: int,
        tokens: int,
        shared: SharedPrefix | None = None,
        *,
        kv_type: KVType = "f16",
    ) -> None:
        if sequences and tokens:
            times = self._pass(limits, sequences, sequences, start, tokens, shared, kv_type=kv_type)
            ideal.add(times)

    def _pass(
        self,
        limits: Limits,
        sequences: int,
        sampled: int,
        start: int,
        tokens: int,
        shared: SharedPrefix | None = None,
        *,
        kv_type: KVType = "f16",
    ) -> dict[str, float]:
        """Seconds by limit of one pass over `tokens` of each sequence, from position `start`."""
        rows = sequences * tokens
        attention = stored = 0
        for layer in self.layers:
            pairs = sum(layer.visible(position) for position in range(start, start + tokens))
            attention += sequences * pairs * layer.multiply_adds
            last = start + tokens - 1
            stored += sequences * layer.visible(last) * layer.bytes
            if shared is not None:
                stored -= shared.copies(sequences) * layer.seen_of(shared.tokens, last)
        quantised = rows * self.body.quantised + sampled * self.head.quantised
        floating = rows * self.body.floating + sampled * self.head.floating
        if kv_type == "q8":
            quantised += attention
            stored //= 2
        else:
            floating += attention
        return {
            "int8": 2 * quantised / limits.int8,
            "fp32": 2 * floating / limits.fp32,
            "read": (self.body.read(rows) + self.head.read(sampled) + stored) / limits.read,
        }


def _matrices(file: GGUFFile, ops: tuple[Op, ...]) -> Matrices:
    quantised = floating = size = 0
    experts = []
    for op in ops:
        if isinstance(op, Linear):
            tensor = file.tensors[op.weight.tensor]
            count = op.out.width * op.x.width
            if tensor.type.name in _FLOAT_TYPES:
                floating += count
            else:
                quantised += count
            size += op.out.width * tensor.row_bytes
        if isinstance(op, Experts):
            names = {name.tensor for name in (op.gate, op.up, op.down) if name is not None}
            stacks = [file.tensors[name] for name in names]
            quantised += sum(op.used * stack.num_elements // op.logits.width for stack in stacks)
            one = sum(stack.nbytes for stack in stacks) // op.logits.width
            experts.append(ExpertLayer(op.logits.width, op.used, one))
    return Matrices(quantised, floating, size, tuple(experts))


def _attention_layers(program: Program) -> tuple[AttentionLayer, ...]:
    return tuple(
        _attention_layer(op, program.kv_layers[op.layer])
        for op in program.body
        if isinstance(op, Attention)
    )


def _attention_layer(op: Attention, kv: KVLayer) -> AttentionLayer:
    return AttentionLayer(
        multiply_adds=op.heads * (kv.head_dim + kv.channels_of_values),
        bytes=kv.numbers * _KV_ELEMENT_BYTES,
        window=op.window,
    )
