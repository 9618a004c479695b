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
    CAUDAL_INLINE const std::byte* first_of(int64_t four) const {
        return at + four * (kHalvesOfNumbers == 2 ? 4 : 16);
    }
    CAUDAL_INLINE const std::byte* second_of(int64_t four) const {
        return kHalvesOfNumbers == 2 ? at + padded + four * 4 : at + four * 16 + 4;
    }
};

// What sums of products with so many numbers start with, and the factor that makes of each number
// what it was.
struct RoundedNumbers {
    int32_t start;
    float scale;
};

// `sum`: of all numbers.
CAUDAL_INLINE int32_t start_of(int32_t sum) {
    return static_cast<int32_t>(0u - 128u * static_cast<uint32_t>(sum));
}

CAUDAL_INLINE int32_t sum_of_lanes(i32w a) {
#if defined(__AVX512VNNI__)
    return _mm512_reduce_add_epi32((__m512i)a);
#else
    alignas(kWideBytes) int32_t lanes[kWideLanes];
    std::memcpy(lanes, &a, sizeof(lanes));
    uint32_t sum = 0;
    for (const int32_t lane : lanes) sum += static_cast<uint32_t>(lane);
    return static_cast<int32_t>(sum);
#endif
}

// What floats are multiplied by to be rounded, and then to be what they were, for up to eight times
// as many, the largest of each known. Of what isn't finite the scale is NaN.
struct Roundings {
    float inverse[kLanes];
    float scale[kLanes];

    static CAUDAL_INLINE Roundings of(f32x8 largest) {
        // Below 1e-30 the reciprocal could overflow, and all are zero for every purpose.
        const i32x8 some = largest > splat(1e-30f);
        const i32x8 finite = largest < splat(std::numeric_limits<float>::infinity());
        const f32x8 none = splat(0.0f);
        const f32x8 scale = select(some, largest * splat(1.0f / kLargestNumber), none);
        const f32x8 inverse = select(some, splat(kLargestNumber) / largest, none);
        Roundings all;
        store(all.inverse, select(finite, inverse, none));
        store(all.scale, select(finite, scale, splat(std::numeric_limits<float>::quiet_NaN())));
        return all;
    }
};

// Rounds `padded` floats to numbers of 16 bits, and returns their sum.
CAUDAL_INLINE int32_t round_numbers(const float* x, int64_t padded, float by, std::byte* to) {
    const f32w inverse = splat_wide(by);
    // Adding 1.5 · 2^23 rounds to the nearest integer, into the low bits.
    const f32w magic = splat_wide(12582912.0f);
    i32w sums{};
    for (int64_t i = 0; i < padded; i += kNumbersAtOnce) {
        constexpr int kVectors = kNumbersAtOnce / kWideLanes;
        i32w numbers[kVectors];
        for (int v = 0; v < kVectors; ++v) {
            const f32w rounded = load_wide(x + i + v * kWideLanes) * inverse + magic;
            numbers[v] = (i32w)rounded - (i32w)magic;
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
    return sum_of_lanes(sums);
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

    static CAUDAL_INLINE ByteSums start([[maybe_unused]] int32_t with) {
#if defined(CAUDAL_NEON)
        return {i32w{}, i32w{}};
#else
        return {i32w{}, i32w{} + with};
#endif
    }

    // `first` and `second`: where Numbers say that four are.
    CAUDAL_INLINE void add(const Bytes& bytes, const std::byte* first, const std::byte* second) {
        upper = dot(upper, bytes.all, repeat_bytes_wide(first));
        lower = dot(lower, bytes.all, repeat_bytes_wide(second));
    }

    CAUDAL_INLINE i32w total() const { return add_wrapping(upper << 8, lower); }

  private:
    static CAUDAL_INLINE i32w dot(i32w sums, i32w bytes, i32w numbers) {
#if defined(CAUDAL_NEON)
        return {
            (i32x4)vdotq_s32((int32x4_t)sums.low, (int8x16_t)bytes.low, (int8x16_t)numbers.low),
            (i32x4)vdotq_s32((int32x4_t)sums.high, (int8x16_t)bytes.high, (int8x16_t)numbers.high)};
#else
        return (i32w)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)bytes, (__m512i)numbers);
#endif
    }
#else
    i32w lanes;

    static CAUDAL_INLINE ByteSums start(int32_t with) { return {i32w{} + with}; }

    CAUDAL_INLINE void add(const Bytes& bytes, const std::byte* first, const std::byte* second) {
        dot_pairs(lanes, bytes.even, repeat_bytes_wide(first));
        dot_pairs(lanes, bytes.odd, repeat_bytes_wide(second));
    }

    CAUDAL_INLINE i32w total() const { return lanes; }
#endif
};

