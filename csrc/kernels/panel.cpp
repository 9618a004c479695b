#include "kernels/panel.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace caudal {
namespace {

bool is_float(TensorType type) {
    return encoding_of(type).scales == Scales::None;
}

// Where the code of (row, k) of a group lies.
struct CodeLocation {
    int64_t low_byte;
    int low_shift;
    int64_t high_byte;
    int high_shift;
};

CodeLocation locate_code(const Encoding& encoding, const PanelLayout& layout, int64_t row,
                         int64_t k) {
    if (layout.columns) {
        if (encoding.bits == 8) return {k * kPanelRows + row, 0, 0, 0};
        return {k / 2 * kPanelRows + row, static_cast<int>(k % 2 * 4), 0, 0};
    }
    if (layout.wide) {
        const int64_t pair = k / 2;
        const int64_t lane = (row % 8 * 2 + k % 2) * 2 + row / 8;
        if (encoding.bits == 8) return {pair * kVectorBytes + lane, 0, 0, 0};
        return {pair % 8 * kVectorBytes + lane, static_cast<int>(pair / 8 * 4), 0, 0};
    }
    const int64_t quad = k / 4;
    const int64_t half = row / 8;
    const int64_t lane = row % 8 * 4 + k % 4;
    CodeLocation location{};
    const int64_t low_quads = encoding.bits >= 4 ? 4 : 2;
    location.low_byte = (quad % low_quads * 2 + half) * kVectorBytes + lane;
    location.low_shift = static_cast<int>(quad / low_quads * (encoding.bits >= 4 ? 4 : 2));
    if (encoding.bits == 6) {
        location.high_byte = (quad / 4 * 2 + half) * kVectorBytes + lane;
        location.high_shift = static_cast<int>(quad % 4 * 2);
    } else {
        location.high_byte = half * kVectorBytes + lane;
        location.high_shift = static_cast<int>(quad);
    }
    return location;
}

void put_u16(uint8_t* at, uint16_t value) {
    std::memcpy(at, &value, sizeof(value));
}

uint16_t get_u16(const uint8_t* at) {
    uint16_t value;
    std::memcpy(&value, at, sizeof(value));
    return value;
}

// Packs and unpacks single groups of one type; where codes lie is worked out once.
class GroupPacker {
  public:
    explicit GroupPacker(TensorType type)
        : encoding_(encoding_of(type)), layout_(panel_layout(type)) {
        const int low_bits = std::min(encoding_.bits, encoding_.bits >= 8 ? 8 : 4);
        low_bits_ = encoding_.bits < 4 ? 2 : low_bits;
        for (int64_t row = 0; row < kPanelRows; ++row) {
            for (int64_t k = 0; k < kGroup; ++k) {
                locations_[row][k] = locate_code(encoding_, layout_, row, k);
            }
        }
    }

    // Adds a group to a panel whose bytes were zero.
    void put(std::byte* panel, int64_t index, int64_t row, const Group& group) const {
        auto* header = reinterpret_cast<uint8_t*>(panel) + layout_.header_at(index);
        auto* scales = reinterpret_cast<uint8_t*>(panel) + layout_.group_at(index);
        uint8_t* low = scales + layout_.scale_bytes;
        uint8_t* high = low + layout_.low_bytes;
        uint8_t* halves = encoding_.has_header() ? header : scales;
        if (encoding_.row_scale) {
            std::memcpy(panel + row * 4, &group.float_scale, sizeof(group.float_scale));
        }
        if (encoding_.zero) header[2 * kPanelRows + row] = group.zero;
        if (encoding_.scales == Scales::Exponent) {
            scales[row] = static_cast<uint8_t>(group.scale);
        } else if (encoding_.scales == Scales::Float) {
            std::memcpy(header + row * 4, &group.float_scale, sizeof(group.float_scale));
        } else if (has_halves()) {
            put_u16(halves + row * 2, group.scale);
            if (encoding_.minimum) put_u16(halves + 2 * kPanelRows + row * 2, group.minimum);
        }
        for (int64_t part = 0; part < factors(); ++part) {
            scales[part * kPanelRows + row] = static_cast<uint8_t>(group.factor[part]);
            if (encoding_.minimum) {
                scales[(factors() + part) * kPanelRows + row] = group.minimum_factor[part];
            }
        }
        const int mask = (1 << low_bits_) - 1;
        for (int64_t k = 0; k < kGroup; ++k) {
            const CodeLocation& location = locations_[row][k];
            const int code = group.codes[k] ^ flip(row);
            low[location.low_byte] |= static_cast<uint8_t>((code & mask) << location.low_shift);
            if (layout_.high_bytes > 0) {
                high[location.high_byte] |=
                    static_cast<uint8_t>(code >> low_bits_ << location.high_shift);
            }
        }
    }

