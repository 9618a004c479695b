// What one thread does with rows of a row stage.
#include <algorithm>
#include <cmath>

#include "runtime/executor.h"
#include "runtime/run.h"

namespace caudal {

class Executor::RowOps {
  public:
    RowOps(const Executor& executor, const Storage& storage, const Run& run)
        : executor_(executor), storage_(storage), run_(run), token_(executor.kernels_.token) {}

    void operator()(const RmsNormOp& op, int64_t row) const {
        const std::span<const float> weight =
            op.weight < 0 ? std::span<const float>{} : executor_.weights_.vector(op.weight);
        token_.rms_norm(at(op.x, row), weight, at(op.out, row), width(op.x) / op.group, op.group,
                        op.eps);
    }

    void operator()(const L2NormOp& op, int64_t row) const {
        token_.l2_norm(at(op.x, row), at(op.out, row), width(op.x) / op.group, op.group, op.eps);
    }

    void operator()(const ColumnsOp& op, int64_t row) const {
        const int64_t periods = width(op.x) / op.period;
        const int64_t taken = width(op.out) / periods;
        const float* from = at(op.x, row) + op.first;
        float* to = at(op.out, row);
        for (int64_t i = 0; i < periods; ++i) {
            std::copy_n(from + i * op.period, taken, to + i * taken);
        }
    }

    void operator()(const GatherOp& op, int64_t row) const {
        const float* from = at(op.x, row);
        std::ranges::transform(op.columns, at(op.out, row),
                               [from](int32_t column) { return from[column]; });
    }

    void operator()(const ScaleOp& op, int64_t row) const {
        token_.scale(at(op.x, row), op.factor, width(op.x));
    }

    void operator()(const ScaleByOp& op, int64_t row) const {
        const std::vector<float>& weight = executor_.weights_.vector(op.weight);
        if (weight.size() == 1) {
            token_.scale(at(op.x, row), weight.front(), width(op.x));
        } else {
            token_.multiply(at(op.x, row), weight.data(), width(op.x));
        }
    }

    void operator()(const ShiftByOp& op, int64_t row) const {
        token_.shift(at(op.x, row), executor_.weights_.vector(op.weight), width(op.x));
    }

    void operator()(const ClampOp& op, int64_t row) const {
        token_.clamp(at(op.x, row), op.low, op.high, width(op.x));
    }

    void operator()(const PositionScaleOp& op, int64_t row) const {
        const int64_t lengths = (run_.positions[static_cast<size_t>(row)] + op.offset) / op.length;
        const double factor = 1.0 + op.scale * std::log1p(static_cast<double>(lengths));
        token_.scale(at(op.x, row), static_cast<float>(factor), width(op.x));
    }

    void operator()(const LayerNormOp& op, int64_t row) const {
        const float* weight = executor_.weights_.vector(op.weight).data();
        const float* bias = op.bias < 0 ? nullptr : executor_.weights_.vector(op.bias).data();
        for (int64_t first = 0; first < width(op.x); first += op.group) {
            token_.layer_norm(at(op.x, row) + first, weight + first,
                              bias == nullptr ? nullptr : bias + first, at(op.out, row) + first,
                              op.group, op.eps);
        }
    }

    void operator()(const CutOp& op, int64_t row) const {
        const std::span<float> x = row_of(op.x, row);
        double sum = 0.0;
        for (const float value : x) sum += value;
        const double mean = sum / static_cast<double>(x.size());
        double squares = 0.0;
        for (const float value : x) squares += (value - mean) * (value - mean);
        const double deviation = std::sqrt(squares / static_cast<double>(x.size()));
        const auto cut = static_cast<float>(mean + op.deviations * deviation);
        for (float& value : x) value = std::max(value - cut, 0.0f);
    }

    void operator()(const MatchMagnitudeOp& op, int64_t row) const {
        const double mean_square = std::max(mean_square_of(op.x, row), double{op.floor});
        const double factor = std::sqrt(mean_square_of(op.model, row) / mean_square);
        token_.scale(at(op.x, row), static_cast<float>(factor), width(op.x));
    }

    void operator()(const ActivateOp& op, int64_t row) const {
        token_.activate(op.activation, at(op.x, row), width(op.x));
    }

    void operator()(const GatedOp& op, int64_t row) const {
        token_.gated({op.activation, op.alpha, op.limit}, at(op.gate, row), width(op.gate),
                     at(op.up, row), at(op.out, row), width(op.out));
    }

    void operator()(const AddOp& op, int64_t row) const {
        token_.add(at(op.a, row), at(op.b, row), at(op.out, row), width(op.out));
    }

    void operator()(const RopeOp& op, int64_t row) const {
        const RopeTable& table = executor_.program_.rope_tables[static_cast<size_t>(op.table)];
        const auto pairs = static_cast<int64_t>(table.inverse_frequencies.size());
        const float* cosines =
            executor_.angles_[static_cast<size_t>(op.table)].data() + 2 * pairs * row;
        token_.rope(at(op.x, row) + op.first, width(op.x) / op.head_dim, op.head_dim, pairs,
                    table.interleaved, cosines, cosines + pairs);
    }

    void operator()(const JoinOp& op, int64_t row) const {
        const int64_t a = width(op.a) / op.heads;
        const int64_t b = width(op.b) / op.heads;
        float* out = at(op.out, row);
        for (int64_t head = 0; head < op.heads; ++head) {
            out = std::copy_n(at(op.a, row) + head * a, a, out);
            out = std::copy_n(at(op.b, row) + head * b, b, out);
        }
    }

