// What one thread does with an item of attention.
#include <algorithm>
#include <array>

#include "runtime/executor.h"
#include "runtime/run.h"

namespace caudal {

AttentionWork& Executor::attention_work(Run& run, const AttentionStage& stage) const {
    const AttentionShape& shape = stage.shape;
    const KVGeometry& kv = program_.kv_layers[static_cast<size_t>(stage.op.layer)];
    for (const auto& planned : run.attention) {
        if (planned->shape.heads == shape.heads && planned->shape.window == shape.window &&
            planned->shape.causal == shape.causal && planned->kv.kv_heads == kv.kv_heads &&
            planned->kv.head_dim == kv.head_dim) {
            return planned->work;
        }
    }
    run.attention.push_back(std::make_unique<Run::Attention>(Run::Attention{
        shape, kv,
        plan_attention(run.batch.sequences, kv_.layer(stage.op.layer), shape, threads_.size())}));
    return run.attention.back()->work;
}

AttentionQueries Executor::queries_of(const AttentionStage& stage, const Storage& storage,
                                      const SequenceSlice& sequence) const {
    const int64_t query_stride = stride(stage.op.q);
    const float* queries = storage.buffers[static_cast<size_t>(stage.op.q)].data();
    return {queries + sequence.first_token * query_stride,
            query_stride,
            sequence.tokens,
            sequence.context,
            sequence.block_table,
            {}};
}

void Executor::run_attention(const AttentionStage& stage, AttentionWork& work, Storage& storage,
                             const Run& run, int32_t index, int32_t after, int thread) {
    const AttentionItem& item = work.items[static_cast<size_t>(index)];
    const AttentionOp& op = stage.op;
    const KVLayer& layer = kv_.layer(op.layer);
    const auto slice_of = [&](int32_t sequence) -> const SequenceSlice& {
        return run.batch.sequences[static_cast<size_t>(sequence)];
    };
    const SequenceSlice& sequence = slice_of(item.sequence);
    const int64_t group = stage.shape.heads / layer.kv_heads;
    const int64_t rows = item.count * group;
    const size_t floats = partial_floats(rows, layer.head_dim);
    const auto start_of = [&](const AttentionItem& of, int64_t partition) {
        return queries_of(stage, storage, slice_of(of.sequence))
            .start(stage.shape, of.kv_head, of.first_query, partition);
    };

    float* scratch = thread_scratch_[static_cast<size_t>(thread)].data();
    const AttentionPartial running = partial_at(scratch, rows);
    const AttentionPartial later = partial_at(scratch + floats, rows);
    const auto attend = [&](const AttentionQueries& queries, const AttentionShape& shape,
                            int64_t partition, const AttentionPartial& out) {
        AttentionStart next;
        if (partition + 1 < item.partition_end) {
            next = start_of(item, partition + 1);
        } else if (after >= 0) {
            const AttentionItem& following = work.items[static_cast<size_t>(after)];
            next = start_of(following, following.partition_begin);
        }
        kernels_.token.attend(layer, shape, queries, item.kv_head, item.first_query, item.count,
                              partition, next, scratch + 2 * floats, out);
    };

    AttentionQueries queries = queries_of(stage, storage, sequence);
    if (item.split < 0) {
        attend(queries, stage.shape, item.partition_begin, running);
        for (int64_t p = item.partition_begin + 1; p < item.partition_end; ++p) {
            attend(queries, stage.shape, p, later);
            kernels_.token.merge_partials(running, later, rows, layer.head_dim);
        }
        write_attention(stage, storage, sequence.first_token + item.first_query, item.count,
                        item.kv_head, running);
    } else if (item.shared < 0) {
        attend(queries, stage.shape, item.partition_begin,
               split_part(work, item.split, item.part, rows, layer.head_dim));
        finish_part(stage, work, storage, item.split, sequence.first_token + item.first_query,
                    item.count, item.kv_head);
    } else {
        const auto sharers =
            std::span(work.sharers)
                .subspan(static_cast<size_t>(item.shared), static_cast<size_t>(item.count));
        std::array<int64_t, kAttentionTileRows> offsets{};
        for (size_t i = 0; i < sharers.size(); ++i) {
            offsets[i] = (slice_of(sharers[i].sequence).first_token - sequence.first_token) *
                         queries.query_stride;
        }
        queries.offsets = std::span(offsets).first(sharers.size());
        // All see the whole partition, which is in their past: their positions don't matter.
        queries.tokens = item.count;
        queries.first_position = int64_t{item.partition_end} * kPartitionTokens;
        AttentionShape shape = stage.shape;
        shape.window = 0;
        attend(queries, shape, item.partition_begin, running);
        for (size_t i = 0; i < sharers.size(); ++i) {
            const int32_t split = sharers[i].split + item.kv_head;
            const AttentionPartial to =
                split_part(work, split, sharers[i].part, group, layer.head_dim);
            const auto first = static_cast<int64_t>(i) * group;
            std::copy_n(running.maximum + first, group, to.maximum);
            std::copy_n(running.sum + first, group, to.sum);
            std::copy_n(running.weighted + first * layer.head_dim, group * layer.head_dim,
                        to.weighted);
            finish_part(stage, work, storage, split, slice_of(sharers[i].sequence).first_token, 1,
                        item.kv_head);
        }
    }
}

AttentionPartial Executor::split_part(const AttentionWork& work, int32_t split, int32_t part,
                                      int64_t rows, int64_t head_dim) {
    float* parts = split_workspace_.data() + work.splits[static_cast<size_t>(split)].workspace;
    return partial_at(parts + static_cast<size_t>(part) * partial_floats(rows, head_dim), rows);
}

void Executor::finish_part(const AttentionStage& stage, AttentionWork& work, Storage& storage,
                           int32_t split, int64_t first_token, int64_t count, int64_t kv_head) {
    const int32_t parts = work.splits[static_cast<size_t>(split)].parts;
    std::atomic<int32_t>& finished = work.finished_parts[static_cast<size_t>(split)];
    if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 < parts) return;
    finished.store(0, std::memory_order_relaxed);
    const KVLayer& layer = kv_.layer(stage.op.layer);
    const int64_t rows = count * (stage.shape.heads / layer.kv_heads);
    const AttentionPartial running = split_part(work, split, 0, rows, layer.head_dim);
    for (int32_t part = 1; part < parts; ++part) {
        kernels_.token.merge_partials(running, split_part(work, split, part, rows, layer.head_dim),
                                      rows, layer.head_dim);
    }
    write_attention(stage, storage, first_token, count, kv_head, running);
}

void Executor::write_attention(const AttentionStage& stage, Storage& storage, int64_t first_token,
                               int64_t count, int64_t kv_head,
                               const AttentionPartial& result) const {
    const KVLayer& layer = kv_.layer(stage.op.layer);
    const int64_t group = stage.shape.heads / layer.kv_heads;
    const int64_t out_stride = stride(stage.op.out);
    float* out = storage.buffers[static_cast<size_t>(stage.op.out)].data() +
                 first_token * out_stride + kv_head * group * layer.head_dim;
    for (int64_t token = 0; token < count; ++token) {
        for (int64_t head = 0; head < group; ++head) {
            const int64_t row = token * group + head;
            kernels_.token.normalise(result.weighted + row * layer.head_dim, result.sum[row],
                                     out + token * out_stride + head * layer.head_dim,
                                     layer.head_dim);
        }
    }
}

}  // namespace caudal
