// The widest vectors of an instruction set: 16 lanes (a whole panel of output rows of a linear
// layer) with AVX-512, else the 8 of vec.inl and int_vec.inl, of which a panel has two
// halves.
#pragma once

#include "kernels/int_vec.inl"
#include "kernels/linear.h"

namespace caudal::CAUDAL_ISA {

#if defined(__AVX512VNNI__)

constexpr int kWideLanes = 16;
using f32w = f32x16;
using i32w = i32x16;
using u16w = uint16_t __attribute__((vector_size(64)));
using i16w = int16_t __attribute__((vector_size(64)));
using u8w = uint8_t __attribute__((vector_size(64)));

CAUDAL_INLINE f32w splat_wide(float value) {
    return splat_as<f32w>(value);
}
CAUDAL_INLINE f32w load_wide(const float* from) {
    f32w value;
    std::memcpy(&value, from, sizeof(value));
    return value;
}
CAUDAL_INLINE f32w load_wide(const Half* from) {
    return (f32w)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
CAUDAL_INLINE i32w load_bytes_wide(const void* from) {
    i32w value;
    std::memcpy(&value, from, sizeof(value));
    return value;
}
CAUDAL_INLINE i32w repeat_bytes_wide(const void* from) {
    int32_t value;
    std::memcpy(&value, from, sizeof(value));
    return i32w{} + value;
}
CAUDAL_INLINE i32w repeat_u8_wide(uint8_t value) {
    return (i32w)(u8w{} + value);
}
CAUDAL_INLINE i32w repeat_s16_wide(int16_t value) {
    return (i32w)(i16w{} + value);
}
CAUDAL_INLINE i32w widen_s8_wide(const void* from) {
    return (i32w)_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from)));
}
CAUDAL_INLINE i32w widen_u8_wide(const void* from) {
    return (i32w)_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from)));
}
CAUDAL_INLINE i32w widen_u16_wide(const void* from) {
    return (i32w)_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
}
CAUDAL_INLINE void store(float* to, f32w value) {
    std::memcpy(to, &value, sizeof(value));
}
CAUDAL_INLINE void store(Half* to, f32w value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT));
}
CAUDAL_INLINE f32w exponential(f32w x) {
    return exponential_of<f32w, i32w>(x);
}
CAUDAL_INLINE f32x8 lower_half(const f32w (&v)[1]) {
    return (f32x8)_mm512_castps512_ps256((__m512)v[0]);
}
CAUDAL_INLINE f32x8 upper_half(const f32w (&v)[1]) {
    return (f32x8)_mm512_extractf32x8_ps((__m512)v[0], 1);
}
CAUDAL_INLINE f32w to_floats(i32w a) {
    return (f32w)_mm512_cvtepi32_ps((__m512i)a);
}
CAUDAL_INLINE i32w multiply_pairs(i32w a, i32w b) {
    return (i32w)_mm512_madd_epi16((__m512i)a, (__m512i)b);
}
CAUDAL_INLINE i32w add16(i32w a, i32w b) {
    return (i32w)((u16w)a + (u16w)b);
}
// Two small integers of each lane, in its lower and its upper half.
CAUDAL_INLINE i32w both_factors(i32w lower, i32w upper) {
    return (lower & 0xffff) | (upper << 16);
}
template <int bits>
CAUDAL_INLINE i32w shift_right16(i32w a) {
    return (i32w)((u16w)a >> bits);
}
template <int bits>
CAUDAL_INLINE i32w shift_left16(i32w a) {
    return (i32w)((u16w)a << bits);
}
CAUDAL_INLINE i32w look_up(const int8_t* table, i32w indices) {
    const __m512i all =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    return (i32w)_mm512_shuffle_epi8(all, (__m512i)indices);
}
CAUDAL_INLINE f32w look_up_floats(const float (&table)[16], i32w indices) {
    return (f32w)_mm512_permutexvar_ps((__m512i)indices, _mm512_loadu_ps(table));
}

