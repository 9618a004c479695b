// What the block formats have in common.
//
// Every quantised type stores small integer codes and, for each group of 32 codes, what turns them
// back into numbers: value = scale · (code − offset) [± minimum]. The types differ in the width of
// a code, in how scale and minimum are stored, and in whether a code is a number or looks one up.
#pragma once

#include <cstdint>

#include "quant/tensor_type.h"

namespace caudal {

constexpr int64_t kGroup = 32;       // codes in a group
constexpr int64_t kSuperGroups = 8;  // groups in a 256-element superblock (the K types)

enum class Scales : uint8_t {
    None,      // float types: no codes at all
    Half,      // each group: a half-precision scale (and minimum)
    Exponent,  // each group: a power of two (E8M0)
    Super32,   // half scale (and minimum) a superblock, times an integer a group
    Super16,   // the same, with an integer for each half of a group
};

enum class Codebook : uint8_t { None, Iq4, Mxfp4 };

struct Encoding {
    Scales scales = Scales::None;
    int bits = 0;          // width of a code
    int offset = 0;        // subtracted from a code
    bool minimum = false;  // whether groups have a minimum besides the scale
    Codebook codebook = Codebook::None;

    constexpr bool super() const { return scales == Scales::Super32 || scales == Scales::Super16; }
};

// Float types have an empty encoding.
constexpr Encoding encoding_of(TensorType type) {
    switch (type) {
        case TensorType::Q4_0:
            return {Scales::Half, 4, 8};
        case TensorType::Q4_1:
            return {Scales::Half, 4, 0, true};
        case TensorType::Q5_0:
            return {Scales::Half, 5, 16};
        case TensorType::Q5_1:
            return {Scales::Half, 5, 0, true};
        case TensorType::Q8_0:
            return {Scales::Half, 8, 0};
        case TensorType::Q2_K:
            return {Scales::Super16, 2, 0, true};
        case TensorType::Q3_K:
            return {Scales::Super16, 3, 4};
        case TensorType::Q4_K:
            return {Scales::Super32, 4, 0, true};
        case TensorType::Q5_K:
            return {Scales::Super32, 5, 0, true};
        case TensorType::Q6_K:
            return {Scales::Super16, 6, 32};
        case TensorType::IQ4_NL:
            return {Scales::Half, 4, 0, false, Codebook::Iq4};
        case TensorType::IQ4_XS:
            return {Scales::Super32, 4, 0, false, Codebook::Iq4};
        case TensorType::MXFP4:
            return {Scales::Exponent, 4, 0, false, Codebook::Mxfp4};
        case TensorType::F32:
        case TensorType::F16:
        case TensorType::BF16:
            return {};
    }
    return {};
}

// What the codes of the two codebook formats stand for. MXFP4's are E2M1 numbers, doubled.
constexpr int8_t kIq4Codebook[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t kMxfp4Codebook[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace caudal
