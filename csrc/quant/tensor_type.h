// The tensor types of GGUF files and their block geometry (ggml's numbering).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace caudal {

enum class TensorType : uint32_t {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    IQ1_M = 29,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    MXFP4 = 39,
    NVFP4 = 40,
    Q1_0 = 41,
};

// How many weights a block holds and how many bytes it takes; a row is whole blocks.
struct BlockGeometry {
    const char* name;
    int64_t elements;
    int64_t bytes;
};

// Throws std::invalid_argument for a type that isn't listed above.
BlockGeometry block_geometry(TensorType type);

}  // namespace caudal
