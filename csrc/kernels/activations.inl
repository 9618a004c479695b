// Conversion of activations into the groups of activation_groups.inl.
#pragma once

#include "kernels/activation_groups.inl"
#include "kernels/int_vec.inl"
#if defined(__AVX512VNNI__)
#include "kernels/activations_wide.inl"
#endif

namespace caudal::CAUDAL_ISA {

static size_t activation_bytes(ActivationKind kind, int64_t rows, int64_t cols) {
    const int64_t groups = tiles_of(rows) * (cols / kGroup);
    switch (kind) {
        case ActivationKind::F32:
            return static_cast<size_t>(rows * cols) * sizeof(float);
        case ActivationKind::Int8:
            return static_cast<size_t>(groups) * sizeof(Int8Group);
        case ActivationKind::Int16:
            return static_cast<size_t>(groups) * sizeof(Int16Group);
        case ActivationKind::Int8Twice:
            return 2 * static_cast<size_t>(groups) * sizeof(Int8Group);
    }
    return 0;
}

#if !defined(__AVX512VNNI__)

CAUDAL_INLINE i32x8 larger(i32x8 a, i32x8 b) {
    return select(a > b, a, b);
}

// The float with the largest of eight bit patterns without a sign.
CAUDAL_INLINE float largest_lane(i32x8 a) {
    a = larger(a, swap_halves(a));
    a = larger(a, swap_pairs(a));
    a = larger(a, swap_neighbours(a));
    return ((f32x8)a)[0];
}

CAUDAL_INLINE int32_t sum_lanes(i32x8 a) {
    a = a + swap_halves(a);
    a = a + swap_pairs(a);
    return a[0] + a[1];
}

// Rounds 32 numbers to integers of at most ±limit and returns their scale. A group that holds an
// infinity or NaN, which no integer can stand for, becomes all NaN by way of its scale.
CAUDAL_INLINE float quantize_group(const float* x, float limit, i32x8 (&codes)[4]) {
    f32x8 values[4];
    // As integers, magnitudes compare like the floats they are, and infinity and NaN above them.
    i32x8 magnitude{};
    for (int i = 0; i < 4; ++i) {
        values[i] = load(x + i * kLanes);
        const i32x8 absolute = (i32x8)values[i] & 0x7fffffff;
        magnitude = larger(absolute, magnitude);
    }
    const float largest = largest_lane(magnitude);
    // Below 1e-35 the reciprocal would overflow, and the group is zero for every purpose.
    if (!(largest > 1e-35f && largest <= std::numeric_limits<float>::max())) {
        for (i32x8& code : codes) code = i32x8{};
        return largest <= 1e-35f ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    }
    const f32x8 inverse = splat(limit / largest);
    // Adding 1.5 · 2^23 rounds to the nearest integer, ties to even, into the low bits. The largest
    // becomes ±limit and nothing more, for the roundings before amount to far less than a half.
    const f32x8 magic = splat(12582912.0f);
    for (int i = 0; i < 4; ++i) {
        codes[i] = (i32x8)(values[i] * inverse + magic) - (i32x8)magic;
    }
    return largest * (1.0f / limit);
}

// The sums of a group's codes by half and pair, as Int8Group wants them: two 16-bit numbers in
// 32-bit lanes 0 and 4 of the result.
CAUDAL_INLINE i32x8 sum_pairs(i32x8 codes) {
    i32x8 sums{};
    dot_bytes(sums, repeat_u8(1), codes);
    sums = add16(sums, swap_pairs(sums));
    return add16(sums, swap_neighbours(sums));
}

// Each converts one group of up to four rows of x.
CAUDAL_INLINE void convert_group(const float* x, int64_t stride, int64_t rows, Int8Group& group) {
    i32x8 bytes[kTileRows] = {};
    group = Int8Group{};
    for (int64_t row = 0; row < rows; ++row) {
        i32x8 codes[4];
        const float scale = quantize_group(x + row * stride, 127.0f, codes);
        bytes[row] = narrow_to_bytes(codes);
        const i32x8 pairs = sum_pairs(bytes[row]);
        const i32x8 totals = multiply_pairs(pairs, repeat_s16(1));
        std::memcpy(group.pair_sums[0][row], &pairs, 4);
        std::memcpy(group.pair_sums[1][row], reinterpret_cast<const char*>(&pairs) + 16, 4);
        group.scale[row] = scale;
        group.sum[row] = scale * static_cast<float>(totals[0] + totals[4]);
    }
    i32x8 columns[4];
    interleave(bytes, columns);
    std::memcpy(group.codes, columns, sizeof(columns));
}

CAUDAL_INLINE void convert_group(const float* x, int64_t stride, int64_t rows, Int16Group& group) {
    group = Int16Group{};
#if defined(CAUDAL_NEON)
    i32x8 upper[kTileRows] = {};
    i32x8 lower[kTileRows] = {};
    for (int64_t row = 0; row < rows; ++row) {
        i32x8 codes[4];
        i32x8 bytes[4];
        group.scale[row] = quantize_group(x + row * stride, 32767.0f, codes);
        for (int i = 0; i < 4; ++i) bytes[i] = codes[i] >> 8;
        upper[row] = narrow_to_bytes(bytes);
        for (int i = 0; i < 4; ++i) bytes[i] = codes[i] & 0xff;
        lower[row] = narrow_to_bytes(bytes);
        group.lower_sum[row] = sum_lanes((bytes[0] + bytes[1]) + (bytes[2] + bytes[3]));
    }
    i32x8 columns[4];
    interleave(upper, columns);
    std::memcpy(group.upper, columns, sizeof(columns));
    interleave(lower, columns);
    std::memcpy(group.lower, columns, sizeof(columns));
#else
    i32x8 numbers[2][kTileRows] = {};
    for (int64_t row = 0; row < rows; ++row) {
        i32x8 codes[4];
        group.scale[row] = quantize_group(x + row * stride, 32767.0f, codes);
        numbers[0][row] = narrow_to_16(codes[0], codes[1]);
        numbers[1][row] = narrow_to_16(codes[2], codes[3]);
        const i32x8 sums = (codes[0] + codes[1]) + (codes[2] + codes[3]);
        group.sum[row] = sum_lanes(sums);
    }
    for (int half = 0; half < 2; ++half) {
        i32x8 columns[4];
        interleave(numbers[half], columns);
        std::memcpy(group.codes[half * kGroup / 4], columns, sizeof(columns));
    }
#endif
}

// x minus what the group stands for, 32 values of up to four rows.
static void subtract_group(const float* x, int64_t stride, int64_t rows, const Int8Group& group,
                           float (&rest)[kTileRows][kGroup]) {
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < kGroup; ++i) {
            const auto code = static_cast<float>(group.codes[i / 4][row][i % 4]);
            rest[row][i] = x[row * stride + i] - group.scale[row] * code;
        }
    }
}

