// Conversion of a group's four rows at once with 512-bit vectors: one division, one reduction and
// one set of shuffles serve all rows. The numbers are those of activations.inl to the bit.
#pragma once

#include <limits>

#include "kernels/activation_groups.inl"
#include "kernels/int_vec.inl"

namespace caudal::CAUDAL_ISA {

using i32x4 = int32_t __attribute__((vector_size(16)));
using f32x4 = float __attribute__((vector_size(16)));

// 32 numbers of up to four rows; rows that there are not hold zeros.
struct RowsOfGroup {
    f32x16 halves[kTileRows][2];
};

CAUDAL_INLINE RowsOfGroup load_rows(const float* x, int64_t stride, int64_t rows) {
    RowsOfGroup group;
    for (int64_t row = 0; row < kTileRows; ++row) {
        for (int64_t half = 0; half < 2; ++half) {
            group.halves[row][half] = splat_as<f32x16>(0.0f);
            if (row < rows) {
                std::memcpy(&group.halves[row][half], x + row * stride + half * 16, 64);
            }
        }
    }
    return group;
}

// Combines the sixteen lanes of each of four vectors; every 128 bits of the result hold the four
// results in order.
template <class Combine>
CAUDAL_INLINE __m512i reduce_rows(const __m512i (&rows)[kTileRows], Combine combine) {
    const __m512i first =
        combine(_mm512_unpacklo_epi32(rows[0], rows[1]), _mm512_unpackhi_epi32(rows[0], rows[1]));
    const __m512i second =
        combine(_mm512_unpacklo_epi32(rows[2], rows[3]), _mm512_unpackhi_epi32(rows[2], rows[3]));
    __m512i all =
        combine(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second));
    all = combine(all, _mm512_shuffle_i64x2(all, all, 0b01001110));
    return combine(all, _mm512_shuffle_i64x2(all, all, 0b10110001));
}

// Lane `lane` of each 128 bits, everywhere.
template <int lane>
CAUDAL_INLINE f32x16 repeat_lane(__m512 v) {
    return (f32x16)_mm512_permute_ps(v, lane * 0b01010101);
}

// A group's four rows as integers of at most ±limit.
struct CodesOfGroup {
    __m512i usable;                // all bits set in lanes of rows that have codes
    f32x4 scale;                   // of each row; NaN where a row holds an infinity or NaN
    f32x16 rounded[kTileRows][2];  // the codes; anything in rows that aren't usable
};

CAUDAL_INLINE CodesOfGroup round_rows(const RowsOfGroup& group, float limit) {
    __m512i magnitudes[kTileRows];
    const __m512i no_sign = _mm512_set1_epi32(0x7fffffff);
    for (int row = 0; row < kTileRows; ++row) {
        magnitudes[row] =
            _mm512_max_epi32(_mm512_and_si512((__m512i)group.halves[row][0], no_sign),
                             _mm512_and_si512((__m512i)group.halves[row][1], no_sign));
    }
    const auto largest = (__m512)reduce_rows(
        magnitudes, [](__m512i a, __m512i b) { return _mm512_max_epi32(a, b); });
    const __m512 smallest_usable = _mm512_set1_ps(1e-35f);
    const __mmask16 tiny = _mm512_cmp_ps_mask(largest, smallest_usable, _CMP_LE_OQ);
    const __mmask16 usable =
        _mm512_cmp_ps_mask(largest, smallest_usable, _CMP_GT_OQ) &
        _mm512_cmp_ps_mask(largest, _mm512_set1_ps(std::numeric_limits<float>::max()), _CMP_LE_OQ);
    const __m512 inverse = _mm512_maskz_div_ps(usable, _mm512_set1_ps(limit), largest);
    __m512 scale = _mm512_mask_mul_ps(_mm512_set1_ps(std::numeric_limits<float>::quiet_NaN()),
                                      usable, largest, _mm512_set1_ps(1.0f / limit));
    scale = _mm512_mask_mov_ps(scale, tiny, _mm512_setzero_ps());

    CodesOfGroup codes;
    codes.usable = _mm512_movm_epi32(usable);
    codes.scale = (f32x4)_mm512_castps512_ps128(scale);
    const f32x16 magic = splat_as<f32x16>(12582912.0f);
    unrolled<kTileRows>([&](auto row) CAUDAL_INLINE_BODY {
        const f32x16 factor = repeat_lane<row>(inverse);
        for (int half = 0; half < 2; ++half) {
            codes.rounded[row][half] = (group.halves[row][half] * factor + magic) - magic;
        }
    });
    return codes;
}

// What the rows are more than their codes stand for.
CAUDAL_INLINE RowsOfGroup subtract_codes(const RowsOfGroup& group, const CodesOfGroup& codes) {
    RowsOfGroup rest;
    const __m512 scales = _mm512_broadcast_f32x4((__m128)codes.scale);
    unrolled<kTileRows>([&](auto row) CAUDAL_INLINE_BODY {
        const f32x16 scale = repeat_lane<row>(scales);
        for (int half = 0; half < 2; ++half) {
            rest.halves[row][half] = group.halves[row][half] - scale * codes.rounded[row][half];
        }
    });
    return rest;
}

