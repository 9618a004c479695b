#include "quant/block_writer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "quant/half.h"

namespace caudal {
namespace {

// Byte offsets within a block, and bit positions, are those of the GGUF format's definition.

// To the nearest integer, to even between two.
int nearest(float value) {
    const int bits = std::bit_cast<int>(value + 12582912.0f);  // 1.5 · 2^23
    return (bits & 0x7fffff) - 0x400000;
}

// The float that a half-precision number written by `write_half` is.
float written_half(const uint8_t* from) {
    Half half;
    std::memcpy(&half.bits, from, sizeof(half.bits));
    return half_to_float(half);
}

// The largest, at least 0.
float largest(const float* values, int count) {
    float result = 0;
    for (int i = 0; i < count; ++i) result = values[i] > result ? values[i] : result;
    return result;
}

// The one of the largest magnitude, of equals the first; 0 where all are.
float farthest_from_zero(const float* values, int count) {
    float result = 0;
    for (int i = 0; i < count; ++i) {
        if (std::fabs(values[i]) > std::fabs(result)) result = values[i];
    }
    return result;
}

bool write_q2_k_scales(GroupScales& scales, uint8_t* block) {
    constexpr int kGroups = 16;
    constexpr float kTop = 15;
    const float top_scale = largest(scales.step, kGroups);
    const float top_offset = largest(scales.offset, kGroups);
    bool finite = write_half(top_scale / kTop, block + 80);
    finite &= write_half(top_offset / kTop, block + 82);
    const float inverse = top_scale > 0 ? kTop / top_scale : 0;
    const float inverse_offset = top_offset > 0 ? kTop / top_offset : 0;
    for (int i = 0; i < kGroups; ++i) {
        const auto factor = static_cast<uint8_t>(nearest(inverse * scales.step[i]));
        const int minimum = nearest(inverse_offset * scales.offset[i]);
        block[i] = static_cast<uint8_t>(factor | minimum << 4);
        scales.step[i] = written_half(block + 80) * static_cast<float>(block[i] & 15);
        scales.offset[i] = written_half(block + 82) * static_cast<float>(block[i] >> 4);
    }
    return finite;
}

// Q4_K and Q5_K: eight 6-bit factors and eight 6-bit minimum factors in twelve bytes.
bool write_six_bit_scales(GroupScales& scales, uint8_t* block) {
    constexpr int kGroups = 8;
    constexpr float kTop = 63;
    const float top_scale = largest(scales.step, kGroups);
    const float top_offset = largest(scales.offset, kGroups);
    const float inverse = top_scale > 0 ? kTop / top_scale : 0;
    const float inverse_offset = top_offset > 0 ? kTop / top_offset : 0;
    bool finite = write_half(top_scale / kTop, block);
    finite &= write_half(top_offset / kTop, block + 2);
    uint8_t* packed = block + 4;
    std::memset(packed, 0, 12);
    for (int i = 0; i < kGroups; ++i) {
        const auto nearest_factor = static_cast<uint8_t>(nearest(inverse * scales.step[i]));
        const auto nearest_minimum =
            static_cast<uint8_t>(nearest(inverse_offset * scales.offset[i]));
        const int factor = std::min<int>(63, nearest_factor);
        const int minimum = std::min<int>(63, nearest_minimum);
        if (i < 4) {
            packed[i] = static_cast<uint8_t>(factor);
            packed[i + 4] = static_cast<uint8_t>(minimum);
        } else {
            packed[i + 4] = static_cast<uint8_t>((factor & 15) | (minimum & 15) << 4);
            packed[i - 4] |= static_cast<uint8_t>(factor >> 4 << 6);
            packed[i] |= static_cast<uint8_t>(minimum >> 4 << 6);
        }
        scales.step[i] = written_half(block) * static_cast<float>(factor);
        scales.offset[i] = written_half(block + 2) * static_cast<float>(minimum);
    }
    return finite;
}

// Sixteen 6-bit factors in twelve bytes, low four bits first, plus 32.
bool write_q3_k_scales(GroupScales& scales, uint8_t* block) {
    constexpr int kGroups = 16;
    uint8_t* packed = block + 96;
    std::memset(packed, 0, 12);
    const float top = farthest_from_zero(scales.step, kGroups);
    const float inverse = top != 0 ? -32.0f / top : 0;
    const bool finite = write_half(top != 0 ? 1 / inverse : 0, block + 108);
    for (int i = 0; i < kGroups; ++i) {
        // Where all are zero, so are the bytes, which stand for −32.
        const int factor =
            top != 0 ? std::clamp(nearest(inverse * scales.step[i]), -32, 31) + 32 : 0;
        packed[i % 8] |= static_cast<uint8_t>((factor & 15) << (i / 8 * 4));
        packed[8 + i % 4] |= static_cast<uint8_t>(factor >> 4 << (i / 4 * 2));
        scales.step[i] = written_half(block + 108) * static_cast<float>(factor - 32);
    }
    return finite;
}

bool write_q6_k_scales(GroupScales& scales, uint8_t* block) {
    constexpr int kGroups = 16;
    const float top = farthest_from_zero(scales.step, kGroups);
    const float inverse = top != 0 ? -128.0f / top : 0;
    const bool finite = write_half(top != 0 ? 1 / inverse : 0, block + 208);
    for (int i = 0; i < kGroups; ++i) {
        const int factor = std::min(127, nearest(inverse * scales.step[i]));
        block[192 + i] = static_cast<uint8_t>(factor);
        scales.step[i] = written_half(block + 208) * static_cast<float>(factor);
    }
    return finite;
}

// Two-bit parts of four groups of 32 in each byte.
void write_pairs_of_bits(const uint8_t* codes, uint8_t* out) {
    for (int part = 0; part < 2; ++part) {
        const uint8_t* own = codes + part * 128;
        for (int i = 0; i < 32; ++i) {
            out[part * 32 + i] = static_cast<uint8_t>((own[i] & 3) | (own[i + 32] & 3) << 2 |
                                                      (own[i + 64] & 3) << 4 | own[i + 96] << 6);
        }
    }
}

// The low nibbles of pairs of groups of 32.
void write_nibble_pairs(const uint8_t* codes, uint8_t* out) {
    for (int part = 0; part < 4; ++part) {
        const uint8_t* own = codes + part * 64;
        for (int i = 0; i < 32; ++i) {
            out[part * 32 + i] = static_cast<uint8_t>((own[i] & 15) | own[i + 32] << 4);
        }
    }
}

// One bit of each code, above `shift`: that of group g of 32 is bit g of a byte.
void write_high_bits(const uint8_t* codes, int shift, uint8_t* out) {
    std::memset(out, 0, 32);
    for (int group = 0; group < 8; ++group) {
        for (int i = 0; i < 32; ++i) {
            out[i] |= static_cast<uint8_t>(codes[group * 32 + i] >> shift << group);
        }
    }
}

void write_q6_k_codes(const uint8_t* codes, uint8_t* block) {
    for (int part = 0; part < 2; ++part) {
        const uint8_t* own = codes + part * 128;
        uint8_t* low = block + part * 64;
        uint8_t* high = block + 128 + part * 32;
        for (int i = 0; i < 32; ++i) {
            low[i] = static_cast<uint8_t>((own[i] & 15) | own[i + 64] << 4);
            low[i + 32] = static_cast<uint8_t>((own[i + 32] & 15) | own[i + 96] << 4);
            high[i] = static_cast<uint8_t>(own[i] >> 4 | own[i + 32] >> 4 << 2 |
                                           own[i + 64] >> 4 << 4 | own[i + 96] >> 4 << 6);
        }
    }
}

// 32 codes: nibbles, the low ones those of the first half.
void write_nibbles(const uint8_t* codes, uint8_t* out) {
    for (int i = 0; i < 16; ++i) {
        out[i] = static_cast<uint8_t>((codes[i] & 15) | codes[i + 16] << 4);
    }
}

// The fifth bits of 32 codes: bit i of a 32-bit word belongs to code i.
void write_fifth_bits(const uint8_t* codes, uint8_t* out) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; ++i) bits |= static_cast<uint32_t>(codes[i] >> 4) << i;
    std::memcpy(out, &bits, sizeof(bits));
}

}  // namespace

