// The loops around the integer kernels.
//
// Few activation rows: each panel is read once from memory in its packed form, group by group.
// Many: a stretch of a panel is unpacked into the first-level cache and meets all activation tiles
// of a block there; the block is chosen so that its activations stay in the second-level cache.
//
// Activations of two terms are met by each stretch of a panel one term after the other, in both
// ways, so that the sums round alike.
#pragma once

#include "kernels/activations.inl"
#include "kernels/output.inl"

namespace caudal::CAUDAL_ISA {

constexpr int64_t kGroupsAtOnce = 32;
constexpr int64_t kGroupsAhead = 16;  // how far to prefetch when panels stream by
constexpr int64_t kMostTilesAtOnce = 60;
constexpr int64_t kActivationBytesAtOnce = 512 * 1024;

// Multiplies `count` groups with `tokens` rows of a tile, continuing the sums [token][16 rows].
template <class Kernel, int tokens, class GroupAt>
CAUDAL_INLINE void multiply_stretch(const GroupAt& group_at, int64_t count,
                                    const typename Kernel::Activations* a, float* sums) {
    f32x8 values[2][tokens];
    for (int t = 0; t < tokens; ++t) {
        values[0][t] = load(sums + t * kPanelRows);
        values[1][t] = load(sums + t * kPanelRows + kLanes);
    }
    for (int64_t index = 0; index < count; ++index) {
        const auto& group = group_at(index);
        group.prefetch(kGroupsAhead);
        Kernel::template multiply_group<tokens>(group, a[index], values);
    }
    for (int t = 0; t < tokens; ++t) {
        store(sums + t * kPanelRows, values[0][t]);
        store(sums + t * kPanelRows + kLanes, values[1][t]);
    }
}

template <class Kernel>
static void multiply_few(const PackedMatrix& matrix, const typename Kernel::Activations* a,
                         int64_t terms, int64_t rows, int64_t panel_begin, int64_t panel_end,
                         const Output& output) {
    const int64_t groups = matrix.cols / kGroup;
    const int64_t stride =
        groups / Kernel::Packed::kLayout.groups_per_header * Kernel::Packed::kLayout.stride();
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
        const std::byte* data = matrix.data + panel * stride;
        for (int64_t tile = 0; tile < tiles_of(rows); ++tile) {
            alignas(32) float sums[kTileRows * kPanelRows] = {};
            const int64_t left = rows - tile * kTileRows;
            const int64_t tokens = left < kTileRows ? left : kTileRows;
            const auto* from = a + tile * terms * groups;
            const auto meet = [&](const auto& group_at, int64_t count, const auto* term) {
                if (tokens == 1) {
                    multiply_stretch<Kernel, 1>(group_at, count, term, sums);
                } else if (tokens == 2) {
                    multiply_stretch<Kernel, 2>(group_at, count, term, sums);
                } else {  // three run as four, the last of which is zero and dropped
                    multiply_stretch<Kernel, 4>(group_at, count, term, sums);
                }
            };
            if (terms == 1) {
                meet([&](int64_t index) { return Kernel::Packed::at(data, index); }, groups, from);
            } else {
                for (int64_t begin = 0; begin < groups; begin += kGroupsAtOnce) {
                    const int64_t rest = groups - begin;
                    const auto group_at = [&](int64_t index) {
                        return Kernel::Packed::at(data, begin + index);
                    };
                    for (int64_t term = 0; term < terms; ++term) {
                        meet(group_at, rest < kGroupsAtOnce ? rest : kGroupsAtOnce,
                             from + term * groups + begin);
                    }
                }
            }
            for (int64_t t = 0; t < tokens; ++t) {
                output.write(panel, tile * kTileRows + t, sums + t * kPanelRows);
            }
        }
    }
}

template <class Kernel>
static void multiply_many(const PackedMatrix& matrix, const typename Kernel::Activations* a,
                          int64_t terms, int64_t rows, int64_t panel_begin, int64_t panel_end,
                          const Output& output) {
    const int64_t groups = matrix.cols / kGroup;
    const int64_t stride =
        groups / Kernel::Packed::kLayout.groups_per_header * Kernel::Packed::kLayout.stride();
    const int64_t tile_bytes =
        terms * groups * static_cast<int64_t>(sizeof(typename Kernel::Activations));
    int64_t tiles_at_once = kActivationBytesAtOnce / tile_bytes;
    tiles_at_once = tiles_at_once < 8 ? 8 : tiles_at_once;
    tiles_at_once = tiles_at_once > kMostTilesAtOnce ? kMostTilesAtOnce : tiles_at_once;
    typename Kernel::Unpacked unpacked[kGroupsAtOnce];
    alignas(32) float sums[kMostTilesAtOnce * kTileRows * kPanelRows];
    const auto group_at = [&](int64_t index) -> const auto& { return unpacked[index]; };

    for (int64_t first = 0; first < tiles_of(rows); first += tiles_at_once) {
        const int64_t last =
            first + tiles_at_once < tiles_of(rows) ? first + tiles_at_once : tiles_of(rows);
        for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
            const std::byte* data = matrix.data + panel * stride;
            std::memset(sums, 0,
                        static_cast<size_t>(last - first) * kTileRows * kPanelRows * sizeof(float));
            for (int64_t begin = 0; begin < groups; begin += kGroupsAtOnce) {
                const int64_t left = groups - begin;
                const int64_t count = left < kGroupsAtOnce ? left : kGroupsAtOnce;
                for (int64_t index = 0; index < count; ++index) {
                    const auto packed = Kernel::Packed::at(data, begin + index);
                    packed.prefetch(kGroupsAtOnce);
                    unpacked[index].fill(packed);
                }
                for (int64_t tile = first; tile < last; ++tile) {
                    for (int64_t term = 0; term < terms; ++term) {
                        multiply_stretch<Kernel, kTileRows>(
                            group_at, count, a + (tile * terms + term) * groups + begin,
                            sums + (tile - first) * kTileRows * kPanelRows);
                    }
                }
            }
            for (int64_t row = first * kTileRows; row < last * kTileRows && row < rows; ++row) {
                output.write(panel, row, sums + (row - first * kTileRows) * kPanelRows);
            }
        }
    }
}

template <class Kernel>
static void multiply_tiles(const PackedMatrix& matrix, const std::byte* activations, int64_t terms,
                           int64_t rows, int64_t panel_begin, int64_t panel_end,
                           const Output& output) {
    const auto* a = reinterpret_cast<const typename Kernel::Activations*>(activations);
    if (rows < Kernel::kUnpackFromRows) {
        multiply_few<Kernel>(matrix, a, terms, rows, panel_begin, panel_end, output);
    } else {
        multiply_many<Kernel>(matrix, a, terms, rows, panel_begin, panel_end, output);
    }
}

}  // namespace caudal::CAUDAL_ISA
