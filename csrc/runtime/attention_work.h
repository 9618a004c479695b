// Attention cut into pieces that threads can take one by one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/token_ops.h"
#include "runtime/batch.h"

namespace caudal {

// Rows (queries times heads of a group) of one item: enough to share what is read, few enough for
// their own state to stay in the cache.
constexpr int64_t kAttentionTileRows = 24;
// Of a latent layer: its values are made of its keys once for all of them.
constexpr int64_t kLatentTileRows = 64;

// Queries [first_query, first_query + count) of a sequence and the heads of one KV head, over
// partitions [partition_begin, partition_end). Or, if `shared` isn't -1, the one query each of
// `count` sequences whose block tables agree on the partition (a shared prefix): its keys and
// values are read once for all. (Hydragen, arXiv 2402.05099; cascade attention in FlashInfer.)
struct AttentionItem {
    int32_t sequence;  // of a shared partition: the first of them
    int32_t kv_head;
    int32_t first_query;
    int32_t count;
    int32_t partition_begin;
    int32_t partition_end;
    int32_t split;        // index of the split it belongs to, -1: the item holds all its partitions
    int32_t part;         // which part of the split
    int32_t shared = -1;  // where its sequences begin in AttentionWork::sharers
};

// One of the sequences of a shared partition, with its own split and part.
struct AttentionSharer {
    int32_t sequence;
    int32_t split;  // of the first KV head; the others' follow
    int32_t part;
};

// A single query tile whose partitions are spread over threads: the last to finish merges the
// parts, always in the order of partitions, so who it is makes no difference.
struct AttentionSplit {
    int32_t parts;
    int64_t workspace;  // float offset of the first part's partial
};

// Items [begin, end), which one thread takes at once.
struct AttentionPiece {
    int32_t begin;
    int32_t end;
};

// The items of one (pool, window, heads, KV geometry) for a batch; layers of the same kind share
// it.
struct AttentionWork {
    std::vector<AttentionItem> items;
    std::vector<AttentionPiece> pieces;
    std::vector<AttentionSplit> splits;
    std::vector<AttentionSharer> sharers;
    std::unique_ptr<std::atomic<int32_t>[]> finished_parts;  // per split; returns to 0 after use
    size_t workspace_floats = 0;
    double kv_bytes = 0;    // that items read
    double operations = 0;  // multiply-adds of queries, keys and values count as two
};

// Query tokens of one item, at most.
int64_t attention_tile(const KVLayer& layer, int64_t group);

// Floats of one partial of `rows` rows: maximum, sum, weighted values.
size_t partial_floats(int64_t rows, int64_t value_dim);
AttentionPartial partial_at(float* base, int64_t rows);

// `pool`: which of the sequences' tables is the layer's.
AttentionWork plan_attention(std::span<const SequenceSlice> sequences, size_t pool,
                             const KVLayer& layer, const AttentionShape& shape, int threads);

}  // namespace caudal
