// How a section of a program becomes a plan: operation by operation, each checked and then appended
// to the stages that there are. What is particular to a kind of operation is in plan_KIND.cpp.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/plan.h"

namespace caudal {

class Planner {
  public:
    // Throws as `make_plan`.
    Planner(const Section& section, const Program& program, const Weights& weights,
            const LinearKernels& kernels, bool float_activations);

    Plan take() && { return std::move(plan_); }

  private:
    template <class AnyOp>
    void add(const AnyOp& op);
    // That whatever an operation refers to exists, and that what it reads has been written.
    template <class AnyOp>
    void check_fields(const AnyOp& op) const;
    // How many things there are that an index of this kind may refer to.
    size_t count_of(FieldKind kind) const;

    // That buffers, matrices and vectors of an operation fit together.
    void check_shapes(const EmbedOp& op) const;
    void check_shapes(const GivenOp& op) const;
    void check_shapes(const RmsNormOp& op) const;
    void check_shapes(const L2NormOp& op) const;
    void check_shapes(const LayerNormOp& op) const;
    void check_shapes(const GatedOp& op) const;
    void check_shapes(const ActivateOp& op) const;
    void check_shapes(const AddOp& op) const;
    void check_shapes(const SoftcapOp& op) const;
    void check_shapes(const ColumnsOp& op) const;
    void check_shapes(const GatherOp& op) const;
    void check_shapes(const CutOp& op) const;
    void check_shapes(const MatchMagnitudeOp& op) const;
    void check_shapes(const ScaleOp& op) const;
    void check_shapes(const ScaleByOp& op) const;
    void check_shapes(const ShiftByOp& op) const;
    void check_shapes(const ClampOp& op) const;
    void check_shapes(const PositionScaleOp& op) const;
    void check_shapes(const JoinOp& op) const;
    void check_shapes(const LinearOp& op) const;
    void check_shapes(const HeadLinearOp& op) const;
    void check_shapes(const RopeOp& op) const;
    void check_shapes(const AttentionOp& op) const;
    void check_shapes(const CausalConvOp& op) const;
    void check_shapes(const GatedDeltaOp& op) const;
    void check_shapes(const Mamba2Op& op) const;
    void check_shapes(const ExpertsOp& op) const;

    static void require(bool condition, const char* what) {
        if (!condition) throw std::invalid_argument(std::string("the program has a wrong ") + what);
    }
    // That an activation isn't one for gates alone.
    static void check_activation(Activation activation);
    void require_groups(int buffer, int64_t group) const;
    // That a vector has a number for each channel of a buffer, or one for all.
    void require_channels(int buffer, int vector) const;
    void require_state(int layer, int64_t floats) const;

    template <class RowByRow>
    void append(const RowByRow& op) {
        rows().ops.emplace_back(op);
    }
    void append(const LinearOp& op);
    // Each head's rows of the matrix are a part of their own, as they read columns of their own.
    void append(const HeadLinearOp& op);
    void append(const AttentionOp& op);
    void append(const CausalConvOp& op);
    void append(const GatedDeltaOp& op);
    void append(const Mamba2Op& op);
    void append(const ExpertsOp& op);

    // The row stage that what is next done row by row belongs to.
    RowStage& rows() {
        if (plan_.stages.empty() || !std::holds_alternative<RowStage>(plan_.stages.back())) {
            plan_.stages.emplace_back(RowStage{});
        }
        return std::get<RowStage>(plan_.stages.back());
    }
    int64_t width(int buffer) const {
        return program_.buffer_widths.at(static_cast<size_t>(buffer));
    }

    // Adds what multiplying by a matrix costs to a stage, and to its name.
    static void count_matrix(LinearStage& stage, const PackedMatrix& matrix, ActivationKind kind);
    // The form of activations that a linear layer reads.
    ActivationKind kind_for(const LinearOp& op, TensorType type) const;
    // The index of what is converted, by the row stage before the linear stage that is being built.
    int activations(const ConvertedBuffer& converted);
    RowStage& stage_before_linears(int buffer);

    // A stage for one operation; `operations`: multiplications and additions for a row.
    template <class AnyOp>
    SequenceStage& append_sequence(const char* name, const AnyOp& op, int64_t pieces,
                                   size_t operations);

    int64_t num_experts(int handle) const;
    ActivationKind expert_kind(const PackedMatrix& matrix) const;
    // The experts' type and shape.
    std::string experts_name(int handle) const;

    const Program& program_;
    const Weights& weights_;
    const LinearKernels& kernels_;
    const bool float_activations_;
    std::vector<bool> filled_;     // per buffer: whether it holds something by now
    std::vector<bool> stored_;     // per KV layer: whether an operation has stored it
    std::vector<int> remembered_;  // buffers that become keys and values
    Plan plan_;
};

}  // namespace caudal
