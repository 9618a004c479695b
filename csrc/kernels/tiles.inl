// The loops around the integer kernels.
//
// Few activation rows: each panel is read from memory in its packed form, group by group, and meets
// a tile or two at a time; the sums stay in registers from the first column to the last.
// Many: a stretch of panels is unpacked into the first-level cache and meets all activation tiles
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
constexpr int64_t kMostTilesAtOnce = 60;
constexpr int64_t kActivationBytesAtOnce = 512 * 1024;

// A group of activations of one tile, or of two side by side: up to eight rows.
template <int tiles, class Group>
struct TileActivations {
    const Group* groups[tiles];

    CAUDAL_INLINE const Group& of(int token) const { return *groups[token / kTileRows]; }
};

// The sums of the 16 rows of each of `panels` panels with `tokens` activation rows.
template <int panels, int tokens>
struct TileSums {
    f32w values[panels * kHalves][tokens];

    static CAUDAL_INLINE TileSums zero() {
        TileSums sums;
        sums.for_each([&](int v, int t) CAUDAL_INLINE_BODY { sums.values[v][t] = f32w{}; });
        return sums;
    }
    // Each panel's sums begin `panel_stride` floats after those of the one before.
    static CAUDAL_INLINE TileSums load(const float* from, int64_t panel_stride) {
        TileSums sums;
        sums.for_each([&](int v, int t) CAUDAL_INLINE_BODY {
            sums.values[v][t] = load_wide(from + offset(v, t, panel_stride));
        });
        return sums;
    }
    CAUDAL_INLINE void store_to(float* to, int64_t panel_stride) const {
        for_each([&](int v, int t)
                     CAUDAL_INLINE_BODY { store(to + offset(v, t, panel_stride), values[v][t]); });
    }
    // Those of panel `which`, as rows of y of panel `panel`.
    CAUDAL_INLINE void write(const Output& output, int which, int64_t panel, int64_t row,
                             int64_t rows, const std::byte* scales) const {
        unrolled<tokens>([&](auto t) CAUDAL_INLINE_BODY {
            if (t >= rows) return;
            f32w sums[kHalves];
            for (int half = 0; half < kHalves; ++half) {
                sums[half] = values[which * kHalves + half][t];
            }
            output.write(panel, row + t, sums, scales);
        });
    }

  private:
    template <class Body>
    static CAUDAL_INLINE void for_each(const Body& body) {
        for (int v = 0; v < panels * kHalves; ++v) {
            for (int t = 0; t < tokens; ++t) body(v, t);
        }
    }
    static CAUDAL_INLINE int64_t offset(int vector, int t, int64_t panel_stride) {
        return vector / kHalves * panel_stride + t * kPanelRows + vector % kHalves * kWideLanes;
    }
};

// Adds the products of `count` groups of `panels` panels with the rows of one tile or,
// `tile_stride` groups apart, of two.
template <class Kernel, int panels, int tokens, class GroupAt>
CAUDAL_INLINE void multiply_stretch(const GroupAt& group_at, int64_t count,
                                    const typename Kernel::Activations* a, int64_t tile_stride,
                                    TileSums<panels, tokens>& sums) {
    using Source = std::remove_cvref_t<decltype(group_at(0, 0))>;
    constexpr int tiles = (tokens + kTileRows - 1) / kTileRows;
    for (int64_t index = 0; index < count; ++index) {
        TileActivations<tiles, typename Kernel::Activations> activations;
        for (int tile = 0; tile < tiles; ++tile) {
            activations.groups[tile] = a + tile * tile_stride + index;
        }
        const auto& group = group_at(0, index);
        if constexpr (panels == 1) {
            Kernel::template multiply_group<tokens>(TileSources<1, Source>{{&group}}, activations,
                                                    sums.values);
        } else {
            const auto& other = group_at(1, index);
            Kernel::template multiply_group<tokens>(TileSources<2, Source>{{&group, &other}},
                                                    activations, sums.values);
        }
    }
}

template <class Kernel>
CAUDAL_INLINE int64_t bytes_of_panel(const PackedMatrix& matrix) {
    constexpr PanelLayout layout = Kernel::Packed::kLayout;
    return layout.prefix_bytes + matrix.cols / kGroup / layout.groups_per_header * layout.stride();
}

