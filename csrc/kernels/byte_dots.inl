// Exact dot products of stored bytes and numbers of 16 bits, four neighbours to a lane.
//
// A byte is 128 more than what it stands for, so that it has no sign: what that adds to a sum is
// taken off where sums start. Where there are dot-product instructions a number goes through them
// in two halves, else as it is. Sums are of 32 bits that wrap, and right as long as the last fits.
#pragma once

#include <limits>

#include "kernels/wide_vec.inl"

namespace caudal::CAUDAL_ISA {
namespace {

#if defined(__AVX512VNNI__) || defined(CAUDAL_NEON)
constexpr int kHalvesOfNumbers = 2;
#else
constexpr int kHalvesOfNumbers = 1;
#endif
// Numbers are stored so many at once.
constexpr int64_t kNumbersAtOnce = 32;
// What a number takes at most, whatever the instruction set.
constexpr int64_t kNumberBytes = 4;
constexpr float kLargestNumber = 32512.0f;  // 127 · 256: the upper half is a byte, too

constexpr int64_t padded_numbers(int64_t count) {
    return (count + kNumbersAtOnce - 1) / kNumbersAtOnce * kNumbersAtOnce;
}

#if defined(__AVX512VNNI__)
CAUDAL_INLINE i32w add_wrapping(i32w a, i32w b) {
    return (i32w)_mm512_add_epi32((__m512i)a, (__m512i)b);
}
#elif defined(__AVX2__)
CAUDAL_INLINE i32w add_wrapping(i32w a, i32w b) {
    return (i32w)_mm256_add_epi32((__m256i)a, (__m256i)b);
}
#else
CAUDAL_INLINE i32w add_wrapping(i32w a, i32w b) {
    return (i32w)((u32x8)a + (u32x8)b);
}
#endif

// Numbers, padded to a multiple of 32, as `ByteSums` multiplies by them: the upper halves of all
// and then the lower ones; or the first and third and the second and fourth of four as pairs.
struct Numbers {
    const std::byte* at;
    int64_t padded;

    // Four from number 4 · `four` on.
    CAUDAL_INLINE i32w first_of(int64_t four) const {
        return repeat_bytes_wide(at + four * (kHalvesOfNumbers == 2 ? 4 : 16));
    }
    CAUDAL_INLINE i32w second_of(int64_t four) const {
        return repeat_bytes_wide(kHalvesOfNumbers == 2 ? at + padded + four * 4
                                                       : at + four * 16 + 4);
    }
};

// What so many numbers sum up to, and the factor that makes of each what it was.
struct RoundedNumbers {
    int32_t sum;
    float scale;
};

CAUDAL_INLINE int32_t sum_of_lanes(i32w a) {
    alignas(kWideBytes) int32_t lanes[kWideLanes];
    std::memcpy(lanes, &a, sizeof(lanes));
    uint32_t sum = 0;
    for (const int32_t lane : lanes) sum += static_cast<uint32_t>(lane);
    return static_cast<int32_t>(sum);
}

// Rounds `padded` floats to numbers of 16 bits, the largest of which is known. What isn't finite
// has a scale of NaN.
CAUDAL_INLINE RoundedNumbers round_numbers(const float* x, int64_t padded, float largest,
                                           std::byte* to) {
    const bool finite = largest <= std::numeric_limits<float>::max();
    // Below 1e-30 the reciprocal could overflow, and all are zero for every purpose.
    const bool some = finite && largest > 1e-30f;
    const f32w inverse = splat_wide(some ? kLargestNumber / largest : 0.0f);
    // Adding 1.5 · 2^23 rounds to the nearest integer, into the low bits.
    const f32w magic = splat_wide(12582912.0f);
    i32w sums{};
    for (int64_t i = 0; i < padded; i += kNumbersAtOnce) {
        constexpr int kVectors = kNumbersAtOnce / kWideLanes;
        i32w numbers[kVectors];
        for (int v = 0; v < kVectors; ++v) {
            const f32w rounded = load_wide(x + i + v * kWideLanes) * inverse + magic;
            numbers[v] = some ? (i32w)rounded - (i32w)magic : i32w{};
            sums = add_wrapping(sums, numbers[v]);
        }
#if defined(__AVX512VNNI__)
        for (int v = 0; v < kVectors; ++v) {
            const i32w upper = (numbers[v] + 128) >> 8;
            const auto put = [&](std::byte* into, i32w halves) CAUDAL_INLINE_BODY {
                _mm_storeu_si128(reinterpret_cast<__m128i*>(into + i + v * kWideLanes),
                                 _mm512_cvtepi32_epi8((__m512i)halves));
            };
            put(to, upper);
            put(to + padded, numbers[v] - (upper << 8));
        }
#elif defined(CAUDAL_NEON)
        i32x8 upper[kVectors];
        for (int v = 0; v < kVectors; ++v) {
            upper[v] = (numbers[v] + 128) >> 8;
            numbers[v] = numbers[v] - (upper[v] << 8);
        }
        store_bytes(to + i, narrow_to_bytes(upper));
        store_bytes(to + padded + i, narrow_to_bytes(numbers));
#else
        for (int v = 0; v < kVectors; ++v) {
            const i32x8 pairs = (numbers[v] & 0xffff) | (swap_pairs(numbers[v]) << 16);
            store_bytes(to + (i + v * kLanes) * kNumberBytes, pairs);
        }
#endif
    }
    const float scale = some ? largest * (1.0f / kLargestNumber) : 0.0f;
    return {sum_of_lanes(sums), finite ? scale : std::numeric_limits<float>::quiet_NaN()};
}

// A vector of stored bytes, made ready once for all that are multiplied by it.
struct Bytes {
#if defined(__AVX512VNNI__) || defined(CAUDAL_NEON)
    i32w all;

