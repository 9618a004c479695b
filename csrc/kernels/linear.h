// Linear layers on packed weights: the interface between the runtime and the GEMM/GEMV kernels.
//
// y[m][n] = Σ_k x[m][k] · w[n][k] (+ bias[n]) (+ y[m][n])
//
// Weights are repacked at load into panels of `kPanelRows` output rows; activations are quantised
// once per operation input into tiles and shared by all matrices that read the same input. Both
// layouts belong to the instruction set's kernels: nobody outside looks into them.
//
// Batch invariance: the value of y[m][n] is the same to the bit whatever the number of rows m, the
// panel range of a call, and the thread that runs it. Kernels for one row and for many therefore
// use the same summation order over k.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quant/tensor_type.h"

namespace caudal {

constexpr int64_t kPanelRows = 16;

// How activations are stored. Each weight type has a preferred kind: F32 for float weights, Int8 (a
// scale for every 32 values) for up to six bits a weight, Int16 for eight bits. Where Int8 is
// preferred, Int8Twice works too: the rounding error of the first term is quantised as a second
// one, for twice the work and 1/250 of the error. F32 works with every type, as a slow reference:
// dequantised weights times unquantised activations.
enum class ActivationKind : uint8_t { F32 = 0, Int8 = 1, Int16 = 2, Int8Twice = 3 };

// How weights that stream by are asked for before they are needed. What is fastest differs from
// processor to processor, and with where the weights are; results don't.
struct StreamPolicy {
    // The cache that they are asked into.
    enum class Level : uint8_t { None = 0, First = 1, Second = 2 };

    Level level = Level::First;
    int32_t bytes_ahead = 20 * 1024;  // more would push what comes first out of the cache
    // Panels that a single row meets side by side: 1, or 2 where there are registers of 512 bits.
    int32_t streams = 1;

    bool operator==(const StreamPolicy&) const = default;
};

// A weight matrix in the kernels' own layout. Owns nothing: the runtime owns the bytes.
struct PackedMatrix {
    TensorType type = TensorType::F32;
    int64_t rows = 0;                 // output features
    int64_t cols = 0;                 // input features, a multiple of the type's block
    const std::byte* data = nullptr;  // 64-byte aligned
    StreamPolicy stream{};            // for few rows of activations

    int64_t panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
};

struct LinearKernels {
    // Which layout `pack` makes: kernels of the same number read each other's packed weights, which
    // may have been kept in a file meanwhile.
    uint32_t layout;

    // Bytes that `pack` needs for a matrix of this type and shape. Throws std::invalid_argument if
    // its rows aren't whole blocks.
    size_t (*packed_bytes)(TensorType type, int64_t rows, int64_t cols);

    // Repacks panels [panel_begin, panel_end) of a row-major GGUF tensor into `out` (the start of
    // the whole packed matrix). Rows past `rows` in the last panel become zero. Threads may pack
    // different panels at once. Throws std::invalid_argument if `source` is too short.
    void (*pack)(TensorType type, std::span<const std::byte> source, int64_t rows, int64_t cols,
                 int64_t panel_begin, int64_t panel_end, std::byte* out);

    // Writes row `row` of the matrix as floats: exactly the values of the GGUF tensor.
    void (*unpack_row)(const PackedMatrix& matrix, int64_t row, float* out);

    // The kind of activations that is fastest for this weight type (F32 for float weights).
    ActivationKind (*preferred_activations)(TensorType type);

    // Bytes for `rows` × `cols` activations of a kind.
    size_t (*activation_bytes)(ActivationKind kind, int64_t rows, int64_t cols);

    // Converts rows [row_begin, row_end) of x (`stride` floats from row to row) into an activation
    // buffer. row_begin is a multiple of 4, and so is row_end unless it is the end of the buffer's
    // rows; threads may convert different rows at once. Rows that hold an infinity or NaN give NaN.
    void (*convert)(ActivationKind kind, const float* x, int64_t stride, int64_t cols,
                    int64_t row_begin, int64_t row_end, std::byte* activations);

    // Computes columns [16·panel_begin, min(16·panel_end, matrix.rows)) of y for all `rows` rows.
    // `bias` may be null; `accumulate` adds to what y holds (the residual connection). Throws
    // std::invalid_argument for a kind that doesn't go with the type.
    void (*multiply)(const PackedMatrix& matrix, ActivationKind kind, const std::byte* activations,
                     int64_t rows, int64_t panel_begin, int64_t panel_end, const float* bias,
                     bool accumulate, float* y, int64_t y_stride);
};

}  // namespace caudal
