// What one thread does with a piece of a stage.
#include <algorithm>
#include <cmath>

#include "runtime/executor.h"
#include "runtime/run.h"

namespace caudal {

int64_t Executor::embedding_row(const Run& run, const EmbedOp& op, size_t row) {
    const int64_t position = run.positions[row];
    switch (op.by) {
        case EmbedBy::Position:
            return position;
        case EmbedBy::Segment: {
            const int64_t second = run.slices[row]->second_segment;
            return second >= 0 && position >= second ? 1 : 0;
        }
        case EmbedBy::Token:
            break;
    }
    return run.batch.tokens[row];
}

void Executor::run_rows(const RowStage& stage, Storage& storage, const Run& run, int64_t begin,
                        int64_t end) const {
    const auto width_of = [&](int buffer) {
        return program_.buffer_widths[static_cast<size_t>(buffer)];
    };
    for (const RowOp& op : stage.ops) {
        for (int64_t row = begin; row < end; ++row) {
            const auto at = [&](int buffer) {
                return storage.buffers[static_cast<size_t>(buffer)].data() + row * stride(buffer);
            };
            if (const auto* norm = std::get_if<RmsNormOp>(&op)) {
                const std::vector<float>& weight = weights_.vector(norm->weight);
                const auto group = static_cast<int64_t>(weight.size());
                kernels_.token.rms_norm(at(norm->x), weight.data(), at(norm->out),
                                        width_of(norm->x) / group, group, norm->eps);
            } else if (const auto* layer_norm = std::get_if<LayerNormOp>(&op)) {
                kernels_.token.layer_norm(
                    at(layer_norm->x), weights_.vector(layer_norm->weight).data(),
                    weights_.vector(layer_norm->bias).data(), at(layer_norm->out),
                    width_of(layer_norm->x), layer_norm->eps);
            } else if (const auto* activate = std::get_if<ActivateOp>(&op)) {
                kernels_.token.activate(activate->activation, at(activate->x),
                                        width_of(activate->x));
            } else if (const auto* gated = std::get_if<GatedOp>(&op)) {
                kernels_.token.gated(gated->activation, at(gated->gate), at(gated->up),
                                     at(gated->out), width_of(gated->out));
            } else if (const auto* add = std::get_if<AddOp>(&op)) {
                kernels_.token.add(at(add->a), at(add->b), at(add->out), width_of(add->out));
            } else if (const auto* rope = std::get_if<RopeOp>(&op)) {
                const RopeTable& table = program_.rope_tables[static_cast<size_t>(rope->table)];
                const auto pairs = static_cast<int64_t>(table.inverse_frequencies.size());
                const float* cosines =
                    angles_[static_cast<size_t>(rope->table)].data() + 2 * pairs * row;
                kernels_.token.rope(at(rope->x), width_of(rope->x) / rope->head_dim, rope->head_dim,
                                    pairs, table.interleaved, cosines, cosines + pairs);
            } else if (const auto* kv = std::get_if<StoreKVOp>(&op)) {
                const int64_t position = run.positions[static_cast<size_t>(row)];
                const SequenceSlice& sequence = *run.slices[static_cast<size_t>(row)];
                const int64_t block =
                    sequence.block_table[static_cast<size_t>(position / kBlockTokens)];
                kernels_.token.store_kv(kv_.layer(kv->layer), block, position % kBlockTokens,
                                        at(kv->k), at(kv->v));
            } else if (const auto* embed = std::get_if<EmbedOp>(&op)) {
                kernels_.linear.unpack_row(weights_.matrix(embed->matrix),
                                           embedding_row(run, *embed, static_cast<size_t>(row)),
                                           at(embed->out));
                if (embed->scale != 1.0f) {
                    kernels_.token.scale(at(embed->out), embed->scale, width_of(embed->out));
                }
            } else {
                const auto& softcap = std::get<SoftcapOp>(op);
                kernels_.token.softcap(at(softcap.x), softcap.cap, width_of(softcap.x));
            }
        }
    }
    for (const Conversion& conversion : stage.conversions) {
        const int64_t width = width_of(conversion.buffer);
        kernels_.linear.convert(storage.plan.slots[static_cast<size_t>(conversion.slot)].kind,
                                storage.buffers[static_cast<size_t>(conversion.buffer)].data(),
                                stride(conversion.buffer), width, begin, end,
                                storage.activations[static_cast<size_t>(conversion.slot)].data());
    }
}

void Executor::run_linear(const LinearStage& stage, Storage& storage, int64_t rows, int64_t begin,
                          int64_t end) const {
    for (const LinearStage::Part& part : stage.parts) {
        const PackedMatrix& matrix = weights_.matrix(part.op.matrix);
        const int64_t first = std::max<int64_t>(begin - part.first_panel, 0);
        const int64_t last = std::min(end - part.first_panel, matrix.panels());
        if (first >= last) continue;
        const float* bias = part.op.bias < 0 ? nullptr : weights_.vector(part.op.bias).data();
        kernels_.linear.multiply(matrix, storage.plan.slots[static_cast<size_t>(part.slot)].kind,
                                 storage.activations[static_cast<size_t>(part.slot)].data(), rows,
                                 first, last, bias, part.op.accumulate,
                                 storage.buffers[static_cast<size_t>(part.op.out)].data(),
                                 stride(part.op.out));
    }
}

AttentionWork& Executor::attention_work(Run& run, const AttentionOp& op) const {
    const KVGeometry& kv = program_.kv_layers[static_cast<size_t>(op.layer)];
    for (const auto& planned : run.attention) {
        if (planned->shape.heads == op.shape.heads && planned->shape.window == op.shape.window &&
            planned->shape.causal == op.shape.causal && planned->kv.kv_heads == kv.kv_heads &&
            planned->kv.head_dim == kv.head_dim) {
            return planned->work;
        }
    }
    run.attention.push_back(std::make_unique<Run::Attention>(Run::Attention{
        op.shape, kv,
        plan_attention(run.batch.sequences, kv_.layer(op.layer), op.shape, threads_.size())}));
    return run.attention.back()->work;
}

void Executor::run_attention(const AttentionStage& stage, AttentionWork& work, Storage& storage,
                             const Run& run, int32_t index, int32_t after, int thread) {
    const AttentionItem& item = work.items[static_cast<size_t>(index)];
    const AttentionOp& op = stage.op;
    const KVLayer& layer = kv_.layer(op.layer);
    const SequenceSlice& sequence = run.batch.sequences[static_cast<size_t>(item.sequence)];
    const int64_t query_stride = stride(op.q);
    const int64_t out_stride = stride(op.out);
    const int64_t group = op.shape.heads / layer.kv_heads;
    const int64_t rows = item.count * group;
    const size_t floats = partial_floats(rows, layer.head_dim);

    const auto queries_of = [&](const SequenceSlice& slice) -> AttentionQueries {
        return {
            storage.buffers[static_cast<size_t>(op.q)].data() + slice.first_token * query_stride,
            query_stride, slice.tokens, slice.context, slice.block_table};
    };
    const AttentionQueries queries = queries_of(sequence);
    const auto start_of = [&](const AttentionItem& of, int64_t partition) {
        return queries_of(run.batch.sequences[static_cast<size_t>(of.sequence)])
            .start(op.shape, of.kv_head, of.first_query, partition);
    };

    float* scratch = thread_scratch_[static_cast<size_t>(thread)].data();
    AttentionPartial running = partial_at(scratch, rows);
    float* attend_scratch = scratch + 2 * floats;
    const auto attend = [&](int64_t partition, const AttentionPartial& out) {
        AttentionStart next;
        if (partition + 1 < item.partition_end) {
            next = start_of(item, partition + 1);
        } else if (after >= 0) {
            const AttentionItem& later = work.items[static_cast<size_t>(after)];
            next = start_of(later, later.partition_begin);
        }
        kernels_.token.attend(layer, op.shape, queries, item.kv_head, item.first_query, item.count,
                              partition, next, attend_scratch, out);
    };
    if (item.split < 0) {
        attend(item.partition_begin, running);
        const AttentionPartial later = partial_at(scratch + floats, rows);
        for (int64_t p = item.partition_begin + 1; p < item.partition_end; ++p) {
            attend(p, later);
            kernels_.token.merge_partials(running, later, rows, layer.head_dim);
        }
    } else {
        const AttentionSplit& split = work.splits[static_cast<size_t>(item.split)];
        float* parts = split_workspace_.data() + split.workspace;
        attend(item.partition_begin,
               partial_at(parts + static_cast<size_t>(item.part) * floats, rows));
        std::atomic<int32_t>& finished = work.finished_parts[static_cast<size_t>(item.split)];
        if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 < split.parts) return;
        finished.store(0, std::memory_order_relaxed);
        running = partial_at(parts, rows);
        for (int32_t part = 1; part < split.parts; ++part) {
            const AttentionPartial later =
                partial_at(parts + static_cast<size_t>(part) * floats, rows);
            kernels_.token.merge_partials(running, later, rows, layer.head_dim);
        }
    }

    float* out = storage.buffers[static_cast<size_t>(op.out)].data() +
                 (sequence.first_token + item.first_query) * out_stride +
                 item.kv_head * group * layer.head_dim;
    for (int64_t token = 0; token < item.count; ++token) {
        for (int64_t head = 0; head < group; ++head) {
            const int64_t row = token * group + head;
            kernels_.token.normalise(running.weighted + row * layer.head_dim, running.sum[row],
                                     out + token * out_stride + head * layer.head_dim,
                                     layer.head_dim);
        }
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
