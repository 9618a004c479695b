// Attention over paged keys and values with online softmax (Milakov & Gimelshein, arXiv 1805.02867;
// FlashAttention, arXiv 2205.14135), one block of 16 keys at a time.
//
// Rows are (query token, head of the group) pairs: the heads of a group (GQA) and the tokens of a
// query tile share every load of keys and values. A row's result is the same to the bit whatever
// rows run beside it: scores accumulate over channels in order, values over keys in order, and a
// block that a row doesn't see changes nothing (weight 0, correction 1).
#pragma once

#include <algorithm>

#include "kernels/token_ops.h"
#include "kernels/wide_vec.inl"

namespace caudal::CAUDAL_ISA {
namespace {

// Twelve vectors of accumulators: a block's 16 keys for each of so many rows.
constexpr int kRowTile = 12 / kHalves;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// scores[row][token] = Σ_channel queries[row][channel] · keys[channel][token]
template <int Rows, class Element>
CAUDAL_INLINE void block_scores(const Element* keys, int64_t head_dim, const float* queries,
                                f32w (&scores)[Rows][kHalves]) {
    for (int row = 0; row < Rows; ++row) {
        for (int half = 0; half < kHalves; ++half) scores[row][half] = splat_wide(0.0f);
    }
    for (int64_t channel = 0; channel < head_dim; ++channel) {
        f32w key[kHalves];
        for (int half = 0; half < kHalves; ++half) {
            key[half] = load_wide(keys + channel * kBlockTokens + half * kWideLanes);
        }
        for (int row = 0; row < Rows; ++row) {
            const f32w query = splat_wide(queries[row * head_dim + channel]);
            for (int half = 0; half < kHalves; ++half) {
                scores[row][half] = multiply_add(query, key[half], scores[row][half]);
            }
        }
    }
}

// weighted[row] = weighted[row] · correction[row] + Σ_token weights[row][token] · values[token],
// for `Vectors` vectors of channels.
template <int Rows, int Vectors, class Floats, class Element>
CAUDAL_INLINE void block_values_at(const Element* values, int64_t head_dim, int64_t tokens,
                                   const float* weights, const float* correction, float* weighted) {
    constexpr int lanes = sizeof(Floats) / sizeof(float);
    Floats sums[Rows][Vectors];
    for (int row = 0; row < Rows; ++row) {
        for (int v = 0; v < Vectors; ++v) {
            Floats before;
            std::memcpy(&before, weighted + row * head_dim + v * lanes, sizeof(before));
            sums[row][v] = before * splat_as<Floats>(correction[row]);
        }
    }
    for (int64_t token = 0; token < tokens; ++token) {
        Floats value[Vectors];
        for (int v = 0; v < Vectors; ++v) {
            const Element* from = values + token * head_dim + v * lanes;
            if constexpr (lanes == kLanes) {
                value[v] = load(from);
            } else {
                value[v] = load_wide(from);
            }
        }
        for (int row = 0; row < Rows; ++row) {
            const Floats weight = splat_as<Floats>(weights[row * kBlockTokens + token]);
            for (int v = 0; v < Vectors; ++v) {
                sums[row][v] = multiply_add(weight, value[v], sums[row][v]);
            }
        }
    }
    for (int row = 0; row < Rows; ++row) {
        for (int v = 0; v < Vectors; ++v) {
            store(weighted + row * head_dim + v * lanes, sums[row][v]);
        }
    }
}

template <int Rows, class Element>
CAUDAL_INLINE void block_values(const Element* values, int64_t head_dim, int64_t tokens,
                                const float* weights, const float* correction, float* weighted) {
    // As many sums as rows allow: twelve vectors, or four for a single row.
    constexpr int Vectors = Rows > 6 ? 1 : (Rows > 3 ? 2 : 4);
    int64_t channel = 0;
    for (; channel + Vectors * kWideLanes <= head_dim; channel += Vectors * kWideLanes) {
        block_values_at<Rows, Vectors, f32w>(values + channel, head_dim, tokens, weights,
                                             correction, weighted + channel);
    }
    for (; channel < head_dim; channel += kLanes) {
        block_values_at<Rows, 1, f32x8>(values + channel, head_dim, tokens, weights, correction,
                                        weighted + channel);
    }
}

// One block's contribution to `Rows` rows. `visible_begin/end[row]` bound the tokens a row may see.
template <int Rows, class Element>
void attend_block(const Element* keys, const Element* values, int64_t head_dim, int64_t tokens,
                  const float* queries, const int32_t* visible_begin, const int32_t* visible_end,
                  const AttentionPartial& out) {
    f32w scores[Rows][kHalves];
    block_scores<Rows>(keys, head_dim, queries, scores);

    // The new maxima, and what the old sums must be multiplied by.
    float change[16] = {};
    static_assert(Rows <= 16);
    float new_maximum[Rows];
    for (int row = 0; row < Rows; ++row) {
        if (visible_begin[row] > 0 || visible_end[row] < kBlockTokens) {
            float masked[kBlockTokens];
            for (int half = 0; half < kHalves; ++half) {
                store(masked + half * kWideLanes, scores[row][half]);
            }
            for (int64_t token = 0; token < kBlockTokens; ++token) {
                if (token < visible_begin[row] || token >= visible_end[row]) {
                    masked[token] = kMinusInfinity;
                }
            }
            for (int half = 0; half < kHalves; ++half) {
                scores[row][half] = load_wide(masked + half * kWideLanes);
            }
        }
        const float best = max_lanes(maximum_of_halves(scores[row]));
        new_maximum[row] = best > out.maximum[row] ? best : out.maximum[row];
        // Nothing seen so far and nothing here: -inf - -inf would be NaN.
        if (new_maximum[row] != kMinusInfinity) change[row] = out.maximum[row] - new_maximum[row];
    }
    float correction[16];
    for (int first = 0; first < Rows; first += kLanes) {
        store(correction + first, exponential(load(change + first)));
    }
    float weights[Rows * kBlockTokens];
    for (int row = 0; row < Rows; ++row) {
        const float shift = new_maximum[row] == kMinusInfinity ? 0.0f : new_maximum[row];
        for (int half = 0; half < kHalves; ++half) {
            scores[row][half] = exponential(scores[row][half] - splat_wide(shift));
            store(weights + row * kBlockTokens + half * kWideLanes, scores[row][half]);
        }
        out.sum[row] =
            multiply_add(out.sum[row], correction[row], sum_lanes(add_halves(scores[row])));
        out.maximum[row] = new_maximum[row];
    }
    block_values<Rows>(values, head_dim, tokens, weights, correction, out.weighted);
}

// The same for a number of rows known only now.
template <class Element, int most = kRowTile>
void attend_some_rows(int64_t rows, const Element* keys, const Element* values, int64_t head_dim,
                      int64_t tokens, const float* queries, const int32_t* visible_begin,
                      const int32_t* visible_end, const AttentionPartial& out) {
    if constexpr (most > 1) {
        if (rows < most) {
            return attend_some_rows<Element, most - 1>(rows, keys, values, head_dim, tokens,
                                                       queries, visible_begin, visible_end, out);
        }
    }
    attend_block<most>(keys, values, head_dim, tokens, queries, visible_begin, visible_end, out);
}

template <class Element>
void attend_block_rows(int64_t rows, const Element* keys, const Element* values, int64_t head_dim,
                       int64_t tokens, const float* queries, const int32_t* visible_begin,
                       const int32_t* visible_end, const AttentionPartial& out) {
    for (int64_t row = 0; row < rows; row += kRowTile) {
        const AttentionPartial part{out.maximum + row, out.sum + row,
                                    out.weighted + row * head_dim};
        attend_some_rows(std::min<int64_t>(rows - row, kRowTile), keys, values, head_dim, tokens,
                         queries + row * head_dim, visible_begin + row, visible_end + row, part);
    }
}

struct AttentionScratch {
    float* queries;          // [rows][head_dim], scaled
    float* keys;             // one block as floats
    float* values;           // one block as floats
    int32_t* visible_begin;  // [rows], relative to the block
    int32_t* visible_end;    // [rows]
};

AttentionScratch lay_out(float* scratch, const KVLayer& layer, int64_t rows) {
    AttentionScratch parts{};
    parts.visible_begin = reinterpret_cast<int32_t*>(scratch);
    parts.visible_end = parts.visible_begin + rows;
    parts.queries = reinterpret_cast<float*>(parts.visible_end + rows);
    parts.keys = parts.queries + rows * layer.head_dim;
    parts.values = parts.keys + layer.head_elements();
    return parts;
}

size_t attend_scratch(const KVLayer& layer, const AttentionShape& shape, int64_t tokens) {
    const int64_t rows = tokens * (shape.heads / layer.kv_heads);
    return static_cast<size_t>(2 * rows + rows * layer.head_dim + 2 * layer.head_elements());
}

// The block's elements as floats: in place for an fp32 pool; converted once where enough rows share
// the conversion; otherwise converted in registers by whoever loads them.
template <class Element>
void attend_typed(const KVLayer& layer, const AttentionShape& shape,
                  const AttentionQueries& queries, int64_t kv_head, int64_t first_query,
                  int64_t count, int64_t partition, const AttentionScratch& scratch,
                  const AttentionPartial& out) {
    const int64_t group = shape.heads / layer.kv_heads;
    const int64_t rows = count * group;
    const int64_t head_dim = layer.head_dim;
    for (int64_t token = 0; token < count; ++token) {
        const float* from = queries.queries + (first_query + token) * queries.query_stride +
                            kv_head * group * head_dim;
        float* to = scratch.queries + token * group * head_dim;
        for (int64_t i = 0; i < group * head_dim; ++i) to[i] = from[i] * shape.scale;
    }
    std::fill_n(out.maximum, rows, kMinusInfinity);
    std::fill_n(out.sum, rows, 0.0f);
    std::fill_n(out.weighted, rows * head_dim, 0.0f);

    const int64_t first_position = queries.first_position + first_query;
    const int64_t known = queries.first_position + queries.tokens;
    const int64_t last_position = shape.causal ? first_position + count : known;
    const int64_t window = shape.window > 0 ? shape.window : first_position + count;
    const int64_t oldest_seen = std::max<int64_t>(0, first_position - window + 1);
    const int64_t begin =
        std::max(partition * kPartitionTokens, oldest_seen / kBlockTokens * kBlockTokens);
    const int64_t end = std::min((partition + 1) * kPartitionTokens, last_position);
    const auto* all_keys = reinterpret_cast<const Element*>(layer.keys);
    const auto* all_values = reinterpret_cast<const Element*>(layer.values);
    const int64_t head_elements = layer.head_elements();
    const auto offset_of = [&](int64_t position) {
        const int64_t block = queries.block_table[static_cast<size_t>(position / kBlockTokens)];
        return (block * layer.kv_heads + kv_head) * head_elements;
    };

    for (int64_t base = begin; base < end; base += kBlockTokens) {
        for (int64_t token = 0; token < count; ++token) {
            const int64_t position = first_position + token - base;
            for (int64_t row = token * group; row < (token + 1) * group; ++row) {
                scratch.visible_begin[row] = static_cast<int32_t>(position - window + 1);
                scratch.visible_end[row] =
                    static_cast<int32_t>(shape.causal ? position + 1 : known - base);
            }
        }
        const int64_t tokens = std::min(kBlockTokens, end - base);
        const int64_t offset = offset_of(base);
        if (rows <= kRowTile) {
            if (base + kBlockTokens < end) {  // the next block is anywhere in memory: ask early
                const int64_t next = offset_of(base + kBlockTokens);
                constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(Element));
                for (int64_t i = 0; i < head_elements; i += kLine) {
                    __builtin_prefetch(all_keys + next + i);
                    __builtin_prefetch(all_values + next + i);
                }
            }
            attend_block_rows(rows, all_keys + offset, all_values + offset, head_dim, tokens,
                              scratch.queries, scratch.visible_begin, scratch.visible_end, out);
            continue;
        }
        for (int64_t i = 0; i < head_elements; i += kLanes) {
            store(scratch.keys + i, load(all_keys + offset + i));
        }
        for (int64_t i = 0; i < tokens * head_dim; i += kLanes) {
            store(scratch.values + i, load(all_values + offset + i));
        }
        attend_block_rows<float>(rows, scratch.keys, scratch.values, head_dim, tokens,
                                 scratch.queries, scratch.visible_begin, scratch.visible_end, out);
    }
}

void attend(const KVLayer& layer, const AttentionShape& shape, const AttentionQueries& queries,
            int64_t kv_head, int64_t first_query, int64_t count, int64_t partition, float* scratch,
            const AttentionPartial& out) {
    const AttentionScratch parts = lay_out(scratch, layer, count * (shape.heads / layer.kv_heads));
    if (layer.type == KVType::F32) {
        attend_typed<float>(layer, shape, queries, kv_head, first_query, count, partition, parts,
                            out);
    } else {
        attend_typed<Half>(layer, shape, queries, kv_head, first_query, count, partition, parts,
                           out);
    }
}

void merge_partials(const AttentionPartial& running, const AttentionPartial& later, int64_t rows,
                    int64_t head_dim) {
    for (int64_t row = 0; row < rows; ++row) {
        if (later.maximum[row] == kMinusInfinity) continue;  // saw nothing
        const float best = std::max(running.maximum[row], later.maximum[row]);
        f32x8 change = splat(0.0f);
        change[0] = running.maximum[row] - best;
        change[1] = later.maximum[row] - best;
        const f32x8 factors = exponential(change);
        running.maximum[row] = best;
        running.sum[row] = running.sum[row] * factors[0] + later.sum[row] * factors[1];
        float* into = running.weighted + row * head_dim;
        const float* from = later.weighted + row * head_dim;
        for (int64_t i = 0; i < head_dim; i += kLanes) {
            store(into + i,
                  load(into + i) * splat(factors[0]) + load(from + i) * splat(factors[1]));
        }
    }
}

void normalise(const float* weighted, float sum, float* out, int64_t head_dim) {
    const f32x8 inverse = splat(1.0f / sum);
    for (int64_t i = 0; i < head_dim; i += kLanes) store(out + i, load(weighted + i) * inverse);
}

}  // namespace
}  // namespace caudal::CAUDAL_ISA
