// Weights of up to six bits times 8-bit activations.
//
// A tile is 16 output rows × up to 4 activation rows. Over a group of 32 (or half of one, where the
// weights have a factor for each half) products are added up as integers, without dot-product
// instructions in 16-bit lanes, which is exact:
//
//   4 bits        16 products of at most 15 · 127 to a lane:  30,480
//   5 bits        centred on 16: 16 · 16 · 127             =  32,512
//   6 bits        centred on 32, 8 products: 8 · 32 · 127  =  32,512
//   codebooks     centred on their largest; those that go beyond 16 take 32-bit lanes
//
// Centring costs little: the lanes start at −centre · (sum of the activations they will meet), and
// what wraps around on the way doesn't matter, because the final sum fits. Then a group's sum is
// converted once and joins the float accumulator by one fused multiply-add. The order of those is
// that of k, whatever the tile, so the result doesn't depend on the shape of a call.
#pragma once

#include <bit>
#include <limits>
#include <type_traits>

#include "kernels/activations.inl"
#include "kernels/output.inl"
#include "kernels/wide_vec.inl"
#if defined(CAUDAL_NEON)
#include "kernels/neon_dot.inl"
#endif

namespace caudal::CAUDAL_ISA {

// What is subtracted from the codes before they multiply: the format's own offset, or one that
// makes them fit and that the minimum then makes up for.
constexpr int centre_of(const Encoding& encoding) {
    if (encoding.codebook != Codebook::None) {
        int largest = 0;
        for (const int8_t number : codebook_table(encoding.codebook)) {
            largest = number > largest ? number : largest;
        }
        return largest;
    }
    if (encoding.zero) return 8;
    return encoding.bits == 5 ? 16 : encoding.offset;
}

// A codebook's numbers plus the centre, so that they are unsigned.
constexpr CodebookTable centred_table(const Encoding& encoding) {
    CodebookTable table = codebook_table(encoding.codebook);
    for (int8_t& number : table) number = static_cast<int8_t>(number + centre_of(encoding));
    return table;
}

CAUDAL_INLINE f32w load_halves(const std::byte* from) {
    return load_wide(reinterpret_cast<const Half*>(from));
}

// Exponents of E8M0 as scales for the doubled numbers of the codebook.
CAUDAL_INLINE f32w exponent_scales(const std::byte* from) {
    const i32w exponent = widen_u8_wide(from);
    const i32w normal = (exponent - 1) << 23;
    const i32w subnormal = i32w{} + 0x00200000;
    return (f32w)select(exponent > 1, normal, subnormal << (exponent & 1));
}

// Unsigned 8-bit floats (E4M3): shifted into place, their bits are those of floats 2^120 times too
// small, of which the subnormal ones are subnormal too.
CAUDAL_INLINE f32w fp8_scales(const std::byte* from) {
    return (f32w)(widen_u8_wide(from) << 20) * splat_wide(0x1p120f);
}

// The sums that a type's products are collected in.
template <TensorType type>
using SumsOf = std::conditional_t<encoding_of(type).codebook != Codebook::None &&
                                      (centre_of(encoding_of(type)) > 16),
                                  LongGroupSums, GroupSums>;

// Reads a group straight from the packed panel, for few activation rows.
template <TensorType type>
struct PackedGroup8 {
    static constexpr Encoding kEncoding = encoding_of(type);
    static constexpr PanelLayout kLayout = panel_layout(type);
    static constexpr CodebookTable kCentred = centred_table(kEncoding);

#if defined(CAUDAL_NEON)
    static constexpr bool kJoined = false;
#endif

    const std::byte* header;
    const std::byte* group;

    static CAUDAL_INLINE PackedGroup8 at(const std::byte* panel, int64_t index) {
        return {panel + kLayout.header_at(index), panel + kLayout.group_at(index)};
    }

