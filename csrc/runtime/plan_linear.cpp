// Linear layers: those that read the same input become one stage.
#include <algorithm>
#include <string>

#include "runtime/planner.h"

namespace caudal {

void Planner::check_shapes(const LinearOp& op) const {
    const PackedMatrix& matrix = weights_.matrix(op.weight);
    require(width(op.x) == matrix.cols && width(op.out) == matrix.rows, "linear layer's shape");
    require(op.bias < 0 || static_cast<int64_t>(weights_.vector(op.bias).size()) == matrix.rows,
            "bias length");
    require(op.out != op.x, "linear layer's output");
    require(!op.accumulate || filled_[static_cast<size_t>(op.out)], "sum to add to");
}

void Planner::check_shapes(const HeadLinearOp& op) const {
    const PackedMatrix& matrix = weights_.matrix(op.weight);
    require(op.heads > 0 && matrix.rows % op.heads == 0, "number of heads' matrices");
    require(matrix.rows / op.heads % kPanelRows == 0, "number of rows of a head's matrix");
    require(width(op.x) == op.heads * matrix.cols && width(op.out) == matrix.rows,
            "shape of heads' matrices");
    require(op.out != op.x, "linear layer's output");
}

void Planner::append(const LinearOp& op) {
    const PackedMatrix& matrix = weights_.matrix(op.weight);
    const int converted = activations({op.x, kind_for(op, matrix.type), 0, width(op.x)});
    auto* stage = std::get_if<LinearStage>(&plan_.stages.back());
    const bool joins = stage != nullptr && stage->parts.front().op.x == op.x &&
                       std::none_of(stage->parts.begin(), stage->parts.end(),
                                    [&](const auto& part) { return part.op.out == op.out; });
    if (!joins) {
        plan_.stages.emplace_back(LinearStage{});
        stage = &std::get<LinearStage>(plan_.stages.back());
    }
    stage->parts.push_back({op, converted, stage->panels, matrix.panels()});
    count_matrix(*stage, matrix, plan_.activations[static_cast<size_t>(converted)].kind);
}

void Planner::append(const HeadLinearOp& op) {
    const PackedMatrix& matrix = weights_.matrix(op.weight);
    const LinearOp linear{op.out, op.x, op.weight, -1, false};
    const ActivationKind kind = kind_for(linear, matrix.type);
    LinearStage stage;
    const int64_t panels = matrix.panels() / op.heads;
    for (int64_t head = 0; head < op.heads; ++head) {
        const int converted = activations({op.x, kind, head * matrix.cols, matrix.cols});
        stage.parts.push_back({linear, converted, head * panels, panels, head * panels});
    }
    count_matrix(stage, matrix, kind);
    plan_.stages.emplace_back(std::move(stage));
}

void Planner::count_matrix(LinearStage& stage, const PackedMatrix& matrix, ActivationKind kind) {
    stage.panels += matrix.panels();
    const BlockGeometry geometry = block_geometry(matrix.type);
    const auto elements = static_cast<double>(matrix.rows * matrix.cols);
    stage.weight_bytes +=
        elements * static_cast<double>(geometry.bytes) / static_cast<double>(geometry.elements);
    const double terms = kind == ActivationKind::Int8Twice ? 2 : 1;
    stage.operations_per_row += 2 * terms * elements;
    stage.name += (stage.name.empty() ? "linear " : " + ") + std::string(geometry.name) + " " +
                  std::to_string(matrix.rows) + "x" + std::to_string(matrix.cols);
}

// Keys and values are read again by every later token, and there are few of them: of all linear
// layers these repay precision best. (SmolLM2 Q4_1: a second term for them takes the mean error
// of log-probabilities from 0.082 to 0.064, at 6 % of the work.)
ActivationKind Planner::kind_for(const LinearOp& op, TensorType type) const {
    if (float_activations_) return ActivationKind::F32;
    const ActivationKind preferred = kernels_.preferred_activations(type);
    const bool remembered =
        std::find(remembered_.begin(), remembered_.end(), op.out) != remembered_.end();
    if (preferred == ActivationKind::Int8 && remembered) return ActivationKind::Int8Twice;
    return preferred;
}

int Planner::activations(const ConvertedBuffer& converted) {
    const auto found = std::find(plan_.activations.begin(), plan_.activations.end(), converted);
    const int index = static_cast<int>(found - plan_.activations.begin());
    if (found == plan_.activations.end()) plan_.activations.push_back(converted);
    std::vector<int>& conversions = stage_before_linears(converted.buffer).conversions;
    if (std::find(conversions.begin(), conversions.end(), index) == conversions.end()) {
        conversions.push_back(index);
    }
    return index;
}

RowStage& Planner::stage_before_linears(int buffer) {
    if (plan_.stages.size() >= 2) {
        const auto* linears = std::get_if<LinearStage>(&plan_.stages.back());
        auto* before = std::get_if<RowStage>(&plan_.stages[plan_.stages.size() - 2]);
        if (linears != nullptr && before != nullptr && linears->parts.front().op.x == buffer) {
            return *before;
        }
    }
    return rows();
}

}  // namespace caudal
