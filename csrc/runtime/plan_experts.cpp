// Experts: choosing them and adding up what they computed is done row by row.
#include <string>
#include <utility>

#include "kernels/routing.h"
#include "runtime/planner.h"

namespace caudal {

void Planner::check_shapes(const ExpertsOp& op) const {
    const PackedMatrix& up = weights_.experts(op.up).front();
    const PackedMatrix& down = weights_.experts(op.down).front();
    const int64_t experts = num_experts(op.up);
    const auto fits = [&](int vector, int64_t length) {
        return vector < 0 || static_cast<int64_t>(weights_.vector(vector).size()) == length;
    };
    require(width(op.logits) == experts && num_experts(op.down) == experts, "number of experts");
    require(up.cols == width(op.x) && down.rows == width(op.out) && down.cols == up.rows,
            "experts' shape");
    if (op.gate >= 0) {
        const PackedMatrix& gate = weights_.experts(op.gate).front();
        require(num_experts(op.gate) == experts && gate.rows == up.rows && gate.cols == up.cols,
                "experts' gate");
    }
    require(fits(op.gate_bias, experts * up.rows) && fits(op.up_bias, experts * up.rows) &&
                fits(op.down_bias, experts * down.rows) && (op.gate >= 0 || op.gate_bias < 0),
            "experts' bias");
    if (op.gate < 0) check_activation(op.activation);
    require(op.limit > 0.0f, "limit of gates");
    require(fits(op.selection_bias, experts) && fits(op.expert_scale, experts),
            "number of what experts have one of each");
    require(op.groups > 0 && op.groups <= kMostExpertGroups && experts % op.groups == 0 &&
                op.groups_used > 0 && op.groups_used <= op.groups && op.best_of_group > 0 &&
                op.best_of_group <= kMostExpertsUsed,
            "groups of experts");
    require(op.used > 0 && op.used <= kMostExpertsUsed &&
                op.used <= experts / op.groups * op.groups_used,
            "number of experts used");
    require(op.out != op.x && op.out != op.logits && op.x != op.logits, "experts' buffers");
    require(!op.accumulate || filled_[static_cast<size_t>(op.out)], "sum to add to");
}

void Planner::append(const ExpertsOp& op) {
    const PackedMatrix& up = weights_.experts(op.up).front();
    const PackedMatrix& down = weights_.experts(op.down).front();
    ExpertsStage stage;
    stage.op = op;
    stage.inner_width = (op.gate < 0 ? 1 : 2) * down.cols;
    stage.inner_kind = expert_kind(down);
    stage.inputs.push_back(expert_kind(up));
    std::string shapes = experts_name(op.up);
    if (op.gate >= 0) {
        const PackedMatrix& gate = weights_.experts(op.gate).front();
        if (expert_kind(gate) != stage.inputs[0]) {
            stage.gate_input = 1;
            stage.inputs.push_back(expert_kind(gate));
        }
        shapes = experts_name(op.gate) + " + " + shapes;
    }
    stage.gather_name = "experts: gather, quantise";
    stage.inside_name = "experts " + shapes;
    stage.activation_name = "experts: activation, quantise";
    stage.down_name = "experts " + experts_name(op.down);
    rows().ops.emplace_back(RouteOp{op});
    plan_.stages.emplace_back(std::move(stage));
    rows().ops.emplace_back(SumExpertsOp{op});
}

int64_t Planner::num_experts(int handle) const {
    return static_cast<int64_t>(weights_.experts(handle).size());
}

ActivationKind Planner::expert_kind(const PackedMatrix& matrix) const {
    return float_activations_ ? ActivationKind::F32 : kernels_.preferred_activations(matrix.type);
}

std::string Planner::experts_name(int handle) const {
    const PackedMatrix& matrix = weights_.experts(handle).front();
    return std::string(block_geometry(matrix.type).name) + " " + std::to_string(matrix.rows) + "x" +
           std::to_string(matrix.cols);
}

}  // namespace caudal
