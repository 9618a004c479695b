// Attention over paged keys and values with online softmax (Milakov & Gimelshein, arXiv 1805.02867;
// FlashAttention, arXiv 2205.14135), one step of keys at a time.
//
// Rows are (query token, head of the group) pairs: the heads of a group (GQA) and the tokens of a
// query tile share every load of keys and values.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/attention_bytes.inl"
#include "kernels/attention_step.inl"

namespace caudal::CAUDAL_ISA {
namespace {

struct AttentionScratch {
    int64_t* visible_begin;  // [rows]
    int64_t* visible_end;    // [rows]
    float* queries;          // [rows][query_floats], scaled
    int64_t query_floats;    // a row's: its channels, or what they are rounded to
    float* sums;             // [rows][kLanes]
    float* values;           // of a latent layer: [kStepTokens][value_dim] of its elements
};

int64_t query_floats(const KVLayer& layer) {
    return layer.type == KVType::Q8 ? ByteQueries::floats(layer.key_dim) : layer.key_dim;
}

// A vector of floats isn't aligned for 64-bit numbers: one float more lets it move.
AttentionScratch lay_out(float* scratch, int64_t rows, const KVLayer& layer) {
    const auto address = reinterpret_cast<uintptr_t>(scratch);
    AttentionScratch parts{};
    parts.visible_begin = reinterpret_cast<int64_t*>((address + 7) / 8 * 8);
    parts.visible_end = parts.visible_begin + rows;
    parts.queries = reinterpret_cast<float*>(parts.visible_end + rows);
    parts.query_floats = query_floats(layer);
    parts.sums = parts.queries + rows * parts.query_floats;
    parts.values = parts.sums + rows * kLanes;
    return parts;
}

size_t attend_scratch(const KVLayer& layer, const AttentionShape& shape, int64_t tokens) {
    const int64_t rows = tokens * (shape.heads / layer.kv_heads);
    const int64_t values = layer.latent() ? kStepTokens * layer.value_dim : 0;
    return static_cast<size_t>(1 + rows * (4 + query_floats(layer) + kLanes) + values);
}

using u16x8 = uint16_t __attribute__((vector_size(16)));
using u32x4 = uint32_t __attribute__((vector_size(16)));

CAUDAL_INLINE void interleave(u16x8 a, u16x8 b, u16x8& low, u16x8& high) {
    low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
CAUDAL_INLINE void interleave(u32x4 a, u32x4 b, u32x4& low, u32x4& high) {
    low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
}

// Writes a square of elements, as many as fit into 16 bytes a side, with rows for columns. Each
// round shuffles the upper rows into the lower ones like cards.
template <class Element>
CAUDAL_INLINE void transpose(const Element* from, int64_t stride, Element* to, int64_t to_stride) {
    using Vector = std::conditional_t<sizeof(Element) == 2, u16x8, u32x4>;
    constexpr int kSide = 16 / sizeof(Element);
    Vector rows[kSide];
    for (int i = 0; i < kSide; ++i) std::memcpy(&rows[i], from + i * stride, sizeof(Vector));
    for (int size = 1; size < kSide; size *= 2) {
        Vector shuffled[kSide];
        for (int i = 0; i < kSide / 2; ++i) {
            interleave(rows[i], rows[i + kSide / 2], shuffled[2 * i], shuffled[2 * i + 1]);
        }
        std::copy_n(shuffled, kSide, rows);
    }
    for (int i = 0; i < kSide; ++i) {
        std::memcpy(static_cast<void*>(to + i * to_stride), &rows[i], sizeof(Vector));
    }
}

// The values of a latent layer's block, [token][channel], out of its keys, [channel][token]: once
// for all rows of a step. With 16 query heads and 4,096 tokens that is at least as fast as a pool
// nearly twice as large that holds the values too: a decoding step took 15 to 19 ms and 21 to 23,
// 64 tokens of a prompt 1046 ms and 1079 (four layers of 576 and 512 channels, one thread).
template <class Element>
void unpack_values(const Element* keys, int64_t value_dim, Element* values) {
    constexpr int64_t kSide = 16 / sizeof(Element);
    for (int64_t channel = 0; channel < value_dim; channel += kSide) {
        for (int64_t token = 0; token < kBlockTokens; token += kSide) {
            transpose(keys + channel * kBlockTokens + token, kBlockTokens,
                      values + token * value_dim + channel, value_dim);
        }
    }
}

// What rows that see positions [begin, end) need of a step.
template <class Element>
KeyStep<Element> part_of(const KeyStep<Element>& step, int64_t begin, int64_t end) {
    KeyStep<Element> part;
    const auto skipped = static_cast<int>(std::max<int64_t>(0, begin - step.base) / kBlockTokens);
    part.base = step.base + skipped * kBlockTokens;
    part.tokens = std::min(step.base + step.tokens, end) - part.base;
    part.blocks = static_cast<int>((part.tokens + kBlockTokens - 1) / kBlockTokens);
    std::copy_n(step.of_step + skipped, part.blocks, part.of_step);
    std::copy_n(step.ahead + skipped, part.blocks, part.ahead);
    return part;
}

// What rows of queries are multiplied by keys as, and which positions each sees.
template <class Element>
void prepare_queries(const KVLayer& layer, const AttentionShape& shape,
                     const AttentionQueries& queries, int64_t kv_head, int64_t first_query,
                     int64_t count, const AttentionScratch& scratch) {
    const int64_t group = shape.heads / layer.kv_heads;
    const int64_t key_dim = layer.key_dim;
    const int64_t known = queries.first_position + queries.tokens;
    const float scale = shape.scale * (shape.softcap > 0.0f ? 1.0f / shape.softcap : kLog2E);
    for (int64_t token = 0; token < count; ++token) {
        const float* from = queries.vector(first_query + token) + kv_head * group * key_dim;
        if constexpr (std::is_same_v<Element, Code>) {
            const ScaledParts parts = ScaledParts::of(layer.latent(), key_dim, layer.value_dim);
            for (int64_t head = 0; head < group; ++head) {
                const int64_t row = token * group + head;
                const int64_t first = row / kRowsAtOnce * kRowsAtOnce;
                float* const tile = scratch.queries + first * scratch.query_floats;
                const ByteQueries of_tile{std::min<int64_t>(count * group - first, kRowsAtOnce)};
                round_query(from + head * key_dim, scale, parts, of_tile, row - first,
                            reinterpret_cast<std::byte*>(tile));
            }
        } else {
            float* to = scratch.queries + token * group * scratch.query_floats;
            for (int64_t i = 0; i < group * key_dim; ++i) to[i] = from[i] * scale;
        }
        const int64_t position = queries.first_position + first_query + token;
        for (int64_t row = token * group; row < (token + 1) * group; ++row) {
            scratch.visible_begin[row] = shape.oldest_seen(position);
            scratch.visible_end[row] = shape.seen_end(position, known);
        }
    }
}

template <class Element>
void attend_tiles(std::span<StepTile<Element>> tiles) {
    for (StepTile<Element>& tile : tiles) {
        with_rows(tile.rows.count, [&]<int Rows>() { tile_scores<Rows>(tile); });
    }
    for (StepTile<Element>& tile : tiles) {
        with_rows(tile.rows.count, [&]<int Rows>() { tile_weights<Rows>(tile); });
    }
    for (const StepTile<Element>& tile : tiles) {
        with_rows(tile.rows.count, [&]<int Rows>() { tile_values<Rows>(tile); });
    }
}

template <class Element>
void attend_typed(const KVLayer& layer, const AttentionShape& shape,
                  const AttentionQueries& queries, int64_t kv_head, int64_t first_query,
                  int64_t count, int64_t partition, const AttentionStart& next, bool again,
                  const AttentionScratch& scratch, const AttentionPartial& out) {
    const int64_t group = shape.heads / layer.kv_heads;
    const int64_t rows = count * group;
    const int64_t key_dim = layer.key_dim;
    const int64_t value_dim = layer.value_dim;
    const int64_t first_position = queries.first_position + first_query;
    const int64_t known = queries.first_position + queries.tokens;
    const int64_t last_position = shape.seen_end(first_position + count - 1, known);
    const float cap = shape.softcap * kLog2E;
    if (!again) {
        prepare_queries<Element>(layer, shape, queries, kv_head, first_query, count, scratch);
    }
    std::fill_n(out.maximum, rows, kMinusInfinity);
    std::fill_n(scratch.sums, rows * kLanes, 0.0f);
    std::fill_n(out.weighted, rows * value_dim, 0.0f);

    const int64_t begin = queries.start(shape, kv_head, first_query, partition).position /
                          kBlockTokens * kBlockTokens;
    const int64_t end = std::min((partition + 1) * kPartitionTokens, last_position);
    // In variables of their own: whatever is stored meanwhile, they needn't be read again.
    const bool latent = layer.latent();
    const int64_t block_stride = layer.block_stride;
    const int64_t key_stride = layer.key_stride;
    const int64_t value_stride = layer.value_stride;
    const auto* const keys = reinterpret_cast<const Element*>(layer.keys);
    const auto* const values = latent ? keys : reinterpret_cast<const Element*>(layer.values);
    // The block at a position, and past the end those that the next call begins with.
    const auto block_at = [&](int64_t position) -> KeyBlock<Element> {
        int64_t index = position / kBlockTokens;
        int64_t head = kv_head;
        std::span<const int32_t> table = queries.block_table;
        if (position >= end && !next.block_table.empty()) {
            index += next.position / kBlockTokens - (end + kBlockTokens - 1) / kBlockTokens;
            head = next.kv_head;
            table = next.block_table;
        }
        index = std::min(index, static_cast<int64_t>(table.size()) - 1);
        // One that is gone may only be asked for ahead: then any other will do.
        const int32_t block = std::max(table[static_cast<size_t>(index)], 0);
        const int64_t start = block * block_stride;
        return {keys + start + head * key_stride, values + start + head * value_stride};
    };
    auto* const latent_values = reinterpret_cast<Element*>(scratch.values);
    constexpr int64_t kTiles = 4;
    alignas(kWideBytes) float weights[kTiles * kRowsAtOnce * kStepTokens];
    StepTile<Element> tiles[kTiles];
    int64_t step_end = 0;
    for (int64_t base = begin; base < end; base = step_end) {
        step_end = std::min((base / kStepTokens + 1) * kStepTokens, end);
        KeyStep<Element> step;
        step.base = base;
        step.tokens = step_end - base;
        step.blocks = static_cast<int>((step.tokens + kBlockTokens - 1) / kBlockTokens);
        for (int i = 0; i < step.blocks; ++i) {
            step.of_step[i] = block_at(base + i * kBlockTokens);
            step.ahead[i] = block_at(base + kStepTokens + i * kBlockTokens);
            if (!latent) continue;
            Element* const rows_of_values = latent_values + i * kBlockTokens * value_dim;
            unpack_values(step.of_step[i].keys, value_dim, rows_of_values);
            step.of_step[i].values = step.ahead[i].values = rows_of_values;
        }
        for (int64_t row = 0; row < rows;) {
            int64_t count = 0;
            for (; row < rows && count < kTiles; row += kRowsAtOnce) {
                const int64_t tile_rows = std::min<int64_t>(rows - row, kRowsAtOnce);
                const int64_t sees_from = scratch.visible_begin[row];
                const int64_t sees_to = scratch.visible_end[row + tile_rows - 1];
                if (sees_from >= step_end || sees_to <= base) continue;
                const float* of_rows = scratch.queries + row * scratch.query_floats;
                StepTile<Element>& tile = tiles[count];
                tile.rows = {tile_rows,
                             key_dim,
                             value_dim,
                             cap,
                             latent,
                             of_rows,
                             reinterpret_cast<const std::byte*>(of_rows),
                             scratch.visible_begin + row,
                             scratch.visible_end + row,
                             out.maximum + row,
                             scratch.sums + row * kLanes,
                             out.weighted + row * value_dim};
                tile.weights = weights + count * kRowsAtOnce * kStepTokens;
                tile.step = &step;
                if (sees_from > base || sees_to < step_end) {
                    tile.part = part_of(step, sees_from, sees_to);
                    tile.step = &tile.part;
                }
                ++count;
            }
            attend_tiles(std::span(tiles).first(static_cast<size_t>(count)));
        }
    }
    for (int64_t row = 0; row < rows; ++row) {
        out.sum[row] = sum_lanes(load(scratch.sums + row * kLanes));
    }
}

void attend(const KVLayer& layer, const AttentionShape& shape, const AttentionQueries& queries,
            int64_t kv_head, int64_t first_query, int64_t count, int64_t partition,
            const AttentionStart& next, bool again, float* scratch, const AttentionPartial& out) {
    const AttentionScratch parts = lay_out(scratch, count * (shape.heads / layer.kv_heads), layer);
    const auto typed = [&]<class Element>(Element) {
        attend_typed<Element>(layer, shape, queries, kv_head, first_query, count, partition, next,
                              again, parts, out);
    };
    switch (layer.type) {
        case KVType::F16:
            return typed(Half{});
        case KVType::F32:
            return typed(float{});
        case KVType::Q8:
            return typed(Code{});
    }
}

void merge_partials(const AttentionPartial& running, const AttentionPartial& later, int64_t rows,
                    int64_t value_dim) {
    for (int64_t first = 0; first < rows; first += kLanes) {
        const auto count = static_cast<size_t>(std::min<int64_t>(rows - first, kLanes));
        float before[kLanes] = {};
        float after[kLanes] = {};
        std::memcpy(before, running.maximum + first, count * sizeof(float));
        std::memcpy(after, later.maximum + first, count * sizeof(float));
        const f32x8 best = maximum(load(after), load(before));
        const f32x8 of_running = power_of_two<f32x8, i32x8>(load(before) - best);
        const f32x8 of_later = power_of_two<f32x8, i32x8>(load(after) - best);
        float maxima[kLanes];
        store(maxima, best);
        store(before, of_running);
        store(after, of_later);
        for (size_t i = 0; i < count; ++i) {
            const int64_t row = first + static_cast<int64_t>(i);
            if (later.sum[row] == 0.0f) continue;  // saw nothing; NaN is a failure, and stays one
            running.maximum[row] = maxima[i];
            running.sum[row] = running.sum[row] * before[i] + later.sum[row] * after[i];
            float* into = running.weighted + row * value_dim;
            const float* from = later.weighted + row * value_dim;
            for_each_vector(
                value_dim,
                [&]<class Floats>(int64_t channel, Floats) CAUDAL_INLINE_BODY {
                    store(into + channel,
                          load_as<Floats>(into + channel) * splat_as<Floats>(before[i]) +
                              load_as<Floats>(from + channel) * splat_as<Floats>(after[i]));
                },
                [](int64_t) {});
        }
    }
}

void normalise(const KVLayer& layer, const float* weighted, float sum, float* out) {
    const int64_t value_dim = layer.value_dim;
    const bool turned = layer.type == KVType::Q8;
    const auto length = static_cast<float>(turned ? value_dim & -value_dim : 1);
    const f32x8 inverse = splat(1.0f / (sum * length));
    for (int64_t i = 0; i < value_dim; i += kLanes) store(out + i, load(weighted + i) * inverse);
    if (turned) turn(out, value_dim);
}

void add_sinks(const AttentionPartial& running, std::span<const float> sinks, int64_t rows,
               int64_t value_dim) {
    const auto heads = static_cast<int64_t>(sinks.size());
    for (int64_t row = 0; row < rows; ++row) {
        const float sink = sinks[static_cast<size_t>(row % heads)] * kLog2E;
        const float best = std::max(running.maximum[row], sink);
        const float change[kLanes] = {running.maximum[row] - best, sink - best};
        const f32x8 factors = power_of_two<f32x8, i32x8>(load(change));
        running.maximum[row] = best;
        running.sum[row] = running.sum[row] * factors[0] + factors[1];
        float* weighted = running.weighted + row * value_dim;
        for (int64_t i = 0; i < value_dim; i += kLanes) {
            store(weighted + i, load(weighted + i) * splat(factors[0]));
        }
    }
}

}  // namespace
}  // namespace caudal::CAUDAL_ISA
