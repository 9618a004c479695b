// The layout of packed weights: panels of 16 output rows, cut along k into groups of 32.
//
// A panel of a float type is [k][16 rows]. A panel of a quantised type is a sequence of groups,
// each with its scales and then its codes, and, where several share a scale (the K types and their
// like: eight), a header before the first of them. Where rows have a scale, 16 floats come first.
//
//   header             Block:    16 half scales, [16 zeros of a byte]
//                      Float:    16 float scales
//                      Super…:   16 half scales, [16 half minimums]
//   scales             Half:     16 half scales, [16 half minimums]
//                      Block, Row, Float: none
//                      Exponent: 16 exponents
//                      Fp8:      2 × 16 floats of eight bits (first half of k, second)
//                      Super32:  16 factors, [16 minimum factors]
//                      Super16:  2 × 16 factors, [2 × 16 minimum factors] (first half of k, second)
//   codes              16 rows × 32 codes, `bits` bits each
//
// Codes come in vectors of 32 bytes that a kernel can use as they are after a shift and a mask:
//
//   narrow (8-bit multiply-adds)   vector (quad q, half h) = rows 8h…8h+7 × k 4q…4q+3, 16 a group
//     2 bits:  byte vectors (q % 2, h), shifted by 2 · (q / 2)
//     4 bits:  byte vectors (q % 4, h), shifted by 4 · (q / 4)
//     third / fifth bit: byte vectors (h), bit q
//     fifth and sixth bit: byte vectors (q / 4, h), shifted by 2 · (q % 4)
//   wide (16-bit multiply-adds: Q8_0 and the IQ4 types)
//                                  vector (pair p) = rows 0…7 × k 2p, 2p+1 in the lower bytes of
//                                  16-bit lanes, rows 8…15 in the upper bytes; 16 a group
//     8 bits:  byte vectors (p); signed, plus 128 in rows 0…7
//     4 bits:  byte vectors (p % 8), shifted by 4 · (p / 8)
//   columns (multiplied as floats) 16 rows of a column, then the next; of 4 bits, of two columns,
//                                  shifted by 4 · (k % 2)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/linear.h"
#include "quant/encoding.h"
#include "quant/group.h"

namespace caudal {

// To be raised with every change of what is described above, for any type: files of packed weights
// bear it.
constexpr uint32_t kPanelLayout = 1;

constexpr int64_t kVectorBytes = 32;

struct PanelLayout {
    int64_t prefix_bytes;  // of the whole panel
    int64_t header_bytes;
    int64_t groups_per_header;
    int64_t scale_bytes;
    int64_t low_bytes;   // codes: the low 2, 4 or 8 bits
    int64_t high_bytes;  // codes: the remaining 1 or 2 bits
    bool wide;
    bool columns;

    constexpr int64_t group_bytes() const { return scale_bytes + low_bytes + high_bytes; }
    constexpr int64_t stride() const { return header_bytes + groups_per_header * group_bytes(); }
    // Where header and group `index` begin within a panel.
    constexpr int64_t header_at(int64_t index) const {
        return prefix_bytes + index / groups_per_header * stride();
    }
    constexpr int64_t group_at(int64_t index) const {
        return header_at(index) + header_bytes + index % groups_per_header * group_bytes();
    }
};

// For quantised types.
constexpr PanelLayout panel_layout(TensorType type) {
    const Encoding encoding = encoding_of(type);
    const int64_t fields = encoding.minimum ? 2 : 1;
    PanelLayout layout{};
    layout.prefix_bytes = encoding.row_scale ? 4 * kPanelRows : 0;
    layout.header_bytes = encoding.has_header() ? fields * 2 * kPanelRows : 0;
    if (encoding.zero) layout.header_bytes += kPanelRows;
    if (encoding.scales == Scales::Float) layout.header_bytes = 4 * kPanelRows;
    layout.groups_per_header = encoding.block_groups;
    switch (encoding.scales) {
        case Scales::None:
        case Scales::Block:
        case Scales::Row:
        case Scales::Float:
            break;
        case Scales::Half:
            layout.scale_bytes = fields * 2 * kPanelRows;
            break;
        case Scales::Exponent:
            layout.scale_bytes = kPanelRows;
            break;
        case Scales::Fp8:
            layout.scale_bytes = 2 * kPanelRows;
            break;
        case Scales::Super32:
            layout.scale_bytes = fields * kPanelRows;
            break;
        case Scales::Super16:
            layout.scale_bytes = fields * 2 * kPanelRows;
            break;
    }
    const int low_bits = encoding.bits >= 8 ? 8 : encoding.bits >= 4 ? 4 : 2;
    layout.low_bytes = low_bits * kGroup * kPanelRows / 8;
    layout.high_bytes = (encoding.bits - low_bits) * kGroup * kPanelRows / 8;
    layout.columns = encoding.scales == Scales::Float;
    layout.wide = !layout.columns && (encoding.bits == 8 || encoding.codebook == Codebook::Iq4);
    return layout;
}

// Bytes of a panel of `cols` columns.
int64_t panel_bytes(TensorType type, int64_t cols);

// The functions of LinearKernels that no instruction set needs a version of its own for; linear.h
// describes them.
size_t packed_bytes(TensorType type, int64_t rows, int64_t cols);
void pack_panels(TensorType type, std::span<const std::byte> source, int64_t rows, int64_t cols,
                 int64_t panel_begin, int64_t panel_end, std::byte* out);
void unpack_row(const PackedMatrix& matrix, int64_t row, float* out);

// Dequantises columns [k_begin, k_end) (multiples of 32) of a panel to out[k - k_begin][16 rows].
void dequantize_panel(TensorType type, const std::byte* panel, int64_t k_begin, int64_t k_end,
                      float* out);

}  // namespace caudal
