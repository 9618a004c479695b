#include "runtime/attention_work.h"

#include <algorithm>
#include <ranges>
#include <unordered_map>
#include <utility>

namespace caudal {

namespace {

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

int64_t attention_tile(const KVLayer& layer, int64_t group) {
    const int64_t rows = layer.latent() ? kLatentTileRows : kAttentionTileRows;
    return std::max<int64_t>(1, rows / group);
}

size_t partial_floats(int64_t rows, int64_t value_dim) {
    return static_cast<size_t>(rows * (2 + value_dim));
}

AttentionPartial partial_at(float* base, int64_t rows) {
    return {base, base + rows, base + 2 * rows};
}

namespace {

// A partition that lies wholly in the past of one query each of some sequences, and where their
// block tables agree.
struct SharedPartition {
    int32_t partition;
    std::vector<AttentionSharer> sharers;
};

class AttentionPlanner {
  public:
    AttentionPlanner(std::span<const SequenceSlice> sequences, size_t pool, const KVLayer& layer,
                     const AttentionShape& shape, int threads)
        : sequences_(sequences),
          pool_(pool),
          layer_(layer),
          shape_(shape),
          group_(shape.heads / layer.kv_heads),
          tile_(attention_tile(layer, group_)) {
        size_t unsplit_items = 0;
        for (const SequenceSlice& sequence : sequences) {
            unsplit_items += static_cast<size_t>(tiles_of(sequence) * layer.kv_heads);
        }
        few_items_ = unsplit_items < kItemsPerThread * static_cast<size_t>(threads);
    }

    AttentionWork plan(int threads) && {
        for (size_t s = 0; s < sequences_.size(); ++s) add_sequence(static_cast<int32_t>(s));
        // What is shared has the most rows and goes first, so that threads finish together.
        std::vector<AttentionItem> alone = std::move(work_.items);
        work_.items.clear();
        for (const SharedPartition& shared : shared_) add_shared(shared, alone);
        work_.items.insert(work_.items.end(), alone.begin(), alone.end());
        cut_pieces(work_, layer_.kv_heads, threads);
        work_.finished_parts = std::make_unique<std::atomic<int32_t>[]>(work_.splits.size());
        return std::move(work_);
    }

  private:
    int64_t tiles_of(const SequenceSlice& sequence) const {
        return (sequence.tokens + tile_ - 1) / tile_;
    }

    void add_sequence(int32_t index) {
        const SequenceSlice& sequence = sequences_[static_cast<size_t>(index)];
        // The last queries have the most keys: they go first.
        const int64_t tiles = tiles_of(sequence);
        for (int64_t t = tiles - 1; t >= 0; --t) {
            const int64_t first_query = t * tile_;
            const int64_t count = std::min(tile_, sequence.tokens - first_query);
            const int64_t first_position = sequence.context + first_query;
            const int64_t oldest = shape_.oldest_seen(first_position);
            const int64_t begin = oldest / kPartitionTokens;
            const int64_t known = sequence.context + sequence.tokens;
            const int64_t seen = shape_.seen_end(first_position + count - 1, known);
            const int64_t end = (seen + kPartitionTokens - 1) / kPartitionTokens;
            for (int64_t position = first_position; position < first_position + count; ++position) {
                const int64_t keys =
                    shape_.seen_end(position, known) - shape_.oldest_seen(position);
                const int64_t channels = layer_.key_dim + layer_.value_dim;
                work_.operations += 2.0 * static_cast<double>(shape_.heads * channels * keys);
            }
            AttentionItem item{};
            item.sequence = index;
            item.first_query = static_cast<int32_t>(first_query);
            item.count = static_cast<int32_t>(count);
            const bool split = tiles == 1 && (few_items_ || count * group_ <= kFewRows);
            const auto parts = static_cast<int32_t>(split ? end - begin : 1);
            const auto first_split = static_cast<int32_t>(work_.splits.size());
            for (int64_t head = 0; parts > 1 && head < layer_.kv_heads; ++head) {
                work_.splits.push_back({parts, static_cast<int64_t>(work_.workspace_floats)});
                work_.workspace_floats +=
                    static_cast<size_t>(parts) * partial_floats(count * group_, layer_.value_dim);
            }
            for (int32_t part = 0; part < parts; ++part) {
                item.part = part;
                item.partition_begin = static_cast<int32_t>(begin) + part;
                item.partition_end =
                    parts > 1 ? item.partition_begin + 1 : static_cast<int32_t>(end);
                const int64_t from = std::max(oldest, item.partition_begin * kPartitionTokens);
                const int64_t to = std::min(seen, item.partition_end * kPartitionTokens);
                if (parts > 1 && sequence.tokens == 1 && to - from == kPartitionTokens) {
                    share(item.partition_begin, {index, first_split, part});
                } else {
                    add_heads(item, parts > 1 ? first_split : -1, to - from, work_.items);
                }
            }
        }
    }