// The scales of a panel's rows, if the type has any.
template <class Kernel>
CAUDAL_INLINE const std::byte* row_scales(const std::byte* panel) {
    return Kernel::Packed::kEncoding.row_scale ? panel : nullptr;
}

// Rows that meet packed panels at once, of `left`: 1 or 2; 3 to 6 in a tile of 4, of which what is
// too many is zero and dropped; else as many as the kernel takes with one panel, and a tile of 4
// with two.
template <class Kernel, int panels>
CAUDAL_INLINE int64_t rows_at_once(int64_t left) {
    constexpr int64_t most = (panels > 1 ? 1 : Kernel::kPackedTiles) * kTileRows;
    if (left <= 2) return left;
    return most == kTileRows || left < 7 ? kTileRows : most;
}

// Panels as they are packed with the activation tiles [first, last): one, or two, `apart` panels
// from each other.
template <class Kernel, int panels>
static void multiply_packed(const PackedMatrix& matrix, const typename Kernel::Activations* a,
                            int64_t terms, int64_t rows, int64_t first, int64_t last, int64_t panel,
                            int64_t apart, const Output& output) {
    using Packed = typename Kernel::Packed;
    constexpr int kMostRows = Kernel::kPackedTiles * kTileRows;
    const int64_t groups = matrix.cols / kGroup;
    const int64_t bytes = bytes_of_panel<Kernel>(matrix);
    const int64_t end = last * kTileRows < rows ? last * kTileRows : rows;
    // Later panels are asked for at an even pace: some lines with each group that is met.
    int64_t passes = 0;
    for (int64_t row = first * kTileRows; row < end;
         row += rows_at_once<Kernel, panels>(end - row)) {
        passes += terms;
    }
    const int64_t pace = (Packed::kLayout.group_bytes() + 64 * passes - 1) / (64 * passes) * 64;
    const StreamPolicy stream = matrix.stream;
    const int64_t until_next = apart == 1 ? panels * bytes : bytes;
    const int64_t distance =
        passes > 1 || bytes < stream.bytes_ahead ? until_next : stream.bytes_ahead;
    const std::byte* data[panels];
    const std::byte* ahead[panels];
    for (int which = 0; which < panels; ++which) {
        data[which] = matrix.data + (panel + which * apart) * bytes;
        ahead[which] = data[which] + distance;
    }
    for (int64_t row = first * kTileRows; row < end;) {
        const auto* from = a + row / kTileRows * terms * groups;
        const auto meet = [&]<int tokens>(std::integral_constant<int, tokens>) CAUDAL_INLINE_BODY {
            const int64_t some = end - row < tokens ? end - row : tokens;
            for (int64_t t = 0; t < some; ++t) {
                for (int which = 0; which < panels; ++which) {
                    output.prefetch(panel + which * apart, row + t);
                }
            }
            auto sums = TileSums<panels, tokens>::zero();
            const int64_t stretch = terms == 1 ? groups : kGroupsAtOnce;
            for (int64_t begin = 0; begin < groups; begin += stretch) {
                const int64_t count = groups - begin < stretch ? groups - begin : stretch;
                const auto group_at = [&](int which, int64_t index) CAUDAL_INLINE_BODY {
                    prefetch_bytes(ahead[which], pace, stream.level);
                    ahead[which] += pace;
                    return Packed::at(data[which], begin + index);
                };
                for (int64_t term = 0; term < terms; ++term) {
                    multiply_stretch<Kernel>(group_at, count, from + term * groups + begin,
                                             terms * groups, sums);
                }
            }
            for (int which = 0; which < panels; ++which) {
                sums.write(output, which, panel + which * apart, row, some,
                           row_scales<Kernel>(data[which]));
            }
            row += some;
        };
        const int64_t tokens = rows_at_once<Kernel, panels>(end - row);
        if (tokens == 1) {
            meet(std::integral_constant<int, 1>{});
        } else if (tokens == 2) {
            meet(std::integral_constant<int, 2>{});
        } else if (panels > 1 || tokens == kTileRows) {
            meet(std::integral_constant<int, kTileRows>{});
        } else {
            meet(std::integral_constant<int, kMostRows>{});
        }
    }
}