// Numbers of four rows in 32-bit lanes to 16 bits: each 128 bits hold four of the first row, then
// four of the second.
CAUDAL_INLINE __m512i narrow_two(f32x16 first, f32x16 second) {
    return _mm512_packs_epi32(_mm512_cvtps_epi32((__m512)first),
                              _mm512_cvtps_epi32((__m512)second));
}

CAUDAL_INLINE i32x4 lowest_lanes(__m512i v) {
    return (i32x4)_mm512_castsi512_si128(v);
}

CAUDAL_INLINE void store_codes(const CodesOfGroup& codes, Int8Group& group) {
    __m512i half_sums[2];
    for (int half = 0; half < 2; ++half) {
        const __m512i bytes = _mm512_and_si512(
            codes.usable,
            _mm512_packs_epi16(narrow_two(codes.rounded[0][half], codes.rounded[1][half]),
                               narrow_two(codes.rounded[2][half], codes.rounded[3][half])));
        _mm512_storeu_si512(group.codes[half * kGroup / 8], bytes);
        __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), bytes);
        sums = _mm512_add_epi32(sums, _mm512_shuffle_i64x2(sums, sums, 0b01001110));
        half_sums[half] = _mm512_add_epi32(sums, _mm512_shuffle_i64x2(sums, sums, 0b10110001));
    }
    const i32x4 first = lowest_lanes(half_sums[0]);
    const i32x4 second = lowest_lanes(half_sums[1]);
    const i32x4 both_halves = (first & 0xffff) | (second << 16);
    const i32x4 minus_eight_sums = (first + second) * -8;
    const f32x4 sums = codes.scale * __builtin_convertvector(first + second, f32x4);
    std::memcpy(group.scale, &codes.scale, sizeof(codes.scale));
    std::memcpy(group.sum, &sums, sizeof(sums));
    std::memcpy(group.half_sums, &both_halves, sizeof(both_halves));
    std::memcpy(group.minus_eight_sums, &minus_eight_sums, sizeof(minus_eight_sums));
}

CAUDAL_INLINE void store_codes(const CodesOfGroup& codes, Int16Group& group) {
    __m512i sums[kTileRows];
    for (int row = 0; row < kTileRows; ++row) {
        sums[row] = _mm512_add_epi32(_mm512_cvtps_epi32((__m512)codes.rounded[row][0]),
                                     _mm512_cvtps_epi32((__m512)codes.rounded[row][1]));
    }
    const i32x4 sum = lowest_lanes(_mm512_and_si512(
        codes.usable,
        reduce_rows(sums, [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); })));
    std::memcpy(group.sum, &sum, sizeof(sum));
    std::memcpy(group.scale, &codes.scale, sizeof(codes.scale));
    const __m512i low_lanes = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i high_lanes = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for (int half = 0; half < 2; ++half) {
        const auto first = (__m512)narrow_two(codes.rounded[0][half], codes.rounded[1][half]);
        const auto second = (__m512)narrow_two(codes.rounded[2][half], codes.rounded[3][half]);
        // Pairs 0, 2, 4, 6 of all four rows, and pairs 1, 3, 5, 7.
        const auto even = _mm512_castps_si512(_mm512_shuffle_ps(first, second, 0b10001000));
        const auto odd = _mm512_castps_si512(_mm512_shuffle_ps(first, second, 0b11011101));
        const int64_t pair = half * kGroup / 4;
        _mm512_storeu_si512(
            group.codes[pair],
            _mm512_and_si512(codes.usable, _mm512_permutex2var_epi64(even, low_lanes, odd)));
        _mm512_storeu_si512(
            group.codes[pair + 4],
            _mm512_and_si512(codes.usable, _mm512_permutex2var_epi64(even, high_lanes, odd)));
    }
}

// Each converts one group of up to four rows of x.
CAUDAL_INLINE void convert_group(const float* x, int64_t stride, int64_t rows, Int8Group& group) {
    store_codes(round_rows(load_rows(x, stride, rows), 127.0f), group);
}

CAUDAL_INLINE void convert_group(const float* x, int64_t stride, int64_t rows, Int16Group& group) {
    store_codes(round_rows(load_rows(x, stride, rows), 32767.0f), group);
}

// The same, and the rounding error as a second term.
CAUDAL_INLINE void convert_group_twice(const float* x, int64_t stride, int64_t rows,
                                       Int8Group& first, Int8Group& second) {
    const RowsOfGroup group = load_rows(x, stride, rows);
    const CodesOfGroup codes = round_rows(group, 127.0f);
    store_codes(codes, first);
    store_codes(round_rows(subtract_codes(group, codes), 127.0f), second);
}

}  // namespace caudal::CAUDAL_ISA
