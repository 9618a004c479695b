// From the accumulators of a tile to y.
#pragma once

#include "kernels/linear.h"
#include "kernels/wide_vec.inl"

namespace caudal::CAUDAL_ISA {

// What a call of `multiply` does with its sums.
struct Output {
    float* y;
    int64_t stride;
    int64_t rows;  // output features: columns of y
    const float* bias;
    bool accumulate;

    // Asks for what `write` will write: rows lie far apart, which no processor foresees.
    CAUDAL_INLINE void prefetch(int64_t panel, int64_t row) const {
        __builtin_prefetch(y + row * stride + panel * kPanelRows, 1);
    }

    // Writes the sums of one row of y for one panel, each times a scale if there are any.
    CAUDAL_INLINE void write(int64_t panel, int64_t row, const f32w (&sums)[kHalves],
                             const std::byte* scales) const {
        f32w scaled[kHalves];
        for (int half = 0; half < kHalves; ++half) {
            scaled[half] = sums[half];
            if (scales != nullptr) {
                scaled[half] = scaled[half] * load_wide(reinterpret_cast<const float*>(scales) +
                                                        half * kWideLanes);
            }
        }
        write(panel, row, scaled);
    }
    CAUDAL_INLINE void write(int64_t panel, int64_t row, const f32w (&sums)[kHalves]) const {
        const int64_t first = panel * kPanelRows;
        float* to = y + row * stride + first;
        if (rows - first < kPanelRows) {
            alignas(kWideBytes) float values[kPanelRows];
            for (int half = 0; half < kHalves; ++half) {
                store(values + half * kWideLanes, sums[half]);
            }
            write_some(rows - first, values, bias != nullptr ? bias + first : nullptr, to);
            return;
        }
        for (int half = 0; half < kHalves; ++half) {
            f32w value = sums[half];
            if (bias != nullptr) value = value + load_wide(bias + first + half * kWideLanes);
            if (accumulate) value = value + load_wide(to + half * kWideLanes);
            store(to + half * kWideLanes, value);
        }
    }
    CAUDAL_INLINE void write(int64_t panel, int64_t row, const float* sums,
                             const std::byte* scales = nullptr) const {
        f32w values[kHalves];
        for (int half = 0; half < kHalves; ++half) {
            values[half] = load_wide(sums + half * kWideLanes);
        }
        write(panel, row, values, scales);
    }

  private:
    // The last panel may have fewer rows than there are lanes.
    [[gnu::noinline]] void write_some(int64_t count, const float* sums, const float* offsets,
                                      float* to) const {
        for (int64_t lane = 0; lane < count; ++lane) {
            float value = sums[lane];
            if (offsets != nullptr) value += offsets[lane];
            if (accumulate) value += to[lane];
            to[lane] = value;
        }
    }
};

}  // namespace caudal::CAUDAL_ISA
