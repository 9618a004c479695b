// A step of attention: up to 64 consecutive keys and their values meet a few query rows.
//
// Steps sit at fixed absolute positions, and the maximum of a row's scores is taken step by step,
// so that a row's sums are corrected at the same keys whatever rows run beside it. Scores
// accumulate over channels in order, values over keys in order, and a block that a row doesn't see
// changes nothing (weight 0, correction 1): a row's result is the same to the bit in any company.
#pragma once

#include <algorithm>

#include "kernels/elementwise.inl"
#include "kernels/token_ops.h"
#include "kernels/wide_vec.inl"

namespace caudal::CAUDAL_ISA {
namespace {

constexpr int kStepBlocks = 4;
constexpr int64_t kStepTokens = kStepBlocks * kBlockTokens;
static_assert(kPartitionTokens % kStepTokens == 0);

// Rows at once, and the sums at work then: as many as leave registers for what is loaded.
constexpr int kRowsAtOnce = 6;
constexpr int kSumsAtOnce = sizeof(f32w) == 64 ? 24 : 12;

// Scores are in units of ln 2: weights are powers of two.
constexpr float kLog2E = 1.44269504f;

// 2^x for x ≤ 0 with a relative error below 2e-7, exactly 1 at 0 and 0 below -125. NaN stays NaN.
// What is left of x after rounding is at most a half, where five terms suffice (coefficients fitted
// to the least largest relative error, the first kept at 1).
template <class Floats, class Ints>
CAUDAL_INLINE Floats power_of_two(Floats x) {
    const auto all = [](float value) CAUDAL_INLINE_BODY { return splat_as<Floats>(value); };
    const auto of_rest = [&](Floats r) CAUDAL_INLINE_BODY {
        Floats p = all(1.3264727e-3f);
        p = multiply_add(p, r, all(9.671513e-3f));
        p = multiply_add(p, r, all(5.5507336e-2f));
        p = multiply_add(p, r, all(2.4022242e-1f));
        p = multiply_add(p, r, all(6.93147e-1f));
        return multiply_add(p, r, all(1.0f));
    };
#if defined(__AVX512F__)
    if constexpr (sizeof(Floats) == 64) {
        // The same bits in half the instructions around the polynomial.
        const __m512 rounded = _mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT);
        const auto p = (__m512)of_rest(x - (Floats)rounded);
        const __mmask16 some = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-125.0f), _CMP_NLT_UQ);
        return (Floats)_mm512_maskz_scalef_ps(some, p, rounded);
    }
#endif
    // Adding and subtracting 1.5 · 2^23 rounds to the nearest integer.
    const Floats magic = all(12582912.0f);
    const Floats rounded = x + magic;
    const Floats p = of_rest(x - (rounded - magic));
    // The low bits of `rounded` are the integer, which becomes an exponent. A product keeps every
    // NaN; adding to the bits of p would make numbers of some.
    const Ints exponent = ((Ints)rounded << 23) + (127 << 23);
    return select(x < all(-125.0f), all(0.0f), p * (Floats)exponent);
}

// Where the keys and values of a block and KV head lie.
template <class Element>
struct KeyBlock {
    const Element* keys;
    const Element* values;
};

// A step's blocks, and those to ask for meanwhile, as many.
template <class Element>
struct KeyStep {
    int64_t base;    // position of the first key
    int64_t tokens;  // keys there are: the last block may not be full
    int blocks;
    KeyBlock<Element> of_step[kStepBlocks];
    KeyBlock<Element> ahead[kStepBlocks];
};

// The rows that share a KV head's blocks, which positions each may see, and what they come to.
struct AttentionRows {
    int64_t count;
    int64_t key_dim;  // channels of a head
    int64_t value_dim;
    float cap;  // of scores, in their units; 0: none
    bool latent;
    const float* queries;           // [row][key_dim], scaled: by 1 / cap where there is one
    const std::byte* byte_queries;  // the same, turned and rounded, for keys of 8 bits
    const int64_t* visible_begin;   // per row, not descending
    const int64_t* visible_end;     // per row, not descending
    float* maximum;                 // [row]
    float* sums;                    // [row][8], of weights
    float* weighted;                // [row][value_dim]
};

// A step and some rows, at most kRowsAtOnce, through the three parts of the work.
template <class Element>
struct StepTile {
    const KeyStep<Element>* step;
    KeyStep<Element> part;  // what `step` is where the rows don't see all of one
    AttentionRows rows;
    float* weights;  // [row][kStepTokens]: scores, and then what is made of them
    float largest[kRowsAtOnce][kLanes];  // the largest of a row's is the largest of these
    float correction[kLanes];            // what the rows' sums so far must be multiplied by
};

