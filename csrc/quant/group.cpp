#include "quant/group.h"

#include <bit>
#include <cstring>
#include <stdexcept>

#include "quant/dense_blocks.h"
#include "quant/half.h"
#include "quant/read_bytes.h"

namespace caudal {
namespace {

// Byte offsets within a block, and bit positions, are those of the GGUF format's definition.

const uint8_t* block_of(TensorType type, const std::byte* row, int64_t group) {
    const BlockGeometry geometry = block_geometry(type);
    const int64_t block = group * kGroup / geometry.elements;
    return reinterpret_cast<const uint8_t*>(row) + block * geometry.bytes;
}

// 16 bytes of nibbles: the low ones are codes 0…15, the high ones 16…31.
void read_nibbles(const uint8_t* nibbles, uint8_t* codes) {
    for (int i = 0; i < 16; ++i) {
        codes[i] = nibbles[i] & 15;
        codes[i + 16] = nibbles[i] >> 4;
    }
}

// The fifth bits of Q5_0 and Q5_1: bit i of a 32-bit word belongs to code i.
void add_fifth_bits(const uint8_t* bytes, uint8_t* codes) {
    uint32_t bits;
    std::memcpy(&bits, bytes, sizeof(bits));
    for (int i = 0; i < 32; ++i) codes[i] |= static_cast<uint8_t>((bits >> i & 1u) << 4);
}

// Q4_K and Q5_K: eight 6-bit factors and eight 6-bit minimum factors in twelve bytes.
void read_six_bit_factors(const uint8_t* packed, int index, Group& group) {
    int factor, minimum;
    if (index < 4) {
        factor = packed[index] & 63;
        minimum = packed[index + 4] & 63;
    } else {
        factor = (packed[index + 4] & 15) | (packed[index - 4] >> 6 << 4);
        minimum = (packed[index + 4] >> 4) | (packed[index] >> 6 << 4);
    }
    group.factor[0] = group.factor[1] = static_cast<int8_t>(factor);
    group.minimum_factor[0] = group.minimum_factor[1] = static_cast<uint8_t>(minimum);
}

// Q3_K: sixteen 6-bit factors in twelve bytes, low four bits first, minus 32.
int8_t q3_factor(const uint8_t* packed, int index) {
    const int low = index < 8 ? packed[index] & 15 : packed[index - 8] >> 4;
    const int high = packed[8 + index % 4] >> (2 * (index / 4)) & 3;
    return static_cast<int8_t>((low | high << 4) - 32);
}

void read_q2_k(const uint8_t* block, int index, Group& group) {
    const uint8_t* codes = block + 16 + index / 4 * 32;
    const int shift = index % 4 * 2;
    for (int i = 0; i < 32; ++i) group.codes[i] = codes[i] >> shift & 3;
    for (int half = 0; half < 2; ++half) {
        const uint8_t factors = block[index * 2 + half];
        group.factor[half] = factors & 15;
        group.minimum_factor[half] = factors >> 4;
    }
    group.scale = read_u16(block + 80);
    group.minimum = read_u16(block + 82);
}

void read_q3_k(const uint8_t* block, int index, Group& group) {
    const uint8_t* codes = block + 32 + index / 4 * 32;
    const int shift = index % 4 * 2;
    for (int i = 0; i < 32; ++i) {
        const int high = block[i] >> index & 1;
        group.codes[i] = static_cast<uint8_t>((codes[i] >> shift & 3) | high << 2);
    }
    for (int half = 0; half < 2; ++half) {
        group.factor[half] = q3_factor(block + 96, index * 2 + half);
    }
    group.scale = read_u16(block + 108);
}

void read_q4_k(const uint8_t* block, int index, Group& group) {
    const uint8_t* nibbles = block + 16 + index / 2 * 32;
    const int shift = index % 2 * 4;
    for (int i = 0; i < 32; ++i) group.codes[i] = nibbles[i] >> shift & 15;
    group.scale = read_u16(block);
    group.minimum = read_u16(block + 2);
    read_six_bit_factors(block + 4, index, group);
}

void read_q5_k(const uint8_t* block, int index, Group& group) {
    const uint8_t* nibbles = block + 48 + index / 2 * 32;
    const int shift = index % 2 * 4;
    for (int i = 0; i < 32; ++i) {
        const int high = block[16 + i] >> index & 1;
        group.codes[i] = static_cast<uint8_t>((nibbles[i] >> shift & 15) | high << 4);
    }
    group.scale = read_u16(block);
    group.minimum = read_u16(block + 2);
    read_six_bit_factors(block + 4, index, group);
}

void read_q6_k(const uint8_t* block, int index, Group& group) {
    // Each 128 elements: 64 bytes of low nibbles, 32 bytes of high bit pairs, for four groups.
    const int part = index / 4;
    const int quarter = index % 4;
    const uint8_t* low = block + part * 64 + quarter % 2 * 32;
    const uint8_t* high = block + 128 + part * 32;
    for (int i = 0; i < 32; ++i) {
        const int nibble = low[i] >> (quarter / 2 * 4) & 15;
        group.codes[i] = static_cast<uint8_t>(nibble | (high[i] >> (quarter * 2) & 3) << 4);
    }
    for (int half = 0; half < 2; ++half) {
        group.factor[half] = static_cast<int8_t>(block[192 + index * 2 + half]);
    }
    group.scale = read_u16(block + 208);
}

void read_iq4_xs(const uint8_t* block, int index, Group& group) {
    read_nibbles(block + 8 + index * 16, group.codes);
    const int low = block[4 + index / 2] >> (index % 2 * 4) & 15;
    const int high = read_u16(block + 2) >> (index * 2) & 3;
    group.factor[0] = group.factor[1] = static_cast<int8_t>((low | high << 4) - 32);
    group.scale = read_u16(block);
}

// Signs: plus or minus one is code 2 or 0, less 1.
void read_q1_0(const uint8_t* block, int index, Group& group) {
    const uint32_t bits = read_u32(block + 2 + index * 4);
    for (int i = 0; i < 32; ++i) group.codes[i] = static_cast<uint8_t>((bits >> i & 1) << 1);
    group.scale = read_u16(block);
}

// Four codes to a byte, in order, the lowest first.
void read_q2_0(const uint8_t* block, int index, Group& group) {
    const uint8_t* packed = block + 2 + index * 8;
    for (int i = 0; i < 32; ++i) group.codes[i] = packed[i / 4] >> (i % 4 * 2) & 3;
    group.scale = read_u16(block);
}

void read_nvfp4(const uint8_t* block, int index, Group& group) {
    for (int half = 0; half < 2; ++half) {
        const int part = index * 2 + half;
        const uint8_t* nibbles = block + 4 + part * 8;
        for (int i = 0; i < 8; ++i) {
            group.codes[half * 16 + i] = nibbles[i] & 15;
            group.codes[half * 16 + 8 + i] = nibbles[i] >> 4;
        }
        // What would be NaN counts as zero; there is no sign.
        const uint8_t scale = block[part] == 0x7f ? 0 : block[part] & 0x7f;
        group.factor[half] = static_cast<int8_t>(scale);
    }
}

// Nibbles in order, the lower first.
void read_ordered_nibbles(const uint8_t* nibbles, uint8_t* codes) {
    for (int i = 0; i < kGroup / 2; ++i) {
        codes[2 * i] = nibbles[i] & 15;
        codes[2 * i + 1] = nibbles[i] >> 4;
    }
}

float read_scale(const uint8_t* bytes) {
    return std::bit_cast<float>(read_u32(bytes));
}

// An 8-bit float (E4M3) without a sign.
float fp8_scale(int8_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits & 0x7f) << 20) * 0x1p120f;
}

