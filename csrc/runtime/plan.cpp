#include "runtime/plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace caudal {

namespace {

class Planner {
  public:
    Planner(const std::vector<Op>& ops, const Program& program, const Weights& weights,
            const LinearKernels& kernels, bool float_activations)
        : program_(program),
          weights_(weights),
          kernels_(kernels),
          float_activations_(float_activations) {
        for (const Op& op : ops) {
            if (const auto* attention = std::get_if<AttentionOp>(&op)) {
                remembered_.insert(remembered_.end(), {attention->k, attention->v});
            }
        }
    }

    Plan take() && { return std::move(plan_); }

    void operator()(const EmbedOp& op) {
        require(width(op.out) == weights_.matrix(op.matrix).cols, "embedding width");
        rows().ops.emplace_back(op);
    }

    void operator()(const RmsNormOp& op) {
        const auto group = static_cast<int64_t>(weights_.vector(op.weight).size());
        require(group > 0 && width(op.x) % group == 0, "norm weight length");
        require(width(op.out) == width(op.x), "norm width");
        rows().ops.emplace_back(op);
    }

    void operator()(const LayerNormOp& op) {
        require(width(op.out) == width(op.x), "norm width");
        require(static_cast<int64_t>(weights_.vector(op.weight).size()) == width(op.x) &&
                    static_cast<int64_t>(weights_.vector(op.bias).size()) == width(op.x),
                "norm weight length");
        rows().ops.emplace_back(op);
    }

    void operator()(const ActivateOp& op) {
        require(width(op.x) > 0, "activation width");
        rows().ops.emplace_back(op);
    }

    void operator()(const RopeOp& op) {
        const auto& table = program_.rope_tables.at(static_cast<size_t>(op.table));
        const auto pairs = static_cast<int64_t>(table.inverse_frequencies.size());
        require(op.head_dim > 0 && width(op.x) % op.head_dim == 0, "rope head size");
        require(2 * pairs <= op.head_dim, "rope dimensions");
        rows().ops.emplace_back(op);
    }

    void operator()(const GatedOp& op) {
        require(width(op.gate) == width(op.up) && width(op.out) == width(op.up), "gate width");
        rows().ops.emplace_back(op);
    }

    void operator()(const AddOp& op) {
        require(width(op.a) == width(op.b) && width(op.out) == width(op.a), "sum width");
        rows().ops.emplace_back(op);
    }

    void operator()(const SoftcapOp& op) {
        require(op.cap > 0.0f, "softcap");
        rows().ops.emplace_back(op);
    }

    void operator()(const AttentionOp& op) {
        const auto& kv = program_.kv_layers.at(static_cast<size_t>(op.layer));
        require(width(op.k) == kv.kv_heads * kv.head_dim && width(op.v) == width(op.k), "KV width");
        require(width(op.q) == op.shape.heads * kv.head_dim && width(op.out) == width(op.q),
                "query width");
        require(op.shape.heads % kv.kv_heads == 0, "number of query heads per KV head");
        require(op.shape.causal || op.shape.window == 0, "window of bidirectional attention");
        rows().ops.emplace_back(StoreKVOp{op.k, op.v, op.layer});
        plan_.stages.emplace_back(AttentionStage{"attention", op});
    }

    void operator()(const LinearOp& op) {
        const PackedMatrix& matrix = weights_.matrix(op.matrix);
        require(width(op.x) == matrix.cols && width(op.out) == matrix.rows, "linear layer's shape");
        require(op.bias < 0 || static_cast<int64_t>(weights_.vector(op.bias).size()) == matrix.rows,
                "bias length");
        require(op.out != op.x, "linear layer's output");
        const int slot = activations(op.x, kind_for(op, matrix.type));
        auto* stage = std::get_if<LinearStage>(&plan_.stages.back());
        const bool joins = stage != nullptr && stage->parts.front().op.x == op.x &&
                           std::none_of(stage->parts.begin(), stage->parts.end(),
                                        [&](const auto& part) { return part.op.out == op.out; });
        if (!joins) {
            plan_.stages.emplace_back(LinearStage{});
            stage = &std::get<LinearStage>(plan_.stages.back());
        }
        stage->parts.push_back({op, slot, stage->panels});
        stage->panels += matrix.panels();
        const BlockGeometry geometry = block_geometry(matrix.type);
        const auto elements = static_cast<double>(matrix.rows * matrix.cols);
        stage->weight_bytes +=
            elements * static_cast<double>(geometry.bytes) / static_cast<double>(geometry.elements);
        stage->operations_per_row += 2 * elements;
        stage->name += (stage->name.empty() ? "linear " : " + ") + std::string(geometry.name) +
                       " " + std::to_string(matrix.rows) + "x" + std::to_string(matrix.cols);
    }

