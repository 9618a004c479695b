// Vectors of small integers: what the quantised kernels need beside vec.inl. A vector of 32 bytes
// is an i32x8 whatever its lanes hold, as loads and registers are.
#pragma once

#include <utility>

#include "kernels/vec.inl"

namespace caudal::CAUDAL_ISA {

// body(0), …, body(count − 1), spelled out: each index is a constant of its own type.
template <int count, class Body>
CAUDAL_INLINE void unrolled(const Body& body) {
    [&]<int... index>(std::integer_sequence<int, index...>) CAUDAL_INLINE_BODY {
        (body(std::integral_constant<int, index>{}), ...);
    }(std::make_integer_sequence<int, count>{});
}

#if defined(__AVX2__)
using i16x16 = int16_t __attribute__((vector_size(32)));
using u16x16 = uint16_t __attribute__((vector_size(32)));
using u32x8 = uint32_t __attribute__((vector_size(32)));
using u8x32 = uint8_t __attribute__((vector_size(32)));

CAUDAL_INLINE void store_bytes(void* to, i32x8 value) {
    std::memcpy(to, &value, sizeof(value));
}

CAUDAL_INLINE f32x8 to_floats(i32x8 a) {
    return __builtin_convertvector(a, f32x8);
}

// Looks 32 bytes of 0…15 up in a table of 16.
CAUDAL_INLINE i32x8 look_up(const int8_t* table, i32x8 indices) {
    const __m256i both =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    return (i32x8)_mm256_shuffle_epi8(both, (__m256i)indices);
}

// Eight unsigned or signed numbers, widened. (gcc's __builtin_convertvector does it in halves.)
CAUDAL_INLINE i32x8 widen_s8(const void* from) {
    return (i32x8)_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from)));
}

CAUDAL_INLINE i32x8 widen_u8(const void* from) {
    return (i32x8)_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from)));
}

CAUDAL_INLINE i32x8 widen_u16(const void* from) {
    return (i32x8)_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from)));
}

// Numbers that fit, narrowed: four vectors to 32 bytes, or two to 16 numbers of 16 bits, in order.
CAUDAL_INLINE i32x8 narrow_to_bytes(const i32x8 (&a)[4]) {
    const __m256i first = _mm256_packs_epi32((__m256i)a[0], (__m256i)a[1]);
    const __m256i second = _mm256_packs_epi32((__m256i)a[2], (__m256i)a[3]);
    const i32x8 mixed = (i32x8)_mm256_packs_epi16(first, second);
    return __builtin_shufflevector(mixed, mixed, 0, 4, 1, 5, 2, 6, 3, 7);
}

CAUDAL_INLINE i32x8 narrow_to_16(i32x8 a, i32x8 b) {
    return (i32x8)_mm256_permute4x64_epi64(_mm256_packs_epi32((__m256i)a, (__m256i)b), 0b11011000);
}

// Four rows of eight 32-bit lanes to eight columns of four: out[i] holds columns 2i and 2i + 1.
CAUDAL_INLINE void interleave(const i32x8 (&rows)[4], i32x8 (&out)[4]) {
    const i32x8 a = __builtin_shufflevector(rows[0], rows[1], 0, 8, 1, 9, 4, 12, 5, 13);
    const i32x8 b = __builtin_shufflevector(rows[0], rows[1], 2, 10, 3, 11, 6, 14, 7, 15);
    const i32x8 c = __builtin_shufflevector(rows[2], rows[3], 0, 8, 1, 9, 4, 12, 5, 13);
    const i32x8 d = __builtin_shufflevector(rows[2], rows[3], 2, 10, 3, 11, 6, 14, 7, 15);
    const i32x8 columns04 = __builtin_shufflevector(a, c, 0, 1, 8, 9, 4, 5, 12, 13);
    const i32x8 columns15 = __builtin_shufflevector(a, c, 2, 3, 10, 11, 6, 7, 14, 15);
    const i32x8 columns26 = __builtin_shufflevector(b, d, 0, 1, 8, 9, 4, 5, 12, 13);
    const i32x8 columns37 = __builtin_shufflevector(b, d, 2, 3, 10, 11, 6, 7, 14, 15);
    out[0] = __builtin_shufflevector(columns04, columns15, 0, 1, 2, 3, 8, 9, 10, 11);
    out[1] = __builtin_shufflevector(columns26, columns37, 0, 1, 2, 3, 8, 9, 10, 11);
    out[2] = __builtin_shufflevector(columns04, columns15, 4, 5, 6, 7, 12, 13, 14, 15);
    out[3] = __builtin_shufflevector(columns26, columns37, 4, 5, 6, 7, 12, 13, 14, 15);
}
#endif

