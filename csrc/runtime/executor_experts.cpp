// Routed experts: each computes for the tokens that chose it, side by side (Switch Transformers,
// arXiv 2101.03961, without dropping any).
//
// Tokens are sorted by expert. What they are multiplied by is gathered and quantised tile by tile,
// then the matrices of all chosen experts are one stretch of panels that threads share, so that a
// single token's few experts reach all threads, and each expert's weights are read once for all of
// its tokens. The row stage behind adds the results up, token by token in the order of choice.
#include <algorithm>

#include "runtime/executor.h"
#include "runtime/run.h"

namespace caudal {

namespace {

// Panels that a thread takes at once, at most: some experts have many tokens and some have few, so
// that shares of the same number of panels are different work.
constexpr int64_t kMostPanels = 32;

// A matrix of each expert; empty for gates that there aren't.
using Experts = std::span<const PackedMatrix>;

double bytes_of(const PackedMatrix& matrix) {
    const BlockGeometry geometry = block_geometry(matrix.type);
    return static_cast<double>(matrix.rows * matrix.cols / geometry.elements * geometry.bytes);
}

double operations_of(const PackedMatrix& matrix) {
    return 2.0 * static_cast<double>(matrix.rows * matrix.cols);
}

}  // namespace

// One stage of experts in one thread's hands.
class Executor::ExpertsRun {
  public:
    ExpertsRun(Executor& executor, const ExpertsStage& stage, Storage& storage, Run& run,
               int64_t rows, int thread)
        : executor_(executor),
          stage_(stage),
          storage_(storage),
          run_(run),
          thread_(thread),
          workspace_(executor.experts_),
          gate_(stage.op.gate < 0 ? Experts{} : executor.weights_.experts(stage.op.gate)),
          up_(executor.weights_.experts(stage.op.up)),
          down_(executor.weights_.experts(stage.op.down)),
          inner_(down_.front().cols),
          inner_stride_(stage.inner_stride()),
          result_stride_(down_.front().rows + kRowPadding),
          rows_(workspace_.rows[static_cast<size_t>(thread)]) {
        // Each thread sorts for itself: that takes microseconds, and spares a barrier.
        rows_.arrange(workspace_.choices.first(static_cast<size_t>(rows * stage.op.used)),
                      static_cast<int64_t>(up_.size()));
        one_input_ = rows == 1 && !stage.op.weigh_input;
    }

    void run() {
        if (executor_.weight_stream_ && thread_ == 0) want_weights(*executor_.weight_stream_);
        const int64_t tiles = one_input_ ? 1 : rows_.tiles();
        share(stage_.gather_name, tiles, [&](int64_t tile) { gather(tile); });
        multiply(stage_.inside_name, gate_, up_, [&](const auto& chosen, bool first, auto range) {
            const ExpertsOp& op = stage_.op;
            if (first) {
                multiply_part(gate_, chosen, range, stage_.gate_input, op.gate_bias, 0);
            } else {
                const int64_t column = gate_.empty() ? 0 : inner_;
                multiply_part(up_, chosen, range, stage_.up_input, op.up_bias, column);
            }
        });
        share(stage_.activation_name, rows_.tiles(), [&](int64_t tile) { activate(tile); });
        multiply(stage_.down_name, {}, down_,
                 [&](const auto& chosen, bool, auto range) { multiply_down(chosen, range); });
    }

  private:
    void want_weights(WeightStream& stream) const {
        for (const int op : {stage_.op.gate, stage_.op.up, stage_.op.down}) {
            for (const ExpertRows::Chosen& chosen : rows_.chosen()) {
                if (op >= 0) stream.want(executor_.weights_.expert_bytes(op, chosen.expert));
            }
        }
    }

    struct Panels {
        int64_t begin;
        int64_t end;
    };

    template <class Work>
    void share(const std::string& name, int64_t tiles, const Work& work) {
        const int64_t piece =
            std::max<int64_t>(1, tiles / (kPiecesPerThread * executor_.threads_.size()));
        executor_.share(run_, thread_, {name}, tiles, piece, [&](int64_t begin, int64_t end) {
            for (int64_t tile = begin; tile < end; ++tile) work(tile);
        });
    }