    std::span<const int32_t> blocks_of(int32_t sequence, int64_t partition) const {
        constexpr auto kBlocks = static_cast<size_t>(kPartitionTokens / kBlockTokens);
        return sequences_[static_cast<size_t>(sequence)].table(pool_).subspan(
            static_cast<size_t>(partition) * kBlocks, kBlocks);
    }

    // The sharer's query sees the whole partition, so that all blocks of it are there.
    void share(int32_t partition, AttentionSharer sharer) {
        const std::span<const int32_t> blocks = blocks_of(sharer.sequence, partition);
        const auto [begin, end] = by_first_block_.equal_range(blocks.front());
        const auto found = std::find_if(begin, end, [&](const auto& entry) {
            const SharedPartition& known = shared_[entry.second];
            return known.partition == partition &&
                   std::ranges::equal(blocks_of(known.sharers.front().sequence, partition), blocks);
        });
        if (found != end) {
            shared_[found->second].sharers.push_back(sharer);
            return;
        }
        by_first_block_.emplace(blocks.front(), shared_.size());
        shared_.push_back({partition, {sharer}});
    }

    // Cuts the sequences into tiles; one that is alone is an item like any other.
    void add_shared(const SharedPartition& shared, std::vector<AttentionItem>& alone) {
        AttentionItem item{};
        item.partition_begin = shared.partition;
        item.partition_end = shared.partition + 1;
        for (size_t first = 0; first < shared.sharers.size(); first += static_cast<size_t>(tile_)) {
            const auto count = std::min(static_cast<size_t>(tile_), shared.sharers.size() - first);
            const AttentionSharer& sharer = shared.sharers[first];
            item.sequence = sharer.sequence;
            item.count = static_cast<int32_t>(count);
            item.part = sharer.part;
            item.shared = count > 1 ? static_cast<int32_t>(work_.sharers.size()) : -1;
            if (count > 1) {
                const auto from = shared.sharers.begin() + static_cast<std::ptrdiff_t>(first);
                work_.sharers.insert(work_.sharers.end(), from,
                                     from + static_cast<std::ptrdiff_t>(count));
            }
            add_heads(item, sharer.split, kPartitionTokens, count > 1 ? work_.items : alone);
        }
    }

    // An item for each KV head; `first_split` is -1 where it isn't a part of a split.
    void add_heads(AttentionItem item, int32_t first_split, int64_t keys,
                   std::vector<AttentionItem>& items) {
        for (int32_t head = 0; head < layer_.kv_heads; ++head) {
            item.kv_head = head;
            item.split = first_split < 0 ? -1 : first_split + head;
            items.push_back(item);
        }
        work_.kv_bytes += static_cast<double>(keys * layer_.token_bytes());
    }

    const std::span<const SequenceSlice> sequences_;
    const size_t pool_;
    const KVLayer& layer_;
    const AttentionShape& shape_;
    const int64_t group_;
    const int64_t tile_;
    bool few_items_ = false;
    AttentionWork work_;
    std::vector<SharedPartition> shared_;
    std::unordered_multimap<int32_t, size_t> by_first_block_;  // to indices of shared_
};

}  // namespace

AttentionWork plan_attention(std::span<const SequenceSlice> sequences, size_t pool,
                             const KVLayer& layer, const AttentionShape& shape, int threads) {
    return AttentionPlanner(sequences, pool, layer, shape, threads).plan(threads);
}

}  // namespace caudal
