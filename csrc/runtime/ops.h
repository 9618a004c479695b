// The operations of a program, which mirror those of src/caudal/models/program: there they are
// explained. Buffers, matrices and vectors are named by index.
//
// Each says its name in Python (kName) and its fields; whether it needs nothing but its row
// (kOnlyItsRow): not the token, its position, or other rows; and, if it is done row by row, what
// profiles call it (kStage). Those of a kind are in ops_KIND.h, how they are checked and planned is
// in plan_KIND.cpp, and what they do is in executor_KIND.cpp.
#pragma once

#include <variant>

#include "runtime/ops_attention.h"
#include "runtime/ops_experts.h"
#include "runtime/ops_linear.h"
#include "runtime/ops_rows.h"
#include "runtime/ops_sequences.h"

namespace caudal {

// Any operation that is done row by row, or one of `Others`.
template <class... Others>
using RowOpOr =
    std::variant<EmbedOp, RmsNormOp, LayerNormOp, RopeOp, GatedOp, ActivateOp, AddOp, SoftcapOp,
                 L2NormOp, ColumnsOp, ScaleOp, ScaleByOp, ShiftByOp, ClampOp, PositionScaleOp,
                 JoinOp, GatherOp, CutOp, MatchMagnitudeOp, GivenOp, Others...>;

using Op =
    RowOpOr<LinearOp, HeadLinearOp, AttentionOp, CausalConvOp, GatedDeltaOp, Mamba2Op, ExpertsOp>;

}  // namespace caudal
