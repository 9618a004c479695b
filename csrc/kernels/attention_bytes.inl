// A step of attention over keys and values of 8 bits: queries and weights are rounded to 16 bits,
// and their products with bytes are summed up exactly, in whatever order an instruction set likes.
//
// Keys, values and queries are turned before they are rounded: by a Hadamard matrix, which leaves
// dot products as they are and spreads channels that stand out over all of a vector, so that one
// scale for all does. (QuaRot, arXiv 2404.00456.) What values come to is turned back.
#pragma once

#include "kernels/attention_step.inl"
#include "kernels/byte_dots.inl"

namespace caudal::CAUDAL_ISA {
namespace {

static_assert(WeightNumbers::kCount == kStepTokens);

// An element of a pool of 8 bits.
struct Code {
    uint8_t byte;
};

// Multiplies each piece of x, as long as the largest power of two that divides n, by a Hadamard
// matrix of ones and minus ones; n is a multiple of 8. Twice is a multiplication by that length.
CAUDAL_INLINE void turn(float* x, int64_t n) {
    const int64_t length = n & -n;
    for (int64_t i = 0; i < n; i += kLanes) {
        f32x8 v = load(x + i);
        constexpr float kSigns[3][kLanes] = {{1, -1, 1, -1, 1, -1, 1, -1},
                                             {1, 1, -1, -1, 1, 1, -1, -1},
                                             {1, 1, 1, 1, -1, -1, -1, -1}};
        v = swap_neighbours(v) + v * load(kSigns[0]);
        v = swap_pairs(v) + v * load(kSigns[1]);
        v = swap_halves(v) + v * load(kSigns[2]);
        store(x + i, v);
    }
    for (int64_t half = kLanes; half < length; half *= 2) {
        for (int64_t begin = 0; begin < n; begin += 2 * half) {
            for (int64_t i = begin; i < begin + half; i += kLanes) {
                const f32x8 a = load(x + i);
                const f32x8 b = load(x + i + half);
                store(x + i, a + b);
                store(x + i + half, a - b);
            }
        }
    }
}

// The largest magnitude, and infinity or NaN where there is one.
CAUDAL_INLINE float largest_magnitude(const float* x, int64_t n) {
    f32x8 largest = splat(0.0f);
    f32x8 zeros = splat(0.0f);
    for (int64_t i = 0; i < n; i += kLanes) {
        const f32x8 v = load(x + i);
        largest = maximum(largest, maximum(v, splat(0.0f) - v));
        zeros = zeros + (v - v);  // NaN where a number isn't finite
    }
    return max_lanes(largest) + sum_lanes(zeros);
}

// What shares a scale: a head's keys, or of a latent the channels that are values, and the others.
struct ScaledPart {
    int64_t begin;
    int64_t end;

    int64_t channels() const { return end - begin; }
};

struct ScaledParts {
    int count;
    ScaledPart parts[2];

    static CAUDAL_INLINE ScaledParts of(bool latent, int64_t key_dim, int64_t value_dim) {
        if (!latent) return {1, {{0, key_dim}, {}}};
        return {2, {{0, value_dim}, {value_dim, key_dim}}};
    }
};

// Where a tile of so many rows has its turned queries in numbers of 16 bits, in bytes from its
// beginning: what rows are rounded to, and then the numbers as [part][four channels][first,
// second][row][4 bytes], for one pointer to go through.
struct ByteQueries {
    int64_t rows;

    // Floats that a row takes.
    static CAUDAL_INLINE int64_t floats(int64_t key_dim) {
        constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
        const int64_t numbers = padded_numbers(key_dim) + kNumbersAtOnce;  // two parts, each padded
        const auto of_parts = static_cast<int64_t>(2 * sizeof(RoundedNumbers));
        return (numbers * 2 + of_parts + kFloat - 1) / kFloat;
    }

