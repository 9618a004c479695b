"""The figures of a model whose program is known: those that Caudal itself goes by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from caudal.backends.native.costs import (
    BYTES_PER_FLOAT,
    HEAD_ROWS,
    Passed,
    weight_costs,
    workspace_bytes,
)
from caudal.conversion.convert import tensors_as
from caudal.errors import ConversionError, ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.formats.tensor_file import TensorInfo
from caudal.formats.tensor_types import TensorType
from caudal.models.program import ExpertsName, MatrixName, Program, TensorName
from caudal.planning.figures import SMALLER, ModelFigures, Workspace


@dataclass(frozen=True, slots=True)
class _Retyped:
    """A model's tensors, of other types (a `TensorFile` of which nothing can be read)."""

    path: Path
    architecture: str
    tensors: Mapping[str, TensorInfo]

    def tensor_bytes(self, name: str) -> npt.NDArray[np.uint8]:
        raise ModelLoadError(str(self.path), f"tensor {name} hasn't been quantised")

    def tensor_rows(self, name: str, first: int, count: int) -> npt.NDArray[np.uint8]:
        return self.tensor_bytes(name)

    def tensor_place(self, name: str) -> tuple[int, int] | None:
        return None


def figures_of_program(
    file: ModelFile,
    program: Program,
    *,
    name: str,
    source: str,
    file_bytes: int | None,
    quantisation: str | None = None,
    served_as: str = "",
    layer: Program | None = None,
) -> ModelFigures:
    """The figures of a program.

    Args:
        file: The model; nothing of its weights is read.
        program: Its program.
        name: As the user gave it.
        source: Where the figures are from.
        file_bytes: Bytes of its files.
        quantisation: What its weights would become, by a name in `MIXES`; None: as they are.
        served_as: What `caudal serve` has to be told to serve it as it is; empty: it can't be yet.
        layer: The program of its own layer that guesses for it; None: without that.

    Raises:
        ConversionError: There is no such quantisation.
        ModelLoadError: A tensor can't be used.
    """
    tensors = file.tensors
    if quantisation is not None:
        tensors = {each.name: each for each in tensors_as(file, quantisation)}
        file_bytes = sum(tensor.nbytes for tensor in tensors.values())
    retyped = _Retyped(file.path, file.architecture, tensors)
    costs = weight_costs(retyped, program)
    draft = None
    if layer is not None:
        of_both = weight_costs(retyped, program.with_weights_of(layer)).bytes
        draft = replace(
            figures_of_program(
                file, layer, name="mtp", source=source, file_bytes=None, quantisation=quantisation
            ),
            parameters=0,  # counted with the model's
            weights=of_both - costs.bytes,
            state_width=layer.state.width,
        )
    most = _most_frequent(tensors)
    logits = 0 if program.logits is None else BYTES_PER_FLOAT * program.logits.width
    of_two, of_one = (workspace_bytes(program, tokens) for tokens in (2, 1))
    return ModelFigures(
        name=name,
        source=source,
        architecture=file.architecture,
        parameters=sum(tensor.num_elements for tensor in tensors.values()),
        quantisation=quantisation or ("" if most is None else most.name),
        weights=costs.bytes,
        file_bytes=file_bytes,
        kv_layers=program.kv_layers,
        state_layers=program.state_layers,
        context_length=program.context_length,
        workspace=Workspace(of_two - of_one - logits, logits, HEAD_ROWS),
        passed=Passed.of(program, costs.sizes),
        active=round(Passed.of(program, _elements(tensors, program)).read(1)),
        type=most,
        vocabulary=program.vocab_size,
        served_as=served_as if quantisation is None else "",
        is_encoder=program.is_encoder,
        others=lambda: _others(file, program, costs.bytes),
        draft=draft,
    )


def _most_frequent(tensors: Mapping[str, TensorInfo]) -> TensorType | None:
    """The type that most weights have."""
    shares: Counter[TensorType] = Counter()
    for tensor in tensors.values():
        shares[tensor.type] += tensor.num_elements
    return shares.most_common(1)[0][0] if shares else None


def _elements(tensors: Mapping[str, TensorInfo], program: Program) -> dict[TensorName, int]:
    """How many weights the matrices of a program have, by name; of experts all together."""
    counts: dict[TensorName, int] = {}
    names: tuple[MatrixName | ExpertsName, ...] = (*program.matrices, *program.experts)
    for name in names:
        tensor = tensors[name.tensor]
        count = tensor.num_elements
        if name.rows is not None:
            stack = tensor.shape[0] if isinstance(name, ExpertsName) else 1
            count = stack * (name.rows[1] - name.rows[0]) * tensor.shape[-1]
        counts[name] = count
    return counts


def _others(file: ModelFile, program: Program, weights: int) -> Mapping[str, int]:
    """What smaller quantisations take, the largest first."""
    found: dict[str, int] = {}
    for name in SMALLER:
        try:
            tensors = {each.name: each for each in tensors_as(file, name)}
            retyped = _Retyped(file.path, file.architecture, tensors)
            size = weight_costs(retyped, program).bytes
        except (ConversionError, ModelLoadError):  # rows that aren't whole blocks
            continue
        if size < weights:
            found[name] = size
    return dict(sorted(found.items(), key=lambda each: -each[1]))
