#include "kernels/low_rank.h"

#include <bit>
#include <cstring>

namespace caudal {

namespace {

// The upper half of a float, rounded; of finite numbers.
uint32_t to_bfloat16(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

}  // namespace

void pack_factor(const Factor& factor, std::span<const float> values, std::span<std::byte> out) {
    const auto value = [&](int64_t row, int64_t k) {
        const bool there = row < factor.rows && k < factor.cols;
        return there ? values[static_cast<size_t>(row * factor.cols + k)] : 0.0f;
    };
    std::byte* to = out.data();
    const int64_t step = factor.exact ? 1 : 2;
    for (int64_t first = 0; first < factor.rows; first += kPanelRows) {
        for (int64_t k = 0; k < factor.cols; k += step) {
            for (int64_t row = first; row < first + kPanelRows; ++row) {
                const uint32_t bits = factor.exact ? std::bit_cast<uint32_t>(value(row, k))
                                                   : to_bfloat16(value(row, k)) |
                                                         to_bfloat16(value(row, k + 1)) << 16;
                std::memcpy(to, &bits, sizeof(bits));
                to += sizeof(bits);
            }
        }
    }
}

}  // namespace caudal
