// The integer part of linear_int16.inl with NEON, whose dot products know bytes only. An activation
// is 256 · upper byte (signed) + lower byte (unsigned), so two passes over the weights give its
// product. Where signed and unsigned bytes don't multiply (that takes i8mm), the weights of the
// second pass are taken plus 128.
#pragma once

#include "kernels/neon_dot.inl"

namespace caudal::CAUDAL_ISA {

// The weights of four columns: rows 0…7 and 8…15, signed.
struct Codes16 {
    static constexpr int kColumns = 4;

    i32x8 rows[2];

    // From two pairs of columns, with rows 8…15 in the upper bytes of 16-bit lanes and, plus 128,
    // rows 0…7 in the lower.
    static CAUDAL_INLINE Codes16 of(i32x8 first, i32x8 second) {
        const auto join = [](int8x16_t a, int8x16_t b) CAUDAL_INLINE_BODY {
            const int16x8_t pairs_a = vreinterpretq_s16_s8(a);
            const int16x8_t pairs_b = vreinterpretq_s16_s8(b);
            return i32x8{(i32x4)vzip1q_s16(pairs_a, pairs_b), (i32x4)vzip2q_s16(pairs_a, pairs_b)};
        };
        const auto a_low = (int8x16_t)first.low;
        const auto a_high = (int8x16_t)first.high;
        const auto b_low = (int8x16_t)second.low;
        const auto b_high = (int8x16_t)second.high;
        return {{join(vuzp1q_s8(a_low, a_high), vuzp1q_s8(b_low, b_high)) ^ repeat_u8(0x80),
                 join(vuzp2q_s8(a_low, a_high), vuzp2q_s8(b_low, b_high))}};
    }
};

template <int tokens, int /*panels*/>
struct Sums16 {
    i32x8 totals[2][tokens];

    template <class Activations>
    CAUDAL_INLINE explicit Sums16(const Activations& /*a*/) {
        for (auto& half : totals) {
            for (i32x8& total : half) total = i32x8{};
        }
    }

    CAUDAL_INLINE i32x8 total(int half, int t) const { return totals[half][t]; }

    // Between the passes: the upper bytes count 256 times.
    CAUDAL_INLINE void weigh_upper_bytes(const Int16Group& a) {
        for (auto& half : totals) {
            for (int t = 0; t < tokens; ++t) {
                half[t] = half[t] << 8;
                if constexpr (kShifted) half[t] = half[t] - 128 * a.lower_sum[t];
            }
        }
    }

    template <class Source, class Byte>
    CAUDAL_INLINE void add_bytes(const Source& source,
                                 const Byte (&bytes)[kGroup / 4][kTileRows][4]) {
#if defined(CAUDAL_NEON_I8MM)
        if constexpr (tokens > 1) {
            BlockSums<tokens> sums[2];
            unrolled<kGroup / 8>([&](auto eight) CAUDAL_INLINE_BODY {
                const Codes16 first = source.template codes<2 * eight>();
                const Codes16 second = source.template codes<2 * eight + 1>();
                for (int half = 0; half < 2; ++half) {
                    i32x8 rows[2] = {first.rows[half], second.rows[half]};
                    if constexpr (!Source::kJoined) join_quads(rows[0], rows[1]);
                    sums[half].add(rows, bytes[2 * eight], bytes[2 * eight + 1]);
                }
            });
            for (int half = 0; half < 2; ++half) {
                for (int t = 0; t < tokens; ++t) totals[half][t] += sums[half].of(t);
            }
            return;
        }
#endif
        unrolled<kGroup / 4>([&](auto quad) CAUDAL_INLINE_BODY {
            const Codes16 codes = source.template codes<quad>();
            const auto tile = load_tile(bytes[quad]);
            unrolled<tokens>([&](auto t) CAUDAL_INLINE_BODY {
                for (int half = 0; half < 2; ++half) {
                    i32x8& total = totals[half][t];
                    total = {add_dots<t>(total.low, codes.rows[half].low, tile),
                             add_dots<t>(total.high, codes.rows[half].high, tile)};
                }
            });
        });
    }

  private:
    // Adds the products of four rows with four bytes of a token.
    template <int token>
    static CAUDAL_INLINE i32x4 add_dots(i32x4 sums, i32x4 rows, int8x16_t tile) {
        return (i32x4)vdotq_laneq_s32((int32x4_t)sums, (int8x16_t)rows, tile, token);
    }

#if defined(CAUDAL_NEON_I8MM)
    static constexpr bool kShifted = false;

    template <int token>
    static CAUDAL_INLINE i32x4 add_dots(i32x4 sums, i32x4 rows, uint8x16_t tile) {
        return (i32x4)vsudotq_laneq_s32((int32x4_t)sums, (int8x16_t)rows, tile, token);
    }
#else
    static constexpr bool kShifted = true;

    template <int token>
    static CAUDAL_INLINE i32x4 add_dots(i32x4 sums, i32x4 rows, uint8x16_t tile) {
        const uint8x16_t shifted = veorq_u8((uint8x16_t)rows, vdupq_n_u8(0x80));
        return (i32x4)vdotq_laneq_u32((uint32x4_t)sums, shifted, tile, token);
    }
#endif
};

template <int tokens, class Source, class Activations>
CAUDAL_INLINE void add_group(const TileSources<1, Source>& sources, const Activations& activations,
                             Sums16<tokens, 1>& sums) {
    const Source& source = *sources.groups[0];
    const Int16Group& a = activations.of(0);
    sums.add_bytes(source, a.upper);
    sums.weigh_upper_bytes(a);
    sums.add_bytes(source, a.lower);
}

}  // namespace caudal::CAUDAL_ISA