    template <int quad>
    CAUDAL_INLINE i32w codes(int half) const {
        constexpr int low_bits = kEncoding.bits >= 4 ? 4 : 2;
        constexpr int low_quads = low_bits == 4 ? 4 : 2;
        const std::byte* low = group + kLayout.scale_bytes;
        i32w code = load_bytes_wide(low + (quad % low_quads * kHalves + half) * kWideBytes);
        code = shift_right16<quad / low_quads * low_bits>(code);
        code = code & repeat_u8_wide((1 << low_bits) - 1);
        if constexpr (kEncoding.bits == 6) {
            const i32w high =
                load_bytes_wide(low + kLayout.low_bytes + (quad / 4 * kHalves + half) * kWideBytes);
            code = code | move_bits<quad % 4 * 2, 4, 3>(high);
        } else if constexpr (kEncoding.bits == 5 || kEncoding.bits == 3) {
            const i32w high = load_bytes_wide(low + kLayout.low_bytes + half * kWideBytes);
            code = code | move_bits<quad, low_bits, 1>(high);
        }
        if constexpr (kEncoding.codebook != Codebook::None) code = look_up(kCentred.data(), code);
        return code;
    }

    // Of the whole group or, where each half has its own, of half `part`.
    template <int part = 0>
    CAUDAL_INLINE f32w scale(int half) const {
        if constexpr (kEncoding.scales == Scales::Exponent) {
            return exponent_scales(group + half * kWideLanes);
        } else if constexpr (kEncoding.scales == Scales::Fp8) {
            return times_unit<kEncoding.unit>(
                fp8_scales(group + part * kPanelRows + half * kWideLanes));
        } else if constexpr (kEncoding.scales == Scales::Half) {
            return load_halves(group + half * kWideLanes * 2);
        } else {
            const f32w scale =
                times_unit<kEncoding.unit>(load_halves(header + half * kWideLanes * 2));
            if constexpr (kEncoding.scales != Scales::Super32) return scale;
            return scale * to_floats(widen_s8_wide(group + half * kWideLanes));
        }
    }

    // What a group adds for each unit of the activations' sum. For Super16 the sums of the two
    // halves come with the integers of `minimum_factor`.
    CAUDAL_INLINE f32w minimum(int half) const {
        constexpr int64_t field = 2 * kPanelRows;
        if constexpr (kEncoding.zero) {
            const f32w zero = to_floats(widen_u8_wide(header + field + half * kWideLanes));
            return recentred(-(zero * scale(half)), half);
        } else if constexpr (kEncoding.scales == Scales::Half) {
            return recentred(load_halves(group + field + half * kWideLanes * 2), half);
        } else {
            const f32w minimum = times_unit<kEncoding.minimum_unit>(
                load_halves(header + field + half * kWideLanes * 2));
            if constexpr (kEncoding.scales == Scales::Super16) return -minimum;
            return recentred(
                -(minimum * to_floats(widen_u8_wide(group + kPanelRows + half * kWideLanes))),
                half);
        }
    }

    CAUDAL_INLINE i32w factor(int part, int half) const {
        return SumsOf<type>::as_factor(
            widen_s8_wide(group + part * kPanelRows + half * kWideLanes));
    }

    CAUDAL_INLINE i32w minimum_factor(int part, int half) const {
        const i32w factor = widen_u8_wide(group + (2 + part) * kPanelRows + half * kWideLanes);
#if defined(__AVX512VNNI__)
        return factor;
#else
        return in_both_halves(factor);
#endif
    }

    // Asks for a later group: panels come from memory.
    CAUDAL_INLINE void prefetch(int64_t groups_ahead) const {
        prefetch_bytes(group + groups_ahead * kLayout.group_bytes(), kLayout.group_bytes());
    }

  private:
    // Moves `mask`-wide bits of every byte from bit `from` to bit `to`.
    template <int from, int to, int mask>
    static CAUDAL_INLINE i32w move_bits(i32w bytes) {
        if constexpr (from < to) {
            bytes = shift_left16<to - from>(bytes);
        } else if constexpr (from > to) {
            bytes = shift_right16<from - to>(bytes);
        }
        return bytes & repeat_u8_wide(mask << to);
    }

    template <float unit>
    static CAUDAL_INLINE f32w times_unit(f32w scale) {
        if constexpr (unit == 1) return scale;
        return scale * splat_wide(unit);
    }

