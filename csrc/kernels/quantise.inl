// Floats to blocks; see quantise.h.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/quantise.h"
#include "kernels/quantise_search.inl"
#include "quant/block_writer.h"

namespace caudal::CAUDAL_ISA {

// body(from, to) for eight elements at a time; what is left goes through copies of that size.
template <class From, class To, class Body>
CAUDAL_INLINE void for_each_eight(const From* from, To* to, int64_t count, const Body& body) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) body(from + i, to + i);
    if (i == count) return;
    From last[kLanes] = {};
    To written[kLanes];
    std::memcpy(last, from + i, static_cast<size_t>(count - i) * sizeof(From));
    body(last, written);
    std::memcpy(to + i, written, static_cast<size_t>(count - i) * sizeof(To));
}

static void read_floats(TensorType type, const std::byte* from, int64_t count, float* out) {
    const auto* halves = reinterpret_cast<const Half*>(from);
    switch (type) {
        case TensorType::F16:
            for_each_eight(halves, out, count,
                           [](const Half* own, float* to) { store(to, load(own)); });
            return;
        case TensorType::BF16:
            for_each_eight(halves, out, count, [](const Half* own, float* to) {
                store(to, (f32x8)(widen_u16(own) << 16));
            });
            return;
        default:
            std::memcpy(out, from, static_cast<size_t>(count) * sizeof(float));
    }
}

// Beyond this no scale in half precision reaches, and the sums of a search might not be finite.
constexpr float kMostQuantised = 0x1p28f;

// The largest magnitude, by its bits, which are in the order of the numbers: infinity and NaN last.
static uint32_t largest_magnitude(const float* x, int64_t count) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t bits = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

static bool write_f16(const float* x, int64_t count, std::byte* out) {
    auto* halves = reinterpret_cast<Half*>(out);
    for_each_eight(x, halves, count, [](const float* own, Half* to) { store(to, load(own)); });
    bool finite = true;
    for (int64_t i = 0; i < count; ++i) finite &= (halves[i].bits & 0x7c00) != 0x7c00;
    return finite;
}

// To the nearest, to even between two.
static bool write_bf16(const float* x, int64_t count, std::byte* out) {
    auto* halves = reinterpret_cast<Half*>(out);
    bool finite = true;
    for (int64_t i = 0; i < count; ++i) {
        const auto bits = std::bit_cast<uint32_t>(x[i]);
        halves[i].bits = static_cast<uint16_t>((bits + (0x7fffu + (bits >> 16 & 1u))) >> 16);
        finite &= (halves[i].bits & 0x7f80) != 0x7f80;
    }
    return finite;
}

// 32 numbers.
struct Numbers {
    f32x8 x[4];

    explicit CAUDAL_INLINE Numbers(const float* from)
        : x{load(from), load(from + 8), load(from + 16), load(from + 24)} {}

    CAUDAL_INLINE float least() const {
        return -max_lanes(maximum(maximum(-x[0], -x[1]), maximum(-x[2], -x[3])));
    }
    CAUDAL_INLINE float most() const {
        return max_lanes(maximum(maximum(x[0], x[1]), maximum(x[2], x[3])));
    }
};

// Of numbers one of which is zero, the first that is, with its sign.
CAUDAL_INLINE float first_zero(const float* x) {
    int i = 0;
    while (x[i] != 0) ++i;
    return x[i];
}

// Of 32 numbers the one of the largest magnitude, of equals the first.
CAUDAL_INLINE float extreme_of(const float* x, const Numbers& numbers) {
    const float most = numbers.most();
    const float least = numbers.least();
    if (most != -least) return most > -least ? most : least;
    if (most == 0) return 0;
    for (int i = 0; i < 31; ++i) {
        if (std::fabs(x[i]) == most) return x[i];
    }
    return x[31];
}

// Steps so small that there is no number of them in 1 have codes for no step.
CAUDAL_INLINE float inverse_of(float step) {
    const float inverse = 1.0f / step;
    return step != 0 && std::fabs(inverse) < std::numeric_limits<float>::infinity() ? inverse : 0;
}

// The integers below numbers that aren't negative, at most `most`.
CAUDAL_INLINE i32x8 floor_to(f32x8 value, int most) {
    const f32x8 magic = splat(12582912.0f);
    f32x8 whole = (value + magic) - magic;
    whole = select(whole > value, whole - splat(1), whole);
    return clamped(nearest<i32x8>(whole), 0, most);
}

// To the nearest, away from zero between two.
CAUDAL_INLINE i32x8 round_away(f32x8 value) {
    const f32x8 magic = splat(12582912.0f);
    const f32x8 even = (value + magic) - magic;
    const f32x8 rest = value - even;
    const i32x8 up = (rest == splat(0.5f)) & (value > splat(0));
    const i32x8 down = (rest == splat(-0.5f)) & (splat(0) > value);
    return nearest<i32x8>(even) - up + down;  // a condition that holds is −1
}

