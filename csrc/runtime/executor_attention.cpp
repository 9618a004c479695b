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
            planned->shape.causal == shape.causal && planned->shape.chunked == shape.chunked &&
            planned->kv == kv) {
            return planned->work;
        }
    }
    run.attention.push_back(std::make_unique<Run::Attention>(
        Run::Attention{shape, kv,
                       plan_attention(run.batch.sequences, kv_.pool_of(stage.op.layer),
                                      kv_.layer(stage.op.layer), shape, threads_.size())}));
    return run.attention.back()->work;
}

// An item of attention in one thread's hands.
class Executor::ItemAttention {
  public:
    // `after` is the item that the thread goes on with, -1 for none.
    ItemAttention(Executor& executor, const AttentionStage& stage, AttentionWork& work,
                  Storage& storage, const Run& run, int32_t index, int32_t after, int thread)
        : executor_(executor),
          kernels_(executor.kernels_.token),
          layer_(executor.kv_.layer(stage.op.layer)),
          pool_(executor.kv_.pool_of(stage.op.layer)),
          op_(stage.op),
          shape_(stage.shape),
          work_(work),
          storage_(storage),
          run_(run),
          item_(work.items[static_cast<size_t>(index)]),
          after_(after),
          group_(shape_.heads / layer_.kv_heads),
          scratch_(executor.thread_scratch_[static_cast<size_t>(thread)].data()) {}

    void compute() {
        if (item_.split < 0) {
            compute_whole();
        } else if (item_.shared < 0) {
            compute_part();
        } else {
            compute_shared();
        }
    }

  private:
    // All partitions that the queries see, one after the other.
    void compute_whole() {
        const int64_t rows = item_.count * group_;
        const AttentionPartial running = scratch_partial(0);
        const AttentionPartial later = scratch_partial(1);
        const AttentionQueries queries = queries_of(sequence());
        attend(queries, shape_, item_.partition_begin, false, running);
        for (int64_t p = item_.partition_begin + 1; p < item_.partition_end; ++p) {
            attend(queries, shape_, p, true, later);
            kernels_.merge_partials(running, later, rows, layer_.value_dim);
        }
        write(sequence().first_token + item_.first_query, item_.count, running);
    }

    // One partition; other items have the rest.
    void compute_part() {
        attend(queries_of(sequence()), shape_, item_.partition_begin, false,
               part_of_split(item_.split, item_.part, item_.count * group_));
        finish_part(item_.split, sequence().first_token + item_.first_query, item_.count);
    }

    // One partition, for a query each of several sequences.
    void compute_shared() {
        const auto sharers =
            std::span(work_.sharers)
                .subspan(static_cast<size_t>(item_.shared), static_cast<size_t>(item_.count));
        AttentionQueries queries = queries_of(sequence());
        std::array<int64_t, kLatentTileRows> offsets{};
        for (size_t i = 0; i < sharers.size(); ++i) {
            offsets[i] = (slice(sharers[i].sequence).first_token - sequence().first_token) *
                         queries.query_stride;
        }
        queries.offsets = std::span(offsets).first(sharers.size());
        // All see the whole partition, which is in their past: their positions don't matter.
        queries.tokens = item_.count;
        queries.first_position = int64_t{item_.partition_end} * kPartitionTokens;
        AttentionShape shape = shape_;
        shape.window = 0;
        const AttentionPartial all = scratch_partial(0);
        attend(queries, shape, item_.partition_begin, false, all);
        for (size_t i = 0; i < sharers.size(); ++i) {
            const int32_t split = sharers[i].split + item_.kv_head;
            const AttentionPartial to = part_of_split(split, sharers[i].part, group_);
            const auto first = static_cast<int64_t>(i) * group_;
            std::copy_n(all.maximum + first, group_, to.maximum);
            std::copy_n(all.sum + first, group_, to.sum);
            std::copy_n(all.weighted + first * layer_.value_dim, group_ * layer_.value_dim,
                        to.weighted);
            finish_part(split, slice(sharers[i].sequence).first_token, 1);
        }
    }

    void attend(const AttentionQueries& queries, const AttentionShape& shape, int64_t partition,
                bool again, const AttentionPartial& out) {
        float* scratch = scratch_ + 2 * partial_floats(item_.count * group_, layer_.value_dim);
        kernels_.attend(layer_, shape, queries, item_.kv_head, item_.first_query, item_.count,
                        partition, start_after(partition), again, scratch, out);
    }

