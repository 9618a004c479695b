// What the block formats have in common.
//
// Every quantised type stores small integer codes and, for each group of 32 codes, what turns them
// back into numbers: value = scale · (code − offset) [± minimum]. The types differ in the width of
// a code, in how scale and minimum are stored, and in whether a code is a number or looks one up.
//
// Encodings with float scales (Row, Float) are those of checkpoints other than GGUF files. What is
// multiplied as floats has codes that are looked up or small integers, times the scale.
//
// The encoding is that of a packed matrix. Files may store the same numbers more densely: an index
// into a grid of combinations (the IQ1, IQ2 and IQ3 types), or five codes in a byte (TQ1_0).
#pragma once

#include <array>
#include <cstdint>

#include "quant/tensor_type.h"

namespace caudal {

constexpr int64_t kGroup = 32;       // codes in a group
constexpr int64_t kSuperGroups = 8;  // groups in a 256-element superblock (the K types)

enum class Scales : uint8_t {
    None,      // float types: no codes at all
    Half,      // each group: a half-precision scale (and minimum)
    Block,     // a half-precision scale (and zero) for all groups of a block
    Exponent,  // each group: a power of two (E8M0)
    Fp8,       // each half of a group: an 8-bit float (E4M3 without a sign)
    Row,       // a float for a whole row
    Float,     // a float for all groups of a block
    Super32,   // half scale (and minimum) a superblock, times an integer a group
    Super16,   // the same, with an integer for each half of a group
};

enum class Codebook : uint8_t { None, Iq4, Mxfp4, Iq1, Iq2, Iq3Xxs, Iq3 };

// Codes that stand for floats rather than for integers.
enum class FloatCodes : uint8_t { None, E4m3, Nf4 };

struct Encoding {
    Scales scales = Scales::None;
    int bits = 0;          // width of a code
    int offset = 0;        // subtracted from a code
    bool minimum = false;  // whether groups have a minimum besides the scale
    Codebook codebook = Codebook::None;
    float unit = 1;          // multiplies the scale; a power of two
    float minimum_unit = 1;  // and the minimum
    int block_groups = 1;    // groups of a block that share what a panel's header holds
    bool zero = false;       // whether a block has an integer that is subtracted from its codes
    bool row_scale = false;  // whether all of a row is multiplied by a float besides
    FloatCodes floats = FloatCodes::None;

