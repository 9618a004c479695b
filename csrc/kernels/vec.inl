// Eight floats at a time, or sixteen, written once for every instruction set.
//
// GCC and Clang's vector extensions give arithmetic on any machine; only what they lack or do in
// more steps than one is spelled out per instruction set. Where there are no registers of
// 256 bits, vec_pair.inl makes the types of two. Included inside each instruction set's translation
// unit only.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/linear.h"
#include "quant/half.h"
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(CAUDAL_NEON)
#include <arm_neon.h>
#endif

#define CAUDAL_INLINE inline __attribute__((always_inline))
// For lambdas: the compiler must not keep what they capture in memory.
#define CAUDAL_INLINE_BODY __attribute__((always_inline))

#if !defined(__AVX2__)
#include "kernels/vec_pair.inl"
#endif

namespace caudal::CAUDAL_ISA {

constexpr int kLanes = 8;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Asks for memory that will be read soon. Addresses past the end of anything do no harm.
CAUDAL_INLINE void prefetch_bytes(const void* from, int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += 64) {
        __builtin_prefetch(static_cast<const char*>(from) + line);
    }
}

// The same, into a cache of choice.
CAUDAL_INLINE void prefetch_bytes(const void* from, int64_t bytes, StreamPolicy::Level level) {
    if (level == StreamPolicy::Level::First) {
        prefetch_bytes(from, bytes);
    } else if (level == StreamPolicy::Level::Second) {
        for (int64_t line = 0; line < bytes; line += 64) {
            __builtin_prefetch(static_cast<const char*>(from) + line, 0, 2);
        }
    }
}

#if defined(__AVX2__)
using f32x8 = float __attribute__((vector_size(32)));
using i32x8 = int32_t __attribute__((vector_size(32)));

// Spelled out: adding to a vector of zeros would be an addition, as it turns -0 into 0.
CAUDAL_INLINE f32x8 splat(float value) {
    return f32x8{value, value, value, value, value, value, value, value};
}

CAUDAL_INLINE f32x8 load(const float* from) {
    f32x8 value;
    std::memcpy(&value, from, sizeof(value));
    return value;
}

CAUDAL_INLINE i32x8 load_bytes(const void* from) {
    i32x8 value;
    std::memcpy(&value, from, sizeof(value));
    return value;
}

CAUDAL_INLINE f32x8 load(const Half* from) {
    return (f32x8)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

CAUDAL_INLINE void store(float* to, f32x8 value) {
    std::memcpy(to, &value, sizeof(value));
}

CAUDAL_INLINE void store(Half* to, f32x8 value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT));
}

