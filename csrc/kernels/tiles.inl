// The loops around the integer kernels.
//
// Few activation rows: each panel is read once from memory in its packed form, group by group.
// Many: a stretch of a panel is unpacked into the first-level cache and meets all activation tiles
// of a block there; the block is chosen so that its activations stay in the second-level cache.
//
// Activations of two terms are met by each stretch of a panel one term after the other, in both
// ways, so that the sums round alike.
#pragma once

#include <type_traits>

#include "kernels/activations.inl"
#include "kernels/output.inl"
#include "kernels/wide_vec.inl"

namespace caudal::CAUDAL_ISA {

constexpr int64_t kGroupsAtOnce = 32;
constexpr int64_t kGroupsAhead = 16;  // how far to prefetch when panels stream by
constexpr int64_t kMostTilesAtOnce = 60;
constexpr int64_t kActivationBytesAtOnce = 512 * 1024;

// Multiplies `count` groups of `panels` panels with `tokens` rows of a tile, continuing the sums
// [panel][token][16 rows], of which each panel's begin `panel_stride` floats after the one before.
template <class Kernel, int panels, int tokens, class GroupAt>
CAUDAL_INLINE void multiply_stretch(const GroupAt& group_at, int64_t count,
                                    const typename Kernel::Activations* a, float* sums,
                                    int64_t panel_stride) {
    using Source = std::remove_cvref_t<decltype(group_at(0, 0))>;
    f32w values[panels * kHalves][tokens];
    const auto at = [&](int vector, int t) {
        return sums + vector / kHalves * panel_stride + t * kPanelRows +
               vector % kHalves * kWideLanes;
    };
    for (int v = 0; v < panels * kHalves; ++v) {
        for (int t = 0; t < tokens; ++t) values[v][t] = load_wide(at(v, t));
    }
    for (int64_t index = 0; index < count; ++index) {
        if constexpr (panels == 1) {
            const auto& group = group_at(0, index);
            group.prefetch(kGroupsAhead);
            Kernel::template multiply_group<tokens>(TileSources<1, Source>{{&group}}, a[index],
                                                    values);
        } else {
            Kernel::template multiply_group<tokens>(
                TileSources<2, Source>{{&group_at(0, index), &group_at(1, index)}}, a[index],
                values);
        }
    }
    for (int v = 0; v < panels * kHalves; ++v) {
        for (int t = 0; t < tokens; ++t) store(at(v, t), values[v][t]);
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
            alignas(kWideBytes) float sums[kTileRows * kPanelRows] = {};
            const int64_t left = rows - tile * kTileRows;
            const int64_t tokens = left < kTileRows ? left : kTileRows;
            const auto* from = a + tile * terms * groups;
            const auto meet = [&](const auto& group_at, int64_t count, const auto* term) {
                if (tokens == 1) {
                    multiply_stretch<Kernel, 1, 1>(group_at, count, term, sums, 0);
                } else if (tokens == 2) {
                    multiply_stretch<Kernel, 1, 2>(group_at, count, term, sums, 0);
                } else {  // three run as four, the last of which is zero and dropped
                    multiply_stretch<Kernel, 1, 4>(group_at, count, term, sums, 0);
                }
            };
            if (terms == 1) {
                meet([&](int, int64_t index) { return Kernel::Packed::at(data, index); }, groups,
                     from);
            } else {
                for (int64_t begin = 0; begin < groups; begin += kGroupsAtOnce) {
                    const int64_t rest = groups - begin;
                    const auto group_at = [&](int, int64_t index) {
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

// `panels` panels from `panel` with the activation tiles [first, last).
template <class Kernel, int panels>
static void multiply_panels(const PackedMatrix& matrix, const typename Kernel::Activations* a,
                            int64_t terms, int64_t rows, int64_t first, int64_t last, int64_t panel,
                            const Output& output) {
    const int64_t groups = matrix.cols / kGroup;
    const int64_t stride =
        groups / Kernel::Packed::kLayout.groups_per_header * Kernel::Packed::kLayout.stride();
    typename Kernel::Unpacked unpacked[panels][kGroupsAtOnce];
    alignas(kWideBytes) float sums[panels][kMostTilesAtOnce * kTileRows * kPanelRows];
    const auto group_at = [&](int which, int64_t index) -> const auto& {
        return unpacked[which][index];
    };
    for (int which = 0; which < panels; ++which) {
        std::memset(sums[which], 0,
                    static_cast<size_t>(last - first) * kTileRows * kPanelRows * sizeof(float));
    }
    for (int64_t begin = 0; begin < groups; begin += kGroupsAtOnce) {
        const int64_t left = groups - begin;
        const int64_t count = left < kGroupsAtOnce ? left : kGroupsAtOnce;
        for (int which = 0; which < panels; ++which) {
            const std::byte* data = matrix.data + (panel + which) * stride;
            for (int64_t index = 0; index < count; ++index) {
                const auto packed = Kernel::Packed::at(data, begin + index);
                packed.prefetch(kGroupsAtOnce);
                unpacked[which][index].fill(packed);
            }
        }
        const bool last_stretch = begin + kGroupsAtOnce >= groups;
        for (int64_t tile = first; tile < last; ++tile) {
            if (last_stretch) {
                for (int64_t row = tile * kTileRows; row < (tile + 1) * kTileRows; ++row) {
                    for (int which = 0; which < panels; ++which)
                        output.prefetch(panel + which, row);
                }
            }
            for (int64_t term = 0; term < terms; ++term) {
                multiply_stretch<Kernel, panels, kTileRows>(
                    group_at, count, a + (tile * terms + term) * groups + begin,
                    sums[0] + (tile - first) * kTileRows * kPanelRows,
                    kMostTilesAtOnce * kTileRows * kPanelRows);
            }
        }
    }
    for (int which = 0; which < panels; ++which) {
        for (int64_t row = first * kTileRows; row < last * kTileRows && row < rows; ++row) {
            output.write(panel + which, row, sums[which] + (row - first * kTileRows) * kPanelRows);
        }
    }
}

template <class Kernel>
static void multiply_many(const PackedMatrix& matrix, const typename Kernel::Activations* a,
                          int64_t terms, int64_t rows, int64_t panel_begin, int64_t panel_end,
                          const Output& output) {
    const int64_t tile_bytes =
        terms * (matrix.cols / kGroup) * static_cast<int64_t>(sizeof(typename Kernel::Activations));
    int64_t tiles_at_once = kActivationBytesAtOnce / tile_bytes;
    tiles_at_once = tiles_at_once < 8 ? 8 : tiles_at_once;
    tiles_at_once = tiles_at_once > kMostTilesAtOnce ? kMostTilesAtOnce : tiles_at_once;
    for (int64_t first = 0; first < tiles_of(rows); first += tiles_at_once) {
        const int64_t last =
            first + tiles_at_once < tiles_of(rows) ? first + tiles_at_once : tiles_of(rows);
        int64_t panel = panel_begin;
        for (; panel + Kernel::kPanelsAtOnce <= panel_end; panel += Kernel::kPanelsAtOnce) {
            multiply_panels<Kernel, Kernel::kPanelsAtOnce>(matrix, a, terms, rows, first, last,
                                                           panel, output);
        }
        for (; panel < panel_end; ++panel) {
            multiply_panels<Kernel, 1>(matrix, a, terms, rows, first, last, panel, output);
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