    constexpr bool super() const { return scales == Scales::Super32 || scales == Scales::Super16; }
    constexpr bool has_header() const {
        return super() || scales == Scales::Block || scales == Scales::Float;
    }
    // Whether something is added to the products that is in proportion to the activations' sum.
    constexpr bool shifted() const { return minimum || zero; }
};

// The encoding of 4-bit integers with a zero.
constexpr Encoding with_zero(int block_groups) {
    Encoding encoding{Scales::Block, 4};
    encoding.block_groups = block_groups;
    encoding.zero = true;
    return encoding;
}

// The encoding of a type that is multiplied as floats.
constexpr Encoding small_floats(int bits, int block_groups, FloatCodes floats) {
    Encoding encoding{Scales::Float, bits};
    encoding.block_groups = block_groups;
    encoding.floats = floats;
    return encoding;
}

// The encoding of a type with superblocks.
constexpr Encoding super(Scales scales, int bits, int offset, bool minimum = false,
                         Codebook codebook = Codebook::None, float unit = 1,
                         float minimum_unit = 1) {
    return {scales, bits, offset, minimum, codebook, unit, minimum_unit, kSuperGroups};
}

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
            return super(Scales::Super16, 2, 0, true);
        case TensorType::Q3_K:
            return super(Scales::Super16, 3, 4);
        case TensorType::Q4_K:
            return super(Scales::Super32, 4, 0, true);
        case TensorType::Q5_K:
            return super(Scales::Super32, 5, 0, true);
        case TensorType::Q6_K:
            return super(Scales::Super16, 6, 32);
        case TensorType::IQ4_NL:
            return {Scales::Half, 4, 0, false, Codebook::Iq4};
        case TensorType::IQ4_XS:
            return super(Scales::Super32, 4, 0, false, Codebook::Iq4);
        case TensorType::MXFP4:
            return {Scales::Exponent, 4, 0, false, Codebook::Mxfp4};
        case TensorType::NVFP4:
            return {Scales::Fp8, 4, 0, false, Codebook::Mxfp4, 0.5f};
        case TensorType::NVFP4_ROW: {
            Encoding encoding{Scales::Fp8, 4, 0, false, Codebook::Mxfp4, 0.5f};
            encoding.row_scale = true;
            return encoding;
        }
        case TensorType::INT8_ROW: {
            Encoding encoding{Scales::Row, 8};
            encoding.row_scale = true;
            return encoding;
        }
        case TensorType::INT4_G32:
            return with_zero(1);
        case TensorType::INT4_G64:
            return with_zero(2);
        case TensorType::INT4_G128:
            return with_zero(4);
        case TensorType::INT8_G32:
            return small_floats(8, 1, FloatCodes::None);
        case TensorType::FP8_G32:
            return small_floats(8, 1, FloatCodes::E4m3);
        case TensorType::FP8_G128:
            return small_floats(8, 4, FloatCodes::E4m3);
        case TensorType::NF4_G64:
            return small_floats(4, 2, FloatCodes::Nf4);
        case TensorType::IQ1_S:  // scale · factor · (digit ± 1/8), with digits of 0, 1, 2 less 1
            return super(Scales::Super32, 2, 0, true, Codebook::None, 1, 0.125f);
        case TensorType::IQ1_M:
            return super(Scales::Super16, 3, 0, false, Codebook::Iq1, 0.125f);
        case TensorType::IQ2_XXS:
            return super(Scales::Super32, 3, 0, false, Codebook::Iq2, 0.125f);
        case TensorType::IQ2_XS:
        case TensorType::IQ2_S:
            return super(Scales::Super16, 3, 0, false, Codebook::Iq2, 0.125f);
        case TensorType::IQ3_XXS:
            return super(Scales::Super32, 4, 0, false, Codebook::Iq3Xxs, 0.5f);
        case TensorType::IQ3_S:
            return super(Scales::Super32, 4, 0, false, Codebook::Iq3);
        case TensorType::TQ1_0:
        case TensorType::TQ2_0:
            return {Scales::Block, 2, 1, false, Codebook::None, 1, 1, 8};
        case TensorType::Q1_0:
        case TensorType::Q2_0_G128:
            return {Scales::Block, 2, 1, false, Codebook::None, 1, 1, 4};
        case TensorType::Q2_0:
            return {Scales::Block, 2, 1, false, Codebook::None, 1, 1, 2};
        case TensorType::F32:
        case TensorType::F16:
        case TensorType::BF16:
            return {};
    }
    return {};
}

// The numbers that NF4's codes stand for: bitsandbytes' table.
constexpr float kNf4Codebook[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

using CodebookTable = std::array<int8_t, 16>;

// What the codes of the codebook formats stand for. MXFP4's are E2M1 numbers, doubled; the same
// serve NVFP4. Of the grids' types, the digits' magnitudes with either sign: a code is the digit,
// plus 4 or 8 if it is negative. IQ3_XXS's are halved; IQ1's are eighths, a digit and the eighth
// that is added to it or subtracted.
constexpr CodebookTable codebook_table(Codebook codebook) {
    switch (codebook) {
        case Codebook::None:
            break;
        case Codebook::Iq4:
            return {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
        case Codebook::Mxfp4:
            return {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
        case Codebook::Iq1:
            return {-7, 1, 9, 0, -9, -1, 7};
        case Codebook::Iq2:
            return {8, 25, 43, 0, -8, -25, -43};
        case Codebook::Iq3Xxs:
            return {2, 6, 10, 14, 18, 22, 26, 31, -2, -6, -10, -14, -18, -22, -26, -31};
        case Codebook::Iq3:
            return {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
    }
    return {};
}

}  // namespace caudal
