// Vectors of small integers: what the quantised kernels need beside vec.inl. A vector of 32 bytes
// is an i32x8 whatever its lanes hold, as loads and registers are.
#pragma once

#include "kernels/vec.inl"

namespace caudal::CAUDAL_ISA {

using i16x16 = int16_t __attribute__((vector_size(32)));
using u16x16 = uint16_t __attribute__((vector_size(32)));
using u8x32 = uint8_t __attribute__((vector_size(32)));

CAUDAL_INLINE i32x8 load_bytes(const void* from) {
    i32x8 value;
    std::memcpy(&value, from, sizeof(value));
    return value;
}

CAUDAL_INLINE void store_bytes(void* to, i32x8 value) {
    std::memcpy(to, &value, sizeof(value));
}

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
#else
    return (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

CAUDAL_INLINE void dot_pairs(i32x8& acc, i32x8 a, i32x8 b) {
#if defined(__AVX2__)
    i32x8 products;  // in assembler for the reason given at dot_bytes
    __asm__("vpmaddwd %[b], %[a], %[products]\n\tvpaddd %[products], %[acc], %[acc]"
            : [acc] "+x"(acc), [products] "=&x"(products)
            : [a] "x"(a), [b] "x"(b));
#else
    acc += multiply_pairs(a, b);
#endif
}

CAUDAL_INLINE i32x8 multiply16(i32x8 a, i32x8 b) {
    return (i32x8)((u16x16)a * (u16x16)b);
}

CAUDAL_INLINE i32x8 add16(i32x8 a, i32x8 b) {
    return (i32x8)((u16x16)a + (u16x16)b);
}

CAUDAL_INLINE f32x8 to_floats(i32x8 a) {
    return __builtin_convertvector(a, f32x8);
}

// Looks 32 bytes of 0…15 up in a table of 16.
CAUDAL_INLINE i32x8 look_up(const int8_t* table, i32x8 indices) {
#if defined(__AVX2__)
    const __m256i both =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    return (i32x8)_mm256_shuffle_epi8(both, (__m256i)indices);
#else
    u8x32 bytes = (u8x32)indices;
    for (int i = 0; i < 32; ++i) bytes[i] = static_cast<uint8_t>(table[bytes[i]]);
    return (i32x8)bytes;
#endif
}

// Eight or sixteen bytes, widened. (gcc's __builtin_convertvector does it in halves.)
CAUDAL_INLINE i32x8 widen_s8(const void* from) {
#if defined(__AVX2__)
    return (i32x8)_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from)));
#else
    using s8x8 = int8_t __attribute__((vector_size(8)));
    s8x8 bytes;
    std::memcpy(&bytes, from, sizeof(bytes));
    return __builtin_convertvector(bytes, i32x8);
#endif
}

CAUDAL_INLINE i32x8 widen_u8(const void* from) {
#if defined(__AVX2__)
    return (i32x8)_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from)));
#else
    using u8x8 = uint8_t __attribute__((vector_size(8)));
    u8x8 bytes;
    std::memcpy(&bytes, from, sizeof(bytes));
    return __builtin_convertvector(bytes, i32x8);
#endif
}

using s8x16 = int8_t __attribute__((vector_size(16)));

CAUDAL_INLINE i32x8 widen_s8_to_16(s8x16 bytes) {
#if defined(__AVX2__)
    return (i32x8)_mm256_cvtepi8_epi16((__m128i)bytes);
#else
    return (i32x8)__builtin_convertvector(bytes, i16x16);
#endif
}

CAUDAL_INLINE s8x16 load_s8x16(const void* from) {
    s8x16 bytes;
    std::memcpy(&bytes, from, sizeof(bytes));
    return bytes;
}

template <int half>
CAUDAL_INLINE s8x16 half_of(i32x8 bytes) {
#if defined(__AVX2__)
    return (s8x16)_mm256_extracti128_si256((__m256i)bytes, half);
#else
    s8x16 result;
    std::memcpy(&result, reinterpret_cast<const char*>(&bytes) + 16 * half, sizeof(result));
    return result;
#endif
}

// Small integers in 32-bit lanes, repeated in both 16-bit halves of each lane.
CAUDAL_INLINE i32x8 in_both_halves(i32x8 a) {
    return (a & 0xffff) | (a << 16);
}

}  // namespace caudal::CAUDAL_ISA