    void operator()(const StoreKVOp& op, int64_t row) const {
        const int64_t position = run_.positions[static_cast<size_t>(row)];
        const SequenceSlice& sequence = *run_.slices[static_cast<size_t>(row)];
        const std::span<const int32_t> table = sequence.table(executor_.kv_.pool_of(op.layer));
        const int64_t block = table[static_cast<size_t>(position / kBlockTokens)];
        token_.store_kv(executor_.kv_.layer(op.layer), block, position % kBlockTokens,
                        at(op.k, row), op.v < 0 ? nullptr : at(op.v, row));
    }

    void operator()(const RouteOp& route_op, int64_t row) const {
        const ExpertsOp& op = route_op.op;
        const auto used = static_cast<size_t>(op.used);
        route(token_,
              {op.scoring, op.groups, op.groups_used, op.best_of_group, op.normalise, op.scale,
               vector_or_none(op.selection_bias), vector_or_none(op.expert_scale)},
              {at(op.logits, row), static_cast<size_t>(width(op.logits))},
              executor_.experts_.choices.subspan(static_cast<size_t>(row) * used, used));
    }

    void operator()(const SumExpertsOp& sum, int64_t row) const {
        const ExpertsOp& op = sum.op;
        const ExpertsWorkspace& experts = executor_.experts_;
        const ExpertRows& rows = experts.rows.front();
        float* out = at(op.out, row);
        if (!op.accumulate) std::fill_n(out, width(op.out), 0.0f);
        for (int64_t choice = row * op.used; choice < (row + 1) * op.used; ++choice) {
            const float* result =
                experts.inner.data() + rows.row_of(choice) * (width(op.out) + kRowPadding);
            const float weight =
                op.weigh_input ? 1.0f : experts.choices[static_cast<size_t>(choice)].weight;
            token_.add_weighted(result, weight, out, width(op.out));
        }
    }

    void operator()(const EmbedOp& op, int64_t row) const {
        executor_.kernels_.linear.unpack_row(executor_.weights_.matrix(op.weight),
                                             embedding_row(op, static_cast<size_t>(row)),
                                             at(op.out, row));
        if (op.scale != 1.0f) token_.scale(at(op.out, row), op.scale, width(op.out));
    }

    void operator()(const GivenOp& op, int64_t row) const {
        std::copy_n(run_.batch.given.data() + row * width(op.out), width(op.out), at(op.out, row));
    }

    void operator()(const SoftcapOp& op, int64_t row) const {
        token_.softcap(at(op.x, row), op.cap, width(op.x));
    }

  private:
    float* at(int buffer, int64_t row) const {
        return storage_.buffers[static_cast<size_t>(buffer)].data() +
               row * executor_.stride(buffer);
    }

    int64_t width(int buffer) const {
        return executor_.program_.buffer_widths[static_cast<size_t>(buffer)];
    }

    std::span<float> row_of(int buffer, int64_t row) const {
        return {at(buffer, row), static_cast<size_t>(width(buffer))};
    }

    double mean_square_of(int buffer, int64_t row) const {
        double sum = 0.0;
        for (const float value : row_of(buffer, row)) sum += double{value} * value;
        return sum / static_cast<double>(width(buffer));
    }

    std::span<const float> vector_or_none(int handle) const {
        if (handle < 0) return {};
        return executor_.weights_.vector(handle);
    }

    int64_t embedding_row(const EmbedOp& op, size_t row) const {
        const int64_t position = run_.positions[row];
        switch (op.by) {
            case EmbedBy::Position:
                return position;
            case EmbedBy::Segment: {
                const int64_t second = run_.slices[row]->second_segment;
                return second >= 0 && position >= second ? 1 : 0;
            }
            case EmbedBy::Token:
                break;
        }
        return run_.batch.tokens[row];
    }

    const Executor& executor_;
    const Storage& storage_;
    const Run& run_;
    const TokenKernels& token_;
};

void Executor::run_rows(const RowStage& stage, Storage& storage, const Run& run, int64_t begin,
                        int64_t end) const {
    const RowOps apply(*this, storage, run);
    for (const RowOp& op : stage.ops) {
        const auto apply_to_rows = [&](const auto& known) {
            for (int64_t row = begin; row < end; ++row) apply(known, row);
        };
        std::visit(apply_to_rows, op);
    }
    for (const int index : stage.conversions) {
        const ConvertedBuffer& converted = storage.plan.activations[static_cast<size_t>(index)];
        const auto buffer = static_cast<size_t>(converted.buffer);
        kernels_.linear.convert(converted.kind, storage.buffers[buffer].data() + converted.first,
                                stride(converted.buffer), converted.cols, begin, end,
                                storage.activations[static_cast<size_t>(index)].data());
    }
}

void Executor::fill_angles(const Run& run, int64_t begin, int64_t end) {
    for (size_t t = 0; t < angles_.size(); ++t) {
        const RopeTable& table = program_.rope_tables[t];
        const size_t pairs = table.inverse_frequencies.size();
        for (int64_t row = begin; row < end; ++row) {
            float* cosines = angles_[t].data() + 2 * pairs * static_cast<size_t>(row);
            const auto position = static_cast<float>(run.positions[static_cast<size_t>(row)]);
            for (size_t i = 0; i < pairs; ++i) {
                const float angle = position * table.inverse_frequencies[i];
                cosines[i] = std::cos(angle) * table.magnitude;
                cosines[pairs + i] = std::sin(angle) * table.magnitude;
            }
        }
    }
}

}  // namespace caudal