    // Shares the panels of all chosen experts, of `first` (may be empty) and then of `second` of
    // each.
    template <class Work>
    void multiply(const std::string& name, Experts first, Experts second, const Work& work) {
        const int64_t firsts = first.empty() ? 0 : first.front().panels();
        const int64_t each = firsts + second.front().panels();
        const auto chosen = rows_.chosen();
        const int64_t total = static_cast<int64_t>(chosen.size()) * each;
        const int64_t piece = std::clamp<int64_t>(
            total / (kPiecesPerThread * executor_.threads_.size()), 1, kMostPanels);
        StageCost cost{name};
        for (const Experts experts : {first, second}) {
            if (experts.empty()) continue;
            cost.bytes += static_cast<double>(chosen.size()) * bytes_of(experts.front());
            for (const ExpertRows::Chosen& expert : chosen) {
                cost.operations +=
                    static_cast<double>(expert.rows) * operations_of(experts.front());
            }
        }
        executor_.share(run_, thread_, cost, total, piece, [&](int64_t begin, int64_t end) {
            while (begin < end) {
                const ExpertRows::Chosen& expert = chosen[static_cast<size_t>(begin / each)];
                const int64_t from = begin % each;
                const int64_t to = std::min(each, from + end - begin);
                if (from < firsts) work(expert, true, Panels{from, std::min(to, firsts)});
                if (to > firsts) {
                    work(expert, false, Panels{std::max(from, firsts) - firsts, to - firsts});
                }
                begin += to - from;
            }
        });
    }

    // Puts what the tokens of a tile are multiplied by where the experts read it.
    void gather(int64_t tile) {
        const ExpertsOp& op = stage_.op;
        const int64_t width = up_.front().cols;
        const int64_t count = rows_.rows_of_tile(tile);
        const int64_t first = token_of(tile * kRowTile);
        bool as_they_are = !op.weigh_input;
        for (int64_t i = 1; i < count; ++i) {
            as_they_are &= token_of(tile * kRowTile + i) == first + i;
        }
        const float* from = x(first);
        int64_t stride = executor_.stride(op.x);
        if (!as_they_are) {
            float* copies = workspace_.copies[static_cast<size_t>(thread_)].data();
            for (int64_t i = 0; i < count; ++i) {
                const int64_t row = tile * kRowTile + i;
                std::copy_n(x(token_of(row)), width, copies + i * width);
                if (op.weigh_input) {
                    executor_.kernels_.token.scale(copies + i * width, choice_of(row).weight,
                                                   width);
                }
            }
            from = copies;
            stride = width;
        }
        for (size_t i = 0; i < stage_.inputs.size(); ++i) {
            executor_.kernels_.linear.convert(stage_.inputs[i], from, stride, width, 0, count,
                                              input(i, tile));
        }
    }

    void multiply_part(Experts experts, const ExpertRows::Chosen& chosen, Panels panels,
                       size_t kind, int bias, int64_t column) {
        const PackedMatrix& matrix = experts[static_cast<size_t>(chosen.expert)];
        float* out =
            workspace_.inner.data() + chosen.first_tile * kRowTile * inner_stride_ + column;
        executor_.kernels_.linear.multiply(
            matrix, stage_.inputs[kind], input(kind, one_input_ ? 0 : chosen.first_tile),
            chosen.rows, panels.begin, panels.end, bias_of(bias, matrix, chosen), false, out,
            inner_stride_);
    }

    void activate(int64_t tile) {
        const TokenKernels& token = executor_.kernels_.token;
        const int64_t count = rows_.rows_of_tile(tile);
        float* rows = workspace_.inner.data() + tile * kRowTile * inner_stride_;
        for (int64_t i = 0; i < count; ++i) {
            float* row = rows + i * inner_stride_;
            if (gate_.empty()) {
                token.activate(stage_.op.activation, row, inner_);
            } else {
                const Gate gate{stage_.op.activation, stage_.op.alpha, stage_.op.limit};
                token.gated(gate, row, inner_, row + inner_, row, inner_);
            }
        }
        executor_.kernels_.linear.convert(stage_.inner_kind, rows, inner_stride_, inner_, 0, count,
                                          activated(tile));
    }

    // The results take the place of what the activations were made of.
    void multiply_down(const ExpertRows::Chosen& chosen, Panels panels) {
        const PackedMatrix& matrix = down_[static_cast<size_t>(chosen.expert)];
        executor_.kernels_.linear.multiply(
            matrix, stage_.inner_kind, activated(chosen.first_tile), chosen.rows, panels.begin,
            panels.end, bias_of(stage_.op.down_bias, matrix, chosen), false,
            workspace_.inner.data() + chosen.first_tile * kRowTile * result_stride_,
            result_stride_);
    }