template <TensorType type>
static bool write_block(const float* x, uint8_t* block) {
    constexpr bool five = type == TensorType::Q5_0 || type == TensorType::Q5_1;
    constexpr bool shifted = type == TensorType::Q4_1 || type == TensorType::Q5_1;
    constexpr int levels = type == TensorType::Q8_0 ? 255 : five ? 32 : 16;
    const Numbers numbers(x);
    i32x8 codes[4];
    bool finite;
    if constexpr (type == TensorType::Q8_0) {
        const float most = numbers.most();
        const float least = numbers.least();
        const float step = std::fabs(most > -least ? most : least) / 127;
        const f32x8 inverse = splat(inverse_of(step));
        for (int i = 0; i < 4; ++i) codes[i] = round_away(numbers.x[i] * inverse);
        finite = write_half(step, block);
    } else if constexpr (shifted) {
        // Of zeros with either sign the first counts.
        const float lowest = numbers.least();
        const float least = lowest == 0 ? first_zero(x) : lowest;
        // A range of nothing has no sign.
        const float step = std::fabs(numbers.most() - least) / (levels - 1);
        const f32x8 inverse = splat(inverse_of(step));
        for (int i = 0; i < 4; ++i) {
            const f32x8 scaled = (numbers.x[i] - splat(least)) * inverse;
            codes[i] = floor_to(scaled + splat(0.5f), levels - 1);
        }
        finite = write_half(step, block);
        finite &= write_half(least, block + 2);
    } else {
        constexpr int half = levels / 2;
        const float step = extreme_of(x, numbers) / -half;
        const f32x8 inverse = splat(inverse_of(step));
        for (int i = 0; i < 4; ++i) {
            codes[i] = floor_to(numbers.x[i] * inverse + splat(half + 0.5f), levels - 1);
        }
        finite = write_half(step, block);
    }
    uint8_t bytes[32];
    store_bytes(bytes, narrow_to_bytes(codes));
    write_codes(type, bytes, block);
    return finite;
}

template <TensorType type>
static bool write_small_blocks(const float* x, int64_t count, std::byte* out) {
    const int64_t bytes = block_geometry(type).bytes;
    bool finite = true;
    for (int64_t i = 0; i < count; i += 32) {
        finite &= write_block<type>(x + i, reinterpret_cast<uint8_t*>(out + i / 32 * bytes));
    }
    return finite;
}

// What differs between the K types.
template <TensorType type>
struct SuperType {
    static constexpr bool shifted = type != TensorType::Q3_K && type != TensorType::Q6_K;
    static constexpr int bits = type == TensorType::Q2_K   ? 2
                                : type == TensorType::Q3_K ? 3
                                : type == TensorType::Q4_K ? 4
                                : type == TensorType::Q5_K ? 5
                                                           : 6;
    static constexpr int lowest = shifted ? 0 : -(1 << (bits - 1));
    static constexpr int highest = lowest + (1 << bits) - 1;
    // Numbers in a group.
    static constexpr int n = type == TensorType::Q4_K || type == TensorType::Q5_K ? 32 : 16;
};

// Scales for 16 groups. Of Q3_K also codes, from 0, for groups whose step becomes nothing.
template <TensorType type>
static void search(const float* x, FoundScales& found, float (&codes)[kSearched][16]) {
    using Super = SuperType<type>;
    constexpr int n = Super::n;
    for (int at = 0; at < kSearched; at += kWideLanes) {
        const auto lanes = GroupLanes<n>::of(x + at * n);
        if constexpr (type == TensorType::Q3_K) {
            search_codes<n, -Super::lowest>(lanes, at, found, codes);
        } else if constexpr (type == TensorType::Q6_K) {
            search_scale<n, -Super::lowest>(lanes, at, found);
        } else {
            f32w weights[n];
            if constexpr (type == TensorType::Q2_K) {
                for (int i = 0; i < n; ++i) weights[i] = magnitude(lanes.x[i]);
                search_scale_and_offset<n, 3, 16, true>(lanes, weights, -0.5f, at, found);
            } else {
                f32w squares = splat_wide(0);
                for (int i = 0; i < n; ++i) squares = squares + lanes.x[i] * lanes.x[i];
                alignas(64) float average[kWideLanes];
                store(average, squares / splat_wide(n));
                for (float& each : average) each = std::sqrt(each);
                const f32w usual = load_wide(average);
                for (int i = 0; i < n; ++i) weights[i] = usual + magnitude(lanes.x[i]);
                if constexpr (type == TensorType::Q4_K) {
                    search_scale_and_offset<n, 15, 21, false>(lanes, weights, -1, at, found);
                } else {
                    search_scale_and_offset<n, 31, 16, false>(lanes, weights, -0.5f, at, found);
                }
            }
        }
    }
}