#else

constexpr int kWideLanes = kLanes;
using f32w = f32x8;
using i32w = i32x8;

CAUDAL_INLINE f32x8 lower_half(const f32w (&v)[2]) {
    return v[0];
}
CAUDAL_INLINE f32x8 upper_half(const f32w (&v)[2]) {
    return v[1];
}
CAUDAL_INLINE f32w splat_wide(float value) {
    return splat(value);
}
CAUDAL_INLINE f32w load_wide(const float* from) {
    return load(from);
}
CAUDAL_INLINE f32w load_wide(const Half* from) {
    return load(from);
}
CAUDAL_INLINE i32w load_bytes_wide(const void* from) {
    return load_bytes(from);
}
CAUDAL_INLINE i32w repeat_bytes_wide(const void* from) {
    return repeat_bytes(from);
}
CAUDAL_INLINE i32w repeat_u8_wide(uint8_t value) {
    return repeat_u8(value);
}
CAUDAL_INLINE i32w repeat_s16_wide(int16_t value) {
    return repeat_s16(value);
}
CAUDAL_INLINE i32w widen_s8_wide(const void* from) {
    return widen_s8(from);
}
CAUDAL_INLINE i32w widen_u8_wide(const void* from) {
    return widen_u8(from);
}
CAUDAL_INLINE i32w widen_u16_wide(const void* from) {
    return widen_u16(from);
}
CAUDAL_INLINE f32w look_up_floats(const float (&table)[16], i32w indices) {
#if defined(__AVX2__)
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), (__m256i)indices);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), (__m256i)indices);
    return select(indices > 7, (f32w)high, (f32w)low);
#else
    int32_t lanes[kWideLanes];
    float values[kWideLanes];
    std::memcpy(lanes, &indices, sizeof(lanes));
    for (int lane = 0; lane < kWideLanes; ++lane) values[lane] = table[lanes[lane]];
    return load_wide(values);
#endif
}

#endif

constexpr int64_t kWideBytes = sizeof(i32w);

// Vectors that cover the 16 rows of a panel: two halves, or one that is the whole.
constexpr int kHalves = static_cast<int>(kPanelRows) / kWideLanes;

// `Floats` is f32w or f32x8, where those differ, or a single float.
template <class Floats, class Element>
CAUDAL_INLINE Floats load_as(const Element* from) {
    if constexpr (sizeof(Floats) == sizeof(float)) {
        return *from;
    } else if constexpr (sizeof(Floats) == sizeof(f32x8)) {
        return load(from);
    } else {
        return load_wide(from);
    }
}

// Sixteen lanes, however many vectors they are, as eight.
CAUDAL_INLINE f32x8 add_halves(const f32w (&v)[kHalves]) {
    return lower_half(v) + upper_half(v);
}
CAUDAL_INLINE f32x8 maximum_of_halves(const f32w (&v)[kHalves]) {
    return maximum(lower_half(v), upper_half(v));
}

// A tile's weights: a group of each of `panels` panels, seen as vectors of output rows.
template <int panels, class Source>
struct TileSources {
    static constexpr int kVectors = panels * kHalves;
#if defined(CAUDAL_NEON)
    static constexpr bool kJoined = Source::kJoined;
#endif

    const Source* groups[panels];

    CAUDAL_INLINE const Source& of(int vector) const { return *groups[vector / kHalves]; }
};

// The sums that a group's products are collected in, and how an offset gets into them.
//
// Without dot-product instructions they are 16-bit lanes, two to a row, so that they must be
// widened once; with them they are 32-bit lanes, one to a row.
struct GroupSums {
    i32w lanes;