    Group get(const std::byte* panel, int64_t index, int64_t row) const {
        const auto* header = reinterpret_cast<const uint8_t*>(panel) + layout_.header_at(index);
        const auto* scales = reinterpret_cast<const uint8_t*>(panel) + layout_.group_at(index);
        const uint8_t* low = scales + layout_.scale_bytes;
        const uint8_t* high = low + layout_.low_bytes;
        const uint8_t* halves = encoding_.has_header() ? header : scales;
        Group group;
        if (encoding_.row_scale) {
            std::memcpy(&group.float_scale, panel + row * 4, sizeof(group.float_scale));
        }
        if (encoding_.zero) group.zero = header[2 * kPanelRows + row];
        if (encoding_.scales == Scales::Exponent) {
            group.scale = scales[row];
        } else if (encoding_.scales == Scales::Float) {
            std::memcpy(&group.float_scale, header + row * 4, sizeof(group.float_scale));
        } else if (has_halves()) {
            group.scale = get_u16(halves + row * 2);
            if (encoding_.minimum) group.minimum = get_u16(halves + 2 * kPanelRows + row * 2);
        }
        for (int64_t half = 0; half < 2 && factors() > 0; ++half) {
            const int64_t part = std::min(half, factors() - 1);
            group.factor[half] = static_cast<int8_t>(scales[part * kPanelRows + row]);
            if (encoding_.minimum) {
                group.minimum_factor[half] = scales[(factors() + part) * kPanelRows + row];
            }
        }
        const int mask = (1 << low_bits_) - 1;
        const int high_mask = (1 << (encoding_.bits - low_bits_)) - 1;
        for (int64_t k = 0; k < kGroup; ++k) {
            const CodeLocation& location = locations_[row][k];
            int code = low[location.low_byte] >> location.low_shift & mask;
            if (layout_.high_bytes > 0) {
                code |= (high[location.high_byte] >> location.high_shift & high_mask) << low_bits_;
            }
            group.codes[k] = static_cast<uint8_t>(code ^ flip(row));
        }
        return group;
    }

  private:
    bool has_halves() const {
        return encoding_.scales != Scales::Fp8 && encoding_.scales != Scales::Row;
    }
    // Bytes of a row that a group has besides its half-precision numbers.
    int64_t factors() const {
        if (encoding_.scales == Scales::Super32) return 1;
        return encoding_.scales == Scales::Super16 || encoding_.scales == Scales::Fp8 ? 2 : 0;
    }

    // Adds 128 to the signed bytes of rows 0…7.
    int flip(int64_t row) const {
        return layout_.wide && encoding_.bits == 8 && row < 8 ? 0x80 : 0;
    }

    Encoding encoding_;
    PanelLayout layout_;
    int low_bits_ = 0;
    CodeLocation locations_[kPanelRows][kGroup];
};

void pack_float_panel(TensorType type, const std::byte* source, int64_t rows, int64_t cols,
                      std::byte* panel) {
    const auto size = static_cast<size_t>(block_geometry(type).bytes);
    for (int64_t row = 0; row < rows; ++row) {
        const std::byte* from = source + row * cols * static_cast<int64_t>(size);
        std::byte* to = panel + row * static_cast<int64_t>(size);
        for (int64_t k = 0; k < cols; ++k) {
            std::memcpy(to, from, size);
            from += size;
            to += kPanelRows * static_cast<int64_t>(size);
        }
    }
}

}  // namespace