    CAUDAL_INLINE f32w recentred(f32w minimum, int half) const {
        constexpr int shift = centre_of(kEncoding) - kEncoding.offset;
        if constexpr (shift == 0) return minimum;
        return multiply_add(splat_wide(static_cast<float>(shift)), scale(half), minimum);
    }
};

// The same group unpacked, for many activation rows: what PackedGroup8 computes, stored.
template <TensorType type>
struct alignas(kWideBytes) UnpackedGroup8 {
    static constexpr Encoding kEncoding = encoding_of(type);
    static constexpr int kScales = kEncoding.scales == Scales::Fp8 ? 2 : 1;
    static constexpr int kFactors = kEncoding.scales == Scales::Super16 ? 2 : 0;
    static constexpr int kMinimums = kEncoding.shifted() ? 1 : 0;
#if defined(CAUDAL_NEON)
    static constexpr bool kJoined = kUnpackJoined;
#endif

    i32w stored_codes[kGroup / 4][kHalves];
    f32w stored_scale[kScales][kHalves];
    f32w stored_minimum[kMinimums + 1][kHalves];
    i32w stored_factor[kFactors + 1][kHalves];
    i32w stored_minimum_factor[kFactors * kMinimums + 1][kHalves];

    template <int quad>
    CAUDAL_INLINE i32w codes(int half) const {
        return stored_codes[quad][half];
    }
    template <int part = 0>
    CAUDAL_INLINE f32w scale(int half) const {
        return stored_scale[part][half];
    }
    CAUDAL_INLINE f32w minimum(int half) const { return stored_minimum[0][half]; }
    CAUDAL_INLINE i32w factor(int part, int half) const { return stored_factor[part][half]; }
    CAUDAL_INLINE i32w minimum_factor(int part, int half) const {
        return stored_minimum_factor[part][half];
    }