// a · b + c: fused where the instruction set fuses, always the same way within one instruction set.
CAUDAL_INLINE f32x8 multiply_add(f32x8 a, f32x8 b, f32x8 c) {
    return (f32x8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

#if defined(__AVX512F__)
using f32x16 = float __attribute__((vector_size(64)));
using i32x16 = int32_t __attribute__((vector_size(64)));

CAUDAL_INLINE f32x16 multiply_add(f32x16 a, f32x16 b, f32x16 c) {
    return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

CAUDAL_INLINE f32x16 select(i32x16 mask, f32x16 if_true, f32x16 if_false) {
    return mask ? if_true : if_false;
}

CAUDAL_INLINE i32x16 select(i32x16 mask, i32x16 if_true, i32x16 if_false) {
    return mask ? if_true : if_false;
}
#endif

CAUDAL_INLINE f32x8 select(i32x8 mask, f32x8 if_true, f32x8 if_false) {
    return mask ? if_true : if_false;
}

CAUDAL_INLINE i32x8 select(i32x8 mask, i32x8 if_true, i32x8 if_false) {
    return mask ? if_true : if_false;
}

// Lanes 4 5 6 7 0 1 2 3; 2 3 0 1 6 7 4 5; 1 0 3 2 5 4 7 6.
template <class Vector>
CAUDAL_INLINE Vector swap_halves(Vector a) {
    return __builtin_shufflevector(a, a, 4, 5, 6, 7, 0, 1, 2, 3);
}

template <class Vector>
CAUDAL_INLINE Vector swap_pairs(Vector a) {
    return __builtin_shufflevector(a, a, 2, 3, 0, 1, 6, 7, 4, 5);
}

template <class Vector>
CAUDAL_INLINE Vector swap_neighbours(Vector a) {
    return __builtin_shufflevector(a, a, 1, 0, 3, 2, 5, 4, 7, 6);
}
#endif

CAUDAL_INLINE float multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(CAUDAL_NEON)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// The larger and the smaller; b where either is NaN.
template <class Floats>
CAUDAL_INLINE Floats maximum(Floats a, Floats b) {
#if defined(__AVX512F__)
    if constexpr (sizeof(Floats) == 64) return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#endif
#if defined(__AVX2__)
    if constexpr (sizeof(Floats) == 32) return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return select(a > b, a, b);
#endif
}

template <class Floats>
CAUDAL_INLINE Floats minimum(Floats a, Floats b) {
#if defined(__AVX512F__)
    if constexpr (sizeof(Floats) == 64) return (Floats)_mm512_min_ps((__m512)a, (__m512)b);
#endif
#if defined(__AVX2__)
    if constexpr (sizeof(Floats) == 32) return (Floats)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return select(a < b, a, b);
#endif
}

// Sums of lanes in one fixed order, so that every caller rounds alike.
CAUDAL_INLINE float sum_lanes(f32x8 v) {
    v = v + swap_halves(v);
    v = v + swap_pairs(v);
    return v[0] + v[1];
}

CAUDAL_INLINE float max_lanes(f32x8 v) {
    v = maximum(v, swap_halves(v));
    v = maximum(v, swap_pairs(v));
    return v[0] > v[1] ? v[0] : v[1];
}

// The largest lane of each of up to eight vectors, in as many lanes: together, as each by itself
// would wait for its own shuffles.
template <int count>
CAUDAL_INLINE f32x8 max_lanes_of(const f32x8 (&v)[count]) {
    static_assert(count <= kLanes);
#if defined(__AVX2__)
    // Lanes that nobody asked for repeat the first vector's.
    const auto of = [&](int i) CAUDAL_INLINE_BODY { return v[i < count ? i : 0]; };
    const auto pair = [](f32x8 a, f32x8 b) CAUDAL_INLINE_BODY {
        return maximum(__builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13),
                       __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15));
    };
    const auto four = [](f32x8 a, f32x8 b) CAUDAL_INLINE_BODY {
        return maximum(__builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13),
                       __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15));
    };
    const f32x8 low = four(pair(of(0), of(1)), pair(of(2), of(3)));
    const f32x8 high = count > 4 ? four(pair(of(4), of(5)), pair(of(6), of(7))) : low;
    return maximum(__builtin_shufflevector(low, high, 0, 1, 2, 3, 8, 9, 10, 11),
                   __builtin_shufflevector(low, high, 4, 5, 6, 7, 12, 13, 14, 15));
#else
    float largest[kLanes] = {};
    for (int i = 0; i < count; ++i) largest[i] = max_lanes(v[i]);
    return load(largest);
#endif
}

// A value in all lanes of a vector type, or just the value.
template <class Floats>
CAUDAL_INLINE Floats splat_as(float value) {
    if constexpr (sizeof(Floats) == sizeof(float)) return value;
#if defined(__AVX512F__)
    if constexpr (sizeof(Floats) == 64) return (Floats)_mm512_set1_ps(value);
#endif
    if constexpr (sizeof(Floats) == 32) return splat(value);
}

// e^x with a relative error below 2e-7: range reduction by ln 2 in two parts, then a polynomial of
// degree 5 on [-ln 2 / 2, ln 2 / 2] whose largest relative error is least (1.05e-7), given that it
// begins with 1 + r. Exactly 1 at 0, exactly 0 below -87.7 (and at minus infinity), saturating at
// 88. NaN stays NaN, as both limits let it through.
template <class Floats, class Ints>
CAUDAL_INLINE Floats exponential_of(Floats x) {
    const auto all = [](float value) { return splat_as<Floats>(value); };
    // -127 · ln 2, where the exponent bits become those of zero.
    const Floats clamped = minimum(all(88.0f), maximum(all(-88.0296919f), x));
    // Adding and subtracting 1.5 · 2^23 rounds to the nearest integer.
    const Floats magic = all(12582912.0f);
    const Floats rounded = multiply_add(clamped, all(1.44269504f), magic);
    const Floats n = rounded - magic;
    Floats r = multiply_add(n, all(-0.693359375f), clamped);
    r = multiply_add(n, all(2.12194440e-4f), r);
    Floats p = all(8.3125018e-3f);
    p = multiply_add(p, r, all(4.18903330e-2f));
    p = multiply_add(p, r, all(1.66671154e-1f));
    p = multiply_add(p, r, all(4.99992303e-1f));
    p = multiply_add(p, r, all(1.0f));
    p = multiply_add(p, r, all(1.0f));
    // 2^n through the exponent bits: the low bits of `rounded` are n, and those of 1.5 · 2^23 are
    // shifted out.
    const Ints exponent = ((Ints)rounded << 23) + (127 << 23);
    return p * (Floats)exponent;
}

CAUDAL_INLINE f32x8 exponential(f32x8 x) {
    return exponential_of<f32x8, i32x8>(x);
}

}  // namespace caudal::CAUDAL_ISA
