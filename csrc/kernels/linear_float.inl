// Weights as floats times float activations: the fast way for F32, F16 and BF16, and for every
// quantised type the reference that involves no rounding of activations.
//
// Every output is one chain of fused multiply-adds in the order of k, whatever the tile.
#pragma once

#include <type_traits>

#include "kernels/int_vec.inl"
#include "kernels/output.inl"
#include "kernels/panel.h"
#include "kernels/wide_vec.inl"

namespace caudal::CAUDAL_ISA {

// A tile is two vectors of output rows × six activation rows: twelve sums hide the latency of a
// multiply-add, and each value that is loaded is used more than once.
constexpr int kFloatTileRows = 6;
constexpr int kFloatPanels = 2 / kHalves;
constexpr int64_t kColumnsAtOnce = 128;
constexpr int64_t kFloatRowsAtOnce = 240;
// Up to this many activation rows work on float weights as they are packed.
constexpr int64_t kMostPackedRows = 24;

template <TensorType type>
constexpr int64_t kColumnBytes = kPanelRows * (type == TensorType::F32 ? 4 : 2);

// A vector of weights of column k of a panel.
template <TensorType type>
CAUDAL_INLINE f32w load_weights(const std::byte* panel, int64_t k, int half) {
    const int64_t index = k * kPanelRows + half * kWideLanes;
    if constexpr (type == TensorType::F32) {
        return load_wide(reinterpret_cast<const float*>(panel) + index);
    } else if constexpr (type == TensorType::F16) {
        return load_wide(reinterpret_cast<const Half*>(panel) + index);
    } else {
        return (f32w)(widen_u16_wide(panel + index * 2) << 16);
    }
}

// Multiplies `count` columns of one or more panels (`panel_stride` bytes apart) with `tokens` rows
// of activations, continuing the sums [panel][token][16 rows]. Without a policy the panels are in
// the cache.
template <TensorType type, int panels, int tokens>
static void multiply_columns(const std::byte* weights, int64_t panel_stride, int64_t count,
                             const float* x, int64_t x_stride, const StreamPolicy* stream,
                             float* sums) {
    const int64_t ahead = stream == nullptr ? 0 : stream->bytes_ahead / panels;
    const auto level = stream == nullptr ? StreamPolicy::Level::None : stream->level;
    f32w values[panels][kHalves][tokens];
    const auto at = [&](int p, int half, int t) CAUDAL_INLINE_BODY {
        return sums + (p * tokens + t) * kPanelRows + half * kWideLanes;
    };
    unrolled<panels * kHalves>([&](auto v) CAUDAL_INLINE_BODY {
        constexpr int p = v / kHalves;
        constexpr int half = v % kHalves;
        unrolled<tokens>(
            [&](auto t) CAUDAL_INLINE_BODY { values[p][half][t] = load_wide(at(p, half, t)); });
    });
    for (int64_t k = 0; k < count; ++k) {
        unrolled<panels>([&](auto p) CAUDAL_INLINE_BODY {
            const std::byte* panel = weights + p * panel_stride;
            prefetch_bytes(panel + ahead + k * kColumnBytes<type>, 1, level);
            f32w column[kHalves];
            for (int half = 0; half < kHalves; ++half) {
                column[half] = load_weights<type>(panel, k, half);
            }
            unrolled<tokens>([&](auto t) CAUDAL_INLINE_BODY {
                const f32w activation = splat_wide(x[t * x_stride + k]);
                for (int half = 0; half < kHalves; ++half) {
                    values[p][half][t] = multiply_add(column[half], activation, values[p][half][t]);
                }
            });
        });
    }
    unrolled<panels * kHalves>([&](auto v) CAUDAL_INLINE_BODY {
        constexpr int p = v / kHalves;
        constexpr int half = v % kHalves;
        unrolled<tokens>([&](auto t)
                             CAUDAL_INLINE_BODY { store(at(p, half, t), values[p][half][t]); });
    });
}

// The same for a number of rows known only now.
template <TensorType type, int panels, int most = kFloatTileRows>
static void multiply_float_tile(const std::byte* weights, int64_t panel_stride, int64_t count,
                                const float* x, int64_t x_stride, int64_t tokens,
                                const StreamPolicy* stream, float* sums) {
    if constexpr (most > 1) {
        if (tokens < most) {
            return multiply_float_tile<type, panels, most - 1>(weights, panel_stride, count, x,
                                                               x_stride, tokens, stream, sums);
        }
    }
    multiply_columns<type, panels, most>(weights, panel_stride, count, x, x_stride, stream, sums);
}

// How many of `left` rows to take next: tiles of equal size, or nearly.
static int64_t next_tile(int64_t left) {
    const int64_t tiles = (left + kFloatTileRows - 1) / kFloatTileRows;
    return (left + tiles - 1) / tiles;
}

// Panels as they are packed with a number of rows of activations, `most` at most.
template <TensorType type, int panels, int most = kFloatTileRows>
static void multiply_float_panels(const PackedMatrix& matrix, const float* x, int64_t first,
                                  int64_t tokens, int64_t panel, const Output& output) {
    const int64_t stride = matrix.cols * kColumnBytes<type>;
    alignas(kWideBytes) float sums[panels * most * kPanelRows] = {};
    multiply_float_tile<type, panels, most>(matrix.data + panel * stride, stride, matrix.cols,
                                            x + first * matrix.cols, matrix.cols, tokens,
                                            &matrix.stream, sums);
    for (int64_t p = 0; p < panels; ++p) {
        for (int64_t t = 0; t < tokens; ++t) {
            output.write(panel + p, first + t, sums + (p * tokens + t) * kPanelRows);
        }
    }
}

// Few rows of activations over panels as they are packed: more panels at once where one or two rows
// would make too few sums.
template <TensorType type>
static void multiply_few_floats(const PackedMatrix& matrix, const float* x, int64_t rows,
                                int64_t panel_begin, int64_t panel_end, const Output& output) {
    constexpr int wide = 4 * kFloatPanels;
    constexpr int medium = 2 * kFloatPanels;
    int64_t panel = panel_begin;
    for (; rows == 1 && panel + wide <= panel_end; panel += wide) {
        multiply_float_panels<type, wide, 1>(matrix, x, 0, rows, panel, output);
    }
    for (; rows == 2 && panel + medium <= panel_end; panel += medium) {
        multiply_float_panels<type, medium, 2>(matrix, x, 0, rows, panel, output);
    }
    const auto rest = [&]<int panels>(std::integral_constant<int, panels>) {
        for (; panel + panels <= panel_end; panel += panels) {
            for (int64_t row = 0; row < rows;) {
                const int64_t tokens = next_tile(rows - row);
                multiply_float_panels<type, panels>(matrix, x, row, tokens, panel, output);
                row += tokens;
            }
        }
    };
    rest(std::integral_constant<int, kFloatPanels>{});
    rest(std::integral_constant<int, 1>{});
}

// A float for each of a panel's rows, of codes that are looked up or small integers.
template <FloatCodes floats>
CAUDAL_INLINE f32w floats_of(const std::byte* codes, int shift) {
    if constexpr (floats == FloatCodes::None) {
        return to_floats(widen_s8_wide(codes));
    } else if constexpr (floats == FloatCodes::E4m3) {
        const i32w bits = widen_u8_wide(codes);
        return (f32w)((bits & 0x7f) << 20 | (bits & 0x80) << 24) * splat_wide(0x1p120f);
    } else {
        return look_up_floats(kNf4Codebook, (widen_u8_wide(codes) >> shift) & 15);
    }
}

// Columns [begin, end) of a panel of a type with float scales.
template <TensorType type>
static void columns_to_floats(const std::byte* panel, int64_t begin, int64_t end, float* out) {
    constexpr Encoding encoding = encoding_of(type);
    constexpr PanelLayout layout = panel_layout(type);
    for (int64_t k = begin; k < end; ++k) {
        const int64_t group = k / kGroup;
        const int64_t line = encoding.bits == 4 ? k % kGroup / 2 : k % kGroup;
        const std::byte* column = panel + layout.group_at(group) + line * kPanelRows;
        for (int half = 0; half < kHalves; ++half) {
            const auto* scales =
                reinterpret_cast<const float*>(panel + layout.header_at(group)) + half * kWideLanes;
            store(out + half * kWideLanes,
                  floats_of<encoding.floats>(column + half * kWideLanes, k % 2 == 0 ? 0 : 4) *
                      load_wide(scales));
        }
        out += kPanelRows;
    }
}

// Columns [begin, end) of a panel as floats, in `scratch` unless they are floats already.
static const std::byte* float_columns(const PackedMatrix& matrix, const std::byte* panel,
                                      int64_t begin, int64_t end, float* scratch) {
    if (matrix.type == TensorType::F32) return panel + begin * kPanelRows * 4;
    const auto convert = [&]<TensorType type>(std::integral_constant<TensorType, type>) {
        columns_to_floats<type>(panel, begin, end, scratch);
        return reinterpret_cast<const std::byte*>(scratch);
    };
    switch (matrix.type) {
        case TensorType::INT8_G32:
            return convert(std::integral_constant<TensorType, TensorType::INT8_G32>{});
        case TensorType::FP8_G32:
            return convert(std::integral_constant<TensorType, TensorType::FP8_G32>{});
        case TensorType::FP8_G128:
            return convert(std::integral_constant<TensorType, TensorType::FP8_G128>{});
        case TensorType::NF4_G64:
            return convert(std::integral_constant<TensorType, TensorType::NF4_G64>{});
        default:
            break;
    }
    if (matrix.type != TensorType::F16 && matrix.type != TensorType::BF16) {
        dequantize_panel(matrix.type, panel, begin, end, scratch);
        return reinterpret_cast<const std::byte*>(scratch);
    }
    for (int64_t k = begin; k < end; ++k) {
        for (int half = 0; half < kHalves; ++half) {
            store(scratch + (k - begin) * kPanelRows + half * kWideLanes,
                  matrix.type == TensorType::F16 ? load_weights<TensorType::F16>(panel, k, half)
                                                 : load_weights<TensorType::BF16>(panel, k, half));
        }
    }
    return reinterpret_cast<const std::byte*>(scratch);
}

// Many rows, or weights that have to become floats first: stretches of `panels` panels as floats in
// the first-level cache. `some` rows from row `first`.
template <int panels>
static void multiply_many_floats(const PackedMatrix& matrix, const float* x, int64_t first,
                                 int64_t some, int64_t panel, const Output& output) {
    constexpr int64_t scratch_bytes = kColumnsAtOnce * kPanelRows * 4;
    const int64_t stride = panel_bytes(matrix.type, matrix.cols);
    const std::byte* data = matrix.data + panel * stride;
    alignas(kWideBytes) float weights[panels][kColumnsAtOnce * kPanelRows];
    alignas(kWideBytes) float sums[panels * kFloatRowsAtOnce * kPanelRows];
    std::memset(sums, 0, static_cast<size_t>(panels * some * kPanelRows) * sizeof(float));
    for (int64_t begin = 0; begin < matrix.cols; begin += kColumnsAtOnce) {
        const int64_t end =
            begin + kColumnsAtOnce < matrix.cols ? begin + kColumnsAtOnce : matrix.cols;
        const std::byte* stretch = nullptr;
        for (int p = panels - 1; p >= 0; --p) {
            const int64_t bytes = stride / matrix.cols * kColumnsAtOnce;
            prefetch_bytes(data + p * stride + begin * stride / matrix.cols + bytes, bytes);
            stretch = float_columns(matrix, data + p * stride, begin, end, weights[p]);
        }
        const int64_t panel_stride = matrix.type == TensorType::F32 ? stride : scratch_bytes;
        for (int64_t row = 0; row < some;) {
            const int64_t tokens = next_tile(some - row);
            if (end == matrix.cols) {
                for (int64_t t = 0; t < tokens; ++t) {
                    for (int p = 0; p < panels; ++p) output.prefetch(panel + p, first + row + t);
                }
            }
            // A tile's sums are [panel][token]: those of earlier rows fill panels · row before
            // them.
            multiply_float_tile<TensorType::F32, panels>(
                stretch, panel_stride, end - begin, x + (first + row) * matrix.cols + begin,
                matrix.cols, tokens, nullptr, sums + panels * row * kPanelRows);
            row += tokens;
        }
    }
    for (int64_t row = 0; row < some;) {
        const int64_t tokens = next_tile(some - row);
        for (int64_t p = 0; p < panels; ++p) {
            for (int64_t t = 0; t < tokens; ++t) {
                output.write(panel + p, first + row + t,
                             sums + (panels * row + p * tokens + t) * kPanelRows);
            }
        }
        row += tokens;
    }
}

static void multiply_floats(const PackedMatrix& matrix, const std::byte* activations, int64_t rows,
                            int64_t panel_begin, int64_t panel_end, const Output& output) {
    const auto* x = reinterpret_cast<const float*>(activations);
    const bool few = rows <= kMostPackedRows;
    if (few && matrix.type == TensorType::F32) {
        return multiply_few_floats<TensorType::F32>(matrix, x, rows, panel_begin, panel_end,
                                                    output);
    }
    if (few && matrix.type == TensorType::F16) {
        return multiply_few_floats<TensorType::F16>(matrix, x, rows, panel_begin, panel_end,
                                                    output);
    }
    if (few && matrix.type == TensorType::BF16) {
        return multiply_few_floats<TensorType::BF16>(matrix, x, rows, panel_begin, panel_end,
                                                     output);
    }
    for (int64_t first = 0; first < rows; first += kFloatRowsAtOnce) {
        const int64_t left = rows - first;
        const int64_t some = left < kFloatRowsAtOnce ? left : kFloatRowsAtOnce;
        int64_t panel = panel_begin;
        for (; panel + kFloatPanels <= panel_end; panel += kFloatPanels) {
            multiply_many_floats<kFloatPanels>(matrix, x, first, some, panel, output);
        }
        for (; panel < panel_end; ++panel) {
            multiply_many_floats<1>(matrix, x, first, some, panel, output);
        }
    }
}

}  // namespace caudal::CAUDAL_ISA
