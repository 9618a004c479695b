// Attention over paged keys and values with online softmax (Milakov & Gimelshein, arXiv 1805.02867;
// FlashAttention, arXiv 2205.14135), one block of 16 keys at a time.
//
// Rows are (query token, head of the group) pairs: the heads of a group (GQA) and the tokens of a
// query tile share every load of keys and values. A row's result is the same to the bit whatever
// rows run beside it: scores accumulate over channels in order, values over keys in order, and a
// block that a row doesn't see changes nothing (weight 0, correction 1).
#pragma once

#include <algorithm>

#include "kernels/output.inl"
#include "kernels/token_ops.h"
#include "kernels/wide_vec.inl"

namespace caudal::CAUDAL_ISA {
namespace {

// Sums at work at once: twelve vectors hide the latency of a multiply-add and leave registers for
// what is loaded. A tile of rows has as many blocks at once as that allows; each block's sums are
// the same.
constexpr int kRowTile = 6;
constexpr int kMostBlocks = 4;

constexpr int blocks_at_once(int rows) {
    const int fitting = 12 / (kHalves * rows);
    return fitting < 1 ? 1 : fitting > kMostBlocks ? kMostBlocks : fitting;
}

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// scores[row][block][token] = Σ_channel queries[row][channel] · keys[block][channel][token]
template <int Rows, int Blocks, class Element>
CAUDAL_INLINE void block_scores(const Element* const* keys, int64_t head_dim, const float* queries,
                                f32w (&scores)[Rows][Blocks][kHalves]) {
    for (int row = 0; row < Rows; ++row) {
        for (int block = 0; block < Blocks; ++block) {
            for (int half = 0; half < kHalves; ++half) scores[row][block][half] = splat_wide(0.0f);
        }
    }
    for (int64_t channel = 0; channel < head_dim; ++channel) {
        f32w key[Blocks][kHalves];
        for (int block = 0; block < Blocks; ++block) {
            for (int half = 0; half < kHalves; ++half) {
                key[block][half] =
                    load_wide(keys[block] + channel * kBlockTokens + half * kWideLanes);
            }
        }
        for (int row = 0; row < Rows; ++row) {
            const f32w query = splat_wide(queries[row * head_dim + channel]);
            for (int block = 0; block < Blocks; ++block) {
                for (int half = 0; half < kHalves; ++half) {
                    scores[row][block][half] =
                        multiply_add(query, key[block][half], scores[row][block][half]);
                }
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
            sums[row][v] = load_as<Floats>(weighted + row * head_dim + v * lanes) *
                           splat_as<Floats>(correction[row]);
        }
    }
    for (int64_t token = 0; token < tokens; ++token) {
        Floats value[Vectors];
        for (int v = 0; v < Vectors; ++v) {
            value[v] = load_as<Floats>(values + token * head_dim + v * lanes);
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
    constexpr int Vectors = Rows > 3 ? 2 : 4;
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

// The rows that share a KV head's blocks, and which positions each may see.
struct AttentionRows {
    int64_t count;
    const float* queries;          // [row][head_dim], scaled
    const int64_t* visible_begin;  // per row
    const int64_t* visible_end;
};

// One block's contribution, from its scores, to `Rows` rows; `base` is its first position.
template <int Rows, class Element>
CAUDAL_INLINE void weigh_block(const f32w (&block_scores)[Rows][kHalves], const Element* values,
                               int64_t head_dim, int64_t base, int64_t tokens,
                               const AttentionRows& rows, const AttentionPartial& out) {
    f32w scores[Rows][kHalves];
    // The new maxima, and what the old sums must be multiplied by.
    float change[kLanes] = {};
    static_assert(Rows <= kLanes);
    float new_maximum[Rows];
    for (int row = 0; row < Rows; ++row) {
        for (int half = 0; half < kHalves; ++half) scores[row][half] = block_scores[row][half];
        const int64_t begin = rows.visible_begin[row] - base;
        const int64_t end = rows.visible_end[row] - base;
        if (begin > 0 || end < kBlockTokens) {
            float masked[kBlockTokens];
            for (int half = 0; half < kHalves; ++half) {
                store(masked + half * kWideLanes, scores[row][half]);
            }
            for (int64_t token = 0; token < kBlockTokens; ++token) {
                if (token < begin || token >= end) masked[token] = kMinusInfinity;
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
    float correction[kLanes];
    store(correction, exponential(load(change)));
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

// `Blocks` blocks from position `base` with `Rows` rows; keys end at position `end`.
template <int Rows, int Blocks, class Element>
void attend_blocks(const Element* const* keys, const Element* const* values, int64_t head_dim,
                   int64_t base, int64_t end, const AttentionRows& rows,
                   const AttentionPartial& out) {
    f32w scores[Rows][Blocks][kHalves];
    block_scores<Rows, Blocks>(keys, head_dim, rows.queries, scores);
    for (int block = 0; block < Blocks; ++block) {
        f32w of_block[Rows][kHalves];
        for (int row = 0; row < Rows; ++row) {
            for (int half = 0; half < kHalves; ++half) {
                of_block[row][half] = scores[row][block][half];
            }
        }
        const int64_t first = base + block * kBlockTokens;
        weigh_block<Rows>(of_block, values[block], head_dim, first,
                          std::min(kBlockTokens, end - first), rows, out);
    }
}

// Up to kMostBlocks blocks with a number of rows known only now.
template <class Element, int most = kRowTile>
void attend_some_rows(int blocks, const Element* const* keys, const Element* const* values,
                      int64_t head_dim, int64_t base, int64_t end, const AttentionRows& rows,
                      const AttentionPartial& out) {
    if constexpr (most > 1) {
        if (rows.count < most) {
            return attend_some_rows<Element, most - 1>(blocks, keys, values, head_dim, base, end,
                                                       rows, out);
        }
    }
    constexpr int at_once = blocks_at_once(most);
    int block = 0;
    for (; block + at_once <= blocks; block += at_once) {
        attend_blocks<most, at_once>(keys + block, values + block, head_dim,
                                     base + block * kBlockTokens, end, rows, out);
    }
    for (; block < blocks; ++block) {
        attend_blocks<most, 1>(keys + block, values + block, head_dim, base + block * kBlockTokens,
                               end, rows, out);
    }
}

struct AttentionScratch {
    int64_t* visible_begin;  // [rows]
    int64_t* visible_end;    // [rows]
    float* queries;          // [rows][head_dim], scaled
};

// A vector of floats isn't aligned for 64-bit numbers: one float of room to move.
AttentionScratch lay_out(float* scratch, int64_t rows) {
    const auto address = reinterpret_cast<uintptr_t>(scratch);
    AttentionScratch parts{};
    parts.visible_begin = reinterpret_cast<int64_t*>((address + 7) / 8 * 8);
    parts.visible_end = parts.visible_begin + rows;
    parts.queries = reinterpret_cast<float*>(parts.visible_end + rows);
    return parts;
}

size_t attend_scratch(const KVLayer& layer, const AttentionShape& shape, int64_t tokens) {
    const int64_t rows = tokens * (shape.heads / layer.kv_heads);
    return static_cast<size_t>(1 + 4 * rows + rows * layer.head_dim);
}

template <class Element>
void attend_typed(const KVLayer& layer, const AttentionShape& shape,
                  const AttentionQueries& queries, int64_t kv_head, int64_t first_query,
                  int64_t count, int64_t partition, const AttentionScratch& scratch,
                  const AttentionPartial& out) {
    const int64_t group = shape.heads / layer.kv_heads;
    const int64_t rows = count * group;
    const int64_t head_dim = layer.head_dim;
    const int64_t first_position = queries.first_position + first_query;
    const int64_t known = queries.first_position + queries.tokens;
    const int64_t last_position = shape.causal ? first_position + count : known;
    const int64_t window = shape.window > 0 ? shape.window : first_position + count;
    for (int64_t token = 0; token < count; ++token) {
        const float* from = queries.queries + (first_query + token) * queries.query_stride +
                            kv_head * group * head_dim;
        float* to = scratch.queries + token * group * head_dim;
        for (int64_t i = 0; i < group * head_dim; ++i) to[i] = from[i] * shape.scale;
        const int64_t position = first_position + token;
        for (int64_t row = token * group; row < (token + 1) * group; ++row) {
            scratch.visible_begin[row] = position - window + 1;
            scratch.visible_end[row] = shape.causal ? position + 1 : known;
        }
    }
    std::fill_n(out.maximum, rows, kMinusInfinity);
    std::fill_n(out.sum, rows, 0.0f);
    std::fill_n(out.weighted, rows * head_dim, 0.0f);

    const int64_t oldest_seen = std::max<int64_t>(0, first_position - window + 1);
    const int64_t begin =
        std::max(partition * kPartitionTokens, oldest_seen / kBlockTokens * kBlockTokens);
    const int64_t end = std::min((partition + 1) * kPartitionTokens, last_position);
    const auto block_of = [&](int64_t position) {
        return int64_t{queries.block_table[static_cast<size_t>(position / kBlockTokens)]};
    };
    constexpr int64_t kStep = kMostBlocks * kBlockTokens;
    for (int64_t base = begin; base < end; base += kStep) {
        const Element* keys[kMostBlocks];
        const Element* values[kMostBlocks];
        int blocks = 0;
        for (int64_t at = base; at < end && at < base + kStep; at += kBlockTokens, ++blocks) {
            const int64_t offset = layer.offset(block_of(at), kv_head);
            keys[blocks] = reinterpret_cast<const Element*>(layer.keys) + offset;
            values[blocks] = reinterpret_cast<const Element*>(layer.values) + offset;
        }
        if (rows <= kRowTile) {  // the next blocks are anywhere in memory: ask early
            for (int64_t at = base + kStep; at < end && at < base + 2 * kStep; at += kBlockTokens) {
                const int64_t offset = layer.offset(block_of(at), kv_head);
                const auto bytes = layer.head_elements() * static_cast<int64_t>(sizeof(Element));
                prefetch_bytes(reinterpret_cast<const Element*>(layer.keys) + offset, bytes);
                prefetch_bytes(reinterpret_cast<const Element*>(layer.values) + offset, bytes);
            }
        }
        for (int64_t row = 0; row < rows; row += kRowTile) {
            const AttentionRows some{std::min<int64_t>(rows - row, kRowTile),
                                     scratch.queries + row * head_dim, scratch.visible_begin + row,
                                     scratch.visible_end + row};
            const AttentionPartial part{out.maximum + row, out.sum + row,
                                        out.weighted + row * head_dim};
            attend_some_rows(blocks, keys, values, head_dim, base, end, some, part);
        }
    }
}

void attend(const KVLayer& layer, const AttentionShape& shape, const AttentionQueries& queries,
            int64_t kv_head, int64_t first_query, int64_t count, int64_t partition, float* scratch,
            const AttentionPartial& out) {
    const AttentionScratch parts = lay_out(scratch, count * (shape.heads / layer.kv_heads));
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
        const float change[kLanes] = {running.maximum[row] - best, later.maximum[row] - best};
        const f32x8 factors = exponential(load(change));
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
