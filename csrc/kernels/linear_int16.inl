// Weights of eight bits times 16-bit activations: Q8_0, and the IQ4 types, whose codebook has eight
// bits. Sixteen-bit activations cost nothing extra here (a multiply-add of bytes would overflow its
// 16-bit sums and need the same widening) and have a rounding error of 2e-5 instead of 5e-3.
//
// A lane adds up 32 products of at most 128 · 32,767 in 32 bits. Two rows share a 16-bit lane of
// weights, 256 · upper + (lower + 128): multiplied whole it gives 256 times the one sum plus the
// other, and the upper byte alone, one shift away, gives the first. What wraps around in between
// cancels. That is cheaper than widening both.
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

    // 16-bit lanes with a row of 8…15 in the upper byte and, plus 128, one of 0…7 in the lower.
    template <int pair>
    CAUDAL_INLINE i32x8 codes() const {
        i32x8 bytes = load_bytes(group + kLayout.scale_bytes + pair % kVectors * kVectorBytes);
        if constexpr (kEncoding.bits == 8) return bytes;
        bytes = shift_right16<pair / kVectors * 4>(bytes) & repeat_u8(15);
        return look_up(kIq4Codebook, bytes) ^ repeat_s16(0x0080);
    }

    CAUDAL_INLINE f32x8 scale(int half) const {
        if constexpr (kEncoding.scales == Scales::Half) {
            return load(reinterpret_cast<const Half*>(group + half * kLanes * 2));
        } else {
            return load(reinterpret_cast<const Half*>(header + half * kLanes * 2)) *
                   to_floats(widen_s8(group + half * kLanes));
        }
    }

    // Asks for a later group: panels come from memory.
    CAUDAL_INLINE void prefetch(int64_t groups_ahead) const {
        prefetch_bytes(group + groups_ahead * kLayout.group_bytes(), kLayout.group_bytes());
    }

  private:
    static constexpr int kVectors = kEncoding.bits == 8 ? 16 : 8;
};

template <TensorType type>
struct alignas(32) UnpackedGroup16 {
    i32x8 stored_codes[kGroup / 2];
    f32x8 stored_scale[2];

    template <int pair>
    CAUDAL_INLINE i32x8 codes() const {
        return stored_codes[pair];
    }
    CAUDAL_INLINE f32x8 scale(int half) const { return stored_scale[half]; }
    CAUDAL_INLINE void prefetch(int64_t /*groups_ahead*/) const {}

    CAUDAL_INLINE void fill(const PackedGroup16<type>& packed) {
        unrolled<kGroup / 2>([&](auto pair) CAUDAL_INLINE_BODY {
            stored_codes[pair] = packed.template codes<pair>();
        });
        stored_scale[0] = packed.scale(0);
        stored_scale[1] = packed.scale(1);
    }
};

template <TensorType type>
struct Int16Kernel {
    using Activations = Int16Group;
    using Packed = PackedGroup16<type>;
    using Unpacked = UnpackedGroup16<type>;
    // From this many activation rows on, unpacking once pays; measured.
    static constexpr int64_t kUnpackFromRows = encoding_of(type).bits == 4 ? 7 : 25;

    template <int tokens, class Source>
    static CAUDAL_INLINE void multiply_group(const Source& source, const Int16Group& a,
                                             f32x8 (&sums)[2][tokens]) {
        i32x8 totals[2][tokens];
        for (int t = 0; t < tokens; ++t) {
            totals[0][t] = i32x8{} - 128 * a.sum[t];
            totals[1][t] = i32x8{};
        }
        unrolled<kGroup / 2>([&](auto pair) CAUDAL_INLINE_BODY {
            const i32x8 both = source.template codes<pair>();
            const i32x8 upper = upper_bytes(both);
            for (int t = 0; t < tokens; ++t) {
                const i32x8 repeated = repeat_bytes(a.codes[pair][t]);
                dot_pairs(totals[0][t], both, repeated);
                dot_pairs(totals[1][t], upper, repeated);
            }
        });
        for (int t = 0; t < tokens; ++t) {
            totals[0][t] = subtract_256_times(totals[0][t], totals[1][t]);
        }
        for (int half = 0; half < 2; ++half) {
            const f32x8 scale = source.scale(half);
            for (int t = 0; t < tokens; ++t) {
                sums[half][t] = multiply_add(to_floats(totals[half][t]), scale * splat(a.scale[t]),
                                             sums[half][t]);
            }
        }
    }
};

}  // namespace caudal::CAUDAL_ISA