// One superblock, given what was found for its groups.
template <TensorType type>
static bool write_superblock(const float* x, const FoundScales& found, int first_group,
                             const float (&searched)[kSearched][16], uint8_t* block) {
    using Super = SuperType<type>;
    constexpr int kGroups = static_cast<int>(kSuperBlock) / Super::n;
    GroupScales scales;
    float largest = 0;
    for (int i = 0; i < kGroups; ++i) {
        scales.step[i] = found.step[first_group + i];
        scales.offset[i] = found.offset[first_group + i];
        largest = std::fmax(largest, std::fabs(scales.step[i]));
    }
    if (type == TensorType::Q6_K && largest < kTinyGroup) {
        std::memset(block, 0, static_cast<size_t>(block_geometry(type).bytes));
        return true;
    }
    const bool finite = write_group_scales(type, scales, block);
    uint8_t codes[kSuperBlock];
    for (int part = 0; part < 8; ++part) {
        i32x8 integers[4];
        for (int i = 0; i < 4; ++i) {
            const int from = part * 32 + i * 8;
            const int group = from / Super::n;
            const f32x8 own = load(x + from);
            if (scales.step[group] != 0) {
                const f32x8 shifted = own + splat(scales.offset[group]);
                integers[i] = nearest<i32x8>(shifted / splat(scales.step[group]));
            } else if constexpr (type == TensorType::Q3_K) {
                const f32x8 code = load(searched[first_group + group] + from % Super::n);
                integers[i] = nearest<i32x8>(code + splat(Super::lowest));
            } else {
                const f32x8 distance = own - splat(found.origin[first_group + group]);
                integers[i] = nearest<i32x8>(splat(found.factor[first_group + group]) * distance);
            }
            integers[i] = clamped(integers[i], Super::lowest, Super::highest) - Super::lowest;
        }
        store_bytes(codes + part * 32, narrow_to_bytes(integers));
    }
    write_codes(type, codes, block);
    return finite;
}

template <TensorType type>
static bool write_superblocks(const float* x, int64_t count, std::byte* out) {
    constexpr int64_t kTogether = kSearched * SuperType<type>::n;
    constexpr int kGroups = static_cast<int>(kSuperBlock) / SuperType<type>::n;
    const int64_t bytes = block_geometry(type).bytes;
    float last[kTogether] = {};
    float searched[kSearched][16] = {};
    FoundScales found{};
    bool finite = true;
    for (int64_t begin = 0; begin < count; begin += kTogether) {
        const float* own = x + begin;
        const int64_t rest = count - begin < kTogether ? count - begin : kTogether;
        if (rest < kTogether) {
            std::memcpy(last, own, static_cast<size_t>(rest) * sizeof(float));
            own = last;
        }
        search<type>(own, found, searched);
        for (int64_t at = 0; at < rest; at += kSuperBlock) {
            auto* block = reinterpret_cast<uint8_t*>(out + (begin + at) / kSuperBlock * bytes);
            const int first_group = static_cast<int>(at / kSuperBlock) * kGroups;
            finite &= write_superblock<type>(own + at, found, first_group, searched, block);
        }
    }
    return finite;
}

static bool write_blocks(TensorType type, const float* x, int64_t count, std::byte* out) {
    const uint32_t largest = largest_magnitude(x, count);
    if (largest >= std::bit_cast<uint32_t>(std::numeric_limits<float>::infinity())) return false;
    switch (type) {
        case TensorType::F32:
            std::memcpy(out, x, static_cast<size_t>(count) * sizeof(float));
            return true;
        case TensorType::F16:
            return write_f16(x, count, out);
        case TensorType::BF16:
            return write_bf16(x, count, out);
        default:
            break;
    }
    if (largest > std::bit_cast<uint32_t>(kMostQuantised)) return false;
    switch (type) {
        case TensorType::Q4_0:
            return write_small_blocks<TensorType::Q4_0>(x, count, out);
        case TensorType::Q4_1:
            return write_small_blocks<TensorType::Q4_1>(x, count, out);
        case TensorType::Q5_0:
            return write_small_blocks<TensorType::Q5_0>(x, count, out);
        case TensorType::Q5_1:
            return write_small_blocks<TensorType::Q5_1>(x, count, out);
        case TensorType::Q8_0:
            return write_small_blocks<TensorType::Q8_0>(x, count, out);
        case TensorType::Q2_K:
            return write_superblocks<TensorType::Q2_K>(x, count, out);
        case TensorType::Q3_K:
            return write_superblocks<TensorType::Q3_K>(x, count, out);
        case TensorType::Q4_K:
            return write_superblocks<TensorType::Q4_K>(x, count, out);
        case TensorType::Q5_K:
            return write_superblocks<TensorType::Q5_K>(x, count, out);
        case TensorType::Q6_K:
            return write_superblocks<TensorType::Q6_K>(x, count, out);
        default:
            return false;
    }
}

static QuantiseKernels quantise_kernels() {
    return {read_floats, write_blocks};
}

}  // namespace caudal::CAUDAL_ISA