bool write_half(float value, uint8_t* out) {
    const Half half = float_to_half(value);
    std::memcpy(out, &half.bits, sizeof(half.bits));
    return (half.bits & 0x7c00) != 0x7c00;
}

bool write_group_scales(TensorType type, GroupScales& scales, uint8_t* block) {
    switch (type) {
        case TensorType::Q2_K:
            return write_q2_k_scales(scales, block);
        case TensorType::Q3_K:
            return write_q3_k_scales(scales, block);
        case TensorType::Q4_K:
        case TensorType::Q5_K:
            return write_six_bit_scales(scales, block);
        case TensorType::Q6_K:
            return write_q6_k_scales(scales, block);
        default:
            throw std::invalid_argument("a type without superblocks");
    }
}

void write_codes(TensorType type, const uint8_t* codes, uint8_t* block) {
    switch (type) {
        case TensorType::Q8_0:
            std::memcpy(block + 2, codes, 32);
            return;
        case TensorType::Q4_0:
            write_nibbles(codes, block + 2);
            return;
        case TensorType::Q4_1:
            write_nibbles(codes, block + 4);
            return;
        case TensorType::Q5_0:
            write_fifth_bits(codes, block + 2);
            write_nibbles(codes, block + 6);
            return;
        case TensorType::Q5_1:
            write_fifth_bits(codes, block + 4);
            write_nibbles(codes, block + 8);
            return;
        case TensorType::Q2_K:
            write_pairs_of_bits(codes, block + 16);
            return;
        case TensorType::Q3_K:
            write_high_bits(codes, 2, block);
            write_pairs_of_bits(codes, block + 32);
            return;
        case TensorType::Q4_K:
            write_nibble_pairs(codes, block + 16);
            return;
        case TensorType::Q5_K:
            write_high_bits(codes, 4, block + 16);
            write_nibble_pairs(codes, block + 48);
            return;
        case TensorType::Q6_K:
            write_q6_k_codes(codes, block);
            return;
        default:
            throw std::invalid_argument("codes of a type that isn't written");
    }
}

}  // namespace caudal
