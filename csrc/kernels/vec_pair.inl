// Eight lanes as two vectors of 128 bits, for processors whose registers are that wide: the types
// of vec.inl and int_vec.inl and what the language's operators can't do on them. (GCC's own vectors
// of 256 bits live in memory there.)
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "quant/half.h"

namespace caudal::CAUDAL_ISA {

// `Vector` is one of GCC and Clang's vector types of 16 bytes. A conversion to a pair of another
// type keeps the bits.
template <class Vector>
struct Pair {
    using Element = std::remove_cvref_t<decltype(Vector{}[0])>;
    static constexpr int kElements = 16 / sizeof(Element);

    Vector low;
    Vector high;

    template <class Other>
    CAUDAL_INLINE explicit operator Pair<Other>() const {
        return {(Other)low, (Other)high};
    }

    CAUDAL_INLINE Element operator[](int index) const {
        return index < kElements ? low[index] : high[index - kElements];
    }
};

// An element as an operand beside a pair: converted like any number.
template <class Vector>
using ElementOf = typename Pair<std::type_identity_t<Vector>>::Element;

using f32x4 = float __attribute__((vector_size(16)));
using i32x4 = int32_t __attribute__((vector_size(16)));
using f32x8 = Pair<f32x4>;
using i32x8 = Pair<i32x4>;
using u32x8 = Pair<uint32_t __attribute__((vector_size(16)))>;
using i16x16 = Pair<int16_t __attribute__((vector_size(16)))>;
using u16x16 = Pair<uint16_t __attribute__((vector_size(16)))>;
using u8x32 = Pair<uint8_t __attribute__((vector_size(16)))>;

#define CAUDAL_PAIR_OPERATOR(op)                                                  \
    template <class Vector>                                                       \
    CAUDAL_INLINE Pair<Vector> operator op(Pair<Vector> a, Pair<Vector> b) {      \
        return {a.low op b.low, a.high op b.high};                                \
    }                                                                             \
    template <class Vector>                                                       \
    CAUDAL_INLINE Pair<Vector> operator op(Pair<Vector> a, ElementOf<Vector> b) { \
        return {a.low op b, a.high op b};                                         \
    }                                                                             \
    template <class Vector>                                                       \
    CAUDAL_INLINE Pair<Vector>& operator op##=(Pair<Vector>& a, Pair<Vector> b) { \
        return a = a op b;                                                        \
    }
CAUDAL_PAIR_OPERATOR(+)
CAUDAL_PAIR_OPERATOR(-)
CAUDAL_PAIR_OPERATOR(*)
CAUDAL_PAIR_OPERATOR(/)
CAUDAL_PAIR_OPERATOR(&)
CAUDAL_PAIR_OPERATOR(|)
CAUDAL_PAIR_OPERATOR(^)
#undef CAUDAL_PAIR_OPERATOR

template <class Vector>
CAUDAL_INLINE Pair<Vector> operator<<(Pair<Vector> a, int bits) {
    return {a.low << bits, a.high << bits};
}

template <class Vector>
CAUDAL_INLINE Pair<Vector> operator>>(Pair<Vector> a, int bits) {
    return {a.low >> bits, a.high >> bits};
}

template <class Vector>
CAUDAL_INLINE Pair<Vector> operator<<(Pair<Vector> a, Pair<Vector> bits) {
    return {a.low << bits.low, a.high << bits.high};
}

template <class Vector>
CAUDAL_INLINE Pair<Vector> operator-(Pair<Vector> a) {
    return {-a.low, -a.high};
}

// All bits of a lane set where the comparison holds. For lanes of 32 bits.
#define CAUDAL_PAIR_COMPARISON(op)                                         \
    template <class Vector>                                                \
    CAUDAL_INLINE i32x8 operator op(Pair<Vector> a, Pair<Vector> b) {      \
        return {(i32x4)(a.low op b.low), (i32x4)(a.high op b.high)};       \
    }                                                                      \
    template <class Vector>                                                \
    CAUDAL_INLINE i32x8 operator op(Pair<Vector> a, ElementOf<Vector> b) { \
        return {(i32x4)(a.low op b), (i32x4)(a.high op b)};                \
    }
CAUDAL_PAIR_COMPARISON(<)
CAUDAL_PAIR_COMPARISON(>)
CAUDAL_PAIR_COMPARISON(>=)
CAUDAL_PAIR_COMPARISON(==)
CAUDAL_PAIR_COMPARISON(!=)
#undef CAUDAL_PAIR_COMPARISON