// Converts one group of up to four rows of x, and the rounding error of that.
CAUDAL_INLINE void convert_group_twice(const float* x, int64_t stride, int64_t rows,
                                       Int8Group& first, Int8Group& second) {
    convert_group(x, stride, rows, first);
    float rest[kTileRows][kGroup];
    subtract_group(x, stride, rows, first, rest);
    convert_group(rest[0], kGroup, rows, second);
}

#endif

template <class Group>
static void convert_tiles(const float* x, int64_t stride, int64_t cols, int64_t row_begin,
                          int64_t row_end, std::byte* activations) {
    const int64_t groups = cols / kGroup;
    for (int64_t row = row_begin; row < row_end; row += kTileRows) {
        auto* tile = reinterpret_cast<Group*>(activations) + row / kTileRows * groups;
        const int64_t rows = row_end - row < kTileRows ? row_end - row : kTileRows;
        for (int64_t index = 0; index < groups; ++index) {
            const float* from = x + row * stride + index * kGroup;
            if (rows == kTileRows) {
                convert_group(from, stride, kTileRows, tile[index]);
            } else {
                convert_group(from, stride, rows, tile[index]);
            }
        }
    }
}

static void convert_tiles_twice(const float* x, int64_t stride, int64_t cols, int64_t row_begin,
                                int64_t row_end, std::byte* activations) {
    const int64_t groups = cols / kGroup;
    for (int64_t row = row_begin; row < row_end; row += kTileRows) {
        auto* tile = reinterpret_cast<Int8Group*>(activations) + row / kTileRows * 2 * groups;
        const int64_t rows = row_end - row < kTileRows ? row_end - row : kTileRows;
        for (int64_t index = 0; index < groups; ++index) {
            convert_group_twice(x + row * stride + index * kGroup, stride, rows, tile[index],
                                tile[groups + index]);
        }
    }
}

static void convert_activations(ActivationKind kind, const float* x, int64_t stride, int64_t cols,
                                int64_t row_begin, int64_t row_end, std::byte* activations) {
    switch (kind) {
        case ActivationKind::F32:
            for (int64_t row = row_begin; row < row_end; ++row) {
                std::memcpy(activations + row * cols * static_cast<int64_t>(sizeof(float)),
                            x + row * stride, static_cast<size_t>(cols) * sizeof(float));
            }
            return;
        case ActivationKind::Int8:
            return convert_tiles<Int8Group>(x, stride, cols, row_begin, row_end, activations);
        case ActivationKind::Int16:
            return convert_tiles<Int16Group>(x, stride, cols, row_begin, row_end, activations);
        case ActivationKind::Int8Twice:
            return convert_tiles_twice(x, stride, cols, row_begin, row_end, activations);
    }
}

}  // namespace caudal::CAUDAL_ISA