    static CAUDAL_INLINE Bytes of(i32w stored) {
#if defined(CAUDAL_NEON)
        return {stored ^ repeat_u8_wide(128)};
#else
        return {stored};
#endif
    }
#else
    i32w even;
    i32w odd;

    static CAUDAL_INLINE Bytes of(i32w stored) {
        return {stored & 0x00ff00ff, shift_right16<8>(stored)};
    }
#endif
};

// Sums of products in each lane.
struct ByteSums {
#if defined(__AVX512VNNI__) || defined(CAUDAL_NEON)
    i32w upper;
    i32w lower;

    // `sum`: of all numbers that will be multiplied by.
    static CAUDAL_INLINE ByteSums start(int32_t sum) {
#if defined(CAUDAL_NEON)
        (void)sum;
        return {i32w{}, i32w{}};
#else
        return {i32w{}, i32w{} + static_cast<int32_t>(0u - 128u * static_cast<uint32_t>(sum))};
#endif
    }

    CAUDAL_INLINE void add(const Bytes& bytes, const Numbers& numbers, int64_t four) {
        upper = dot(upper, bytes.all, numbers.first_of(four));
        lower = dot(lower, bytes.all, numbers.second_of(four));
    }

    CAUDAL_INLINE i32w total() const { return add_wrapping(upper << 8, lower); }

  private:
    static CAUDAL_INLINE i32w dot(i32w sums, i32w bytes, i32w numbers) {
#if defined(CAUDAL_NEON)
        return {(i32x4)vdotq_s32((int32x4_t)sums.low, (int8x16_t)bytes.low, (int8x16_t)numbers.low),
                (i32x4)vdotq_s32((int32x4_t)sums.high, (int8x16_t)bytes.high,
                                 (int8x16_t)numbers.high)};
#else
        return (i32w)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)bytes, (__m512i)numbers);
#endif
    }
#else
    i32w lanes;

    static CAUDAL_INLINE ByteSums start(int32_t sum) {
        return {i32w{} + static_cast<int32_t>(0u - 128u * static_cast<uint32_t>(sum))};
    }

    CAUDAL_INLINE void add(const Bytes& bytes, const Numbers& numbers, int64_t four) {
        dot_pairs(lanes, bytes.even, numbers.first_of(four));
        dot_pairs(lanes, bytes.odd, numbers.second_of(four));
    }

    CAUDAL_INLINE i32w total() const { return lanes; }
#endif
};

}  // namespace
}  // namespace caudal::CAUDAL_ISA
