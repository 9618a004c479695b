// Floats to blocks of GGUF's quantised types, as llama.cpp's reference does it without weights of
// importance: the same searches, with the same operations on each group of numbers in the same
// order. Nothing is fused, so that all instruction sets, and llama.cpp, choose the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/tensor_type.h"

namespace caudal {

struct QuantiseKernels {
    // The numbers in `count` elements of a float type (F32, F16, BF16).
    void (*read_floats)(TensorType type, const std::byte* from, int64_t count, float* out);
    // Writes `count` floats, whole blocks of the type, to `out`. Returns false where one isn't
    // finite, or none of the type's; the bytes mean nothing then. The types are F32, F16, BF16,
    // Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, and Q2_K to Q6_K.
    bool (*write_blocks)(TensorType type, const float* x, int64_t count, std::byte* out);
};

// Whether `write_blocks` knows a type.
bool can_write(TensorType type);

}  // namespace caudal
