#include "runtime/plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/routing.h"

namespace caudal {

namespace {

class Planner {
  public:
    Planner(const Section& section, const Program& program, const Weights& weights,
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

    Plan take() && { return std::move(plan_); }

  private:
    template <class AnyOp>
    void add(const AnyOp& op) {
        check_fields(op);
        check_shapes(op);
        append(op);
        for_each_field<AnyOp>([&](auto field) {
            if constexpr (writes_buffer(field.kind)) {
                filled_[static_cast<size_t>(op.*field.member)] = true;
            }
        });
    }

    // That whatever an operation refers to exists, and that what it reads has been written.
    template <class AnyOp>
    void check_fields(const AnyOp& op) const {
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

    // How many things there are that an index of this kind may refer to.
    size_t count_of(FieldKind kind) const {
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

    void check_shapes(const EmbedOp& op) const {
        require(width(op.out) == weights_.matrix(op.weight).cols, "embedding width");
    }

    void check_shapes(const RmsNormOp& op) const {
        require_groups(op.x, op.group);
        if (op.weight >= 0) {
            const auto length = static_cast<int64_t>(weights_.vector(op.weight).size());
            require(length > 0 && length % op.group == 0 && width(op.x) % length == 0,
                    "norm weight length");
        }
        require(width(op.out) == width(op.x), "norm width");
    }

    void check_shapes(const L2NormOp& op) const {
        require_groups(op.x, op.group);
        require(width(op.out) == width(op.x), "norm width");
    }

    void check_shapes(const ColumnsOp& op) const {
        require_groups(op.x, op.period);
        const int64_t periods = width(op.x) / op.period;
        require(width(op.out) % periods == 0, "number of columns");
        require(op.first >= 0 && op.first <= op.period - width(op.out) / periods, "first column");
        require(op.out != op.x, "place for columns");
    }

    void check_shapes(const ScaleOp& op) const { require(width(op.x) > 0, "scaled width"); }

    void check_shapes(const ScaleByOp& op) const { require_channels(op.x, op.weight); }

    void check_shapes(const ShiftByOp& op) const { require_channels(op.x, op.weight); }

    void check_shapes(const ClampOp& op) const { require(op.low <= op.high, "range to clamp to"); }

    void check_shapes(const PositionScaleOp& op) const {
        require(op.length > 0 && op.offset >= 0, "scale of positions");
    }

    void check_shapes(const LayerNormOp& op) const {
        require(width(op.out) == width(op.x), "norm width");
        require(static_cast<int64_t>(weights_.vector(op.weight).size()) == width(op.x),
                "norm weight length");
        require(op.bias < 0 || static_cast<int64_t>(weights_.vector(op.bias).size()) == width(op.x),
                "norm bias length");
    }

    static void check_activation(Activation activation) {
        require(activation != Activation::None && activation != Activation::ClampedSwiglu,
                "activation: one for gates");
    }

    void check_shapes(const ActivateOp& op) const { check_activation(op.activation); }

    void check_shapes(const RopeOp& op) const {
        const auto& table = program_.rope_tables.at(static_cast<size_t>(op.table));
        const auto pairs = static_cast<int64_t>(table.inverse_frequencies.size());
        require(op.head_dim > 0 && width(op.x) % op.head_dim == 0, "rope head size");
        require(op.first >= 0 && op.first <= op.head_dim - 2 * pairs, "rope dimensions");
    }

    void check_shapes(const GatedOp& op) const {
        require(width(op.up) % width(op.gate) == 0 && width(op.out) == width(op.up), "gate width");
        require(op.out != op.gate || width(op.gate) == width(op.up), "place for what is gated");
        require(op.limit > 0.0f, "limit of gates");
    }

    void check_shapes(const AddOp& op) const {
        require(width(op.a) == width(op.b) && width(op.out) == width(op.a), "sum width");
    }

    void check_shapes(const SoftcapOp& op) const { require(op.cap > 0.0f, "softcap"); }

    void check_shapes(const AttentionOp& op) const {
        const auto& kv = program_.kv_layers.at(static_cast<size_t>(op.layer));
        const bool stores = op.k >= 0;
        require(stores != stored_[static_cast<size_t>(op.layer)],
                "number of operations that store a layer");
        require((op.v >= 0) == (stores && !kv.latent), "values of an attention");
        require(!stores || width(op.k) == kv.kv_heads * kv.key_dim, "key width");
        require(op.v < 0 || width(op.v) == kv.kv_heads * kv.value_dim, "value width");
        require(op.heads > 0 && op.heads % kv.kv_heads == 0, "number of query heads per KV head");
        require(width(op.q) == op.heads * kv.key_dim, "query width");
        require(width(op.out) == op.heads * kv.value_dim, "attention width");
        require(op.window >= 0, "window");
        require(op.softcap >= 0.0f, "softcap");
        require(op.sinks < 0 || static_cast<int64_t>(weights_.vector(op.sinks).size()) == op.heads,
                "number of attention sinks");
        require(kv.window == 0 || (op.causal && op.window > 0 && op.window <= kv.window),
                "window of a layer that forgets");
    }

    void check_shapes(const JoinOp& op) const {
        require(op.heads > 0 && width(op.a) % op.heads == 0 && width(op.b) % op.heads == 0,
                "number of heads to join");
        require(width(op.out) == width(op.a) + width(op.b), "joined width");
        require(op.out != op.a && op.out != op.b, "joined buffer");
    }

    void check_shapes(const HeadLinearOp& op) const {
        const PackedMatrix& matrix = weights_.matrix(op.weight);
        require(op.heads > 0 && matrix.rows % op.heads == 0, "number of heads' matrices");
        require(matrix.rows / op.heads % kPanelRows == 0, "number of rows of a head's matrix");
        require(width(op.x) == op.heads * matrix.cols && width(op.out) == matrix.rows,
                "shape of heads' matrices");
        require(op.out != op.x, "linear layer's output");
    }

    void check_shapes(const LinearOp& op) const {
        const PackedMatrix& matrix = weights_.matrix(op.weight);
        require(width(op.x) == matrix.cols && width(op.out) == matrix.rows, "linear layer's shape");
        require(op.bias < 0 || static_cast<int64_t>(weights_.vector(op.bias).size()) == matrix.rows,
                "bias length");
        require(op.out != op.x, "linear layer's output");
        require(!op.accumulate || filled_[static_cast<size_t>(op.out)], "sum to add to");
    }

    void check_shapes(const CausalConvOp& op) const {
        const auto weights = static_cast<int64_t>(weights_.vector(op.weight).size());
        const int64_t channels = width(op.x);
        require(width(op.out) == channels && op.out != op.x, "place for a convolution");
        require(weights % channels == 0 && weights >= 2 * channels, "convolution's weight length");
        require(op.bias < 0 || static_cast<int64_t>(weights_.vector(op.bias).size()) == channels,
                "bias length");
        require(op.activation != Activation::ClampedSwiglu, "activation: one for gates");
        require_state(op.layer, weights - channels);
    }

    void check_shapes(const GatedDeltaOp& op) const {
        const int64_t heads = width(op.decay);
        require(width(op.beta) == heads && op.key_heads > 0 && heads % op.key_heads == 0,
                "number of delta heads");
        require(width(op.v) % (heads * kStatePanel) == 0, "size of delta heads");
        require(width(op.q) % op.key_heads == 0 && width(op.k) == width(op.q), "key width");
        require(width(op.out) == width(op.v), "value width");
        require(op.out != op.q && op.out != op.k && op.out != op.v && op.out != op.decay &&
                    op.out != op.beta,
                "place for values");
        require_state(op.layer, width(op.v) * (width(op.q) / op.key_heads));
    }

    void check_shapes(const Mamba2Op& op) const {
        const int64_t heads = width(op.dt);
        require(width(op.decay) == heads && op.groups > 0 && heads % op.groups == 0,
                "number of Mamba heads");
        require(static_cast<int64_t>(weights_.vector(op.skip).size()) == heads, "skip length");
        require(width(op.x) % (heads * kStatePanel) == 0, "size of Mamba heads");
        require(width(op.b) % op.groups == 0 && width(op.c) == width(op.b), "state width");
        require(width(op.out) == width(op.x), "value width");
        require(op.out != op.x && op.out != op.b && op.out != op.c && op.out != op.dt &&
                    op.out != op.decay,
                "place for values");
        require_state(op.layer, width(op.x) * (width(op.b) / op.groups));
    }

    void check_shapes(const ExpertsOp& op) const {
        const PackedMatrix& up = weights_.experts(op.up).front();
        const PackedMatrix& down = weights_.experts(op.down).front();
        const int64_t experts = num_experts(op.up);
        const auto fits = [&](int vector, int64_t length) {
            return vector < 0 || static_cast<int64_t>(weights_.vector(vector).size()) == length;
        };
        require(width(op.logits) == experts && num_experts(op.down) == experts,
                "number of experts");
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

    template <class RowByRow>
    void append(const RowByRow& op) {
        rows().ops.emplace_back(op);
    }

    void append(const AttentionOp& op) {
        if (op.k >= 0) {
            rows().ops.emplace_back(StoreKVOp{op.k, op.v, op.layer});
            stored_[static_cast<size_t>(op.layer)] = true;
        }
        plan_.stages.emplace_back(AttentionStage{"attention", op, op.shape()});
    }

    void append(const CausalConvOp& op) {
        const std::vector<float>& weight = weights_.vector(op.weight);
        const auto channels = static_cast<size_t>(width(op.x));
        const size_t taps = weight.size() / channels;
        SequenceStage& stage = append_sequence(
            "convolution", op, (width(op.x) + kConvolutionPiece - 1) / kConvolutionPiece,
            2 * weight.size());
        for (size_t tap = 0; tap < taps; ++tap) {
            for (size_t channel = 0; channel < channels; ++channel) {
                stage.taps.push_back(weight[channel * taps + tap]);
            }
        }
    }

    void append(const GatedDeltaOp& op) {
        const int64_t heads = width(op.decay);
        const int64_t state = width(op.v) * (width(op.q) / op.key_heads);
        append_sequence("gated delta", op, heads * state_pieces(width(op.v) / heads),
                        static_cast<size_t>(7 * state));
    }

    void append(const Mamba2Op& op) {
        const int64_t heads = width(op.dt);
        const int64_t state = width(op.x) * (width(op.b) / op.groups);
        append_sequence("Mamba-2", op, heads * state_pieces(width(op.x) / heads),
                        static_cast<size_t>(5 * state));
    }

    template <class AnyOp>
    SequenceStage& append_sequence(const char* name, const AnyOp& op, int64_t pieces,
                                   size_t operations) {
        SequenceStage stage{name, op, op.layer, pieces, {}};
        stage.operations_per_row = static_cast<double>(operations);
        stage.state_bytes =
            2.0 * sizeof(float) *
            static_cast<double>(program_.state_layers[static_cast<size_t>(op.layer)]);
        return std::get<SequenceStage>(plan_.stages.emplace_back(std::move(stage)));
    }

    void append(const ExpertsOp& op) {
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

    int64_t num_experts(int handle) const {
        return static_cast<int64_t>(weights_.experts(handle).size());
    }

    ActivationKind expert_kind(const PackedMatrix& matrix) const {
        return float_activations_ ? ActivationKind::F32
                                  : kernels_.preferred_activations(matrix.type);
    }

    std::string experts_name(int handle) const {
        const PackedMatrix& matrix = weights_.experts(handle).front();
        return std::string(block_geometry(matrix.type).name) + " " + std::to_string(matrix.rows) +
               "x" + std::to_string(matrix.cols);
    }

    void append(const LinearOp& op) {
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
        count_matrix(*stage, matrix);
    }

    // Each head's rows of the matrix are a part of their own, as they read columns of their own.
    void append(const HeadLinearOp& op) {
        const PackedMatrix& matrix = weights_.matrix(op.weight);
        const LinearOp linear{op.out, op.x, op.weight, -1, false};
        const ActivationKind kind = kind_for(linear, matrix.type);
        LinearStage stage;
        const int64_t panels = matrix.panels() / op.heads;
        for (int64_t head = 0; head < op.heads; ++head) {
            const int converted = activations({op.x, kind, head * matrix.cols, matrix.cols});
            stage.parts.push_back({linear, converted, head * panels, panels, head * panels});
        }
        count_matrix(stage, matrix);
        plan_.stages.emplace_back(std::move(stage));
    }

    static void count_matrix(LinearStage& stage, const PackedMatrix& matrix) {
        stage.panels += matrix.panels();
        const BlockGeometry geometry = block_geometry(matrix.type);
        const auto elements = static_cast<double>(matrix.rows * matrix.cols);
        stage.weight_bytes +=
            elements * static_cast<double>(geometry.bytes) / static_cast<double>(geometry.elements);
        stage.operations_per_row += 2 * elements;
        stage.name += (stage.name.empty() ? "linear " : " + ") + std::string(geometry.name) + " " +
                      std::to_string(matrix.rows) + "x" + std::to_string(matrix.cols);
    }

    static void require(bool condition, const char* what) {
        if (!condition) throw std::invalid_argument(std::string("the program has a wrong ") + what);
    }

    void require_groups(int buffer, int64_t group) const {
        require(group > 0 && width(buffer) % group == 0, "number of channels in a group");
    }

    void require_state(int layer, int64_t floats) const {
        require(program_.state_layers.at(static_cast<size_t>(layer)) == floats, "size of a state");
    }

    // That a vector has a number for each channel of a buffer, or one for all.
    void require_channels(int buffer, int vector) const {
        const auto length = static_cast<int64_t>(weights_.vector(vector).size());
        require(length == 1 || length == width(buffer), "vector length");
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

    // The index of what is converted, by the row stage before the linear stage that is being built.
    int activations(const ConvertedBuffer& converted) {
        const auto found = std::find(plan_.activations.begin(), plan_.activations.end(), converted);
        const int index = static_cast<int>(found - plan_.activations.begin());
        if (found == plan_.activations.end()) plan_.activations.push_back(converted);
        std::vector<int>& conversions = stage_before_linears(converted.buffer).conversions;
        if (std::find(conversions.begin(), conversions.end(), index) == conversions.end()) {
            conversions.push_back(index);
        }
        return index;
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
    std::vector<bool> filled_;     // per buffer: whether it holds something by now
    std::vector<bool> stored_;     // per KV layer: whether an operation has stored it
    std::vector<int> remembered_;  // buffers that become keys and values
    Plan plan_;
};

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
