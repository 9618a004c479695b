// IEEE 754 half precision as storage: a type of its own, so that nobody adds the bits.
#pragma once

#include <bit>
#include <cstdint>

namespace caudal {

struct Half {
    uint16_t bits = 0;
};

// Exact. Subnormals, infinities and NaN included.
constexpr float half_to_float(Half half) {
    const uint32_t sign = static_cast<uint32_t>(half.bits & 0x8000u) << 16;
    const uint32_t magnitude = half.bits & 0x7fffu;
    if (magnitude >= 0x7c00u) {  // infinity and NaN
        return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    }
    if (magnitude < 0x400u) {  // zero and subnormals: magnitude · 2^-24
        const float value = static_cast<float>(magnitude) * 0x1p-24f;
        return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
    }
    return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
}

// Rounds to nearest, ties to even, as the F16C instructions do.
constexpr Half float_to_half(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return {static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
    }
    if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // ≥ 65520
    if (magnitude < 0x38800000u) {  // below 2^-14: subnormal; adding 0.5 aligns and rounds
        const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
        return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000u))};
    }
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return {static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13))};
}

}  // namespace caudal
