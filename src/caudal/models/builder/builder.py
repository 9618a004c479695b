"""Programs, put together operation by operation and cut into the sections that they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from caudal.models.builder.attention import AttentionOperations
from caudal.models.builder.emitter import Emitted
from caudal.models.builder.experts import ExpertOperations
from caudal.models.builder.linear import LinearOperations
from caudal.models.builder.rows import RowOperations
from caudal.models.builder.sequences import SequenceOperations
from caudal.models.pooling import Pooling
from caudal.models.program import Attention, Buffer, KVLayer, Op, Program


class ProgramBuilder(
    AttentionOperations, ExpertOperations, LinearOperations, SequenceOperations, RowOperations
):
    """Collects operations, checking every weight they name against the model file.

    First come the layers; `begin_states` says that they are complete, and `begin_head`, where there
    is one, that the states are. The rest follows from the operations: the body ends with the last
    one that keeps something for later tokens, and hands on the buffers that the tail reads.

    Args:
        file: The model; read for the names and shapes of its tensors only.
        always: See `UsedTensors`.
    """

    def begin_states(self) -> None:
        """The layers are complete; what follows leads to the states."""
        self._section = self._states

    def begin_head(self) -> None:
        """The states are complete; what follows leads from them to the logits."""
        self._section = self._head

    def has(self, name: str) -> bool:
        """Whether the file has a tensor of this name."""
        return self._tensors.has(name)

    def has_optional(self, name: str) -> bool:
        """Whether the file has a tensor that a family may have: in all its layers, or in none."""
        return self._tensors.has_optional(name)

    def require(self, name: str) -> None:
        """Refuse the file if it lacks a tensor that would be taken up only where it is.

        Raises:
            ModelLoadError: It lacks it.
        """
        self._tensors.shape_of(name)

    def require_all_or_none(self, names: Sequence[str]) -> None:
        """Refuse a file that has some of these tensors, but not all.

        Raises:
            ModelLoadError: It lacks one.
        """
        if any(self.has(name) for name in names):
            for name in names:
                self.require(name)

    def rows(self, name: str) -> int:
        """How many rows a matrix has.

        Raises:
            ModelLoadError: There is no such matrix.
        """
        return self._tensors.shape(name, (None, None))[0]

    def vector_values(self, name: str, length: int) -> list[float] | None:
        """The values of a float32 vector, or None where the file has none of this name."""
        return self._tensors.values(name, length)

    def leave_out(self, prefix: str) -> None:
        """Take no notice of tensors whose names begin with this: nothing of them is computed."""
        self._tensors.leave_out(prefix)

    def finish(
        self,
        *,
        state: Buffer,
        logits: Buffer | None,
        vocab_size: int,
        context_length: int,
        pooling: Pooling,
    ) -> Program:
        """The program; for the arguments see there.

        Raises:
            ModelLoadError: The file has tensors that no operation uses: computing without them
                would silently give wrong answers.
            ValueError: An operation reads what none before has written, or states and head read
                more than one of the layers' buffers.
        """
        outputs = self._states + self._head
        unwritten = _read_from_before(self._layers + outputs)
        if unwritten:
            raise ValueError(f"{unwritten[0].name} is read, but no operation before has written it")
        handed_on = _read_from_before(outputs) or (state,)
        if len(handed_on) > 1:
            raise ValueError(
                f"states and head read {[buffer.name for buffer in handed_on]}, not one"
            )
        self._tensors.check_all_used()
        body_length = len(self._layers) if logits is None else self._kept
        body, tail = self._layers[:body_length], self._layers[body_length:]
        return Program(
            buffers=tuple(self._buffers.values()),
            kv_layers=self._forgetting(context_length, is_encoder=logits is None),
            state_layers=tuple(self._state_layers),
            body=_ops(body),
            tail=_ops(tail),
            head=() if logits is None else _ops(outputs),
            states=_ops(self._states),
            carried=_read_from_before(tail + outputs) or (state,),
            hidden=handed_on[0],
            logits=logits,
            state=state,
            vocab_size=vocab_size,
            context_length=context_length,
            pooling=pooling,
        )

    def _forgetting(self, context_length: int, *, is_encoder: bool) -> tuple[KVLayer, ...]:
        """The KV layers, with the windows beyond which nothing is kept.

        A window is one that all attention over the layer has. There always are layers that keep
        everything: what has only windows, or ones as long as the context, has its KV in one pool,
        and so does an encoder, which keeps nothing from one iteration to the next.
        """
        windows: dict[int, int] = {}
        for emitted in self._layers:
            op = emitted.op
            if isinstance(op, Attention):
                window = context_length if op.window is None else op.window
                windows[op.layer] = max(windows.get(op.layer, 0), window)
        longest = max(windows.values(), default=0)
        if is_encoder or longest < context_length:
            return tuple(self._kv_layers)
        return tuple(
            kv if windows[layer] >= context_length else replace(kv, window=windows[layer])
            for layer, kv in enumerate(self._kv_layers)
        )


def _ops(emitted: Sequence[Emitted]) -> tuple[Op, ...]:
    return tuple(each.op for each in emitted)


def _read_from_before(emitted: Sequence[Emitted]) -> tuple[Buffer, ...]:
    """The buffers whose values operations take over from those before them, by index."""
    read: dict[int, Buffer] = {}
    written: set[int] = set()
    for each in emitted:
        for buffer in each.reads:
            if buffer.index not in written:
                read[buffer.index] = buffer
        written.add(each.writes.index)
    return tuple(read[index] for index in sorted(read))
