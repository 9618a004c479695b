// How the K types choose the scale of a group: each lane of a vector looks for that of one group,
// so that 16 groups take as many steps as one or two.
#pragma once

#include <cmath>

#include "kernels/wide_vec.inl"
#include "quant/block_writer.h"

namespace caudal::CAUDAL_ISA {

constexpr int kSearched = 16;  // groups that are searched together
constexpr int kSearchVectors = kSearched / kWideLanes;
// Numbers of groups below this count as zeros.
constexpr float kTinyGroup = 1e-15f;
// As the origin of a group: below it by so much that all codes are the lowest.
constexpr float kFarAbove = 65536.0f;

// What was found for each of the groups: what a code stands for (a step, less an offset), and how
// codes were made in the search, code = nearest(factor · (x − origin)), for groups whose step is
// rounded to nothing afterwards.
struct FoundScales {
    float step[kSearched];
    float offset[kSearched];
    float factor[kSearched];
    float origin[kSearched];
};

// Groups of `n` numbers side by side: x[i] holds the number i of each.
template <int n>
struct GroupLanes {
    f32w x[n];

    static CAUDAL_INLINE GroupLanes of(const float* groups) {
        alignas(64) float lanes[n][kWideLanes];
        for (int lane = 0; lane < kWideLanes; ++lane) {
            for (int i = 0; i < n; ++i) lanes[i][lane] = groups[lane * n + i];
        }
        GroupLanes result;
        for (int i = 0; i < n; ++i) result.x[i] = load_wide(lanes[i]);
        return result;
    }
};

template <class Floats>
CAUDAL_INLINE Floats magnitude(Floats a) {
    return maximum(a, -a);
}

// To the nearest integer, to even between two: below 2^22, beyond which the second wraps.
CAUDAL_INLINE f32w rounded(f32w a) {
    const f32w magic = splat_wide(12582912.0f);  // 1.5 · 2^23
    return (a + magic) - magic;
}

template <class Ints, class Floats>
CAUDAL_INLINE Ints nearest(Floats a) {
    return ((Ints)(a + splat_as<Floats>(12582912.0f)) & 0x7fffff) - 0x400000;
}

template <class Vector>
CAUDAL_INLINE Vector clamped(Vector a, Vector low, Vector high) {
    return minimum(high, maximum(low, a));
}

CAUDAL_INLINE i32x8 clamped(i32x8 a, int low, int high) {
    const i32x8 least = i32x8{} + low;
    const i32x8 most = i32x8{} + high;
    const i32x8 at_least = select(a < least, least, a);
    return select(at_least > most, most, at_least);
}

// Scales without an offset (Q6_K): codes from −top to top − 1. The number of the largest magnitude
// becomes −top, or something near: of 19 choices the one is taken for which the squares of the
// errors, each times the square of the number, add up to least.
template <int n, int top>
static CAUDAL_INLINE void search_scale(const GroupLanes<n>& lanes, int at, FoundScales& found) {
    const f32w zero = splat_wide(0);
    const f32w low = splat_wide(-top);
    const f32w high = splat_wide(top - 1);
    f32w extreme = zero;
    f32w magnitude_of_it = zero;
    for (int i = 0; i < n; ++i) {
        const f32w own = magnitude(lanes.x[i]);
        const i32w farther = own > magnitude_of_it;
        magnitude_of_it = select(farther, own, magnitude_of_it);
        extreme = select(farther, lanes.x[i], extreme);
    }
    f32w scale = zero;
    f32w best = zero;
    f32w best_factor = zero;
    for (int attempt = 0; attempt < 19; ++attempt) {
        // First 0, then −9 to 9 without it.
        const int shift = attempt == 0 ? 0 : attempt <= 9 ? attempt - 10 : attempt - 9;
        const f32w factor =
            splat_wide(-(static_cast<float>(top) + 0.1f * static_cast<float>(shift))) / extreme;
        f32w sum_of_products = zero;
        f32w sum_of_squares = zero;
        for (int i = 0; i < n; ++i) {
            const f32w x = lanes.x[i];
            const f32w code = clamped(rounded(factor * x), low, high);
            const f32w weight = x * x;
            sum_of_products = sum_of_products + weight * x * code;
            sum_of_squares = sum_of_squares + weight * code * code;
        }
        const i32w better = attempt == 0
                                ? sum_of_squares != zero
                                : (sum_of_squares > zero) &
                                      (sum_of_products * sum_of_products > best * sum_of_squares);
        const f32w own = sum_of_products / sum_of_squares;
        scale = select(better, own, scale);
        best = select(better, own * sum_of_products, best);
        best_factor = select(attempt == 0 ? better | (better == 0) : better, factor, best_factor);
    }
    const i32w tiny = splat_wide(kTinyGroup) > magnitude_of_it;
    store(found.step + at, select(tiny, zero, scale));
    store(found.offset + at, zero);
    store(found.factor + at, select(tiny, splat_wide(1), best_factor));
    store(found.origin + at, select(tiny, splat_wide(kFarAbove), zero));
}

// The same for few codes (Q3_K), from −top to top − 1: from codes for a first scale on, each in
// turn becomes what is best given the others, five times over. `codes` keeps them, less −top.
template <int n, int top>
static CAUDAL_INLINE void search_codes(const GroupLanes<n>& lanes, int at, FoundScales& found,
                                       float (&codes)[kSearched][n]) {
    const f32w zero = splat_wide(0);
    const i32w low = i32w{} - top;
    const i32w high = i32w{} + (top - 1);
    const auto code_of = [&](f32w value) CAUDAL_INLINE_BODY {
        const i32w code = nearest<i32w>(value);
        const i32w at_least = select(code < low, low, code);
        return to_floats(select(at_least > high, high, at_least));
    };
    f32w extreme = zero;
    f32w magnitude_of_it = zero;
    for (int i = 0; i < n; ++i) {
        const f32w own = magnitude(lanes.x[i]);
        const i32w farther = own > magnitude_of_it;
        magnitude_of_it = select(farther, own, magnitude_of_it);
        extreme = select(farther, lanes.x[i], extreme);
    }
    const f32w factor = splat_wide(-top) / extreme;
    f32w chosen[n];
    f32w sum_of_products = zero;
    f32w sum_of_squares = zero;
    for (int i = 0; i < n; ++i) {
        const f32w x = lanes.x[i];
        chosen[i] = code_of(factor * x);
        const f32w weight = x * x;
        sum_of_products = sum_of_products + weight * x * chosen[i];
        sum_of_squares = sum_of_squares + weight * chosen[i] * chosen[i];
    }
    for (int round = 0; round < 5; ++round) {
        for (int i = 0; i < n; ++i) {
            const f32w x = lanes.x[i];
            const f32w weight = x * x;
            f32w products = sum_of_products - weight * x * chosen[i];
            f32w squares = sum_of_squares - weight * chosen[i] * chosen[i];
            const f32w code = code_of(x * squares / products);
            const i32w possible = (products > zero) & (code != chosen[i]);
            products = products + weight * x * code;
            squares = squares + weight * code * code;
            const i32w better = possible & (squares > zero) &
                                (products * products * sum_of_squares >
                                 sum_of_products * sum_of_products * squares);
            chosen[i] = select(better, code, chosen[i]);
            sum_of_products = select(better, products, sum_of_products);
            sum_of_squares = select(better, squares, sum_of_squares);
        }
    }
    const i32w tiny = splat_wide(kTinyGroup) > magnitude_of_it;
    const f32w scale =
        select(sum_of_squares > zero, sum_of_products / sum_of_squares, splat_wide(0));
    store(found.step + at, select(tiny, zero, scale));
    store(found.offset + at, zero);
    alignas(64) float own[kWideLanes];
    for (int i = 0; i < n; ++i) {
        store(own, select(tiny, zero, chosen[i] + splat_wide(top)));
        for (int lane = 0; lane < kWideLanes; ++lane) codes[at + lane][i] = own[lane];
    }
}

// Scales with an offset that isn't negative (Q2_K, Q4_K, Q5_K): codes from 0 to top. The range is
// cut into steps of many lengths, of `attempts` that begin at top + first and grow by 0.1; for the
// codes of each, step and start are what gives the least squares of errors, weighed, and the best
// of them is taken, by these or (`absolute`) by the errors' magnitudes. From then on the range
// begins where that does.
template <int n, int top, int attempts, bool absolute>
static CAUDAL_INLINE void search_scale_and_offset(const GroupLanes<n>& lanes,
                                                  const f32w (&weights)[n], float first, int at,
                                                  FoundScales& found) {
    const f32w zero = splat_wide(0);
    const f32w high = splat_wide(top);
    f32w least = lanes.x[0];
    f32w most = lanes.x[0];
    f32w sum_of_weights = weights[0];
    f32w sum_of_x = weights[0] * lanes.x[0];
    for (int i = 1; i < n; ++i) {
        least = minimum(least, lanes.x[i]);
        most = maximum(most, lanes.x[i]);
        sum_of_weights = sum_of_weights + weights[i];
        sum_of_x = sum_of_x + weights[i] * lanes.x[i];
    }
    least = minimum(least, zero);
    const i32w flat = most == least;
    const auto error_of = [&](f32w step, f32w start, f32w code, int i) CAUDAL_INLINE_BODY {
        const f32w difference = step * code + start - lanes.x[i];
        return weights[i] * (absolute ? magnitude(difference) : difference * difference);
    };
    f32w best_factor = high / (most - least);
    f32w best_origin = least;
    f32w step = splat_wide(1) / best_factor;
    f32w start = least;
    f32w best_error = zero;
    for (int i = 0; i < n; ++i) {
        const f32w code = clamped(rounded(best_factor * (lanes.x[i] - least)), zero, high);
        best_error = best_error + error_of(step, start, code, i);
    }
    for (int attempt = 0; attempt < attempts; ++attempt) {
        const float length = first + 0.1f * static_cast<float>(attempt) + static_cast<float>(top);
        const f32w factor = splat_wide(length) / (most - start);
        f32w codes[n];
        f32w sum_of_codes = zero;
        f32w sum_of_squares = zero;
        f32w sum_of_products = zero;
        for (int i = 0; i < n; ++i) {
            codes[i] = clamped(rounded(factor * (lanes.x[i] - start)), zero, high);
            const f32w weighed = weights[i] * codes[i];
            sum_of_codes = sum_of_codes + weighed;
            sum_of_squares = sum_of_squares + weighed * codes[i];
            sum_of_products = sum_of_products + weighed * lanes.x[i];
        }
        const f32w determinant = sum_of_weights * sum_of_squares - sum_of_codes * sum_of_codes;
        f32w own_step = (sum_of_weights * sum_of_products - sum_of_x * sum_of_codes) / determinant;
        f32w own_start = (sum_of_squares * sum_of_x - sum_of_codes * sum_of_products) / determinant;
        const i32w above = own_start > zero;
        own_step = select(above, sum_of_products / sum_of_squares, own_step);
        own_start = select(above, zero, own_start);
        f32w error = zero;
        for (int i = 0; i < n; ++i) error = error + error_of(own_step, own_start, codes[i], i);
        const i32w better = (determinant > zero) & (best_error > error);
        best_error = select(better, error, best_error);
        best_factor = select(better, factor, best_factor);
        best_origin = select(better, start, best_origin);
        step = select(better, own_step, step);
        start = select(better, own_start, start);
    }
    store(found.step + at, select(flat, zero, step));
    store(found.offset + at, zero - select(flat, least, start));
    store(found.factor + at, select(flat, zero, best_factor));
    store(found.origin + at, select(flat, zero, best_origin));
}

}  // namespace caudal::CAUDAL_ISA