// An 8-bit float (E4M3).
float signed_fp8(uint8_t bits) {
    const float magnitude = fp8_scale(static_cast<int8_t>(bits));
    return bits < 0x80 ? magnitude : -magnitude;
}

// What a code of eight bits, or one that stands for a float, is.
float float_of(const Encoding& encoding, uint8_t code) {
    switch (encoding.floats) {
        case FloatCodes::None:
            return static_cast<float>(static_cast<int8_t>(code));
        case FloatCodes::E4m3:
            return signed_fp8(code);
        case FloatCodes::Nf4:
            return kNf4Codebook[code];
    }
    return 0;
}

// A power of two, halved because the codebook's numbers are doubled.
float exponent_scale(uint16_t exponent) {
    const uint32_t bits = exponent < 2 ? 0x00200000u << exponent : (exponent - 1u) << 23;
    return std::bit_cast<float>(bits);
}

}  // namespace

Group read_group(TensorType type, const std::byte* row, int64_t index) {
    const uint8_t* block = block_of(type, row, index);
    const int in_block = static_cast<int>(index % (block_geometry(type).elements / kGroup));
    Group group;
    switch (type) {
        case TensorType::Q4_0:
        case TensorType::IQ4_NL:
            group.scale = read_u16(block);
            read_nibbles(block + 2, group.codes);
            return group;
        case TensorType::Q4_1:
            group.scale = read_u16(block);
            group.minimum = read_u16(block + 2);
            read_nibbles(block + 4, group.codes);
            return group;
        case TensorType::Q5_0:
            group.scale = read_u16(block);
            read_nibbles(block + 6, group.codes);
            add_fifth_bits(block + 2, group.codes);
            return group;
        case TensorType::Q5_1:
            group.scale = read_u16(block);
            group.minimum = read_u16(block + 2);
            read_nibbles(block + 8, group.codes);
            add_fifth_bits(block + 4, group.codes);
            return group;
        case TensorType::Q8_0:
            group.scale = read_u16(block);
            std::memcpy(group.codes, block + 2, kGroup);
            return group;
        case TensorType::MXFP4:
            group.scale = block[0];
            read_nibbles(block + 1, group.codes);
            return group;
        case TensorType::Q2_K:
            read_q2_k(block, in_block, group);
            return group;
        case TensorType::Q3_K:
            read_q3_k(block, in_block, group);
            return group;
        case TensorType::Q4_K:
            read_q4_k(block, in_block, group);
            return group;
        case TensorType::Q5_K:
            read_q5_k(block, in_block, group);
            return group;
        case TensorType::Q6_K:
            read_q6_k(block, in_block, group);
            return group;
        case TensorType::IQ4_XS:
            read_iq4_xs(block, in_block, group);
            return group;
        case TensorType::IQ1_S:
            read_iq1_s(block, in_block, group);
            return group;
        case TensorType::IQ1_M:
            read_iq1_m(block, in_block, group);
            return group;
        case TensorType::IQ2_XXS:
            read_iq2_xxs(block, in_block, group);
            return group;
        case TensorType::IQ2_XS:
            read_iq2_xs(block, in_block, group);
            return group;
        case TensorType::IQ2_S:
            read_iq2_s(block, in_block, group);
            return group;
        case TensorType::IQ3_XXS:
            read_iq3_xxs(block, in_block, group);
            return group;
        case TensorType::IQ3_S:
            read_iq3_s(block, in_block, group);
            return group;
        case TensorType::TQ1_0:
            read_tq1_0(block, in_block, group);
            return group;
        case TensorType::TQ2_0:
            read_tq2_0(block, in_block, group);
            return group;
        case TensorType::Q1_0:
            read_q1_0(block, in_block, group);
            return group;
        case TensorType::Q2_0:
        case TensorType::Q2_0_G128:
            read_q2_0(block, in_block, group);
            return group;
        case TensorType::NVFP4:
            read_nvfp4(block, in_block, group);
            return group;
        case TensorType::INT4_G32:
        case TensorType::INT4_G64:
        case TensorType::INT4_G128:
            group.scale = read_u16(block);
            group.zero = block[2];
            read_ordered_nibbles(block + 3 + in_block * (kGroup / 2), group.codes);
            return group;
        case TensorType::NVFP4_ROW:
            group.float_scale = read_scale(block);
            read_nvfp4(block + 4, in_block, group);
            return group;
        case TensorType::INT8_ROW:
        case TensorType::INT8_G32:
        case TensorType::FP8_G32:
        case TensorType::FP8_G128:
            group.float_scale = read_scale(block);
            std::memcpy(group.codes, block + 4 + in_block * kGroup, kGroup);
            return group;
        case TensorType::NF4_G64:
            group.float_scale = read_scale(block);
            read_ordered_nibbles(block + 4 + in_block * (kGroup / 2), group.codes);
            return group;
        case TensorType::F32:
        case TensorType::F16:
        case TensorType::BF16:
            break;
    }
    throw std::invalid_argument("tensor type " + std::string(block_geometry(type).name) +
                                " has no quantised groups");
}

