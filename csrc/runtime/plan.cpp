#include "runtime/plan.h"

#include <stdexcept>
#include <string>

#include "runtime/planner.h"

namespace caudal {

template <class AnyOp>
void Planner::check_fields(const AnyOp& op) const {
    for_each_field<AnyOp>([&](auto field) {
        if constexpr (field.kind != FieldKind::Value) {
            const auto index = static_cast<size_t>(op.*field.member);
            const std::string name = std::string(AnyOp::kName) + "." + field.name;
            if (field.optional && op.*field.member == -1) return;
            if (op.*field.member < 0 || index >= count_of(field.kind)) {
                throw std::invalid_argument(name + " refers to something that doesn't exist");
            }
            if (reads_buffer(field.kind) && !filled_[index]) {
                throw std::invalid_argument(name + " is read before anything was written");
            }
        }
    });
}

size_t Planner::count_of(FieldKind kind) const {
    switch (kind) {
        case FieldKind::Matrix:
            return weights_.num_matrices();
        case FieldKind::Experts:
            return weights_.num_experts();
        case FieldKind::Vector:
            return weights_.num_vectors();
        case FieldKind::RopeTable:
            return program_.rope_tables.size();
        case FieldKind::KVLayer:
            return program_.kv_layers.size();
        case FieldKind::StateLayer:
            return program_.state_layers.size();
        default:
            return program_.buffer_widths.size();
    }
}

template <class AnyOp>
void Planner::add(const AnyOp& op) {
    check_fields(op);
    check_shapes(op);
    append(op);
    for_each_field<AnyOp>([&](auto field) {
        if constexpr (writes_buffer(field.kind)) {
            filled_[static_cast<size_t>(op.*field.member)] = true;
        }
    });
}

Planner::Planner(const Section& section, const Program& program, const Weights& weights,
                 const LinearKernels& kernels, bool float_activations)
    : program_(program),
      weights_(weights),
      kernels_(kernels),
      float_activations_(float_activations),
      filled_(program.buffer_widths.size()),
      stored_(program.kv_layers.size()) {
    for (const int buffer : section.inputs) filled_.at(static_cast<size_t>(buffer)) = true;
    for (const Op& op : section.ops) {
        if (const auto* attention = std::get_if<AttentionOp>(&op)) {
            remembered_.insert(remembered_.end(), {attention->k, attention->v});
        }
    }
    for (const Op& op : section.ops) {
        std::visit([this](const auto& known) { add(known); }, op);
    }
    for (const int buffer : section.outputs) {
        if (!filled_.at(static_cast<size_t>(buffer))) {
            throw std::invalid_argument("nothing has filled a buffer that others read");
        }
    }
}

namespace {

std::string row_stage_name(const RowStage& stage) {
    std::vector<std::string> parts;
    for (const RowOp& op : stage.ops) {
        parts.emplace_back(std::visit([](const auto& known) { return known.kStage; }, op));
    }
    if (!stage.conversions.empty()) parts.emplace_back("quantise");
    std::string name;
    for (size_t i = 0; i < parts.size(); ++i) {
        if (i > 0 && parts[i] == parts[i - 1]) continue;  // rope of q, rope of k
        name += (name.empty() ? "" : ", ") + parts[i];
    }
    return name;
}

}  // namespace

Plan make_plan(const Section& section, const Program& program, const Weights& weights,
               const LinearKernels& kernels, bool float_activations) {
    Plan plan = Planner(section, program, weights, kernels, float_activations).take();
    for (Stage& stage : plan.stages) {
        if (auto* rows = std::get_if<RowStage>(&stage)) rows->name = row_stage_name(*rows);
    }
    return plan;
}

void mark_buffers(const std::vector<Op>& ops, std::vector<bool>& used) {
    const auto mark = [&]<class AnyOp>(const AnyOp& op) {
        for_each_field<AnyOp>([&](auto field) {
            if constexpr (reads_buffer(field.kind) || writes_buffer(field.kind)) {
                if (field.optional && op.*field.member == -1) return;
                used.at(static_cast<size_t>(op.*field.member)) = true;
            }
        });
    };
    for (const Op& op : ops) std::visit(mark, op);
}

}  // namespace caudal
