"""The op vocabulary: an architecture is a short function that emits a list of these.

A *buffer* is a float matrix with one row per token of the batch; operations read and write buffers
and refer to weights by their name in the model file. Backends run programs: the native one compiles
a program once (csrc/runtime/plan.h) and then runs it with one call per iteration.

Operations are in a file for their kind: `rows`, `linear`, `attention`, `sequences`, `experts`. What
emits them has a file of the same name in `caudal.models.builder`; in csrc/runtime their structs are
in ops_KIND.h, how they are checked and cut into stages is in plan_KIND.cpp, and what they do is in
executor_KIND.cpp.
"""

from caudal.models.program.attention import Attention, Rope
from caudal.models.program.experts import Experts, Routing, ScoringName
from caudal.models.program.linear import HeadLinear, Linear
from caudal.models.program.memory import KVLayer, StateLayer
from caudal.models.program.op import (
    Buffer,
    ColumnOrder,
    ExpertsName,
    MatrixName,
    Op,
    OpValue,
    TensorName,
    VectorName,
)
from caudal.models.program.program import Program, Task
from caudal.models.program.rows import (
    Activate,
    ActivationName,
    Add,
    Clamp,
    Columns,
    Cut,
    Embed,
    EmbedBy,
    Gated,
    GateName,
    Gather,
    Given,
    Join,
    L2Norm,
    LayerNorm,
    MatchMagnitude,
    PositionScale,
    RMSNorm,
    Scale,
    ScaleBy,
    ShiftBy,
    Softcap,
)
from caudal.models.program.sequences import CausalConv, GatedDelta, Mamba2

__all__ = [
    "Activate",
    "ActivationName",
    "Add",
    "Attention",
    "Buffer",
    "CausalConv",
    "Clamp",
    "ColumnOrder",
    "Columns",
    "Cut",
    "Embed",
    "EmbedBy",
    "Experts",
    "ExpertsName",
    "GateName",
    "Gated",
    "GatedDelta",
    "Gather",
    "Given",
    "HeadLinear",
    "Join",
    "KVLayer",
    "L2Norm",
    "LayerNorm",
    "Linear",
    "Mamba2",
    "MatchMagnitude",
    "MatrixName",
    "Op",
    "OpValue",
    "PositionScale",
    "Program",
    "RMSNorm",
    "Rope",
    "Routing",
    "Scale",
    "ScaleBy",
    "ScoringName",
    "ShiftBy",
    "Softcap",
    "StateLayer",
    "Task",
    "TensorName",
    "VectorName",
]
