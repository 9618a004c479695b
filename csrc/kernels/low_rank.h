// Factors of adapters (LoRA, arXiv 2106.09685), and how a few rows of floats are multiplied by
// them.
//
// A factor is a matrix with few rows, or few columns. It is kept as floats, or rounded to BF16, in
// panels of kPanelRows rows, column by column; columns of BF16 in pairs, which side by side make a
// 32-bit number for each row (the second column's half is the upper one). All instruction sets read
// this layout.
//
// Batch invariance: the value of y[m][n] is the same to the bit whatever the number of rows m and
// the panel range of a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/linear.h"

namespace caudal {

struct Factor {
    bool exact = false;  // floats as they are; else BF16
    int64_t rows = 0;
    int64_t cols = 0;
    const std::byte* data = nullptr;  // 64-byte aligned; the runtime owns the bytes

    int64_t panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
    int64_t panel_bytes() const { return kPanelRows * (exact ? 4 * cols : 4 * ((cols + 1) / 2)); }
    size_t bytes() const { return static_cast<size_t>(panels() * panel_bytes()); }
};

// Packs row-major values, rounded to the nearest, to even where two are, into `out`, of as many
// bytes as the factor has. Rows past the last in the last panel become zero.
void pack_factor(const Factor& factor, std::span<const float> values, std::span<std::byte> out);

struct LowRankKernels {
    // Computes columns [16·panel_begin, min(16·panel_end, factor.rows)) of y for all `rows` rows:
    // y[m][n] = Σ_k x[m][k] · factor[n][k], or adds that to what y holds.
    void (*multiply)(const Factor& factor, const float* x, int64_t x_stride, int64_t rows,
                     int64_t panel_begin, int64_t panel_end, bool accumulate, float* y,
                     int64_t y_stride);
};

}  // namespace caudal