    // −centre · Σ of activations: of the half of a group that `pairs` sums up, or of both.
    template <int centre>
    static CAUDAL_INLINE GroupSums start(const int16_t (&pairs)[2]) {
        if constexpr (centre == 0) return {i32w{}};
        return {offset(repeat_bytes_wide(pairs), repeat_s16_wide(-centre))};
    }
    template <int centre>
    static CAUDAL_INLINE GroupSums start(const int16_t (&first)[2], const int16_t (&second)[2]) {
        if constexpr (centre == 0) return {i32w{}};
        const i32w sums = add16(repeat_bytes_wide(first), repeat_bytes_wide(second));
        return {offset(sums, repeat_s16_wide(-centre))};
    }

#if defined(__AVX512VNNI__)
    // Adds each row's products of four unsigned and four signed bytes. `times` multiplies the total
    // by a small integer of each row, prepared by `as_factor`.
    CAUDAL_INLINE void add(i32w unsigned_bytes, i32w signed_bytes) {
        lanes = (i32w)_mm512_dpbusd_epi32((__m512i)lanes, (__m512i)unsigned_bytes,
                                          (__m512i)signed_bytes);
    }
#elif defined(CAUDAL_NEON)
    CAUDAL_INLINE void add(i32w unsigned_bytes, i32w signed_bytes) {  // codes are below 128
        lanes = {(i32x4)vdotq_s32((int32x4_t)lanes.low, (int8x16_t)unsigned_bytes.low,
                                  (int8x16_t)signed_bytes.low),
                 (i32x4)vdotq_s32((int32x4_t)lanes.high, (int8x16_t)unsigned_bytes.high,
                                  (int8x16_t)signed_bytes.high)};
    }
#endif
#if defined(__AVX512VNNI__) || defined(CAUDAL_NEON)
    CAUDAL_INLINE i32w total() const { return lanes; }
    CAUDAL_INLINE i32w times(i32w factor) const { return lanes * factor; }
    static CAUDAL_INLINE i32w as_factor(i32w integers) { return integers; }
#else
    CAUDAL_INLINE void add(i32w unsigned_bytes, i32w signed_bytes) {
        dot_bytes(lanes, unsigned_bytes, signed_bytes);
    }
    CAUDAL_INLINE i32w total() const { return multiply_pairs(lanes, repeat_s16_wide(1)); }
    CAUDAL_INLINE i32w times(i32w factor) const { return multiply_pairs(lanes, factor); }
    static CAUDAL_INLINE i32w as_factor(i32w integers) { return in_both_halves(integers); }
#endif

  private:
    static CAUDAL_INLINE i32w offset(i32w pairs, i32w factor) {
#if defined(__AVX512VNNI__) || defined(CAUDAL_NEON)
        return multiply_pairs(pairs, factor);
#else
        return multiply16(pairs, factor);
#endif
    }
};

// The same in lanes of 32 bits everywhere, for sums that 16 bits don't hold.
#if defined(__AVX512VNNI__) || defined(CAUDAL_NEON)
using LongGroupSums = GroupSums;
#else
struct LongGroupSums {
    i32w lanes;

    template <int centre>
    static CAUDAL_INLINE LongGroupSums start(const int16_t (&pairs)[2]) {
        return {multiply_pairs(repeat_bytes_wide(pairs), repeat_s16_wide(-centre))};
    }
    template <int centre>
    static CAUDAL_INLINE LongGroupSums start(const int16_t (&first)[2],
                                             const int16_t (&second)[2]) {
        const i32w sums = add16(repeat_bytes_wide(first), repeat_bytes_wide(second));
        return {multiply_pairs(sums, repeat_s16_wide(-centre))};
    }
    CAUDAL_INLINE void add(i32w unsigned_bytes, i32w signed_bytes) {
        i32w products{};
        dot_bytes(products, unsigned_bytes, signed_bytes);
        dot_pairs(lanes, products, repeat_s16_wide(1));
    }
    CAUDAL_INLINE i32w total() const { return lanes; }
    CAUDAL_INLINE i32w times(i32w factor) const { return lanes * factor; }
    static CAUDAL_INLINE i32w as_factor(i32w integers) { return integers; }
};
#endif

}  // namespace caudal::CAUDAL_ISA