void dequantize_group(TensorType type, const Group& group, float* out) {
    const Encoding encoding = encoding_of(type);
    const CodebookTable table = codebook_table(encoding.codebook);
    const float minimum = encoding.minimum_unit * half_to_float(Half{group.minimum});
    for (int i = 0; i < kGroup; ++i) {
        const int half = i / 16;
        float scale = encoding.unit;
        if (encoding.scales == Scales::Exponent) {
            scale = exponent_scale(group.scale);
        } else if (encoding.scales == Scales::Fp8) {
            scale *= fp8_scale(group.factor[half]);
        } else {
            scale *= half_to_float(Half{group.scale});
        }
        if (encoding.scales == Scales::Float || encoding.scales == Scales::Row) {
            out[i] = float_of(encoding, group.codes[i]) * group.float_scale;
            continue;
        }
        int number = group.codes[i] - encoding.offset - group.zero;
        if (encoding.bits == 8) number = static_cast<int8_t>(group.codes[i]);
        if (encoding.codebook != Codebook::None) number = table[group.codes[i]];
        if (!encoding.super()) {
            out[i] = scale * static_cast<float>(number);
            if (encoding.minimum) out[i] += minimum;
            if (encoding.row_scale) out[i] *= group.float_scale;
        } else {
            out[i] = scale * static_cast<float>(group.factor[half]) * static_cast<float>(number);
            if (encoding.minimum) {
                out[i] -= minimum * static_cast<float>(group.minimum_factor[half]);
            }
        }
    }
}

float read_float(TensorType type, const std::byte* row, int64_t index) {
    if (type == TensorType::F32) {
        float value;
        std::memcpy(&value, row + index * 4, sizeof(value));
        return value;
    }
    uint16_t bits;
    std::memcpy(&bits, row + index * 2, sizeof(bits));
    if (type == TensorType::F16) return half_to_float(Half{bits});
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);  // BF16
}

void dequantize(TensorType type, const std::byte* blocks, int64_t count, float* out) {
    if (encoding_of(type).scales == Scales::None) {
        for (int64_t i = 0; i < count; ++i) out[i] = read_float(type, blocks, i);
        return;
    }
    for (int64_t group = 0; group < count / kGroup; ++group) {
        dequantize_group(type, read_group(type, blocks, group), out + group * kGroup);
    }
}

}  // namespace caudal
