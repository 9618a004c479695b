// Dot products of bytes with NEON: SDOT and UDOT (the dotprod extension) give the sums of four
// products in each 32-bit lane; SMMLA and USMMLA (i8mm) give sums of eight, of two rows of weights
// with two tokens each. The sums are exact, so it makes no difference which of them a tile uses.
#pragma once

#include "kernels/activations.inl"
#include "kernels/wide_vec.inl"

namespace caudal::CAUDAL_ISA {

// Whether unpacked groups hold their quads of columns joined, see join_quads.
#if defined(CAUDAL_NEON_I8MM)
constexpr bool kUnpackJoined = true;
#else
constexpr bool kUnpackJoined = false;
#endif

// The bytes of a tile's four tokens for four columns.
CAUDAL_INLINE int8x16_t load_tile(const int8_t (&quad)[kTileRows][4]) {
    return vld1q_s8(quad[0]);
}
CAUDAL_INLINE uint8x16_t load_tile(const uint8_t (&quad)[kTileRows][4]) {
    return vld1q_u8(quad[0]);
}

#if defined(CAUDAL_NEON_I8MM)

// Two quads of columns of eight rows become eight columns of rows 0…3 and of rows 4…7: a vector of
// 128 bits then holds two rows, as SMMLA wants them.
CAUDAL_INLINE void join_quads(i32x8& first, i32x8& second) {
    const i32x8 upper = {__builtin_shufflevector(first.low, second.low, 0, 4, 1, 5),
                         __builtin_shufflevector(first.low, second.low, 2, 6, 3, 7)};
    const i32x8 lower = {__builtin_shufflevector(first.high, second.high, 0, 4, 1, 5),
                         __builtin_shufflevector(first.high, second.high, 2, 6, 3, 7)};
    first = upper;
    second = lower;
}

// The same for the tokens of a tile.
CAUDAL_INLINE void join_quads(int8x16_t& first, int8x16_t& second) {
    const int32x4_t a = vreinterpretq_s32_s8(first);
    const int32x4_t b = vreinterpretq_s32_s8(second);
    first = vreinterpretq_s8_s32(vzip1q_s32(a, b));
    second = vreinterpretq_s8_s32(vzip2q_s32(a, b));
}
CAUDAL_INLINE void join_quads(uint8x16_t& first, uint8x16_t& second) {
    int8x16_t a = vreinterpretq_s8_u8(first);
    int8x16_t b = vreinterpretq_s8_u8(second);
    join_quads(a, b);
    first = vreinterpretq_u8_s8(a);
    second = vreinterpretq_u8_s8(b);
}

CAUDAL_INLINE int32x4_t multiply_2x2(int32x4_t sums, int8x16_t tokens, i32x4 rows) {
    return vmmlaq_s32(sums, tokens, (int8x16_t)rows);
}
CAUDAL_INLINE int32x4_t multiply_2x2(int32x4_t sums, uint8x16_t tokens, i32x4 rows) {
    return vusmmlaq_s32(sums, tokens, (int8x16_t)rows);
}

// The sums of eight rows of weights with two or four tokens, in blocks of two by two.
template <int tokens>
struct BlockSums {
    int32x4_t blocks[tokens / 2][4];  // [two tokens][two rows]

    CAUDAL_INLINE BlockSums() {
        for (auto& two : blocks) {
            for (int32x4_t& block : two) block = vdupq_n_s32(0);
        }
    }

    // Adds eight columns: `rows` as join_quads leaves them, the tokens' bytes as they are stored.
    template <class Byte>
    CAUDAL_INLINE void add(const i32x8 (&rows)[2], const Byte (&first_quad)[kTileRows][4],
                           const Byte (&second_quad)[kTileRows][4]) {
        auto first = load_tile(first_quad);
        auto second = load_tile(second_quad);
        join_quads(first, second);
        unrolled<tokens / 2>([&](auto two) CAUDAL_INLINE_BODY {
            const auto bytes = two == 0 ? first : second;
            blocks[two][0] = multiply_2x2(blocks[two][0], bytes, rows[0].low);
            blocks[two][1] = multiply_2x2(blocks[two][1], bytes, rows[0].high);
            blocks[two][2] = multiply_2x2(blocks[two][2], bytes, rows[1].low);
            blocks[two][3] = multiply_2x2(blocks[two][3], bytes, rows[1].high);
        });
    }

    // The eight rows' sums with a token.
    CAUDAL_INLINE i32x8 of(int token) const {
        const auto row_of = [&](int32x4_t a, int32x4_t b) CAUDAL_INLINE_BODY {
            const int64x2_t first = vreinterpretq_s64_s32(a);
            const int64x2_t second = vreinterpretq_s64_s32(b);
            return (i32x4)(token % 2 == 0 ? vzip1q_s64(first, second) : vzip2q_s64(first, second));
        };
        const auto& two = blocks[token / 2];
        return {row_of(two[0], two[1]), row_of(two[2], two[3])};
    }
};

#endif

}  // namespace caudal::CAUDAL_ISA