CAUDAL_INLINE f32x8 select(i32x8 mask, f32x8 if_true, f32x8 if_false) {
    return {mask.low ? if_true.low : if_false.low, mask.high ? if_true.high : if_false.high};
}

CAUDAL_INLINE i32x8 select(i32x8 mask, i32x8 if_true, i32x8 if_false) {
    return {mask.low ? if_true.low : if_false.low, mask.high ? if_true.high : if_false.high};
}

CAUDAL_INLINE f32x8 splat(float value) {
    const f32x4 half = {value, value, value, value};
    return {half, half};
}

template <class To>
CAUDAL_INLINE To load_pair(const void* from) {
    To value;
    std::memcpy(&value.low, from, 16);
    std::memcpy(&value.high, static_cast<const char*>(from) + 16, 16);
    return value;
}

template <class From>
CAUDAL_INLINE void store_pair(void* to, From value) {
    std::memcpy(to, &value.low, 16);
    std::memcpy(static_cast<char*>(to) + 16, &value.high, 16);
}

CAUDAL_INLINE f32x8 load(const float* from) {
    return load_pair<f32x8>(from);
}

CAUDAL_INLINE void store(float* to, f32x8 value) {
    store_pair(to, value);
}

CAUDAL_INLINE i32x8 load_bytes(const void* from) {
    return load_pair<i32x8>(from);
}

CAUDAL_INLINE void store_bytes(void* to, i32x8 value) {
    store_pair(to, value);
}

CAUDAL_INLINE f32x8 load(const Half* from) {
#if defined(CAUDAL_NEON)
    const uint16x8_t bits = vld1q_u16(reinterpret_cast<const uint16_t*>(from));
    const float16x8_t halves = vreinterpretq_f16_u16(bits);
    return {(f32x4)vcvt_f32_f16(vget_low_f16(halves)), (f32x4)vcvt_high_f32_f16(halves)};
#else
    const f32x4 low = {half_to_float(from[0]), half_to_float(from[1]), half_to_float(from[2]),
                       half_to_float(from[3])};
    const f32x4 high = {half_to_float(from[4]), half_to_float(from[5]), half_to_float(from[6]),
                        half_to_float(from[7])};
    return {low, high};
#endif
}

CAUDAL_INLINE void store(Half* to, f32x8 value) {
#if defined(CAUDAL_NEON)
    const float16x4_t low = vcvt_f16_f32((float32x4_t)value.low);
    const float16x8_t halves = vcvt_high_f16_f32(low, (float32x4_t)value.high);
    vst1q_u16(reinterpret_cast<uint16_t*>(to), vreinterpretq_u16_f16(halves));
#else
    for (int lane = 0; lane < 8; ++lane) to[lane] = float_to_half(value[lane]);
#endif
}

CAUDAL_INLINE f32x8 multiply_add(f32x8 a, f32x8 b, f32x8 c) {
#if defined(CAUDAL_NEON)
    return {(f32x4)vfmaq_f32((float32x4_t)c.low, (float32x4_t)a.low, (float32x4_t)b.low),
            (f32x4)vfmaq_f32((float32x4_t)c.high, (float32x4_t)a.high, (float32x4_t)b.high)};
#else
    return a * b + c;
#endif
}

CAUDAL_INLINE f32x8 to_floats(i32x8 a) {
    return {__builtin_convertvector(a.low, f32x4), __builtin_convertvector(a.high, f32x4)};
}

// Lanes 4 5 6 7 0 1 2 3; 2 3 0 1 6 7 4 5; 1 0 3 2 5 4 7 6.
template <class Vector>
CAUDAL_INLINE Pair<Vector> swap_halves(Pair<Vector> a) {
    return {a.high, a.low};
}

template <class Vector>
CAUDAL_INLINE Pair<Vector> swap_pairs(Pair<Vector> a) {
    return {__builtin_shufflevector(a.low, a.low, 2, 3, 0, 1),
            __builtin_shufflevector(a.high, a.high, 2, 3, 0, 1)};
}

template <class Vector>
CAUDAL_INLINE Pair<Vector> swap_neighbours(Pair<Vector> a) {
    return {__builtin_shufflevector(a.low, a.low, 1, 0, 3, 2),
            __builtin_shufflevector(a.high, a.high, 1, 0, 3, 2)};
}

// Eight numbers, widened.
#if defined(CAUDAL_NEON)
CAUDAL_INLINE i32x8 widen_s8(const void* from) {
    const int16x8_t numbers = vmovl_s8(vld1_s8(static_cast<const int8_t*>(from)));
    return {(i32x4)vmovl_s16(vget_low_s16(numbers)), (i32x4)vmovl_high_s16(numbers)};
}

