// Weights as floats times float activations: the fast way for F32, F16 and BF16, and for every
// quantised type the reference that involves no rounding of activations.
//
// Every output is one chain of fused multiply-adds in the order of k, whatever the tile.
#pragma once

#include "kernels/int_vec.inl"
#include "kernels/output.inl"
#include "kernels/panel.h"

namespace caudal::CAUDAL_ISA {

constexpr int64_t kFloatTileRows = 6;
constexpr int64_t kColumnsAtOnce = 128;
constexpr int64_t kFloatRowsAtOnce = 240;
// Up to this many activation rows work on float weights as they are packed.
constexpr int64_t kMostPackedRows = 24;

template <TensorType type>
constexpr int64_t kColumnBytes = kPanelRows * (type == TensorType::F32 ? 4 : 2);

// Eight weights of column k of a panel.
template <TensorType type>
CAUDAL_INLINE f32x8 load_weights(const std::byte* panel, int64_t k, int half) {
    const int64_t index = k * kPanelRows + half * kLanes;
    if constexpr (type == TensorType::F32) {
        return load(reinterpret_cast<const float*>(panel) + index);
    } else if constexpr (type == TensorType::F16) {
        return load(reinterpret_cast<const Half*>(panel) + index);
    } else {
        return (f32x8)(widen_u16(panel + index * 2) << 16);
    }
}

// Multiplies `count` columns of one or more panels (`panel_stride` bytes apart) with `tokens` rows
// of activations, continuing the sums [panel][token][16 rows].
template <TensorType type, int panels, int tokens>
static void multiply_columns(const std::byte* weights, int64_t panel_stride, int64_t count,
                             const float* x, int64_t x_stride, float* sums) {
    f32x8 values[panels][2][tokens];
    unrolled<panels>([&](auto p) CAUDAL_INLINE_BODY {
        unrolled<tokens>([&](auto t) CAUDAL_INLINE_BODY {
            values[p][0][t] = load(sums + (p * tokens + t) * kPanelRows);
            values[p][1][t] = load(sums + (p * tokens + t) * kPanelRows + kLanes);
        });
    });
    for (int64_t k = 0; k < count; ++k) {
        unrolled<panels>([&](auto p) CAUDAL_INLINE_BODY {
            const std::byte* panel = weights + p * panel_stride;
            constexpr int64_t ahead = 256 / panels;  // columns: 2 to 16 KiB
            __builtin_prefetch(panel + (k + ahead) * kColumnBytes<type>);
            const f32x8 low = load_weights<type>(panel, k, 0);
            const f32x8 high = load_weights<type>(panel, k, 1);
            unrolled<tokens>([&](auto t) CAUDAL_INLINE_BODY {
                const f32x8 activation = splat(x[t * x_stride + k]);
                values[p][0][t] = multiply_add(low, activation, values[p][0][t]);
                values[p][1][t] = multiply_add(high, activation, values[p][1][t]);
            });
        });
    }
    unrolled<panels>([&](auto p) CAUDAL_INLINE_BODY {
        unrolled<tokens>([&](auto t) CAUDAL_INLINE_BODY {
            store(sums + (p * tokens + t) * kPanelRows, values[p][0][t]);
            store(sums + (p * tokens + t) * kPanelRows + kLanes, values[p][1][t]);
        });
    });
}

template <TensorType type>
static void multiply_float_tile(const std::byte* weights, int64_t count, const float* x,
                                int64_t x_stride, int64_t tokens, float* sums) {
    switch (tokens) {
        case 1:
            multiply_columns<type, 1, 1>(weights, 0, count, x, x_stride, sums);
            break;
        case 2:
            multiply_columns<type, 1, 2>(weights, 0, count, x, x_stride, sums);
            break;
        case 3:
            multiply_columns<type, 1, 3>(weights, 0, count, x, x_stride, sums);
            break;
        case 4:
            multiply_columns<type, 1, 4>(weights, 0, count, x, x_stride, sums);
            break;
        case 5:
            multiply_columns<type, 1, 5>(weights, 0, count, x, x_stride, sums);
            break;
        default:
            multiply_columns<type, 1, 6>(weights, 0, count, x, x_stride, sums);
            break;
    }
}

// How many of `left` rows to take next: tiles of equal size, or nearly.
static int64_t next_tile(int64_t left) {
    const int64_t tiles = (left + kFloatTileRows - 1) / kFloatTileRows;
    return (left + tiles - 1) / tiles;
}

// Several panels as they are packed with one or two rows of activations, for which one panel's sums
// would be too few to hide the latency of a multiply-add.
template <TensorType type, int panels, int tokens>
static void multiply_panels(const PackedMatrix& matrix, const float* x, int64_t panel,
                            const Output& output) {
    const int64_t stride = matrix.cols * kColumnBytes<type>;
    alignas(32) float sums[panels * tokens * kPanelRows] = {};
    multiply_columns<type, panels, tokens>(matrix.data + panel * stride, stride, matrix.cols, x,
                                           matrix.cols, sums);
    for (int64_t p = 0; p < panels; ++p) {
        for (int64_t t = 0; t < tokens; ++t) {
            output.write(panel + p, t, sums + (p * tokens + t) * kPanelRows);
        }
    }
}

// Few rows of activations over panels as they are packed.
template <TensorType type>
static void multiply_few_floats(const PackedMatrix& matrix, const float* x, int64_t rows,
                                int64_t panel_begin, int64_t panel_end, const Output& output) {
    const int64_t stride = matrix.cols * kColumnBytes<type>;
    int64_t panel = panel_begin;
    for (; rows == 1 && panel + 4 <= panel_end; panel += 4) {
        multiply_panels<type, 4, 1>(matrix, x, panel, output);
    }
    for (; rows == 2 && panel + 2 <= panel_end; panel += 2) {
        multiply_panels<type, 2, 2>(matrix, x, panel, output);
    }
    for (; panel < panel_end; ++panel) {
        for (int64_t row = 0; row < rows;) {
            const int64_t tokens = next_tile(rows - row);
            alignas(32) float sums[kFloatTileRows * kPanelRows] = {};
            multiply_float_tile<type>(matrix.data + panel * stride, matrix.cols,
                                      x + row * matrix.cols, matrix.cols, tokens, sums);
            for (int64_t t = 0; t < tokens; ++t) {
                output.write(panel, row + t, sums + t * kPanelRows);
            }
            row += tokens;
        }
    }
}

// Many rows, or weights that have to become floats first: stretches of a panel as floats in the
// first-level cache.
static void multiply_many_floats(const PackedMatrix& matrix, const float* x, int64_t rows,
                                 int64_t panel_begin, int64_t panel_end, const Output& output) {
    const int64_t stride = panel_bytes(matrix.type, matrix.cols);
    alignas(32) float weights[kColumnsAtOnce * kPanelRows];
    alignas(32) float sums[kFloatRowsAtOnce * kPanelRows];
    for (int64_t first = 0; first < rows; first += kFloatRowsAtOnce) {
        const int64_t left = rows - first;
        const int64_t some = left < kFloatRowsAtOnce ? left : kFloatRowsAtOnce;
        for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
            const std::byte* data = matrix.data + panel * stride;
            std::memset(sums, 0, static_cast<size_t>(some * kPanelRows) * sizeof(float));
            for (int64_t begin = 0; begin < matrix.cols; begin += kColumnsAtOnce) {
                const int64_t end =
                    begin + kColumnsAtOnce < matrix.cols ? begin + kColumnsAtOnce : matrix.cols;
                const int64_t bytes = stride / matrix.cols * kColumnsAtOnce;
                prefetch_bytes(data + begin * stride / matrix.cols + bytes, bytes);
                const auto* stretch = reinterpret_cast<const std::byte*>(weights);
                if (matrix.type == TensorType::F32) {
                    stretch = data + begin * kPanelRows * 4;
                } else if (matrix.type == TensorType::F16 || matrix.type == TensorType::BF16) {
                    for (int64_t k = begin; k < end; ++k) {
                        for (int half = 0; half < 2; ++half) {
                            store(weights + (k - begin) * kPanelRows + half * kLanes,
                                  matrix.type == TensorType::F16
                                      ? load_weights<TensorType::F16>(data, k, half)
                                      : load_weights<TensorType::BF16>(data, k, half));
                        }
                    }
                } else {
                    dequantize_panel(matrix.type, data, begin, end, weights);
                }
                for (int64_t row = 0; row < some;) {
                    const int64_t tokens = next_tile(some - row);
                    multiply_float_tile<TensorType::F32>(
                        stretch, end - begin, x + (first + row) * matrix.cols + begin, matrix.cols,
                        tokens, sums + row * kPanelRows);
                    row += tokens;
                }
            }
            for (int64_t row = 0; row < some; ++row) {
                output.write(panel, first + row, sums + row * kPanelRows);
            }
        }
    }
}

static void multiply_floats(const PackedMatrix& matrix, const std::byte* activations, int64_t rows,
                            int64_t panel_begin, int64_t panel_end, const Output& output) {
    const auto* x = reinterpret_cast<const float*>(activations);
    const bool few = rows <= kMostPackedRows;
    if (few && matrix.type == TensorType::F32) {
        multiply_few_floats<TensorType::F32>(matrix, x, rows, panel_begin, panel_end, output);
    } else if (few && matrix.type == TensorType::F16) {
        multiply_few_floats<TensorType::F16>(matrix, x, rows, panel_begin, panel_end, output);
    } else if (few && matrix.type == TensorType::BF16) {
        multiply_few_floats<TensorType::BF16>(matrix, x, rows, panel_begin, panel_end, output);
    } else {
        multiply_many_floats(matrix, x, rows, panel_begin, panel_end, output);
    }
}

}  // namespace caudal::CAUDAL_ISA
