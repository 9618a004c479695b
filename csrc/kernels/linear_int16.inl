// Weights of eight bits times 16-bit activations: Q8_0, and the IQ4 types, whose codebook has eight
// bits. Sixteen-bit activations cost nothing extra here (a multiply-add of bytes would overflow its
// 16-bit sums and need the same widening) and have a rounding error of 2e-5 instead of 5e-3.
//
// A lane adds up 32 products of at most 128 · 32,767 in 32 bits.
#pragma once

#include "kernels/activations.inl"
#include "kernels/output.inl"

namespace caudal::CAUDAL_ISA {

template <TensorType type>
struct PackedGroup16 {
    static constexpr Encoding kEncoding = encoding_of(type);
    static constexpr PanelLayout kLayout = panel_layout(type);

    const std::byte* header;
    const std::byte* group;

    static CAUDAL_INLINE PackedGroup16 at(const std::byte* panel, int64_t index) {
        return {panel + kLayout.header_at(index), panel + kLayout.group_at(index)};
    }

    // Rows 0…7 and 8…15 of two neighbouring columns, as 16-bit numbers.
    template <int pair>
    CAUDAL_INLINE void codes(i32x8& low, i32x8& high) const {
        const std::byte* bytes = group + kLayout.scale_bytes + pair % kVectors * kVectorBytes;
        if constexpr (kEncoding.bits == 8) {
            low = widen_s8_to_16(load_s8x16(bytes));
            high = widen_s8_to_16(load_s8x16(bytes + 16));
        } else {
            i32x8 indices = shift_right16<pair / kVectors * 4>(load_bytes(bytes));
            const i32x8 numbers = look_up(kIq4Codebook, indices & repeat_u8(15));
            low = widen_s8_to_16(half_of<0>(numbers));
            high = widen_s8_to_16(half_of<1>(numbers));
        }
    }

    CAUDAL_INLINE f32x8 scale(int half) const {
        if constexpr (kEncoding.scales == Scales::Half) {
            return load(reinterpret_cast<const Half*>(group + half * kLanes * 2));
        } else {
            return load(reinterpret_cast<const Half*>(header + half * kLanes * 2)) *
                   to_floats(widen_s8(group + half * kLanes));
        }
    }

    // Touches what will be needed a few groups later: panels are read once, from memory.
    CAUDAL_INLINE void prefetch() const {
        constexpr int64_t ahead = 3072;
        for (int64_t line = 0; line < kLayout.group_bytes(); line += 64) {
            __builtin_prefetch(group + ahead + line);
        }
    }

  private:
    static constexpr int kVectors = kEncoding.bits == 8 ? 16 : 8;
};

template <TensorType type>
struct alignas(32) UnpackedGroup16 {
    i32x8 stored_codes[kGroup / 2][2];
    f32x8 stored_scale[2];

    template <int pair>
    CAUDAL_INLINE void codes(i32x8& low, i32x8& high) const {
        low = stored_codes[pair][0];
        high = stored_codes[pair][1];
    }
    CAUDAL_INLINE f32x8 scale(int half) const { return stored_scale[half]; }
    CAUDAL_INLINE void prefetch() const {}

    CAUDAL_INLINE void fill(const PackedGroup16<type>& packed) {
        [&]<int... pair>(std::integer_sequence<int, pair...>) {
            (packed.template codes<pair>(stored_codes[pair][0], stored_codes[pair][1]), ...);
        }(std::make_integer_sequence<int, kGroup / 2>{});
        stored_scale[0] = packed.scale(0);
        stored_scale[1] = packed.scale(1);
    }
};

template <TensorType type>
struct Int16Kernel {
    using Activations = Int16Group;
    using Packed = PackedGroup16<type>;
    using Unpacked = UnpackedGroup16<type>;
    static constexpr TensorType kType = type;

    template <int tokens, class Source>
    static CAUDAL_INLINE void multiply_group(const Source& source, const Int16Group& a,
                                             int64_t slot, f32x8 (&sums)[2][tokens]) {
        i32x8 totals[2][tokens] = {};
        [&]<int... pair>(std::integer_sequence<int, pair...>) {
            (
                [&] {
                    i32x8 low, high;
                    source.template codes<pair>(low, high);
                    for (int t = 0; t < tokens; ++t) {
                        const i32x8 repeated = repeat_bytes(a.codes[pair][slot + t]);
                        dot_pairs(totals[0][t], low, repeated);
                        dot_pairs(totals[1][t], high, repeated);
                    }
                }(),
                ...);
        }(std::make_integer_sequence<int, kGroup / 2>{});
        for (int half = 0; half < 2; ++half) {
            const f32x8 scale = source.scale(half);
            for (int t = 0; t < tokens; ++t) {
                sums[half][t] = multiply_add(to_floats(totals[half][t]),
                                             scale * splat(a.scale[slot + t]), sums[half][t]);
            }
        }
    }
};

}  // namespace caudal::CAUDAL_ISA