// scores[row][block][token] = Σ_channel queries[row][channel] · keys[block][channel][token]
//
// Asks for the keys of `ahead` meanwhile, a few lines at a time: all at once they would fill the
// processor's queue of misses, and it would wait.
template <int Rows, int Blocks, class Element>
CAUDAL_INLINE void block_scores(const KeyBlock<Element>* blocks, int64_t key_dim,
                                const float* queries, const KeyBlock<Element>* ahead,
                                float* scores) {
    f32w sums[Rows][Blocks][kHalves];
    for (int row = 0; row < Rows; ++row) {
        for (int block = 0; block < Blocks; ++block) {
            for (int half = 0; half < kHalves; ++half) sums[row][block][half] = splat_wide(0.0f);
        }
    }
    int64_t channel = 0;
    for (int asked = 0; asked < Blocks; ++asked) {
        const Element* lines = ahead[asked].keys;
        for (int64_t end = key_dim * (asked + 1) / Blocks; channel < end; ++channel) {
            prefetch_bytes(lines, Blocks * kBlockTokens * sizeof(Element));
            lines += Blocks * kBlockTokens;
            f32w key[Blocks][kHalves];
            for (int block = 0; block < Blocks; ++block) {
                for (int half = 0; half < kHalves; ++half) {
                    key[block][half] =
                        load_wide(blocks[block].keys + channel * kBlockTokens + half * kWideLanes);
                }
            }
            for (int row = 0; row < Rows; ++row) {
                const f32w query = splat_wide(queries[row * key_dim + channel]);
                for (int block = 0; block < Blocks; ++block) {
                    for (int half = 0; half < kHalves; ++half) {
                        sums[row][block][half] =
                            multiply_add(query, key[block][half], sums[row][block][half]);
                    }
                }
            }
        }
    }
    for (int row = 0; row < Rows; ++row) {
        for (int block = 0; block < Blocks; ++block) {
            for (int half = 0; half < kHalves; ++half) {
                store(scores + row * kStepTokens + block * kBlockTokens + half * kWideLanes,
                      sums[row][block][half]);
            }
        }
    }
}

// As many blocks at once as there are sums for.
template <int Rows, int Blocks, class Element>
CAUDAL_INLINE void step_scores(const KeyStep<Element>& step, int64_t key_dim, const float* queries,
                               float* scores) {
    int block = 0;
    for (; block + Blocks <= step.blocks; block += Blocks) {
        block_scores<Rows, Blocks>(step.of_step + block, key_dim, queries, step.ahead + block,
                                   scores + block * kBlockTokens);
    }
    if constexpr (Blocks > 2) {
        if (step.blocks - block >= 2) {
            block_scores<Rows, 2>(step.of_step + block, key_dim, queries, step.ahead + block,
                                  scores + block * kBlockTokens);
            block += 2;
        }
    }
    if constexpr (Blocks > 1) {
        if (block < step.blocks) {
            block_scores<Rows, 1>(step.of_step + block, key_dim, queries, step.ahead + block,
                                  scores + block * kBlockTokens);
        }
    }
}

// What products of keys and queries are to what a cap makes of them.
CAUDAL_INLINE void cap_scores(float* scores, float cap) {
    for (int64_t i = 0; i < kStepTokens; i += kWideLanes) {
        store(scores + i, splat_wide(cap) * hyperbolic_tangent(load_wide(scores + i)));
    }
}

