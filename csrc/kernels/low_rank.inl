// Factors of adapters times a few rows of floats.
//
// A single chain of multiply-adds would wait for itself where there is one row, so every output is
// the sum of four: chain c has the columns k with k modulo 4 = c, in order, and the sum is
// (0 + 1) + (2 + 3).
#pragma once

#include "kernels/int_vec.inl"
#include "kernels/low_rank.h"
#include "kernels/output.inl"
#include "kernels/wide_vec.inl"

namespace caudal::CAUDAL_ISA {

constexpr int kChains = 4;
// Rows at once: as many as registers hold the chains of.
constexpr int kChainRows = kHalves == 1 ? 4 : 1;

// Half of a column: the first of those at `from`, or one behind it.
template <bool exact, int column>
CAUDAL_INLINE f32w load_factor(const std::byte* from, int half) {
    constexpr int line = exact ? column : column / 2;
    from += (line * kPanelRows + half * kWideLanes) * 4;
    if constexpr (exact) {
        return load_wide(reinterpret_cast<const float*>(from));
    } else {
        const i32w pair = load_bytes_wide(from);
        return (f32w)(column % 2 == 1 ? pair & static_cast<int32_t>(0xffff0000) : pair << 16);
    }
}

// A panel times rows of x that are `x_stride` apart: y's rows from `row` on.
template <bool exact, int rows>
CAUDAL_INLINE void multiply_chains(const std::byte* weights, int64_t cols, const float* x,
                                   int64_t x_stride, int64_t panel, int64_t row,
                                   const Output& output) {
    constexpr int64_t bytes_of_step = kChains * kPanelRows * (exact ? 4 : 2);
    constexpr int64_t ahead = 8192;  // bytes
    f32w sums[rows][kChains][kHalves];
    unrolled<rows * kChains>([&](auto i) CAUDAL_INLINE_BODY {
        for (int half = 0; half < kHalves; ++half) {
            sums[i / kChains][i % kChains][half] = splat_wide(0.0f);
        }
    });
    const auto add_column = [&](auto chain) CAUDAL_INLINE_BODY {
        f32w column[kHalves];
        for (int half = 0; half < kHalves; ++half) {
            column[half] = load_factor<exact, chain>(weights, half);
        }
        unrolled<rows>([&](auto r) CAUDAL_INLINE_BODY {
            const f32w value = splat_wide(x[r * x_stride + chain]);
            for (int half = 0; half < kHalves; ++half) {
                f32w& sum = sums[r][chain][half];
                sum = multiply_add(column[half], value, sum);
            }
        });
    };
    for (; cols >= kChains; cols -= kChains) {
        prefetch_bytes(weights + ahead, bytes_of_step);
        unrolled<kChains>(add_column);
        weights += bytes_of_step;
        x += kChains;
    }
    unrolled<kChains - 1>([&](auto chain) CAUDAL_INLINE_BODY {
        if (chain < cols) add_column(chain);
    });
    unrolled<rows>([&](auto r) CAUDAL_INLINE_BODY {
        f32w total[kHalves];
        for (int half = 0; half < kHalves; ++half) {
            total[half] =
                (sums[r][0][half] + sums[r][1][half]) + (sums[r][2][half] + sums[r][3][half]);
        }
        output.write(panel, row + r, total);
    });
}

template <bool exact>
static void multiply_factor(const Factor& factor, const float* x, int64_t x_stride, int64_t rows,
                            int64_t panel_begin, int64_t panel_end, const Output& output) {
    const int64_t bytes = factor.panel_bytes();
    const int64_t cols = factor.cols;
    const int64_t together = rows / kChainRows * kChainRows;
    for (int64_t row = 0; row < together; row += kChainRows) {
        for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
            multiply_chains<exact, kChainRows>(factor.data + panel * bytes, cols,
                                               x + row * x_stride, x_stride, panel, row, output);
        }
    }
    for (int64_t row = together; row < rows; ++row) {
        for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
            multiply_chains<exact, 1>(factor.data + panel * bytes, cols, x + row * x_stride,
                                      x_stride, panel, row, output);
        }
    }
}

static void multiply_low_rank(const Factor& factor, const float* x, int64_t x_stride, int64_t rows,
                              int64_t panel_begin, int64_t panel_end, bool accumulate, float* y,
                              int64_t y_stride) {
    const Output output{y, y_stride, factor.rows, nullptr, accumulate};
    const auto multiply = factor.exact ? multiply_factor<true> : multiply_factor<false>;
    multiply(factor, x, x_stride, rows, panel_begin, panel_end, output);
}

static LowRankKernels low_rank_kernels() {
    return {multiply_low_rank};
}

}  // namespace caudal::CAUDAL_ISA
