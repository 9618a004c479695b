// What row operations have to be like.
#include <algorithm>
#include <cmath>

#include "runtime/planner.h"

namespace caudal {

void Planner::check_shapes(const EmbedOp& op) const {
    require(width(op.out) == weights_.matrix(op.weight).cols, "embedding width");
}

void Planner::check_shapes(const GivenOp& /*op*/) const {}  // batches are checked against it

void Planner::check_shapes(const RmsNormOp& op) const {
    require_groups(op.x, op.group);
    if (op.weight >= 0) {
        const auto length = static_cast<int64_t>(weights_.vector(op.weight).size());
        require(length > 0 && length % op.group == 0 && width(op.x) % length == 0,
                "norm weight length");
    }
    require(width(op.out) == width(op.x), "norm width");
}

void Planner::check_shapes(const L2NormOp& op) const {
    require_groups(op.x, op.group);
    require(width(op.out) == width(op.x), "norm width");
}

void Planner::check_shapes(const LayerNormOp& op) const {
    require_groups(op.x, op.group);
    require(width(op.out) == width(op.x), "norm width");
    require(static_cast<int64_t>(weights_.vector(op.weight).size()) == width(op.x),
            "norm weight length");
    require(op.bias < 0 || static_cast<int64_t>(weights_.vector(op.bias).size()) == width(op.x),
            "norm bias length");
}

void Planner::check_shapes(const GatedOp& op) const {
    require(width(op.up) % width(op.gate) == 0 && width(op.out) == width(op.up), "gate width");
    require(op.out != op.gate || width(op.gate) == width(op.up), "place for what is gated");
    require(op.limit > 0.0f, "limit of gates");
}

void Planner::check_shapes(const ActivateOp& op) const {
    check_activation(op.activation);
}

void Planner::check_shapes(const AddOp& op) const {
    require(width(op.a) == width(op.b) && width(op.out) == width(op.a), "sum width");
}

void Planner::check_shapes(const SoftcapOp& op) const {
    require(op.cap > 0.0f, "softcap");
}

void Planner::check_shapes(const ColumnsOp& op) const {
    require_groups(op.x, op.period);
    const int64_t periods = width(op.x) / op.period;
    require(width(op.out) % periods == 0, "number of columns");
    require(op.first >= 0 && op.first <= op.period - width(op.out) / periods, "first column");
    require(op.out != op.x, "place for columns");
}

void Planner::check_shapes(const GatherOp& op) const {
    require(width(op.out) == static_cast<int64_t>(op.columns.size()), "number of columns");
    require(std::ranges::all_of(
                op.columns, [&](int32_t column) { return column >= 0 && column < width(op.x); }),
            "column");
    require(op.out != op.x, "place for columns");
}

void Planner::check_shapes(const ScaleOp& op) const {
    require(width(op.x) > 0, "scaled width");
}

void Planner::check_shapes(const ScaleByOp& op) const {
    require_channels(op.x, op.weight);
}

void Planner::check_shapes(const ShiftByOp& op) const {
    require_channels(op.x, op.weight);
}

void Planner::check_shapes(const ClampOp& op) const {
    require(op.low <= op.high, "range to clamp to");
}

void Planner::check_shapes(const CutOp& op) const {
    require(width(op.x) > 0 && std::isfinite(op.deviations), "what is cut");
}

void Planner::check_shapes(const MatchMagnitudeOp& op) const {
    require(width(op.x) > 0 && width(op.model) > 0 && op.floor > 0.0f, "magnitudes");
}

void Planner::check_shapes(const PositionScaleOp& op) const {
    require(op.length > 0 && op.offset >= 0, "scale of positions");
}

void Planner::check_shapes(const JoinOp& op) const {
    require(op.heads > 0 && width(op.a) % op.heads == 0 && width(op.b) % op.heads == 0,
            "number of heads to join");
    require(width(op.out) == width(op.a) + width(op.b), "joined width");
    require(op.out != op.a && op.out != op.b, "joined buffer");
}

void Planner::check_activation(Activation activation) {
    require(activation != Activation::None && activation != Activation::ClampedSwiglu,
            "activation: one for gates");
}

void Planner::require_groups(int buffer, int64_t group) const {
    require(group > 0 && width(buffer) % group == 0, "number of channels in a group");
}

void Planner::require_channels(int buffer, int vector) const {
    const auto length = static_cast<int64_t>(weights_.vector(vector).size());
    require(length == 1 || length == width(buffer), "vector length");
}

}  // namespace caudal