    // Where the thread will read after a partition of the item.
    AttentionStart start_after(int64_t partition) const {
        if (partition + 1 < item_.partition_end) return start_of(item_, partition + 1);
        if (after_ < 0) return {};
        const AttentionItem& following = work_.items[static_cast<size_t>(after_)];
        return start_of(following, following.partition_begin);
    }

    AttentionStart start_of(const AttentionItem& item, int64_t partition) const {
        return queries_of(slice(item.sequence))
            .start(shape_, item.kv_head, item.first_query, partition);
    }

    // Notes that a part is there; who brings the last one merges all, and writes the rows of
    // `count` tokens.
    void finish_part(int32_t split, int64_t first_token, int64_t count) {
        const int32_t parts = work_.splits[static_cast<size_t>(split)].parts;
        std::atomic<int32_t>& finished = work_.finished_parts[static_cast<size_t>(split)];
        if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 < parts) return;
        finished.store(0, std::memory_order_relaxed);
        const int64_t rows = count * group_;
        const AttentionPartial running = part_of_split(split, 0, rows);
        for (int32_t part = 1; part < parts; ++part) {
            kernels_.merge_partials(running, part_of_split(split, part, rows), rows,
                                    layer_.value_dim);
        }
        write(first_token, count, running);
    }

    void write(int64_t first_token, int64_t count, const AttentionPartial& result) {
        if (op_.sinks >= 0) {
            const auto sinks = std::span(executor_.weights_.vector(op_.sinks))
                                   .subspan(static_cast<size_t>(item_.kv_head * group_),
                                            static_cast<size_t>(group_));
            kernels_.add_sinks(result, sinks, count * group_, layer_.value_dim);
        }
        const int64_t stride = executor_.stride(op_.out);
        float* out = storage_.buffers[static_cast<size_t>(op_.out)].data() + first_token * stride +
                     item_.kv_head * group_ * layer_.value_dim;
        for (int64_t token = 0; token < count; ++token) {
            for (int64_t head = 0; head < group_; ++head) {
                const int64_t row = token * group_ + head;
                kernels_.normalise(layer_, result.weighted + row * layer_.value_dim,
                                   result.sum[row], out + token * stride + head * layer_.value_dim);
            }
        }
    }

    // Where a part of a split, of `rows` rows, leaves its result.
    AttentionPartial part_of_split(int32_t split, int32_t part, int64_t rows) const {
        float* parts =
            executor_.split_workspace_.data() + work_.splits[static_cast<size_t>(split)].workspace;
        const size_t floats = partial_floats(rows, layer_.value_dim);
        return partial_at(parts + static_cast<size_t>(part) * floats, rows);
    }

    // One of two results in the thread's own scratch.
    AttentionPartial scratch_partial(size_t which) const {
        const int64_t rows = item_.count * group_;
        return partial_at(scratch_ + which * partial_floats(rows, layer_.value_dim), rows);
    }

    AttentionQueries queries_of(const SequenceSlice& of) const {
        const int64_t stride = executor_.stride(op_.q);
        const float* queries = storage_.buffers[static_cast<size_t>(op_.q)].data();
        return {
            queries + of.first_token * stride, stride, of.tokens, of.context, of.table(pool_), {}};
    }

    const SequenceSlice& slice(int32_t index) const {
        return run_.batch.sequences[static_cast<size_t>(index)];
    }
    const SequenceSlice& sequence() const { return slice(item_.sequence); }

    Executor& executor_;
    const TokenKernels& kernels_;
    const KVLayer& layer_;
    const size_t pool_;
    const AttentionOp& op_;
    const AttentionShape& shape_;
    AttentionWork& work_;
    Storage& storage_;
    const Run& run_;
    const AttentionItem& item_;
    const int32_t after_;
    const int64_t group_;  // query heads of a KV head
    float* const scratch_;
};

void Executor::run_attention(const AttentionStage& stage, AttentionWork& work, Storage& storage,
                             const Run& run, int32_t index, int32_t after, int thread) {
    ItemAttention(*this, stage, work, storage, run, index, after, thread).compute();
}

}  // namespace caudal