  private:
    static void require(bool condition, const char* what) {
        if (!condition) throw std::invalid_argument(std::string("the program has a wrong ") + what);
    }

    // Keys and values are read again by every later token, and there are few of them: of all linear
    // layers these repay precision best. (SmolLM2 Q4_1: a second term for them takes the mean error
    // of log-probabilities from 0.082 to 0.064, at 6 % of the work.)
    ActivationKind kind_for(const LinearOp& op, TensorType type) const {
        if (float_activations_) return ActivationKind::F32;
        const ActivationKind preferred = kernels_.preferred_activations(type);
        const bool remembered =
            std::find(remembered_.begin(), remembered_.end(), op.out) != remembered_.end();
        if (preferred == ActivationKind::Int8 && remembered) return ActivationKind::Int8Twice;
        return preferred;
    }

    int64_t width(int buffer) const {
        return program_.buffer_widths.at(static_cast<size_t>(buffer));
    }

    RowStage& rows() {
        if (plan_.stages.empty() || !std::holds_alternative<RowStage>(plan_.stages.back())) {
            plan_.stages.emplace_back(RowStage{});
        }
        return std::get<RowStage>(plan_.stages.back());
    }

    // The slot that holds `buffer` in the given kind, converted by the row stage before the linear
    // stage that is being built.
    int activations(int buffer, ActivationKind kind) {
        const auto found = std::find_if(
            plan_.slots.begin(), plan_.slots.end(),
            [&](const ActivationSlot& slot) { return slot.buffer == buffer && slot.kind == kind; });
        const int slot = static_cast<int>(found - plan_.slots.begin());
        if (found == plan_.slots.end()) plan_.slots.push_back({buffer, kind});
        RowStage& stage = stage_before_linears(buffer);
        if (std::none_of(stage.conversions.begin(), stage.conversions.end(),
                         [&](const Conversion& done) { return done.slot == slot; })) {
            stage.conversions.push_back({buffer, slot});
        }
        return slot;
    }

    RowStage& stage_before_linears(int buffer) {
        if (plan_.stages.size() >= 2) {
            const auto* linears = std::get_if<LinearStage>(&plan_.stages.back());
            auto* before = std::get_if<RowStage>(&plan_.stages[plan_.stages.size() - 2]);
            if (linears != nullptr && before != nullptr && linears->parts.front().op.x == buffer) {
                return *before;
            }
        }
        return rows();
    }

    const Program& program_;
    const Weights& weights_;
    const LinearKernels& kernels_;
    const bool float_activations_;
    std::vector<int> remembered_;  // buffers that become keys and values
    Plan plan_;
};

// The parts of a row stage's name, in the order of its operations.
struct RowOpName {
    const char* operator()(const EmbedOp&) const { return "embed"; }
    const char* operator()(const RmsNormOp&) const { return "norm"; }
    const char* operator()(const LayerNormOp&) const { return "norm"; }
    const char* operator()(const RopeOp&) const { return "rope"; }
    const char* operator()(const StoreKVOp&) const { return "store KV"; }
    const char* operator()(const GatedOp&) const { return "activation"; }
    const char* operator()(const ActivateOp&) const { return "activation"; }
    const char* operator()(const AddOp&) const { return "add"; }
    const char* operator()(const SoftcapOp&) const { return "softcap"; }
};

std::string row_stage_name(const RowStage& stage) {
    std::vector<std::string> parts;
    for (const RowOp& op : stage.ops) parts.emplace_back(std::visit(RowOpName{}, op));
    if (!stage.conversions.empty()) parts.emplace_back("quantise");
    std::string name;
    for (size_t i = 0; i < parts.size(); ++i) {
        if (i > 0 && parts[i] == parts[i - 1]) continue;  // rope of q, rope of k
        name += (name.empty() ? "" : ", ") + parts[i];
    }
    return name;
}

}  // namespace

Plan make_plan(const std::vector<Op>& ops, const Program& program, const Weights& weights,
               const LinearKernels& kernels, bool float_activations) {
    Planner planner(ops, program, weights, kernels, float_activations);
    for (const Op& op : ops) std::visit(planner, op);
    Plan plan = std::move(planner).take();
    for (Stage& stage : plan.stages) {
        if (auto* rows = std::get_if<RowStage>(&stage)) rows->name = row_stage_name(*rows);
    }
    return plan;
}

}  // namespace caudal