// Numbers that aren't negative, those of the weights of a step: four blocks of 16.
//
// With AVX-512 nothing needs to be taken off their sums, as both halves of a number are bytes
// without a sign and what is stored becomes one with a sign. All four blocks are packed at once,
// which puts their fours side by side: those of the four blocks that have the same place in them.
#if defined(__AVX512VNNI__)
struct WeightNumbers {
    static constexpr int64_t kCount = kWideBytes;

    alignas(kWideBytes) std::byte halves[2][kCount];

    CAUDAL_INLINE void round(const float* x, float by) {
        const __m512 inverse = _mm512_set1_ps(by);
        const __m512 magic = _mm512_set1_ps(12582912.0f);
        const auto rounded = [&](int block) CAUDAL_INLINE_BODY {
            const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x + block * kWideLanes), inverse);
            // Numbers of 15 bits lie in the low half of what this is.
            return _mm512_and_si512(_mm512_castps_si512(_mm512_add_ps(scaled, magic)),
                                    _mm512_set1_epi32(0x7fff));
        };
        const __m512i first = _mm512_packus_epi32(rounded(0), rounded(1));
        const __m512i second = _mm512_packus_epi32(rounded(2), rounded(3));
        const __m512i low = _mm512_set1_epi16(255);
        _mm512_store_si512(halves[0], _mm512_packus_epi16(_mm512_srli_epi16(first, 8),
                                                          _mm512_srli_epi16(second, 8)));
        _mm512_store_si512(halves[1], _mm512_packus_epi16(_mm512_and_si512(first, low),
                                                          _mm512_and_si512(second, low)));
    }

    CAUDAL_INLINE i32w half_of(int half, int block, int four) const {
        return repeat_bytes_wide(halves[half] + (four * 4 + block) * 4);
    }
};

struct WeightedBytes {
    i32w all;

    static CAUDAL_INLINE WeightedBytes of(i32w stored) { return {stored ^ repeat_u8_wide(128)}; }
};

struct WeightSums {
    i32w upper;
    i32w lower;

    static CAUDAL_INLINE WeightSums start(const WeightNumbers&) { return {i32w{}, i32w{}}; }

    CAUDAL_INLINE void add(const WeightedBytes& bytes, const WeightNumbers& numbers, int block,
                           int four) {
        upper = dot(upper, numbers.half_of(0, block, four), bytes.all);
        lower = dot(lower, numbers.half_of(1, block, four), bytes.all);
    }

    CAUDAL_INLINE i32w total() const { return add_wrapping(upper << 8, lower); }

  private:
    static CAUDAL_INLINE i32w dot(i32w sums, i32w numbers, i32w bytes) {
        return (i32w)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)numbers, (__m512i)bytes);
    }
};
#else
struct WeightNumbers {
    static constexpr int64_t kCount = 64;

    alignas(kWideBytes) std::byte numbers[kCount * kNumberBytes];
    int32_t start;

    CAUDAL_INLINE void round(const float* x, float by) {
        start = start_of(round_numbers(x, kCount, by, numbers));
    }
};

using WeightedBytes = Bytes;

struct WeightSums {
    ByteSums sums;

    static CAUDAL_INLINE WeightSums start(const WeightNumbers& numbers) {
        return {ByteSums::start(numbers.start)};
    }

    CAUDAL_INLINE void add(const Bytes& bytes, const WeightNumbers& numbers, int block, int four) {
        const Numbers all{numbers.numbers, WeightNumbers::kCount};
        sums.add(bytes, all.first_of(block * 4 + four), all.second_of(block * 4 + four));
    }

    CAUDAL_INLINE i32w total() const { return sums.total(); }
};
#endif

}  // namespace
}  // namespace caudal::CAUDAL_ISA