    CAUDAL_INLINE void fill(const PackedGroup8<type>& packed) {
        for (int half = 0; half < kHalves; ++half) {
            unrolled<kGroup / 4>([&](auto quad) CAUDAL_INLINE_BODY {
                stored_codes[quad][half] = packed.template codes<quad>(half);
            });
#if defined(CAUDAL_NEON_I8MM)
            for (int quad = 0; quad < kGroup / 4; quad += 2) {
                join_quads(stored_codes[quad][half], stored_codes[quad + 1][half]);
            }
#endif
            unrolled<kScales>([&](auto part) CAUDAL_INLINE_BODY {
                stored_scale[part][half] = packed.template scale<part>(half);
            });
            if constexpr (kEncoding.shifted()) stored_minimum[0][half] = packed.minimum(half);
            for (int part = 0; part < kFactors; ++part) {
                stored_factor[part][half] = packed.factor(part, half);
                if constexpr (kEncoding.shifted()) {
                    stored_minimum_factor[part][half] = packed.minimum_factor(part, half);
                }
            }
        }
    }
};

// Adds the products of `count` quads, from quad `begin`, to the sums of a tile.
template <int begin, int count, int tokens, int vectors, class Sums, class Sources,
          class Activations>
CAUDAL_INLINE void add_quads(const Sources& sources, const Activations& a,
                             Sums (&tile)[vectors][tokens]) {
#if defined(CAUDAL_NEON_I8MM)
    if constexpr (tokens > 1) {
        BlockSums<tokens> sums[vectors];
        unrolled<count / 2>([&](auto eight) CAUDAL_INLINE_BODY {
            constexpr int quad = begin + 2 * eight;
            for (int v = 0; v < vectors; ++v) {
                const auto& source = sources.of(v);
                i32w rows[2] = {source.template codes<quad>(v % kHalves),
                                source.template codes<quad + 1>(v % kHalves)};
                if constexpr (!Sources::kJoined) join_quads(rows[0], rows[1]);
                sums[v].add(rows, a.of(0).codes[quad], a.of(0).codes[quad + 1]);
            }
        });
        for (int v = 0; v < vectors; ++v) {
            for (int t = 0; t < tokens; ++t) tile[v][t].lanes += sums[v].of(t);
        }
        return;
    }
#endif
    unrolled<count>([&](auto quad) CAUDAL_INLINE_BODY {
        i32w codes[vectors];
        for (int v = 0; v < vectors; ++v) {
            codes[v] = sources.of(v).template codes<begin + quad>(v % kHalves);
        }
        for (int t = 0; t < tokens; ++t) {
            const i32w repeated = repeat_bytes_wide(a.of(t).codes[begin + quad][t % kTileRows]);
            for (int v = 0; v < vectors; ++v) tile[v][t].add(codes[v], repeated);
        }
    });
}

// What the sums of a group's products start from: −centre · Σ of the activations.
template <class Sums, int centre, class Group>
CAUDAL_INLINE Sums start_of_group(const Group& a, int row) {
#if defined(__AVX512VNNI__)
    if constexpr (centre == 0) {
        return {i32w{}};
    } else if constexpr (std::has_single_bit(static_cast<unsigned>(centre)) && centre >= 8) {
        constexpr int shift = std::bit_width(static_cast<unsigned>(centre)) - 4;
        return {repeat_bytes_wide(&a.minus_eight_sums[row]) << shift};
    } else {
        return {multiply_pairs(repeat_bytes_wide(a.half_sums[row]), repeat_s16_wide(-centre))};
    }
#else
    return Sums::template start<centre>(a.pair_sums[0][row], a.pair_sums[1][row]);
#endif
}

// The same for half `part` of a group.
template <class Sums, int centre, int part, class Group>
CAUDAL_INLINE Sums start_of_half(const Group& a, int row) {
#if defined(__AVX512VNNI__)
    if constexpr (centre == 0) return {i32w{}};
    constexpr int32_t factor = part == 0 ? -centre & 0xffff : -centre * 65536;
    return {multiply_pairs(repeat_bytes_wide(a.half_sums[row]), i32w{} + factor)};
#else
    return Sums::template start<centre>(a.pair_sums[part][row]);
#endif
}

// The integer sums of a group's products, where one factor goes for all of it.
template <class Sums, int centre, int tokens, int vectors, class Sources, class Activations>
CAUDAL_INLINE void sum_whole_group(const Sources& sources, const Activations& a,
                                   i32w (&totals)[vectors][tokens]) {
    Sums tile[vectors][tokens];
    for (int t = 0; t < tokens; ++t) {
        const auto start = start_of_group<Sums, centre>(a.of(t), t % kTileRows);
        for (int v = 0; v < vectors; ++v) tile[v][t] = start;
    }
    add_quads<0, 8>(sources, a, tile);
    for (int v = 0; v < vectors; ++v) {
        for (int t = 0; t < tokens; ++t) totals[v][t] = tile[v][t].total();
    }
}

// The sums of the products of half `part` of a group.
template <class Sums, int centre, int part, int tokens, int vectors, class Sources,
          class Activations>
CAUDAL_INLINE void sum_half(const Sources& sources, const Activations& a,
                            Sums (&tile)[vectors][tokens]) {
    for (int t = 0; t < tokens; ++t) {
        const auto start = start_of_half<Sums, centre, part>(a.of(t), t % kTileRows);
        for (int v = 0; v < vectors; ++v) tile[v][t] = start;
    }
    add_quads<part * 4, 4>(sources, a, tile);
}

// The same where each half of a group has a factor of its own: halves times their factors.
template <class Sums, int centre, int tokens, int vectors, class Sources, class Activations>
CAUDAL_INLINE void sum_halves(const Sources& sources, const Activations& a,
                              i32w (&totals)[vectors][tokens]) {
    Sums tile[vectors][tokens];
    unrolled<2>([&](auto part) CAUDAL_INLINE_BODY {
        sum_half<Sums, centre, part>(sources, a, tile);
        for (int v = 0; v < vectors; ++v) {
            const i32w factor = sources.of(v).factor(part, v % kHalves);
            for (int t = 0; t < tokens; ++t) {
                const i32w total = tile[v][t].times(factor);
                totals[v][t] = part == 0 ? total : totals[v][t] + total;
            }
        }
    });
}

// Σ of the activations of each half times its minimum factor.
template <class Source, class Group>
CAUDAL_INLINE i32w times_minimum_factors(const Source& source, int half, const Group& a, int row) {
    const i32w first = source.minimum_factor(0, half);
    const i32w second = source.minimum_factor(1, half);
#if defined(__AVX512VNNI__)
    return multiply_pairs(repeat_bytes_wide(a.half_sums[row]), both_factors(first, second));
#else
    return multiply_pairs(repeat_bytes_wide(a.pair_sums[0][row]), first) +
           multiply_pairs(repeat_bytes_wide(a.pair_sums[1][row]), second);
#endif
}

// sums += scale of the weights · scale of the activations · totals, for one vector of rows.
template <int part = 0, int tokens, class Source, class Activations>
CAUDAL_INLINE void add_scaled(const Source& source, int half, const Activations& a,
                              const i32w (&totals)[tokens], f32w (&sums)[tokens]) {
    const f32w scale = source.template scale<part>(half);
    for (int t = 0; t < tokens; ++t) {
        sums[t] = multiply_add(to_floats(totals[t]),
                               scale * splat_wide(a.of(t).scale[t % kTileRows]), sums[t]);
    }
}

// sums += minimum · Σ of the activations, for one vector of rows.
template <Scales scales, int tokens, class Source, class Activations>
CAUDAL_INLINE void add_minimum(const Source& source, int half, const Activations& a,
                               f32w (&sums)[tokens]) {
    const f32w minimum = source.minimum(half);
    for (int t = 0; t < tokens; ++t) {
        const int row = t % kTileRows;
        if constexpr (scales != Scales::Super16) {
            sums[t] = multiply_add(minimum, splat_wide(a.of(t).sum[row]), sums[t]);
        } else {
            const i32w count = times_minimum_factors(source, half, a.of(t), row);
            sums[t] =
                multiply_add(to_floats(count), minimum * splat_wide(a.of(t).scale[row]), sums[t]);
        }
    }
}

// Adds the products of a group's weights and activations: as integers, then scaled.
template <TensorType type, int tokens, int vectors, class Sources, class Activations>
CAUDAL_INLINE void multiply_group8(const Sources& sources, const Activations& a,
                                   f32w (&sums)[vectors][tokens]) {
    constexpr Encoding encoding = encoding_of(type);
    constexpr int centre = centre_of(encoding);
    using Sums = SumsOf<type>;
    i32w totals[vectors][tokens];
    if constexpr (encoding.scales == Scales::Fp8) {
        unrolled<2>([&](auto part) CAUDAL_INLINE_BODY {
            Sums tile[vectors][tokens];
            sum_half<Sums, centre, part>(sources, a, tile);
            for (int v = 0; v < vectors; ++v) {
                for (int t = 0; t < tokens; ++t) totals[v][t] = tile[v][t].total();
                add_scaled<part>(sources.of(v), v % kHalves, a, totals[v], sums[v]);
            }
        });
        return;
    } else if constexpr (encoding.scales == Scales::Super16) {
        sum_halves<Sums, centre>(sources, a, totals);
    } else {
        sum_whole_group<Sums, centre>(sources, a, totals);
    }
    for (int v = 0; v < vectors; ++v) {
        const int half = v % kHalves;
        add_scaled(sources.of(v), half, a, totals[v], sums[v]);
        if constexpr (encoding.shifted()) {
            add_minimum<encoding.scales>(sources.of(v), half, a, sums[v]);
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
#if defined(__AVX512VNNI__)
    // Never where groups are whole cache lines and their codes are taken apart in a step or two,
    // nor where scales are taken as they are stored besides.
    static constexpr bool kManySteps =
        encoding_of(type).bits == 5 || encoding_of(type).codebook != Codebook::None;
    static constexpr bool kWholeLines = Packed::kLayout.group_bytes() % 64 == 0;
    static constexpr bool kAsStored = encoding_of(type).scales == Scales::Half;
    static constexpr int64_t kUnpackFromRows =
        kManySteps ? 65 : (kWholeLines || kAsStored ? std::numeric_limits<int64_t>::max() : 129);
    static constexpr int kPackedTiles = 1;
    // Up to so many rows two panels as they are packed meet a tile instead, so that a broadcast
    // serves both: loads are as scarce as products.
    static constexpr int64_t kMostRowsOfPairs = std::numeric_limits<int64_t>::max();
#else
    static constexpr int64_t kUnpackFromRows = encoding_of(type).bits == 4 ? 13 : 7;
    static constexpr int kPackedTiles = 1;
#endif
    // Panels that share an activation's broadcast; more would not fit in the registers.
    static constexpr int kPanelsAtOnce = 2 / kHalves;

    template <int tokens, int panels, class Source, class TileGroups>
    static CAUDAL_INLINE void multiply_group(const TileSources<panels, Source>& sources,
                                             const TileGroups& a,
                                             f32w (&sums)[panels * kHalves][tokens]) {
        multiply_group8<type>(sources, a, sums);
    }
};

}  // namespace caudal::CAUDAL_ISA