CAUDAL_INLINE i32x8 widen_u16(const void* from) {
    uint16x8_t numbers;
    std::memcpy(&numbers, from, sizeof(numbers));
    return {(i32x4)vmovl_u16(vget_low_u16(numbers)), (i32x4)vmovl_high_u16(numbers)};
}

CAUDAL_INLINE i32x8 widen_u8(const void* from) {
    const uint16x8_t numbers = vmovl_u8(vld1_u8(static_cast<const uint8_t*>(from)));
    return {(i32x4)vmovl_u16(vget_low_u16(numbers)), (i32x4)vmovl_high_u16(numbers)};
}
#else
template <class Four>
CAUDAL_INLINE i32x8 widen(const void* from) {
    Four low;
    Four high;
    std::memcpy(&low, from, sizeof(low));
    std::memcpy(&high, static_cast<const char*>(from) + sizeof(low), sizeof(high));
    return {__builtin_convertvector(low, i32x4), __builtin_convertvector(high, i32x4)};
}

CAUDAL_INLINE i32x8 widen_s8(const void* from) {
    using s8x4 = int8_t __attribute__((vector_size(4)));
    return widen<s8x4>(from);
}

CAUDAL_INLINE i32x8 widen_u8(const void* from) {
    using u8x4 = uint8_t __attribute__((vector_size(4)));
    return widen<u8x4>(from);
}

CAUDAL_INLINE i32x8 widen_u16(const void* from) {
    using u16x4 = uint16_t __attribute__((vector_size(8)));
    return widen<u16x4>(from);
}
#endif

// Numbers that fit, narrowed: two vectors to 16 numbers of 16 bits, or four to 32 bytes, in order.
CAUDAL_INLINE i32x8 narrow_to_16(i32x8 a, i32x8 b) {
    using i16x8 = int16_t __attribute__((vector_size(16)));
    const auto even = [](i32x4 first, i32x4 second) CAUDAL_INLINE_BODY {
        return (i32x4)__builtin_shufflevector((i16x8)first, (i16x8)second, 0, 2, 4, 6, 8, 10, 12,
                                              14);
    };
    return {even(a.low, a.high), even(b.low, b.high)};
}

CAUDAL_INLINE i32x8 narrow_to_bytes(const i32x8 (&a)[4]) {
    using i8x16 = int8_t __attribute__((vector_size(16)));
    const auto even = [](i32x8 words) CAUDAL_INLINE_BODY {
        return (i32x4)__builtin_shufflevector((i8x16)words.low, (i8x16)words.high, 0, 2, 4, 6, 8,
                                              10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    };
    return {even(narrow_to_16(a[0], a[1])), even(narrow_to_16(a[2], a[3]))};
}

// Looks 32 bytes of 0…15 up in a table of 16.
CAUDAL_INLINE i32x8 look_up(const int8_t* table, i32x8 indices) {
#if defined(CAUDAL_NEON)
    const int8x16_t entries = vld1q_s8(table);
    return {(i32x4)vqtbl1q_s8(entries, (uint8x16_t)indices.low),
            (i32x4)vqtbl1q_s8(entries, (uint8x16_t)indices.high)};
#else
    uint8_t bytes[32];
    store_bytes(bytes, indices);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(table[byte]);
    return load_bytes(bytes);
#endif
}

// Four rows of eight 32-bit lanes to eight columns of four: out[i] holds columns 2i and 2i + 1.
CAUDAL_INLINE void interleave(const i32x8 (&rows)[4], i32x8 (&out)[4]) {
    const auto transpose = [](i32x4 a, i32x4 b, i32x4 c, i32x4 d, i32x8& columns01,
                              i32x8& columns23) CAUDAL_INLINE_BODY {
        const i32x4 ab01 = __builtin_shufflevector(a, b, 0, 4, 1, 5);
        const i32x4 ab23 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
        const i32x4 cd01 = __builtin_shufflevector(c, d, 0, 4, 1, 5);
        const i32x4 cd23 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
        columns01 = {__builtin_shufflevector(ab01, cd01, 0, 1, 4, 5),
                     __builtin_shufflevector(ab01, cd01, 2, 3, 6, 7)};
        columns23 = {__builtin_shufflevector(ab23, cd23, 0, 1, 4, 5),
                     __builtin_shufflevector(ab23, cd23, 2, 3, 6, 7)};
    };
    transpose(rows[0].low, rows[1].low, rows[2].low, rows[3].low, out[0], out[1]);
    transpose(rows[0].high, rows[1].high, rows[2].high, rows[3].high, out[2], out[3]);
}

}  // namespace caudal::CAUDAL_ISA
