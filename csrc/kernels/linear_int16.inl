// Weights of eight bits times 16-bit activations: Q8_0, and the IQ4 types, whose codebook has eight
// bits. Sixteen-bit activations cost nothing extra here (a multiply-add of bytes would overflow its
// 16-bit sums and need the same widening) and have a rounding error of 2e-5 instead of 5e-3.
//
// A lane adds up 32 products of at most 128 · 32,767 in 32 bits. Packed, two rows share a 16-bit
// lane of weights, 256 · upper + (lower + 128): multiplied whole it gives 256 times the one sum
// plus the other, and the upper byte alone, one shift away, gives the first. What wraps around in
// between cancels. That is cheaper than widening both.
#pragma once

#include "kernels/activations.inl"
#include "kernels/output.inl"
#include "kernels/wide_vec.inl"
#if defined(CAUDAL_NEON)
#include "kernels/linear_int16_neon.inl"
#endif

namespace caudal::CAUDAL_ISA {

#if defined(__AVX512VNNI__)

// With 512-bit vectors the 16 rows of a pair of columns fill one vector of 16-bit lanes.
struct Codes16 {
    static constexpr int kColumns = 2;

    i32w all;

    // From the pair's 32 bytes, twice, all signed: rows 0…7 come up from the lower bytes of the
    // first half, rows 8…15 are in the upper bytes of the second.
    static CAUDAL_INLINE Codes16 of(i32w twice) {
        const __m512i up = _mm512_zextsi256_si512(_mm256_set1_epi16(8));
        return {(i32w)_mm512_srai_epi16(_mm512_sllv_epi16((__m512i)twice, up), 8)};
    }
};

template <int tokens, int panels>
struct Sums16 {
    // Sums would wait for each other: two chains of each, of even and odd pairs, hide that.
    static constexpr int kChains = 2;

    i32w totals[kChains][panels][tokens] = {};

    template <class Activations>
    CAUDAL_INLINE explicit Sums16(const Activations& /*a*/) {}
    template <int pair, class Activations>
    CAUDAL_INLINE void add(const Codes16 (&codes)[panels], const Activations& a) {
        for (int t = 0; t < tokens; ++t) {
            const i32w repeated = repeat_bytes_wide(a.of(t).codes[pair][t % kTileRows]);
            for (int p = 0; p < panels; ++p) {
                i32w& total = totals[pair % kChains][p][t];
                total = (i32w)_mm512_dpwssd_epi32((__m512i)total, (__m512i)codes[p].all,
                                                  (__m512i)repeated);
            }
        }
    }
    CAUDAL_INLINE i32w total(int panel, int t) const {
        i32w sum = totals[0][panel][t];
        for (int chain = 1; chain < kChains; ++chain) sum = sum + totals[chain][panel][t];
        return sum;
    }
};

#elif !defined(CAUDAL_NEON)

struct Codes16 {
    static constexpr int kColumns = 2;

    i32x8 both;

    static CAUDAL_INLINE Codes16 of(i32x8 both) { return {both}; }
};

template <int tokens, int /*panels*/>
struct Sums16 {
    i32x8 totals[2][tokens];  // of whole lanes and of their upper bytes

    template <class Activations>
    CAUDAL_INLINE explicit Sums16(const Activations& a) {
        for (int t = 0; t < tokens; ++t) {
            totals[0][t] = i32x8{} - 128 * a.of(t).sum[t];
            totals[1][t] = i32x8{};
        }
    }
    template <int pair, class Activations>
    CAUDAL_INLINE void add(const Codes16 (&codes)[1], const Activations& a) {
        const i32x8 upper = upper_bytes(codes[0].both);
        for (int t = 0; t < tokens; ++t) {
            const i32x8 repeated = repeat_bytes(a.of(t).codes[pair][t]);
            dot_pairs(totals[0][t], codes[0].both, repeated);
            dot_pairs(totals[1][t], upper, repeated);
        }
    }
    CAUDAL_INLINE i32x8 total(int half, int t) const {
        return half == 0 ? subtract_256_times(totals[0][t], totals[1][t]) : totals[1][t];
    }
};

#endif

#if !defined(CAUDAL_NEON)
template <int tokens, int panels, class Source, class Activations>
CAUDAL_INLINE void add_group(const TileSources<panels, Source>& sources, const Activations& a,
                             Sums16<tokens, panels>& sums) {
    unrolled<kGroup / 2>([&](auto pair) CAUDAL_INLINE_BODY {
        Codes16 codes[panels];
        for (int p = 0; p < panels; ++p) codes[p] = sources.groups[p]->template codes<pair>();
        sums.template add<pair>(codes, a);
    });
}
#endif

template <TensorType type>
struct PackedGroup16 {
    static constexpr Encoding kEncoding = encoding_of(type);
    static constexpr PanelLayout kLayout = panel_layout(type);

    const std::byte* header;
    const std::byte* group;

    static CAUDAL_INLINE PackedGroup16 at(const std::byte* panel, int64_t index) {
        return {panel + kLayout.header_at(index), panel + kLayout.group_at(index)};
    }

#if defined(CAUDAL_NEON)
    static constexpr bool kJoined = false;