// `panels` panels from `panel` with the activation tiles [first, last).
template <class Kernel, int panels>
static void multiply_panels(const PackedMatrix& matrix, const typename Kernel::Activations* a,
                            int64_t terms, int64_t rows, int64_t first, int64_t last, int64_t panel,
                            const Output& output) {
    const int64_t groups = matrix.cols / kGroup;
    const int64_t bytes = bytes_of_panel<Kernel>(matrix);
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
            const std::byte* data = matrix.data + (panel + which) * bytes;
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
            float* const tile_sums = sums[0] + (tile - first) * kTileRows * kPanelRows;
            constexpr int64_t panel_stride = kMostTilesAtOnce * kTileRows * kPanelRows;
            auto values = TileSums<panels, kTileRows>::load(tile_sums, panel_stride);
            for (int64_t term = 0; term < terms; ++term) {
                multiply_stretch<Kernel>(group_at, count,
                                         a + (tile * terms + term) * groups + begin, 0, values);
            }
            values.store_to(tile_sums, panel_stride);
        }
    }
    for (int which = 0; which < panels; ++which) {
        for (int64_t row = first * kTileRows; row < last * kTileRows && row < rows; ++row) {
            output.write(panel + which, row, sums[which] + (row - first * kTileRows) * kPanelRows,
                         row_scales<Kernel>(matrix.data + (panel + which) * bytes));
        }
    }
}

template <class Kernel>
static void multiply_tiles(const PackedMatrix& matrix, const std::byte* activations, int64_t terms,
                           int64_t rows, int64_t panel_begin, int64_t panel_end,
                           const Output& output) {
    const auto* a = reinterpret_cast<const typename Kernel::Activations*>(activations);
    const int64_t tile_bytes =
        terms * (matrix.cols / kGroup) * static_cast<int64_t>(sizeof(typename Kernel::Activations));
    int64_t tiles_at_once = kActivationBytesAtOnce / tile_bytes;
    tiles_at_once = tiles_at_once < 8 ? 8 : tiles_at_once;
    tiles_at_once = tiles_at_once > kMostTilesAtOnce ? kMostTilesAtOnce : tiles_at_once;
    for (int64_t first = 0; first < tiles_of(rows); first += tiles_at_once) {
        const int64_t last =
            first + tiles_at_once < tiles_of(rows) ? first + tiles_at_once : tiles_of(rows);
        int64_t panel = panel_begin;
        if (rows < Kernel::kUnpackFromRows) {
            if constexpr (Kernel::kPanelsAtOnce > 1) {
                // Two streams are the halves of what is read, if they are long enough to get going.
                const int64_t half =
                    rows == 1 && matrix.stream.streams > 1 ? (panel_end - panel_begin) / 2 : 0;
                if (half * bytes_of_panel<Kernel>(matrix) >= 4 * matrix.stream.bytes_ahead) {
                    for (; panel < panel_begin + half; ++panel) {
                        multiply_packed<Kernel, 2>(matrix, a, terms, rows, first, last, panel, half,
                                                   output);
                    }
                    panel += half;
                }
            }
            if constexpr (Kernel::kPanelsAtOnce > 1) {
                const bool in_pairs = rows > 2 && rows <= Kernel::kMostRowsOfPairs;
                for (; in_pairs && panel + 2 <= panel_end; panel += 2) {
                    multiply_packed<Kernel, 2>(matrix, a, terms, rows, first, last, panel, 1,
                                               output);
                }
            }
            for (; panel < panel_end; ++panel) {
                multiply_packed<Kernel, 1>(matrix, a, terms, rows, first, last, panel, 0, output);
            }
            continue;
        }
        for (; panel + Kernel::kPanelsAtOnce <= panel_end; panel += Kernel::kPanelsAtOnce) {
            multiply_panels<Kernel, Kernel::kPanelsAtOnce>(matrix, a, terms, rows, first, last,
                                                           panel, output);
        }
        for (; panel < panel_end; ++panel) {
            multiply_panels<Kernel, 1>(matrix, a, terms, rows, first, last, panel, output);
        }
    }
}

}  // namespace caudal::CAUDAL_ISA
