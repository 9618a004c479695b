// The tensor types of GGUF files (ggml's numbering) and their block geometry; and, from 256 on,
// those that other checkpoints' weights are read as, in blocks of our own.
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
    Q2_0 = 42,
    // Half-precision scale, zero (a byte), and 32, 64 or 128 codes in nibbles, in order, the lower
    // first: scale · (code − zero).
    INT4_G32 = 256,
    INT4_G64 = 257,
    INT4_G128 = 258,
    // A float scale, the same for a whole row, and 32 signed bytes.
    INT8_ROW = 259,
    // A float scale, the same for a whole row, and a block of NVFP4.
    NVFP4_ROW = 260,
    // A float scale and 32 signed bytes.
    INT8_G32 = 261,
    // A float scale and 32 or 128 floats of eight bits (E4M3).
    FP8_G32 = 262,
    FP8_G128 = 263,
    // A float scale and 64 nibbles, in order, the lower first, that stand for the normal float
    // numbers of QLoRA (arXiv 2305.14314).
    NF4_G64 = 264,
    // Q2_0 in blocks of 128, which files of PrismML's have under the number of Q2_0.
    Q2_0_G128 = 265,
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