    template <int quad>
    CAUDAL_INLINE Codes16 codes() const {
        return Codes16::of(pair_codes<2 * quad>(), pair_codes<2 * quad + 1>());
    }
#elif defined(__AVX512VNNI__)
    template <int pair>
    CAUDAL_INLINE Codes16 codes() const {
        // Loads repeat their bytes for nothing.
        i32w bytes = (i32w)_mm512_broadcast_i64x4(
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pair_bytes<pair>())));
        if constexpr (kEncoding.bits == 8) {
            return Codes16::of(bytes ^ (i32w)_mm512_zextsi256_si512(_mm256_set1_epi16(0x0080)));
        } else {
            bytes = shift_right16<pair / kVectors * 4>(bytes) & repeat_u8_wide(15);
            return Codes16::of(look_up(kCodebook.data(), bytes));
        }
    }
#else
    template <int pair>
    CAUDAL_INLINE Codes16 codes() const {
        return Codes16::of(pair_codes<pair>());
    }
#endif

    CAUDAL_INLINE f32w scale(int half) const {
        if constexpr (kEncoding.scales == Scales::Row) {
            return splat_wide(1);
        } else if constexpr (kEncoding.scales == Scales::Half) {
            return load_wide(reinterpret_cast<const Half*>(group + half * kWideLanes * 2));
        } else {
            return load_wide(reinterpret_cast<const Half*>(header + half * kWideLanes * 2)) *
                   to_floats(widen_s8_wide(group + half * kWideLanes));
        }
    }

    // Asks for a later group: panels come from memory.
    CAUDAL_INLINE void prefetch(int64_t groups_ahead) const {
        prefetch_bytes(group + groups_ahead * kLayout.group_bytes(), kLayout.group_bytes());
    }

  private:
    static constexpr CodebookTable kCodebook = codebook_table(kEncoding.codebook);
    static constexpr int kVectors = kEncoding.bits == 8 ? 16 : 8;

    template <int pair>
    CAUDAL_INLINE const std::byte* pair_bytes() const {
        return group + kLayout.scale_bytes + pair % kVectors * kVectorBytes;
    }

#if !defined(__AVX512VNNI__)
    // 16-bit lanes with a row of 8…15 in the upper byte and, plus 128, one of 0…7 in the lower.
    template <int pair>
    CAUDAL_INLINE i32x8 pair_codes() const {
        i32x8 bytes = load_bytes(pair_bytes<pair>());
        if constexpr (kEncoding.bits == 8) return bytes;
        bytes = shift_right16<pair / kVectors * 4>(bytes) & repeat_u8(15);
        return look_up(kCodebook.data(), bytes) ^ repeat_s16(0x0080);
    }
#endif
};

template <TensorType type>
struct alignas(kWideBytes) UnpackedGroup16 {
    static constexpr int kCodes = kGroup / Codes16::kColumns;
#if defined(CAUDAL_NEON)
    static constexpr bool kJoined = kUnpackJoined;
#endif

    Codes16 stored_codes[kCodes];
    f32w stored_scale[kHalves];

    template <int index>
    CAUDAL_INLINE Codes16 codes() const {
        return stored_codes[index];
    }
    CAUDAL_INLINE f32w scale(int half) const { return stored_scale[half]; }

    CAUDAL_INLINE void fill(const PackedGroup16<type>& packed) {
        unrolled<kCodes>([&](auto index) CAUDAL_INLINE_BODY {
            stored_codes[index] = packed.template codes<index>();
        });
#if defined(CAUDAL_NEON_I8MM)
        for (int index = 0; index < kCodes; index += 2) {
            for (int half = 0; half < 2; ++half) {
                join_quads(stored_codes[index].rows[half], stored_codes[index + 1].rows[half]);
            }
        }
#endif
        for (int half = 0; half < kHalves; ++half) stored_scale[half] = packed.scale(half);
    }
};

template <TensorType type>
struct Int16Kernel {
    using Activations = Int16Group;
    using Packed = PackedGroup16<type>;
    using Unpacked = UnpackedGroup16<type>;
    // From this many activation rows on, unpacking once pays; measured.
#if defined(__AVX512VNNI__)
    static constexpr int64_t kUnpackFromRows = encoding_of(type).bits == 4 ? 25 : 57;
    static constexpr int kPackedTiles = 2;
    static constexpr int64_t kMostRowsOfPairs = 6;
    static constexpr int kPanelsAtOnce = 2;
#else
    static constexpr int64_t kUnpackFromRows = encoding_of(type).bits == 4 ? 7 : 25;
    static constexpr int kPackedTiles = 1;
    static constexpr int kPanelsAtOnce = 1;
#endif

    template <int tokens, int panels, class Source, class TileGroups>
    static CAUDAL_INLINE void multiply_group(const TileSources<panels, Source>& sources,
                                             const TileGroups& a,
                                             f32w (&sums)[panels * kHalves][tokens]) {
        Sums16<tokens, panels> products(a);
        add_group(sources, a, products);
        for (int v = 0; v < panels * kHalves; ++v) {
            const f32w scale = sources.of(v).scale(v % kHalves);
            for (int t = 0; t < tokens; ++t) {
                sums[v][t] =
                    multiply_add(to_floats(products.total(v, t)),
                                 scale * splat_wide(a.of(t).scale[t % kTileRows]), sums[v][t]);
            }
        }
    }
};

}  // namespace caudal::CAUDAL_ISA
