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
