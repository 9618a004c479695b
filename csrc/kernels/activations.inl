// Activations as the linear kernels read them.
//
// F32 is row-major. The integer kinds are tiles of four rows, cut along k into groups of 32 with
// one scale a row; within a group the four rows alternate every four bytes, so that a kernel
// broadcasts 32 bits at a time. A tile that is not full holds zeros.
#pragma once

#include "kernels/int_vec.inl"
#include "kernels/panel.h"

namespace caudal::CAUDAL_ISA {

constexpr int64_t kTileRows = 4;

struct Int8Group {
    float scale[kTileRows];
    float sum[kTileRows];  // of the dequantised values: what a minimum is multiplied by
    // For each half of the group: Σ of elements 0, 1 and Σ of elements 2, 3 of every four. The
    // kernels' 16-bit lanes add up just these pairs, so an offset can be subtracted up front.
    int16_t pair_sums[2][kTileRows][2];
    int8_t codes[kGroup / 4][kTileRows][4];
};

struct Int16Group {
    float scale[kTileRows];
    int16_t codes[kGroup / 2][kTileRows][2];
};

static int64_t tiles_of(int64_t rows) {
    return (rows + kTileRows - 1) / kTileRows;
}

static size_t activation_bytes(ActivationKind kind, int64_t rows, int64_t cols) {
    const int64_t groups = tiles_of(rows) * (cols / kGroup);
    switch (kind) {
        case ActivationKind::F32:
            return static_cast<size_t>(rows * cols) * sizeof(float);
        case ActivationKind::Int8:
            return static_cast<size_t>(groups) * sizeof(Int8Group);
        case ActivationKind::Int16:
            return static_cast<size_t>(groups) * sizeof(Int16Group);
    }
    return 0;
}

// Rounds 32 numbers to integers of at most ±limit and returns their scale. A group that holds an
// infinity or NaN, which no integer can stand for, becomes all NaN by way of its scale.
CAUDAL_INLINE float quantize_group(const float* x, float limit, i32x8 (&codes)[4]) {
    f32x8 values[4];
    f32x8 magnitude = splat(0.0f);
    f32x8 poison = splat(0.0f);
    for (int i = 0; i < 4; ++i) {
        values[i] = load(x + i * kLanes);
        const f32x8 absolute = (f32x8)((i32x8)values[i] & 0x7fffffff);
        magnitude = maximum(absolute, magnitude);
        poison = poison + values[i] * 0.0f;
    }
    const float largest = max_lanes(magnitude);
    const bool finite = sum_lanes(poison) == 0.0f;
    // Below this the reciprocal would overflow, and the group is zero for every purpose.
    const bool usable = finite && largest > 1e-35f;
    if (!usable) {
        for (i32x8& code : codes) code = i32x8{};
        return finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    }
    const float inverse = limit / largest;
    // Adding 1.5 · 2^23 rounds to the nearest integer, ties to even, into the low bits.
    const f32x8 magic = splat(12582912.0f);
    const i32x8 most = i32x8{} + static_cast<int32_t>(limit);
    for (int i = 0; i < 4; ++i) {
        const f32x8 rounded = values[i] * splat(inverse) + magic;
        const i32x8 code = (i32x8)rounded - (i32x8)magic;
        const i32x8 at_most = code > most ? most : code;
        codes[i] = at_most < -most ? -most : at_most;
    }
    return largest / limit;
}

static void convert_int8_row(const float* x, int64_t cols, int64_t slot, Int8Group* groups) {
    for (int64_t index = 0; index < cols / kGroup; ++index) {
        Int8Group& group = groups[index];
        i32x8 codes[4];
        const float scale = quantize_group(x + index * kGroup, 127.0f, codes);
        int32_t total = 0;
        for (int half = 0; half < 2; ++half) {
            const i32x8 sums = codes[2 * half] + codes[2 * half + 1];
            const int32_t first = sums[0] + sums[1] + sums[4] + sums[5];
            const int32_t second = sums[2] + sums[3] + sums[6] + sums[7];
            group.pair_sums[half][slot][0] = static_cast<int16_t>(first);
            group.pair_sums[half][slot][1] = static_cast<int16_t>(second);
            total += first + second;
        }
        for (int i = 0; i < kGroup; ++i) {
            group.codes[i / 4][slot][i % 4] = static_cast<int8_t>(codes[i / kLanes][i % kLanes]);
        }
        group.scale[slot] = scale;
        group.sum[slot] = scale * static_cast<float>(total);
    }
}

static void convert_int16_row(const float* x, int64_t cols, int64_t slot, Int16Group* groups) {
    for (int64_t index = 0; index < cols / kGroup; ++index) {
        Int16Group& group = groups[index];
        i32x8 codes[4];
        group.scale[slot] = quantize_group(x + index * kGroup, 32767.0f, codes);
        for (int i = 0; i < kGroup; ++i) {
            group.codes[i / 2][slot][i % 2] = static_cast<int16_t>(codes[i / kLanes][i % kLanes]);
        }
    }
}

static void convert_activations(ActivationKind kind, const float* x, int64_t stride, int64_t rows,
                                int64_t cols, int64_t row_begin, int64_t row_end,
                                std::byte* activations) {
    if (kind == ActivationKind::F32) {
        for (int64_t row = row_begin; row < row_end; ++row) {
            std::memcpy(activations + row * cols * static_cast<int64_t>(sizeof(float)),
                        x + row * stride, static_cast<size_t>(cols) * sizeof(float));
        }
        return;
    }
    const int64_t groups = cols / kGroup;
    for (int64_t tile = row_begin / kTileRows; tile < tiles_of(row_end); ++tile) {
        const bool bytes = kind == ActivationKind::Int8;
        auto* int8 = reinterpret_cast<Int8Group*>(activations) + tile * groups;
        auto* int16 = reinterpret_cast<Int16Group*>(activations) + tile * groups;
        const int64_t full = rows - tile * kTileRows;
        if (full < kTileRows) {
            std::memset(
                bytes ? static_cast<void*>(int8) : static_cast<void*>(int16), 0,
                static_cast<size_t>(groups) * (bytes ? sizeof(Int8Group) : sizeof(Int16Group)));
        }
        for (int64_t slot = 0; slot < kTileRows && slot < full; ++slot) {
            const float* row = x + (tile * kTileRows + slot) * stride;
            if (bytes) {
                convert_int8_row(row, cols, slot, int8);
            } else {
                convert_int16_row(row, cols, slot, int16);
            }
        }
    }
}

}  // namespace caudal::CAUDAL_ISA