// Four bytes, repeated in every 32-bit lane.
CAUDAL_INLINE i32x8 repeat_bytes(const void* from) {
    int32_t value;
    std::memcpy(&value, from, sizeof(value));
    return i32x8{} + value;
}

CAUDAL_INLINE i32x8 repeat_u8(uint8_t value) {
    return (i32x8)(u8x32{} + value);
}

CAUDAL_INLINE i32x8 repeat_s16(int16_t value) {
    return (i32x8)(i16x16{} + value);
}

template <int bits>
CAUDAL_INLINE i32x8 shift_right16(i32x8 a) {
    return (i32x8)((u16x16)a >> bits);
}

template <int bits>
CAUDAL_INLINE i32x8 shift_left16(i32x8 a) {
    return (i32x8)((u16x16)a << bits);
}

// acc += the sums of neighbouring products of unsigned and signed bytes, in 16-bit lanes that wrap.
CAUDAL_INLINE void dot_bytes(i32x8& acc, i32x8 unsigned_bytes, i32x8 signed_bytes) {
#if defined(__AVX2__)
    // In assembler because gcc reassociates the additions of intrinsics across the tile and then
    // spills the accumulators, which costs a third of the speed.
    i32x8 products;
    __asm__("vpmaddubsw %[a], %[w], %[products]\n\tvpaddw %[products], %[acc], %[acc]"
            : [acc] "+x"(acc), [products] "=&x"(products)
            : [w] "x"(unsigned_bytes), [a] "x"(signed_bytes));
#else
    const u16x16 w = (u16x16)unsigned_bytes;
    const i16x16 a = (i16x16)signed_bytes;
    const u16x16 even = (w & 255) * (u16x16)((i16x16)((u16x16)a << 8) >> 8);
    const u16x16 odd = (w >> 8) * (u16x16)(a >> 8);
    acc = (i32x8)((u16x16)acc + even + odd);
#endif
}

// The sums of neighbouring products of signed 16-bit lanes, in 32-bit lanes.
CAUDAL_INLINE i32x8 multiply_pairs(i32x8 a, i32x8 b) {
#if defined(__AVX2__)
    return (i32x8)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(CAUDAL_NEON)
    const auto four = [](i32x4 x, i32x4 y) CAUDAL_INLINE_BODY {
        const auto p = (int16x8_t)x;
        const auto q = (int16x8_t)y;
        return (i32x4)vpaddq_s32(vmull_s16(vget_low_s16(p), vget_low_s16(q)), vmull_high_s16(p, q));
    };
    return {four(a.low, b.low), four(a.high, b.high)};
#else
    return (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

// The same, added to acc in lanes that wrap.
CAUDAL_INLINE void dot_pairs(i32x8& acc, i32x8 a, i32x8 b) {
#if defined(__AVX2__)
    i32x8 products;  // in assembler for the reason given at dot_bytes
    __asm__("vpmaddwd %[b], %[a], %[products]\n\tvpaddd %[products], %[acc], %[acc]"
            : [acc] "+x"(acc), [products] "=&x"(products)
            : [a] "x"(a), [b] "x"(b));
#else
    acc = (i32x8)((u32x8)acc + (u32x8)multiply_pairs(a, b));
#endif
}

// The upper bytes of 16-bit lanes, as signed numbers.
CAUDAL_INLINE i32x8 upper_bytes(i32x8 a) {
    return (i32x8)((i16x16)a >> 8);
}

// a − 256 · b in 32-bit lanes that wrap.
CAUDAL_INLINE i32x8 subtract_256_times(i32x8 a, i32x8 b) {
    return (i32x8)((u32x8)a - ((u32x8)b << 8));
}

CAUDAL_INLINE i32x8 multiply16(i32x8 a, i32x8 b) {
    return (i32x8)((u16x16)a * (u16x16)b);
}

CAUDAL_INLINE i32x8 add16(i32x8 a, i32x8 b) {
    return (i32x8)((u16x16)a + (u16x16)b);
}

// Small integers in 32-bit lanes, repeated in both 16-bit halves of each lane.
CAUDAL_INLINE i32x8 in_both_halves(i32x8 a) {
    return (a & 0xffff) | (a << 16);
}

}  // namespace caudal::CAUDAL_ISA