int64_t panel_bytes(TensorType type, int64_t cols) {
    if (is_float(type)) return cols * kPanelRows * block_geometry(type).bytes;
    const PanelLayout layout = panel_layout(type);
    return layout.prefix_bytes + cols / (kGroup * layout.groups_per_header) * layout.stride();
}

size_t packed_bytes(TensorType type, int64_t rows, int64_t cols) {
    const BlockGeometry geometry = block_geometry(type);
    if (rows < 1 || cols < 1 || cols % geometry.elements != 0) {
        throw std::invalid_argument("a " + std::string(geometry.name) + " matrix of " +
                                    std::to_string(rows) + " × " + std::to_string(cols) +
                                    ": rows must be whole blocks of " +
                                    std::to_string(geometry.elements));
    }
    const int64_t panels = (rows + kPanelRows - 1) / kPanelRows;
    return static_cast<size_t>(panels * panel_bytes(type, cols));
}

void pack_panels(TensorType type, std::span<const std::byte> source, int64_t rows, int64_t cols,
                 int64_t panel_begin, int64_t panel_end, std::byte* out) {
    const BlockGeometry geometry = block_geometry(type);
    const int64_t row_bytes = cols / geometry.elements * geometry.bytes;
    if (static_cast<int64_t>(source.size()) < rows * row_bytes) {
        throw std::invalid_argument("a " + std::string(geometry.name) + " matrix of " +
                                    std::to_string(rows) + " × " + std::to_string(cols) +
                                    " needs " + std::to_string(rows * row_bytes) +
                                    " bytes, the tensor has " + std::to_string(source.size()));
    }
    const int64_t bytes = panel_bytes(type, cols);
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
        const std::byte* from = source.data() + panel * kPanelRows * row_bytes;
        std::byte* to = out + panel * bytes;
        const int64_t count = std::min(kPanelRows, rows - panel * kPanelRows);
        std::memset(to, 0, static_cast<size_t>(bytes));
        if (is_float(type)) {
            pack_float_panel(type, from, count, cols, to);
            continue;
        }
        const GroupPacker packer(type);
        for (int64_t row = 0; row < count; ++row) {
            for (int64_t index = 0; index < cols / kGroup; ++index) {
                packer.put(to, index, row, read_group(type, from + row * row_bytes, index));
            }
        }
    }
}

void unpack_row(const PackedMatrix& matrix, int64_t row, float* out) {
    const std::byte* panel = matrix.data + row / kPanelRows * panel_bytes(matrix.type, matrix.cols);
    const int64_t lane = row % kPanelRows;
    if (is_float(matrix.type)) {
        for (int64_t k = 0; k < matrix.cols; ++k) {
            out[k] = read_float(matrix.type, panel, k * kPanelRows + lane);
        }
        return;
    }
    const GroupPacker packer(matrix.type);
    for (int64_t index = 0; index < matrix.cols / kGroup; ++index) {
        dequantize_group(matrix.type, packer.get(panel, index, lane), out + index * kGroup);
    }
}

void dequantize_panel(TensorType type, const std::byte* panel, int64_t k_begin, int64_t k_end,
                      float* out) {
    if (is_float(type)) {
        for (int64_t i = k_begin * kPanelRows; i < k_end * kPanelRows; ++i) {
            *out++ = read_float(type, panel, i);
        }
        return;
    }
    const GroupPacker packer(type);
    float values[kGroup];
    for (int64_t index = k_begin / kGroup; index < k_end / kGroup; ++index) {
        for (int64_t row = 0; row < kPanelRows; ++row) {
            dequantize_group(type, packer.get(panel, index, row), values);
            for (int64_t k = 0; k < kGroup; ++k) out[k * kPanelRows + row] = values[k];
        }
        out += kGroup * kPanelRows;
    }
}

}  // namespace caudal