    const float* bias_of(int bias, const PackedMatrix& matrix,
                         const ExpertRows::Chosen& chosen) const {
        if (bias < 0) return nullptr;
        return executor_.weights_.vector(bias).data() + chosen.expert * matrix.rows;
    }

    const Choice& choice_of(int64_t row) const {
        return workspace_.choices[static_cast<size_t>(rows_.choice_of(row))];
    }
    int64_t token_of(int64_t row) const { return rows_.choice_of(row) / stage_.op.used; }
    const float* x(int64_t token) const {
        return storage_.buffers[static_cast<size_t>(stage_.op.x)].data() +
               token * executor_.stride(stage_.op.x);
    }
    std::byte* input(size_t kind, int64_t tile) const {
        const size_t bytes = executor_.kernels_.linear.activation_bytes(stage_.inputs[kind],
                                                                        kRowTile, up_.front().cols);
        return workspace_.inputs[kind].data() + static_cast<size_t>(tile) * bytes;
    }
    std::byte* activated(int64_t tile) const {
        const size_t bytes =
            executor_.kernels_.linear.activation_bytes(stage_.inner_kind, kRowTile, inner_);
        return workspace_.activated.data() + static_cast<size_t>(tile) * bytes;
    }

    Executor& executor_;
    const ExpertsStage& stage_;
    Storage& storage_;
    Run& run_;
    const int thread_;
    ExpertsWorkspace& workspace_;
    const Experts gate_;
    const Experts up_;
    const Experts down_;
    const int64_t inner_;
    const int64_t inner_stride_;
    const int64_t result_stride_;
    ExpertRows& rows_;  // this thread's
    bool one_input_;    // all experts read the one token there is
};

Executor::ExpertsWorkspace Executor::make_experts_workspace() const {
    std::vector<size_t> sizes(5);  // of the choices, both inputs, inner and activated, in bytes
    const auto grow = [&](size_t part, size_t bytes) {
        sizes[part] = std::max(sizes[part], bytes);
    };
    int64_t copies = 0;
    int64_t most_experts = 0;
    int64_t most_choices = 0;
    for (const Storage* storage : {&body_, &tail_, &head_, &states_}) {
        for (const Stage& any : storage->plan.stages) {
            const auto* stage = std::get_if<ExpertsStage>(&any);
            if (stage == nullptr) continue;
            const PackedMatrix& up = weights_.experts(stage->op.up).front();
            const PackedMatrix& down = weights_.experts(stage->op.down).front();
            const auto experts = static_cast<int64_t>(weights_.experts(stage->op.up).size());
            const int64_t choices = storage->max_rows * stage->op.used;
            const int64_t rows = ExpertRows::most_tiles(choices, experts) * kRowTile;
            most_experts = std::max(most_experts, experts);
            most_choices = std::max(most_choices, choices);
            copies = std::max(copies, kRowTile * up.cols);
            grow(0, static_cast<size_t>(choices) * sizeof(Choice));
            for (size_t i = 0; i < stage->inputs.size(); ++i) {
                grow(1 + i, kernels_.linear.activation_bytes(stage->inputs[i], rows, up.cols));
            }
            const int64_t stride = std::max(stage->inner_stride(), down.rows + kRowPadding);
            grow(3, static_cast<size_t>(rows * stride) * sizeof(float));
            grow(4, kernels_.linear.activation_bytes(stage->inner_kind, rows, down.cols));
        }
    }
    ExpertsWorkspace made{reserve(sizes), {}, {}, {}, {}, {}, {}};
    const std::vector<std::span<std::byte>> parts = split(made.memory.bytes(), sizes);
    made.choices = {reinterpret_cast<Choice*>(parts[0].data()), sizes[0] / sizeof(Choice)};
    made.inputs = {parts[1], parts[2]};
    made.inner = {reinterpret_cast<float*>(parts[3].data()), sizes[3] / sizeof(float)};
    made.activated = parts[4];
    made.rows.resize(static_cast<size_t>(threads_.size()));
    for (ExpertRows& rows : made.rows) rows.reserve(most_experts, most_choices);
    made.copies.assign(static_cast<size_t>(threads_.size()),
                       std::vector<float>(static_cast<size_t>(copies)));
    return made;
}

void Executor::run_experts(const ExpertsStage& stage, Storage& storage, Run& run, int64_t rows,
                           int thread) {
    ExpertsRun(*this, stage, storage, run, rows, thread).run();
}

}  // namespace caudal
