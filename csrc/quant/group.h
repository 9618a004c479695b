// One group of 32 codes of any quantised type, taken out of its block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/encoding.h"
#include "quant/tensor_type.h"

namespace caudal {

// Fields that a type doesn't have are zero. `half` indexes the two halves of a group; types with
// one integer for the whole group repeat it.
struct Group {
    uint8_t codes[kGroup] = {};
    uint16_t scale = 0;         // half-precision bits, or the exponent of E8M0
    float float_scale = 1;      // of a row or of a block
    uint16_t minimum = 0;       // half-precision bits
    int8_t factor[2] = {1, 1};  // integers that multiply the scale, or bits of 8-bit floats
    uint8_t minimum_factor[2] = {1, 1};  // and the minimum
    uint8_t zero = 0;                    // subtracted from the codes
};

// Reads group `index` of a row of GGUF blocks. The row must hold it.
Group read_group(TensorType type, const std::byte* row, int64_t index);

// The numbers that a group stands for, rounded as the format's definition rounds them.
void dequantize_group(TensorType type, const Group& group, float* out);

// A float element of an F32, F16 or BF16 row.
float read_float(TensorType type, const std::byte* row, int64_t index);

// Dequantises `count` consecutive elements (whole blocks) of a GGUF tensor.
void dequantize(TensorType type, const std::byte* blocks, int64_t count, float* out);

}  // namespace caudal
