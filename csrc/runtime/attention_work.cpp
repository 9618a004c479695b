#include "runtime/attention_work.h"

#include <algorithm>

namespace caudal {

namespace {

constexpr int64_t kTileRows = 24;
// Below so many items per thread a long sequence's partitions are spread over threads.
constexpr size_t kItemsPerThread = 4;
// So few rows wait for memory, however many items there are: their partitions are items of their
// own, so that a thread reads what all KV heads need of one partition before it goes to the next.
constexpr int64_t kFewRows = 8;

// Side by side in memory are the keys of all KV heads of a block, and so are their values: they
// are read fastest one after the other by one thread. Only the last pieces are single items, for
// threads to finish together.
void cut_pieces(AttentionWork& work, int64_t kv_heads, int threads) {
    const auto items = static_cast<int32_t>(work.items.size());
    const auto heads = static_cast<int32_t>(kv_heads);
    const int32_t whole = std::max(0, items / heads - threads);
    int32_t item = 0;
    for (; item < whole * heads; item += heads) work.pieces.push_back({item, item + heads});
    for (; item < items; ++item) work.pieces.push_back({item, item + 1});
}

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
            const int64_t oldest = shape.oldest_seen(first_position);
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
            AttentionItem item{};
            item.sequence = static_cast<int32_t>(s);
            item.first_query = static_cast<int32_t>(first_query);
            item.count = static_cast<int32_t>(count);
            const bool split = tiles == 1 && (few_items || count * group <= kFewRows);
            const auto parts = static_cast<int32_t>(split ? end - begin : 1);
            const auto first_split = static_cast<int32_t>(work.splits.size());
            for (int64_t head = 0; parts > 1 && head < layer.kv_heads; ++head) {
                work.splits.push_back({parts, static_cast<int64_t>(work.workspace_floats)});
                work.workspace_floats +=
                    static_cast<size_t>(parts) * partial_floats(count * group, layer.head_dim);
            }
            for (int32_t part = 0; part < parts; ++part) {
                item.part = part;
                item.partition_begin = static_cast<int32_t>(begin) + part;
                item.partition_end =
                    parts > 1 ? item.partition_begin + 1 : static_cast<int32_t>(end);
                for (int32_t head = 0; head < layer.kv_heads; ++head) {
                    item.kv_head = head;
                    item.split = parts > 1 ? first_split + head : -1;
                    work.items.push_back(item);
                }
            }
        }
    }
    cut_pieces(work, layer.kv_heads, threads);
    work.finished_parts = std::make_unique<std::atomic<int32_t>[]>(work.splits.size());
    return work;
}

}  // namespace caudal
