// From the accumulators of a tile to y.
#pragma once

#include "kernels/linear.h"
#include "kernels/vec.inl"

namespace caudal::CAUDAL_ISA {

// Asks for memory that will be read soon. Addresses past the end of anything do no harm.
CAUDAL_INLINE void prefetch_bytes(const void* from, int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += 64) {
        __builtin_prefetch(static_cast<const char*>(from) + line);
    }
}

// What a call of `multiply` does with its sums.
struct Output {
    float* y;
    int64_t stride;
    int64_t rows;  // output features: columns of y
    const float* bias;
    bool accumulate;

    // Asks for what `write` will write: rows lie in as many places, which no processor foresees.
    CAUDAL_INLINE void prefetch(int64_t panel, int64_t row) const {
        __builtin_prefetch(y + row * stride + panel * kPanelRows, 1);
    }

    // Writes the sums of one row of y for one panel.
    CAUDAL_INLINE void write(int64_t panel, int64_t row, const float* sums) const {
        const int64_t first = panel * kPanelRows;
        float* to = y + row * stride + first;
        const float* offsets = bias != nullptr ? bias + first : nullptr;
        if (rows - first >= kPanelRows) {
            for (int64_t lane = 0; lane < kPanelRows; lane += kLanes) {
                f32x8 value = load(sums + lane);
                if (offsets != nullptr) value = value + load(offsets + lane);
                if (accumulate) value = value + load(to + lane);
                store(to + lane, value);
            }
            return;
        }
        for (int64_t lane = 0; lane < rows - first; ++lane) {
            float value = sums[lane];
            if (offsets != nullptr) value += offsets[lane];
            if (accumulate) value += to[lane];
            to[lane] = value;
        }
    }
};

}  // namespace caudal::CAUDAL_ISA
