// Weights of up to six bits times 8-bit activations.
//
// A tile is 16 output rows × up to 4 activation rows. Over a group of 32 (or half of one, where the
// weights have a factor for each half) products are added up in 16-bit lanes, which is exact:
//
//   4 bits        16 products of at most 15 · 127 to a lane:  30,480
//   5 bits        centred on 16: 16 · 16 · 127             =  32,512
//   6 bits        centred on 32, 8 products: 8 · 32 · 127  =  32,512
//
// Centring costs nothing: the lanes start at −centre · (sum of the activations they will meet), and
// what wraps around on the way doesn't matter, because the final sum fits. Then a group's sum is
// converted once and joins the float accumulator by one fused multiply-add. The order of those is
// that of k, whatever the tile, so the result doesn't depend on the shape of a call.
#pragma once

#include "kernels/activations.inl"
#include "kernels/output.inl"

namespace caudal::CAUDAL_ISA {

// What is subtracted from the codes before they multiply: the format's own offset, or one that
// makes them fit and that the minimum then makes up for.
constexpr int centre_of(const Encoding& encoding) {
    if (encoding.codebook == Codebook::Mxfp4) return 12;
    return encoding.bits == 5 ? 16 : encoding.offset;
}

// MXFP4's numbers plus 12, so that they are unsigned.
constexpr int8_t kMxfp4Centred[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

CAUDAL_INLINE f32x8 load_halves(const std::byte* from) {
    return load(reinterpret_cast<const Half*>(from));
}

// Eight exponents of E8M0 as scales for the doubled numbers of the codebook.
CAUDAL_INLINE f32x8 exponent_scales(const std::byte* from) {
    const i32x8 exponent = widen_u8(from);
    const i32x8 normal = (exponent - 1) << 23;
    const i32x8 subnormal = i32x8{} + 0x00200000;
    return (f32x8)select(exponent > 1, normal, subnormal << (exponent & 1));
}

// Reads a group straight from the packed panel, for few activation rows.
template <TensorType type>
struct PackedGroup8 {
    static constexpr Encoding kEncoding = encoding_of(type);
    static constexpr PanelLayout kLayout = panel_layout(type);

    const std::byte* header;
    const std::byte* group;

    static CAUDAL_INLINE PackedGroup8 at(const std::byte* panel, int64_t index) {
        return {panel + kLayout.header_at(index), panel + kLayout.group_at(index)};
    }

    template <int quad>
    CAUDAL_INLINE i32x8 codes(int half) const {
        constexpr int low_bits = kEncoding.bits >= 4 ? 4 : 2;
        constexpr int low_quads = low_bits == 4 ? 4 : 2;
        const std::byte* low = group + kLayout.scale_bytes;
        i32x8 code = load_bytes(low + (quad % low_quads * 2 + half) * kVectorBytes);
        code = shift_right16<quad / low_quads * low_bits>(code);
        code = code & repeat_u8((1 << low_bits) - 1);
        if constexpr (kEncoding.codebook == Codebook::Mxfp4) code = look_up(kMxfp4Centred, code);
        if constexpr (kEncoding.bits == 6) {
            const i32x8 high =
                load_bytes(low + kLayout.low_bytes + (quad / 4 * 2 + half) * kVectorBytes);
            code = code | move_bits<quad % 4 * 2, 4, 3>(high);
        } else if constexpr (kEncoding.bits == 5 || kEncoding.bits == 3) {
            const i32x8 high = load_bytes(low + kLayout.low_bytes + half * kVectorBytes);
            code = code | move_bits<quad, low_bits, 1>(high);
        }
        return code;
    }

    CAUDAL_INLINE f32x8 scale(int half) const {
        if constexpr (kEncoding.scales == Scales::Exponent) {
            return exponent_scales(group + half * kLanes);
        } else if constexpr (kEncoding.scales == Scales::Half) {
            return load_halves(group + half * kLanes * 2);
        } else if constexpr (kEncoding.scales == Scales::Super32) {
            return load_halves(header + half * kLanes * 2) *
                   to_floats(widen_s8(group + half * kLanes));
        } else {
            return load_halves(header + half * kLanes * 2);
        }
    }

    // What a group adds for each unit of the activations' sum. For Super16 the sums of the two
    // halves come with the integers of `minimum_factor`.
    CAUDAL_INLINE f32x8 minimum(int half) const {
        constexpr int64_t field = 2 * kPanelRows;
        if constexpr (kEncoding.scales == Scales::Half) {
            return recentred(load_halves(group + field + half * kLanes * 2), half);
        } else {
            const f32x8 minimum = load_halves(header + field + half * kLanes * 2);
            if constexpr (kEncoding.scales == Scales::Super16) return -minimum;
            return recentred(-(minimum * to_floats(widen_u8(group + kPanelRows + half * kLanes))),
                             half);
        }
    }

    CAUDAL_INLINE i32x8 factor(int part, int half) const {
        return in_both_halves(widen_s8(group + part * kPanelRows + half * kLanes));
    }

    CAUDAL_INLINE i32x8 minimum_factor(int part, int half) const {
        return in_both_halves(widen_u8(group + (2 + part) * kPanelRows + half * kLanes));
    }

    // Asks for a later group: panels come from memory.
    CAUDAL_INLINE void prefetch(int64_t groups_ahead) const {
        prefetch_bytes(group + groups_ahead * kLayout.group_bytes(), kLayout.group_bytes());
    }

  private:
    // Moves `mask`-wide bits of every byte from bit `from` to bit `to`.
    template <int from, int to, int mask>
    static CAUDAL_INLINE i32x8 move_bits(i32x8 bytes) {
        if constexpr (from < to) {
            bytes = shift_left16<to - from>(bytes);
        } else if constexpr (from > to) {
            bytes = shift_right16<from - to>(bytes);
        }
        return bytes & repeat_u8(mask << to);
    }

    CAUDAL_INLINE f32x8 recentred(f32x8 minimum, int half) const {
        constexpr int shift = centre_of(kEncoding) - kEncoding.offset;
        if constexpr (shift == 0) return minimum;
        return multiply_add(splat(static_cast<float>(shift)), scale(half), minimum);
    }
};

// The same group unpacked, for many activation rows: what PackedGroup8 computes, stored.
template <TensorType type>
struct alignas(32) UnpackedGroup8 {
    static constexpr Encoding kEncoding = encoding_of(type);
    static constexpr int kFactors = kEncoding.scales == Scales::Super16 ? 2 : 0;
    static constexpr int kMinimums = kEncoding.minimum ? 1 : 0;

    i32x8 stored_codes[kGroup / 4][2];
    f32x8 stored_scale[2];
    f32x8 stored_minimum[kMinimums + 1][2];
    i32x8 stored_factor[kFactors + 1][2];
    i32x8 stored_minimum_factor[kFactors * kMinimums + 1][2];

    template <int quad>
    CAUDAL_INLINE i32x8 codes(int half) const {
        return stored_codes[quad][half];
    }
    CAUDAL_INLINE f32x8 scale(int half) const { return stored_scale[half]; }
    CAUDAL_INLINE f32x8 minimum(int half) const { return stored_minimum[0][half]; }
    CAUDAL_INLINE i32x8 factor(int part, int half) const { return stored_factor[part][half]; }
    CAUDAL_INLINE i32x8 minimum_factor(int part, int half) const {
        return stored_minimum_factor[part][half];
    }
    CAUDAL_INLINE void prefetch(int64_t /*groups_ahead*/) const {}

    CAUDAL_INLINE void fill(const PackedGroup8<type>& packed) {
        for (int half = 0; half < 2; ++half) {
            unrolled<kGroup / 4>([&](auto quad) CAUDAL_INLINE_BODY {
                stored_codes[quad][half] = packed.template codes<quad>(half);
            });
            stored_scale[half] = packed.scale(half);
            if constexpr (kEncoding.minimum) stored_minimum[0][half] = packed.minimum(half);
            for (int part = 0; part < kFactors; ++part) {
                stored_factor[part][half] = packed.factor(part, half);
                if constexpr (kEncoding.minimum) {
                    stored_minimum_factor[part][half] = packed.minimum_factor(part, half);
                }
            }
        }
    }
};

// Adds the products of `count` quads, from quad `begin`, to the 16-bit lanes of a tile.
template <int begin, int count, int tokens, class Source>
CAUDAL_INLINE void add_quads(const Source& source, const Int8Group& a, i32x8 (&lanes)[2][tokens]) {
    unrolled<count>([&](auto quad) CAUDAL_INLINE_BODY {
        const i32x8 low = source.template codes<begin + quad>(0);
        const i32x8 high = source.template codes<begin + quad>(1);
        for (int t = 0; t < tokens; ++t) {
            const i32x8 repeated = repeat_bytes(a.codes[begin + quad][t]);
            dot_bytes(lanes[0][t], low, repeated);
            dot_bytes(lanes[1][t], high, repeated);
        }
    });
}

template <TensorType type, int tokens, class Source>
CAUDAL_INLINE void multiply_group8(const Source& source, const Int8Group& a,
                                   f32x8 (&sums)[2][tokens]) {
    constexpr Encoding encoding = encoding_of(type);
    constexpr int16_t centre = -centre_of(encoding);
    const i32x8 ones = repeat_s16(1);
    i32x8 lanes[2][tokens];
    i32x8 totals[2][tokens];
    if constexpr (encoding.scales != Scales::Super16) {
        for (int t = 0; t < tokens; ++t) {
            i32x8 start{};
            if constexpr (centre != 0) {
                start = add16(repeat_bytes(a.pair_sums[0][t]), repeat_bytes(a.pair_sums[1][t]));
                start = multiply16(start, repeat_s16(centre));
            }
            lanes[0][t] = lanes[1][t] = start;
        }
        add_quads<0, 8, tokens>(source, a, lanes);
        for (int half = 0; half < 2; ++half) {
            for (int t = 0; t < tokens; ++t) {
                totals[half][t] = multiply_pairs(lanes[half][t], ones);
            }
        }
    } else {
        unrolled<2>([&](auto part) CAUDAL_INLINE_BODY {
            for (int t = 0; t < tokens; ++t) {
                i32x8 start{};
                if constexpr (centre != 0) {
                    start = multiply16(repeat_bytes(a.pair_sums[part][t]), repeat_s16(centre));
                }
                lanes[0][t] = lanes[1][t] = start;
            }
            add_quads<part * 4, 4, tokens>(source, a, lanes);
            for (int half = 0; half < 2; ++half) {
                const i32x8 factor = source.factor(part, half);
                for (int t = 0; t < tokens; ++t) {
                    const i32x8 total = multiply_pairs(lanes[half][t], factor);
                    totals[half][t] = part == 0 ? total : totals[half][t] + total;
                }
            }
        });
    }
    for (int half = 0; half < 2; ++half) {
        const f32x8 scale = source.scale(half);
        for (int t = 0; t < tokens; ++t) {
            sums[half][t] =
                multiply_add(to_floats(totals[half][t]), scale * splat(a.scale[t]), sums[half][t]);
        }
        if constexpr (encoding.minimum) {
            const f32x8 minimum = source.minimum(half);
            for (int t = 0; t < tokens; ++t) {
                if constexpr (encoding.scales != Scales::Super16) {
                    sums[half][t] = multiply_add(minimum, splat(a.sum[t]), sums[half][t]);
                } else {
                    const i32x8 count = multiply_pairs(repeat_bytes(a.pair_sums[0][t]),
                                                       source.minimum_factor(0, half)) +
                                        multiply_pairs(repeat_bytes(a.pair_sums[1][t]),
                                                       source.minimum_factor(1, half));
                    sums[half][t] =
                        multiply_add(to_floats(count), minimum * splat(a.scale[t]), sums[half][t]);
                }
            }
        }
    }
}

// The kernels for 8-bit activations, as the drivers of tiles.inl want them.
template <TensorType type>
struct Int8Kernel {
    using Activations = Int8Group;
    using Packed = PackedGroup8<type>;
    using Unpacked = UnpackedGroup8<type>;
    // From this many activation rows on, unpacking once pays; measured.
    static constexpr int64_t kUnpackFromRows = encoding_of(type).bits == 4 ? 13 : 7;

    template <int tokens, class Source>
    static CAUDAL_INLINE void multiply_group(const Source& source, const Int8Group& a,
                                             f32x8 (&sums)[2][tokens]) {
        multiply_group8<type, tokens>(source, a, sums);
    }
};

}  // namespace caudal::CAUDAL_ISA
