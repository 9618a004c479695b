// What one thread does with a piece of a linear stage, and what adapters add to it.
#include <algorithm>
#include <stdexcept>

#include "runtime/executor.h"
#include "runtime/run.h"

namespace caudal {

void Executor::run_linear(const LinearStage& stage, Storage& storage, int64_t rows,
                          std::span<const AdaptedRows> adapted, int64_t begin, int64_t end) const {
    for (const LinearStage::Part& part : stage.parts) {
        const PackedMatrix& matrix = weights_.matrix(part.op.weight);
        const auto activations = static_cast<size_t>(part.activations);
        const int64_t first = std::max<int64_t>(begin - part.first_panel, 0);
        const int64_t last = std::min(end - part.first_panel, part.panels);
        if (first >= last) continue;
        const float* bias = part.op.bias < 0 ? nullptr : weights_.vector(part.op.bias).data();
        float* out = storage.buffers[static_cast<size_t>(part.op.out)].data();
        kernels_.linear.multiply(matrix, storage.plan.activations[activations].kind,
                                 storage.activations[activations].data(), rows,
                                 part.of_matrix + first, part.of_matrix + last, bias,
                                 part.op.accumulate, out, stride(part.op.out));
        for (const AdaptedRows& tile : adapted) {
            const Adapter::Change* change = tile.adapter->change(part.op.weight);
            if (change == nullptr) continue;
            kernels_.low_rank.multiply(change->b, reduced(stage, part, rows, tile), change->a.rows,
                                       tile.count, part.of_matrix + first, part.of_matrix + last,
                                       true, out + tile.first * stride(part.op.out),
                                       stride(part.op.out));
        }
    }
}

void Executor::reduce_for_adapters(const LinearStage& stage, const Storage& storage, Run& run,
                                   int64_t rows, std::span<const AdaptedRows> adapted, int thread) {
    const auto parts = static_cast<int64_t>(stage.parts.size());
    const auto total = static_cast<int64_t>(adapted.size()) * parts;
    const auto changed = [&](int64_t index) {
        const AdaptedRows& tile = adapted[static_cast<size_t>(index / parts)];
        return tile.adapter->change(stage.parts[static_cast<size_t>(index % parts)].op.weight);
    };
    int64_t changes = 0;
    for (int64_t index = 0; index < total; ++index) changes += changed(index) != nullptr ? 1 : 0;
    if (changes == 0) return;
    share(run, thread, {"adapters"}, total, 1, [&](int64_t begin, int64_t end) {
        for (int64_t index = begin; index < end; ++index) {
            const Adapter::Change* change = changed(index);
            if (change == nullptr) continue;
            const AdaptedRows& tile = adapted[static_cast<size_t>(index / parts)];
            const LinearStage::Part& part = stage.parts[static_cast<size_t>(index % parts)];
            const float* x = storage.buffers[static_cast<size_t>(part.op.x)].data() +
                             tile.first * stride(part.op.x);
            float* out = reduced(stage, part, rows, tile);
            kernels_.low_rank.multiply(change->a, x, stride(part.op.x), tile.count, 0,
                                       change->a.panels(), false, out, change->a.rows);
            if (change->scale != 1.0f) {
                kernels_.token.scale(out, change->scale, tile.count * change->a.rows);
            }
        }
    });
}

void Executor::reserve_for_adapters(const Run& run) {
    if (run.adapters.empty()) return;
    int64_t rows_of_parts = 0;
    for (const Storage* storage : {&body_, &tail_, &head_, &states_}) {
        const auto rows =
            std::min(storage->max_rows, static_cast<int64_t>(run.batch.tokens.size()));
        for (const Stage& stage : storage->plan.stages) {
            const auto* linear = std::get_if<LinearStage>(&stage);
            if (linear == nullptr) continue;
            rows_of_parts =
                std::max(rows_of_parts, static_cast<int64_t>(linear->parts.size()) * rows);
        }
    }
    adapted_.rank = 0;
    for (const Adapter* adapter : run.adapters) {
        if (adapter != nullptr) adapted_.rank = std::max(adapted_.rank, adapter->rank());
    }
    const auto size = static_cast<size_t>(rows_of_parts * adapted_.rank);
    if (adapted_.memory.size() < size) adapted_.memory.resize(size);
    adapted_.reduced = adapted_.memory;
}

float* Executor::reduced(const LinearStage& stage, const LinearStage::Part& part, int64_t rows,
                         const AdaptedRows& tile) const {
    const int64_t number = &part - stage.parts.data();
    return adapted_.reduced.data() + (number * rows + tile.first) * adapted_.rank;
}

Executor::LoadedAdapter Executor::load_adapter(std::span<const AdapterFactors> factors) {
    auto adapter =
        std::make_unique<const Adapter>(threads_, weights_, options_.float_activations, factors);
    const auto found = std::find(adapters_.begin(), adapters_.end(), nullptr);
    const auto index = static_cast<size_t>(found - adapters_.begin());
    const LoadedAdapter loaded{static_cast<int32_t>(index), adapter->rank(), adapter->bytes()};
    if (found == adapters_.end()) {
        adapters_.push_back(std::move(adapter));
    } else {
        *found = std::move(adapter);
    }
    return loaded;
}

bool Executor::has_adapter(int32_t index) const {
    return index >= 0 && index < static_cast<int32_t>(adapters_.size()) &&
           adapters_[static_cast<size_t>(index)] != nullptr;
}

void Executor::unload_adapter(int32_t index) {
    if (!has_adapter(index)) throw std::out_of_range("there is no such adapter");
    adapters_[static_cast<size_t>(index)] = nullptr;
}

}  // namespace caudal
