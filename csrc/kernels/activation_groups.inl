// Activations as the linear kernels read them.
//
// F32 is row-major. The integer kinds are tiles of four rows, cut along k into groups of 32 with
// one scale a row; within a group the four rows alternate every four bytes, so that a kernel
// broadcasts 32 bits at a time. A tile that is not full holds zeros. Int8Twice has a tile's groups
// of the second term behind those of the first.
#pragma once

#include "kernels/panel.h"

namespace caudal::CAUDAL_ISA {

constexpr int64_t kTileRows = 4;

#if defined(__AVX512VNNI__)
struct Int8Group {
    float scale[kTileRows];
    float sum[kTileRows];             // of the dequantised values: what a minimum is multiplied by
    int16_t half_sums[kTileRows][2];  // of the codes of each half of the group
    // −8 · Σ of the codes: where sums of products with codes of four bits start whose offset is 8.
    int32_t minus_eight_sums[kTileRows];
    int8_t codes[kGroup / 4][kTileRows][4];
};
#else
struct Int8Group {
    float scale[kTileRows];
    float sum[kTileRows];  // of the dequantised values: what a minimum is multiplied by
    // For each half of the group: Σ of elements 0, 1 and Σ of elements 2, 3 of every four. The
    // kernels' 16-bit lanes add up just these pairs, so an offset can be subtracted up front.
    int16_t pair_sums[2][kTileRows][2];
    int8_t codes[kGroup / 4][kTileRows][4];
};
#endif

#if defined(CAUDAL_NEON)
struct Int16Group {  // in two bytes, for dot products of bytes; four columns of a row together
    float scale[kTileRows];
    int32_t lower_sum[kTileRows];  // of the lower bytes
    int8_t upper[kGroup / 4][kTileRows][4];
    uint8_t lower[kGroup / 4][kTileRows][4];
};
#else
struct Int16Group {
    float scale[kTileRows];
    int32_t sum[kTileRows];  // of the codes
    int16_t codes[kGroup / 2][kTileRows][2];
};
#endif

static int64_t tiles_of(int64_t rows) {
    return (rows + kTileRows - 1) / kTileRows;
}

}  // namespace caudal::CAUDAL_ISA