    CAUDAL_INLINE int64_t rounded(int part, int64_t row) const {
        return (part * rows + row) * static_cast<int64_t>(sizeof(RoundedNumbers));
    }

    CAUDAL_INLINE int64_t numbers(const ScaledParts& parts, int part) const {
        const int64_t before = part == 0 ? 0 : padded_numbers(parts.parts[0].channels());
        return rounded(2, 0) + before * 2 * rows;
    }
};

// A query, scaled by `scale`, as a row of a tile.
CAUDAL_INLINE void round_query(const float* query, float scale, const ScaledParts& parts,
                               const ByteQueries& queries, int64_t row, std::byte* tile) {
    for (int part = 0; part < parts.count; ++part) {
        const ScaledPart& of = parts.parts[part];
        const int64_t channels = of.channels();
        alignas(kWideBytes) float turned[kMostScaledChannels];
        for (int64_t i = 0; i < channels; i += kLanes) {
            store(turned + i, load(query + of.begin + i) * splat(scale));
        }
        const int64_t padded = padded_numbers(channels);
        for (int64_t i = channels; i < padded; ++i) turned[i] = 0.0f;
        turn(turned, channels);
        const Roundings roundings = Roundings::of(splat(largest_magnitude(turned, channels)));
        alignas(kWideBytes) std::byte bytes[kMostScaledChannels * kNumberBytes];
        const RoundedNumbers rounded = {
            start_of(round_numbers(turned, padded, roundings.inverse[0], bytes)),
            roundings.scale[0] / static_cast<float>(channels & -channels)};
        std::memcpy(tile + queries.rounded(part, row), &rounded, sizeof(rounded));
        const Numbers numbers{bytes, padded};
        std::byte* to = tile + queries.numbers(parts, part) + row * 4;
        for (int64_t four = 0; four < channels / 4; ++four, to += 8 * queries.rows) {
            std::memcpy(to, numbers.first_of(four), 4);
            std::memcpy(to + 4 * queries.rows, numbers.second_of(four), 4);
        }
    }
}

// Scales of a step's tokens, of what is kept as `which`: 0 where there are no tokens.
CAUDAL_INLINE void load_scales(const KeyStep<Code>& step, int64_t key_dim, int which,
                               float* scales) {
    for (int block = 0; block < kStepBlocks; ++block) {
        for (int half = 0; half < kHalves; ++half) {
            float* to = scales + block * kBlockTokens + half * kWideLanes;
            if (block >= step.blocks) {
                store(to, splat_wide(0.0f));
                continue;
            }
            const Code* from = step.of_step[block].keys + (key_dim + 2 * which) * kBlockTokens +
                               half * kWideLanes * 2;
            store(to, (f32w)(widen_u16_wide(from) << 16));
        }
    }
}

// The scores of `Vectors` vectors of tokens from `first` on, by a part of their channels; those
// after the first add to what is there. Asks for the same of `ahead`.
template <int Rows, int Vectors>
CAUDAL_INLINE void byte_scores(const KeyStep<Code>& step, int first, const AttentionRows& rows,
                               const ScaledParts& parts, int part, const float* scales,
                               float* scores) {
    const auto place = [&](const KeyBlock<Code>* blocks, int v) CAUDAL_INLINE_BODY {
        const int vector = first + v;
        return blocks[vector / kHalves].keys + parts.parts[part].begin * kBlockTokens +
               vector % kHalves * kWideBytes;
    };
    const Code* keys[Vectors];
    const Code* ahead[Vectors];
    for (int v = 0; v < Vectors; ++v) {
        keys[v] = place(step.of_step, v);
        ahead[v] = place(step.ahead, v);
    }
    const ByteQueries queries{Rows};
    RoundedNumbers rounded[Rows];
    ByteSums sums[Rows][Vectors];
    std::memcpy(rounded, rows.byte_queries + queries.rounded(part, 0), sizeof(rounded));
    for (int row = 0; row < Rows; ++row) {
        for (int v = 0; v < Vectors; ++v) sums[row][v] = ByteSums::start(rounded[row].start);
    }
    const std::byte* numbers = rows.byte_queries + queries.numbers(parts, part);
    const int64_t fours = parts.parts[part].channels() / 4;
    for (int64_t four = 0; four < fours; ++four, numbers += 8 * Rows) {
        const int64_t at = four * 4 * kBlockTokens;
        Bytes bytes[Vectors];
        for (int v = 0; v < Vectors; ++v) {
            __builtin_prefetch(ahead[v] + at);
            bytes[v] = Bytes::of(load_bytes_wide(keys[v] + at));
        }
        for (int row = 0; row < Rows; ++row) {
            for (int v = 0; v < Vectors; ++v) {
                sums[row][v].add(bytes[v], numbers + row * 4, numbers + (Rows + row) * 4);
            }
        }
    }
    for (int row = 0; row < Rows; ++row) {
        for (int v = 0; v < Vectors; ++v) {
            const int64_t token = (first + v) * kWideLanes;
            float* to = scores + row * kStepTokens + token;
            f32w score = to_floats(sums[row][v].total()) * load_wide(scales + token) *
                         splat_wide(rounded[row].scale);
            if (part > 0) score = score + load_wide(to);
            store(to, score);
        }
    }
}

template <int Rows>
CAUDAL_INLINE void step_scores(const KeyStep<Code>& step, const AttentionRows& rows,
                               float* scores) {
    constexpr int kMost = kSumsAtOnce / (Rows * kHalvesOfNumbers);
    constexpr int Vectors = std::clamp(kMost, 1, kStepBlocks);
    const ScaledParts parts = ScaledParts::of(rows.latent, rows.key_dim, rows.value_dim);
    alignas(kWideBytes) float scales[kStepTokens];
    for (int part = 0; part < parts.count; ++part) {
        load_scales(step, rows.key_dim, part, scales);
        const int vectors = step.blocks * kHalves;
        int first = 0;
        for (; first + Vectors <= vectors; first += Vectors) {
            byte_scores<Rows, Vectors>(step, first, rows, parts, part, scales, scores);
        }
        if constexpr (Vectors > 1) {
            for (; first < vectors; ++first) {
                byte_scores<Rows, 1>(step, first, rows, parts, part, scales, scores);
            }
        }
    }
}

// The values of four tokens for a vector of channels; or for the lower half of one, and zeros.
template <bool half>
CAUDAL_INLINE i32w load_values(const Code* from) {
#if defined(__AVX512VNNI__)
    if constexpr (half) {
        return (i32w)_mm512_zextsi256_si512(
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    }
#endif
    return load_bytes_wide(from);
}

// weighted[row] = weighted[row] · correction[row] + scale[row] · Σ_token weights[row][token] ·
// values[token], for `Vectors` vectors of channels from `channel`, or half of one.
template <int Rows, int Vectors, bool half>
CAUDAL_INLINE void weigh_byte_channels(const KeyStep<Code>& step, int64_t value_dim,
                                       int64_t channel, const WeightNumbers (&weights)[Rows],
                                       const float* scale, const float* correction,
                                       float* weighted) {
    WeightSums sums[Rows][Vectors];
    for (int row = 0; row < Rows; ++row) {
        for (int v = 0; v < Vectors; ++v) sums[row][v] = WeightSums::start(weights[row]);
    }
    for (int block = 0; block < step.blocks; ++block) {
        const Code* values = step.of_step[block].values + channel * 4;
        const Code* ahead = step.ahead[block].values + channel * 4;
        for (int four = 0; four < kBlockTokens / 4; ++four) {
            WeightedBytes bytes[Vectors];
            for (int v = 0; v < Vectors; ++v) {
                const int64_t at = four * 4 * value_dim + v * kWideBytes;
                __builtin_prefetch(ahead + at);
                bytes[v] = WeightedBytes::of(load_values<half>(values + at));
            }
            for (int row = 0; row < Rows; ++row) {
                for (int v = 0; v < Vectors; ++v) {
                    sums[row][v].add(bytes[v], weights[row], block, four);
                }
            }
        }
    }
    for (int row = 0; row < Rows; ++row) {
        for (int v = 0; v < Vectors; ++v) {
            float* into = weighted + row * value_dim + channel + v * kWideLanes;
            const f32w total = to_floats(sums[row][v].total());
            if constexpr (half) {
                const f32w all[kHalves] = {total};
                store(into, multiply_add(lower_half(all), splat(scale[row]),
                                         load(into) * splat(correction[row])));
            } else {
                store(into, multiply_add(total, splat_wide(scale[row]),
                                         load_wide(into) * splat_wide(correction[row])));
            }
        }
    }
}

// `scaled`: weights times the scales of values, the largest of each row known.
template <int Rows>
CAUDAL_INLINE void weigh_bytes(const KeyStep<Code>& step, const AttentionRows& rows,
                               const float* scaled, f32x8 largest, const float* correction) {
    // Where a weight is NaN, the sum of weights is.
    const Roundings roundings = Roundings::of(largest);
    WeightNumbers numbers[Rows];
    for (int row = 0; row < Rows; ++row) {
        numbers[row].round(scaled + row * kStepTokens, roundings.inverse[row]);
    }
    const auto weigh = [&]<int Vectors, bool half>(int64_t channel) CAUDAL_INLINE_BODY {
        weigh_byte_channels<Rows, Vectors, half>(step, rows.value_dim, channel, numbers,
                                                 roundings.scale, correction, rows.weighted);
    };
    constexpr int Vectors = std::clamp(kSumsAtOnce / (Rows * kHalvesOfNumbers), 1, 4);
    const int64_t value_dim = rows.value_dim;
    int64_t channel = 0;
    for (; channel + Vectors * kWideLanes <= value_dim; channel += Vectors * kWideLanes) {
        weigh.template operator()<Vectors, false>(channel);
    }
    if constexpr (Vectors > 1) {
        for (; channel + kWideLanes <= value_dim; channel += kWideLanes) {
            weigh.template operator()<1, false>(channel);
        }
    }
    if constexpr (kWideLanes > kLanes) {
        if (channel < value_dim) weigh.template operator()<1, true>(channel);
    }
}

// The same as for floats.
template <int Rows>
void tile_scores(StepTile<Code>& tile) {
    step_scores<Rows>(*tile.step, tile.rows, tile.weights);
    finish_scores<Rows>(tile);
}

template <int Rows>
void tile_weights(StepTile<Code>& tile) {
    alignas(kWideBytes) float scales[kStepTokens];
    load_scales(*tile.step, tile.rows.key_dim, tile.rows.latent ? 0 : 1, scales);
    weigh_tile<Rows>(tile, [&](f32w weight, int block, int half) CAUDAL_INLINE_BODY {
        return weight * load_wide(scales + block * kBlockTokens + half * kWideLanes);
    });
    for (int row = 0; row < Rows; ++row) {
        store(tile.largest[row], largest_of(tile.weights + row * kStepTokens));
    }
}

template <int Rows>
void tile_values(const StepTile<Code>& tile) {
    weigh_bytes<Rows>(*tile.step, tile.rows, tile.weights, largest_of_rows<Rows>(tile.largest),
                      tile.correction);
}

// The values of a latent layer's block, [token / 4][channel][4], out of its keys,
// [channel / 4][token][4].
CAUDAL_INLINE void unpack_values(const Code* keys, int64_t value_dim, Code* values) {
    using u8x16 = uint8_t __attribute__((vector_size(16)));
    for (int64_t channel = 0; channel < value_dim; channel += 4) {
        for (int64_t token = 0; token < kBlockTokens; token += 4) {
            u8x16 square;
            std::memcpy(&square, keys + channel * kBlockTokens + token * 4, sizeof(square));
            square = __builtin_shufflevector(square, square, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14,
                                             3, 7, 11, 15);
            std::memcpy(static_cast<void*>(values + token * value_dim + channel * 4), &square,
                        sizeof(square));
        }
    }
}

// Rounds a part of a token's key or value to bytes, which it puts where `place(channel)` says, and
// returns the scale as it is kept. Of what isn't finite that is NaN.
template <class Place>
CAUDAL_INLINE uint16_t store_bytes_of(const float* x, int64_t channels, Place place) {
    alignas(kWideBytes) float turned[kMostScaledChannels];
    std::copy_n(x, channels, turned);
    turn(turned, channels);
    // To the nearest bfloat16. What numbers are divided by is what they are multiplied by again.
    const float wanted = largest_magnitude(turned, channels) * (1.0f / 127.0f);
    uint32_t bits;
    std::memcpy(&bits, &wanted, sizeof(bits));
    bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16 << 16;
    float scale;
    std::memcpy(&scale, &bits, sizeof(scale));
    // Some NaN have bits that rounding makes a number's.
    constexpr float kMost = std::numeric_limits<float>::max();
    const bool finite = wanted <= kMost && scale <= kMost;
    // Below that the reciprocal could overflow, and all are zero for every purpose.
    const bool some = finite && scale > 1e-30f;
    const f32x8 inverse = splat(some ? 1.0f / scale : 0.0f);
    const f32x8 magic = splat(12582912.0f);
    for (int64_t channel = 0; channel < channels; channel += kLanes) {
        const f32x8 rounded =
            minimum(splat(127.0f), maximum(splat(-127.0f), load(turned + channel) * inverse)) +
            magic;
        alignas(32) int32_t codes[kLanes];
        store_bytes(codes, (i32x8)rounded - (i32x8)magic + 128);
        for (int lane = 0; lane < kLanes; ++lane) {
            place(channel + lane)->byte = static_cast<uint8_t>(some ? codes[lane] : 128);
        }
    }
    if (!finite) return 0x7fc0;
    return some ? static_cast<uint16_t>(bits >> 16) : 0;
}

// A token whose value isn't finite gets a key that isn't, as in pools of floats: all that see it
// fail, and nobody else.
CAUDAL_INLINE void store_byte_head(const float* key, const float* value, const KVLayer& layer,
                                   int64_t token, Code* keys, Code* values) {
    const ScaledParts parts = ScaledParts::of(layer.latent(), layer.key_dim, layer.value_dim);
    uint16_t scales[2] = {};
    for (int part = 0; part < parts.count; ++part) {
        const ScaledPart& of = parts.parts[part];
        scales[part] =
            store_bytes_of(key + of.begin, of.channels(), [&](int64_t channel) CAUDAL_INLINE_BODY {
                const int64_t at = of.begin + channel;
                return keys + (at / 4 * kBlockTokens + token) * 4 + at % 4;
            });
    }
    if (!layer.latent()) {
        scales[1] = store_bytes_of(value, layer.value_dim, [&](int64_t channel) CAUDAL_INLINE_BODY {
            return values + (token / 4 * layer.value_dim + channel) * 4 + token % 4;
        });
    }
    constexpr uint16_t kNaN = 0x7fc0;
    const int of_values = layer.latent() ? 0 : 1;
    if (scales[of_values] == kNaN) {
        scales[1 - of_values] = kNaN;
        scales[of_values] = 0;
    }
    Code* const at = keys + layer.key_dim * kBlockTokens + token * 2;
    for (int which = 0; which < 2; ++which) {
        std::memcpy(static_cast<void*>(at + which * kBlockTokens * 2), &scales[which], 2);
    }
}

}  // namespace
}  // namespace caudal::CAUDAL_ISA