// Hides the scores of tokens outside [begin, end) of a step: what a row may not see, and what there
// is none of in a step that isn't full.
CAUDAL_INLINE void hide_scores(float* scores, int64_t begin, int64_t end) {
    alignas(kWideBytes) static constexpr int32_t kNumbers[kBlockTokens] = {
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const f32w nothing = splat_wide(kMinusInfinity);
    for (int64_t first = 0; first < kStepTokens; first += kWideLanes) {
        const i32w number = load_bytes_wide(kNumbers + first % kBlockTokens);
        const int64_t block = first / kBlockTokens * kBlockTokens;
        const auto from = static_cast<int32_t>(std::max<int64_t>(begin - block, -1));
        const auto to = static_cast<int32_t>(std::max<int64_t>(end - block, -1));
        f32w score = load_wide(scores + first);
        score = select(number < from, nothing, score);
        store(scores + first, select(number < to, score, nothing));
    }
}

// The largest number of a row of a step is the largest of these.
CAUDAL_INLINE f32x8 largest_of(const float* numbers) {
    f32w best[kHalves];
    for (int half = 0; half < kHalves; ++half) {
        best[half] = load_wide(numbers + half * kWideLanes);
        for (int block = 1; block < kStepBlocks; ++block) {
            best[half] =
                maximum(best[half], load_wide(numbers + block * kBlockTokens + half * kWideLanes));
        }
    }
    return maximum_of_halves(best);
}

// Turns scores into weights, in place, and returns eight sums of them. What is stored of a weight,
// and the half of a block that it is, is what `keep` makes of it.
template <class Keep>
CAUDAL_INLINE f32x8 weigh_scores(float* scores, float shift, const Keep& keep) {
    f32w total[kHalves];
    for (int half = 0; half < kHalves; ++half) total[half] = splat_wide(0.0f);
    for (int block = 0; block < kStepBlocks; ++block) {
        for (int half = 0; half < kHalves; ++half) {
            float* at = scores + block * kBlockTokens + half * kWideLanes;
            const f32w weight = power_of_two<f32w, i32w>(load_wide(at) - splat_wide(shift));
            store(at, keep(weight, block, half));
            total[half] = total[half] + weight;
        }
    }
    return add_halves(total);
}

// The last of a tile's scores: caps them, hides what rows don't see, looks for the largest.
template <int Rows, class Element>
CAUDAL_INLINE void finish_scores(StepTile<Element>& tile) {
    const AttentionRows& rows = tile.rows;
    for (int row = 0; row < Rows; ++row) {
        const int64_t begin = rows.visible_begin[row] - tile.step->base;
        const int64_t end = std::min(rows.visible_end[row] - tile.step->base, tile.step->tokens);
        float* of_row = tile.weights + row * kStepTokens;
        if (rows.cap > 0.0f) cap_scores(of_row, rows.cap);
        if (begin > 0 || end < kStepTokens) hide_scores(of_row, begin, end);
        store(tile.largest[row], largest_of(of_row));
    }
}

template <int count>
CAUDAL_INLINE f32x8 largest_of_rows(const float (&largest)[kRowsAtOnce][kLanes]) {
    f32x8 of_rows[count];
    for (int row = 0; row < count; ++row) of_rows[row] = load(largest[row]);
    return max_lanes_of(of_rows);
}

// Turns a tile's scores into weights, in place, and says what the rows' sums so far must be
// multiplied by. Stored is what `keep` makes of a weight, by block and half.
template <int Rows, class Element, class Keep>
CAUDAL_INLINE void weigh_tile(StepTile<Element>& tile, const Keep& keep) {
    const AttentionRows& rows = tile.rows;
    float before[kLanes] = {};
    std::memcpy(before, rows.maximum, Rows * sizeof(float));
    const f32x8 best = maximum(largest_of_rows<Rows>(tile.largest), load(before));
    // Nothing seen so far and nothing here: -inf - -inf would be NaN.
    const f32x8 shift = maximum(best, splat(std::numeric_limits<float>::lowest()));
    float of_rows[kLanes];
    store(of_rows, best);
    std::memcpy(rows.maximum, of_rows, Rows * sizeof(float));
    store(of_rows, shift);
    store(tile.correction, power_of_two<f32x8, i32x8>(load(before) - shift));
    for (int row = 0; row < Rows; ++row) {
        const f32x8 sum = weigh_scores(tile.weights + row * kStepTokens, of_rows[row], keep);
        float* so_far = rows.sums + row * kLanes;
        store(so_far, multiply_add(load(so_far), splat(tile.correction[row]), sum));
    }
}

// Weighted values of `Rows` rows, for `Vectors` vectors of channels, in registers. In memory a row
// begins `value_dim` floats after the one before.
template <int Rows, int Vectors, class Floats>
struct ChannelSums {
    static constexpr int64_t kFloats = sizeof(Floats) / sizeof(float);

    Floats sums[Rows][Vectors];

    // What there is so far, each row times its correction.
    static CAUDAL_INLINE ChannelSums corrected(const float* weighted, int64_t value_dim,
                                               const float* correction) {
        ChannelSums start;
        for (int row = 0; row < Rows; ++row) {
            for (int v = 0; v < Vectors; ++v) {
                start.sums[row][v] = load_as<Floats>(weighted + row * value_dim + v * kFloats) *
                                     splat_as<Floats>(correction[row]);
            }
        }
        return start;
    }

    // Adds a token's values; a row's weight of it is kStepTokens after that of the row before.
    template <class Element>
    CAUDAL_INLINE void add(const Element* values, const float* weights) {
        Floats value[Vectors];
        for (int v = 0; v < Vectors; ++v) value[v] = load_as<Floats>(values + v * kFloats);
        for (int row = 0; row < Rows; ++row) {
            const Floats weight = splat_as<Floats>(weights[row * kStepTokens]);
            for (int v = 0; v < Vectors; ++v) {
                sums[row][v] = multiply_add(weight, value[v], sums[row][v]);
            }
        }
    }

    CAUDAL_INLINE void store_to(float* weighted, int64_t value_dim) const {
        for (int row = 0; row < Rows; ++row) {
            for (int v = 0; v < Vectors; ++v) {
                store(weighted + row * value_dim + v * kFloats, sums[row][v]);
            }
        }
    }
};

// weighted[row] = weighted[row] · correction[row] + Σ_token weights[row][token] · values[token],
// for `Vectors` vectors of channels from `channel`. Asks for the values of `ahead` meanwhile.
template <int Rows, int Vectors, class Floats, class Element>
CAUDAL_INLINE void weigh_channels(const KeyStep<Element>& step, int64_t value_dim, int64_t channel,
                                  const float* weights, const float* correction, float* weighted) {
    using Sums = ChannelSums<Rows, Vectors, Floats>;
    auto sums = Sums::corrected(weighted + channel, value_dim, correction);
    int64_t left = step.tokens;
    for (int block = 0; block < step.blocks; ++block, left -= kBlockTokens) {
        const int64_t tokens = std::min(left, kBlockTokens);
        const Element* values = step.of_step[block].values + channel;
        const Element* next = step.ahead[block].values + channel;
        const float* of_block = weights + block * kBlockTokens;
        const auto ask = [&](int64_t token) CAUDAL_INLINE_BODY {
            prefetch_bytes(next + token * value_dim, Vectors * Sums::kFloats * sizeof(Element));
        };
        for (int64_t token = 0; token < tokens; ++token) {
            ask(token);
            sums.add(values + token * value_dim, of_block + token);
        }
        for (int64_t token = tokens; token < kBlockTokens; ++token) ask(token);
    }
    sums.store_to(weighted + channel, value_dim);
}

template <int Rows, class Element>
CAUDAL_INLINE void weigh_values(const KeyStep<Element>& step, int64_t value_dim,
                                const float* weights, const float* correction, float* weighted) {
    constexpr int Vectors = Rows * 4 > kSumsAtOnce ? 2 : 4;
    int64_t channel = 0;
    for (; channel + Vectors * kWideLanes <= value_dim; channel += Vectors * kWideLanes) {
        weigh_channels<Rows, Vectors, f32w>(step, value_dim, channel, weights, correction,
                                            weighted);
    }
    for (; channel < value_dim; channel += kLanes) {
        weigh_channels<Rows, 1, f32x8>(step, value_dim, channel, weights, correction, weighted);
    }
}

// The three parts of a tile with `Rows` rows, each done for several tiles before the next: within a
// tile they wait for each other.
template <int Rows, class Element>
void tile_scores(StepTile<Element>& tile) {
    constexpr int kBlocks = std::min(kStepBlocks, kSumsAtOnce / (Rows * kHalves));
    step_scores<Rows, kBlocks>(*tile.step, tile.rows.key_dim, tile.rows.queries, tile.weights);
    finish_scores<Rows>(tile);
}

template <int Rows, class Element>
void tile_weights(StepTile<Element>& tile) {
    weigh_tile<Rows>(tile, [](f32w weight, int, int) CAUDAL_INLINE_BODY { return weight; });
}

template <int Rows, class Element>
void tile_values(const StepTile<Element>& tile) {
    weigh_values<Rows>(*tile.step, tile.rows.value_dim, tile.weights, tile.correction,
                       tile.rows.weighted);
}

// body.operator()<count>(), with a number of rows known only now, at most kRowsAtOnce.
template <int most = kRowsAtOnce, class Body>
void with_rows(int64_t count, const Body& body) {
    if constexpr (most > 1) {
        if (count < most) return with_rows<most - 1>(count, body);
    }
    body.template operator()<most>();
}

}  // namespace
}  // namespace caudal::CAUDAL_ISA
