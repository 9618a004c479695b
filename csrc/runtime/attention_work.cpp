#include "runtime/attention_work.h"

#include <algorithm>

namespace caudal {

namespace {

constexpr int64_t kTileRows = 24;
// Below so many items per thread a long sequence's partitions are spread over threads.
constexpr size_t kItemsPerThread = 4;

}  // namespace

int64_t attention_tile(int64_t group) {
    return std::max<int64_t>(1, kTileRows / group);
}

size_t partial_floats(int64_t rows, int64_t head_dim) {
    return static_cast<size_t>(rows * (2 + head_dim));
}

AttentionPartial partial_at(float* base, int64_t rows) {
    return {base, base + rows, base + 2 * rows};
}

AttentionWork plan_attention(std::span<const SequenceSlice> sequences, const KVLayer& layer,
                             const AttentionShape& shape, int threads) {
    AttentionWork work;
    const int64_t group = shape.heads / layer.kv_heads;
    const int64_t tile = attention_tile(group);
    size_t unsplit_items = 0;
    for (const SequenceSlice& sequence : sequences) {
        const int64_t tiles = (sequence.tokens + tile - 1) / tile;
        unsplit_items += static_cast<size_t>(tiles * layer.kv_heads);
    }
    const bool few_items = unsplit_items < kItemsPerThread * static_cast<size_t>(threads);

    for (size_t s = 0; s < sequences.size(); ++s) {
        const SequenceSlice& sequence = sequences[s];
        // The last queries have the most keys: they go first, so that threads finish together.
        const int64_t tiles = (sequence.tokens + tile - 1) / tile;
        for (int64_t t = tiles - 1; t >= 0; --t) {
            const int64_t first_query = t * tile;
            const int64_t count = std::min(tile, sequence.tokens - first_query);
            const int64_t first_position = sequence.context + first_query;
            const int64_t oldest =
                shape.window > 0 ? std::max<int64_t>(0, first_position - shape.window + 1) : 0;
            const int64_t begin = oldest / kPartitionTokens;
            const int64_t seen =
                shape.causal ? first_position + count : sequence.context + sequence.tokens;
            const int64_t end = (seen + kPartitionTokens - 1) / kPartitionTokens;
            const int64_t visible = seen - oldest;
            const int64_t element = layer.type == KVType::F32 ? 4 : 2;
            work.kv_bytes +=
                static_cast<double>(2 * visible * layer.kv_heads * layer.head_dim * element);
            // Causal queries see half of their own tile's keys on average.
            work.operations += 4.0 * static_cast<double>(shape.heads * layer.head_dim * count) *
                               (static_cast<double>(visible) - static_cast<double>(count - 1) / 2);
            for (int64_t head = 0; head < layer.kv_heads; ++head) {
                AttentionItem item{};
                item.sequence = static_cast<int32_t>(s);
                item.kv_head = static_cast<int32_t>(head);
                item.first_query = static_cast<int32_t>(first_query);
                item.count = static_cast<int32_t>(count);
                if (!few_items || tiles > 1 || end - begin < 2) {
                    item.partition_begin = static_cast<int32_t>(begin);
                    item.partition_end = static_cast<int32_t>(end);
                    item.split = -1;
                    work.items.push_back(item);
                    continue;
                }
                item.split = static_cast<int32_t>(work.splits.size());
                const auto parts = static_cast<int32_t>(end - begin);
                work.splits.push_back({parts, static_cast<int64_t>(work.workspace_floats)});
                work.workspace_floats +=
                    static_cast<size_t>(parts) * partial_floats(count * group, layer.head_dim);
                for (int32_t part = 0; part < parts; ++part) {
                    item.part = part;
                    item.partition_begin = static_cast<int32_t>(begin) + part;
                    item.partition_end = item.partition_begin + 1;
                    work.items.push_back(item);
                }
            }
        }
    }
    work.finished_parts = std::make_unique<std::atomic<int32_t>[]>(work.splits.size());
    return work;
}

}  // namespace caudal
