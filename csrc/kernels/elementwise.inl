// Loops over floats, the widest vectors first, and the functions that activations are.
#pragma once

#include "kernels/token_ops.h"
#include "kernels/wide_vec.inl"

namespace caudal::CAUDAL_ISA {
namespace {

// Calls `vectors(i, zero)` for every full vector of [0, n), the widest first, where `zero` is a
// zero of the vector's type, and `scalars(i)` for each element after.
template <class Vectors, class Scalars>
CAUDAL_INLINE void for_each_vector(int64_t n, Vectors vectors, Scalars scalars) {
    int64_t i = 0;
    if constexpr (kWideLanes > kLanes) {
        for (; i + kWideLanes <= n; i += kWideLanes) vectors(i, splat_wide(0.0f));
    }
    for (; i + kLanes <= n; i += kLanes) vectors(i, splat(0.0f));
    for (; i < n; ++i) scalars(i);
}

// Σ term(i) over [0, n) in an order of its own: four chains of eight lanes hide the latency of an
// addition. `term` adds the vector, or number, at i to what it is given.
template <class Term>
CAUDAL_INLINE float sum_terms(int64_t n, Term term) {
    f32w chains[2][kHalves];
    for (auto& chain : chains) {
        for (f32w& sums : chain) sums = splat_wide(0.0f);
    }
    int64_t i = 0;
    for (; i + 2 * kPanelRows <= n; i += 2 * kPanelRows) {
        for (int chain = 0; chain < 2; ++chain) {
            for (int half = 0; half < kHalves; ++half) {
                f32w& sums = chains[chain][half];
                sums = term(i + chain * kPanelRows + half * kWideLanes, sums);
            }
        }
    }
    f32x8 sums = add_halves(chains[0]) + add_halves(chains[1]);
    for (; i + kLanes <= n; i += kLanes) sums = term(i, sums);
    float total = sum_lanes(sums);
    for (; i < n; ++i) total = term(i, total);
    return total;
}

template <class Floats>
CAUDAL_INLINE Floats sigmoid(Floats x) {
    const auto one = splat_as<Floats>(1.0f);
    return one / (one + exponential(-x));
}

// tanh(x) = 2 · sigmoid(2x) - 1
template <class Floats>
CAUDAL_INLINE Floats hyperbolic_tangent(Floats x) {
    return splat_as<Floats>(2.0f) * sigmoid(x + x) - splat_as<Floats>(1.0f);
}

// 1 - erf(x) for x ≥ 0 with an error below 2e-7 (Abramowitz and Stegun, 7.1.26).
template <class Floats>
CAUDAL_INLINE Floats complementary_error(Floats x) {
    const Floats t = splat_as<Floats>(1.0f) /
                     multiply_add(splat_as<Floats>(0.3275911f), x, splat_as<Floats>(1.0f));
    Floats p = splat_as<Floats>(1.061405429f);
    p = multiply_add(p, t, splat_as<Floats>(-1.453152027f));
    p = multiply_add(p, t, splat_as<Floats>(1.421413741f));
    p = multiply_add(p, t, splat_as<Floats>(-0.284496736f));
    p = multiply_add(p, t, splat_as<Floats>(0.254829592f));
    return p * t * exponential(-(x * x));
}

// log(1 + e^x) = max(x, 0) + log(1 + t), t = e^-|x|; log(1 + t) = 2 artanh(s), s = t / (2 + t),
// of whose series seven terms have an error below 2e-7 for s ≤ 1/3.
template <class Floats>
CAUDAL_INLINE Floats softplus(Floats x) {
    const Floats t = exponential(-maximum(x, -x));
    const Floats s = t / (splat_as<Floats>(2.0f) + t);
    const Floats squared = s * s;
    Floats p = splat_as<Floats>(2.0f / 13.0f);
    p = multiply_add(p, squared, splat_as<Floats>(2.0f / 11.0f));
    p = multiply_add(p, squared, splat_as<Floats>(2.0f / 9.0f));
    p = multiply_add(p, squared, splat_as<Floats>(2.0f / 7.0f));
    p = multiply_add(p, squared, splat_as<Floats>(2.0f / 5.0f));
    p = multiply_add(p, squared, splat_as<Floats>(2.0f / 3.0f));
    p = multiply_add(p, squared, splat_as<Floats>(2.0f));
    return maximum(splat_as<Floats>(0.0f), x) + p * s;
}

template <class Floats>
CAUDAL_INLINE Floats activated(Activation activation, Floats x) {
    switch (activation) {
        case Activation::Silu:
            return x * sigmoid(x);
        case Activation::Gelu: {
            // x/2 · (1 + erf(x/√2)); for x < 0, 1 + erf(-y) is 1 - erf(y), without cancellation.
            const Floats magnitude = maximum(x, -x);
            const Floats tail = complementary_error(magnitude * splat_as<Floats>(0.70710678f));
            const Floats twice =
                select(x < splat_as<Floats>(0.0f), tail, splat_as<Floats>(2.0f) - tail);
            return splat_as<Floats>(0.5f) * x * twice;
        }
        case Activation::Relu:
            return select(x < splat_as<Floats>(0.0f), splat_as<Floats>(0.0f), x);
        case Activation::ReluSquared: {
            const Floats positive = select(x < splat_as<Floats>(0.0f), splat_as<Floats>(0.0f), x);
            return positive * positive;
        }
        case Activation::Tanh:
            return hyperbolic_tangent(x);
        case Activation::Sigmoid:
            return sigmoid(x);
        case Activation::Softplus:
            return softplus(x);
        case Activation::Exp:
            return exponential(x);
        case Activation::None:
        case Activation::ClampedSwiglu:
            return x;
        case Activation::GeluTanh:
            break;
    }
    // gelu(x) ≈ x/2 · (1 + tanh(u)) = x · sigmoid(2u), u = sqrt(2/π)(x + 0.044715 x³)
    const Floats cube = x * x * x;
    const Floats u =
        splat_as<Floats>(0.7978845608f) * multiply_add(splat_as<Floats>(0.044715f), cube, x);
    return x * sigmoid(u + u);
}

// One vector's function applied to `n` floats, the widest vectors first; a tail is padded to a full
// vector. `function` gets a zero of the vector's type, the index and the number of floats there.
template <class Function>
CAUDAL_INLINE void map_padded(int64_t n, float* out, Function function) {
    int64_t i = 0;
    if constexpr (kWideLanes > kLanes) {
        for (; i + kWideLanes <= n; i += kWideLanes) {
            store(out + i, function(splat_wide(0.0f), i, int64_t{kWideLanes}));
        }
    }
    for (; i + kLanes <= n; i += kLanes) {
        store(out + i, function(splat(0.0f), i, int64_t{kLanes}));
    }
    if (i < n) {
        const f32x8 tail = function(splat(0.0f), i, n - i);
        std::memcpy(out + i, &tail, static_cast<size_t>(n - i) * sizeof(float));
    }
}

template <class Floats>
CAUDAL_INLINE Floats load_part(const float* from, int64_t count) {
    if (count * static_cast<int64_t>(sizeof(float)) == sizeof(Floats)) return load_as<Floats>(from);
    auto value = splat_as<Floats>(0.0f);
    std::memcpy(&value, from, static_cast<size_t>(count) * sizeof(float));
    return value;
}

}  // namespace
}  // namespace caudal::CAUDAL_ISA
