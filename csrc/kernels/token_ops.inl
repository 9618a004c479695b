// Token-wise operations: norms, rotary positions, gated activations. See token_ops.h.

#include "kernels/attention.inl"
#include "kernels/token_ops.h"
#include "kernels/vec.inl"

namespace caudal::CAUDAL_ISA {
namespace {

// Calls `vectors(i)` for every full vector of [0, n) and `scalars(i)` for each element after.
template <class Vectors, class Scalars>
CAUDAL_INLINE void for_each_vector(int64_t n, Vectors vectors, Scalars scalars) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) vectors(i);
    for (; i < n; ++i) scalars(i);
}

void rms_norm(const float* x, const float* weight, float* out, int64_t groups, int64_t width,
              float eps) {
    for (int64_t group = 0; group < groups; ++group, x += width, out += width) {
        f32x8 squares = splat(0.0f);
        float rest = 0.0f;
        for_each_vector(
            width, [&](int64_t i) { squares = multiply_add(load(x + i), load(x + i), squares); },
            [&](int64_t i) { rest += x[i] * x[i]; });
        const float mean = (sum_lanes(squares) + rest) / static_cast<float>(width);
        const float factor = 1.0f / std::sqrt(mean + eps);
        for_each_vector(
            width,
            [&](int64_t i) { store(out + i, load(x + i) * splat(factor) * load(weight + i)); },
            [&](int64_t i) { out[i] = x[i] * factor * weight[i]; });
    }
}

void layer_norm(const float* x, const float* weight, const float* bias, float* out, int64_t width,
                float eps) {
    f32x8 sums = splat(0.0f);
    float rest = 0.0f;
    for_each_vector(
        width, [&](int64_t i) { sums = sums + load(x + i); }, [&](int64_t i) { rest += x[i]; });
    const float mean = (sum_lanes(sums) + rest) / static_cast<float>(width);
    // The variance from the differences: from the squares it would cancel where the mean is large.
    f32x8 squares = splat(0.0f);
    rest = 0.0f;
    for_each_vector(
        width,
        [&](int64_t i) {
            const f32x8 difference = load(x + i) - splat(mean);
            squares = multiply_add(difference, difference, squares);
        },
        [&](int64_t i) { rest += (x[i] - mean) * (x[i] - mean); });
    const float variance = (sum_lanes(squares) + rest) / static_cast<float>(width);
    const float factor = 1.0f / std::sqrt(variance + eps);
    for_each_vector(
        width,
        [&](int64_t i) {
            store(out + i, multiply_add((load(x + i) - splat(mean)) * splat(factor),
                                        load(weight + i), load(bias + i)));
        },
        [&](int64_t i) { out[i] = (x[i] - mean) * factor * weight[i] + bias[i]; });
}

void rope(float* x, int64_t heads, int64_t head_dim, int64_t pairs, bool interleaved,
          const float* cosines, const float* sines) {
    for (int64_t head = 0; head < heads; ++head, x += head_dim) {
        if (interleaved) {
            for (int64_t i = 0; i < pairs; ++i) {
                const float a = x[2 * i];
                const float b = x[2 * i + 1];
                x[2 * i] = a * cosines[i] - b * sines[i];
                x[2 * i + 1] = a * sines[i] + b * cosines[i];
            }
            continue;
        }
        for_each_vector(
            pairs,
            [&](int64_t i) {
                const f32x8 a = load(x + i);
                const f32x8 b = load(x + pairs + i);
                const f32x8 c = load(cosines + i);
                const f32x8 s = load(sines + i);
                store(x + i, a * c - b * s);
                store(x + pairs + i, a * s + b * c);
            },
            [&](int64_t i) {
                const float a = x[i];
                const float b = x[pairs + i];
                x[i] = a * cosines[i] - b * sines[i];
                x[pairs + i] = a * sines[i] + b * cosines[i];
            });
    }
}

CAUDAL_INLINE f32x8 sigmoid(f32x8 x) {
    return splat(1.0f) / (splat(1.0f) + exponential(-x));
}

// tanh(x) = 2 · sigmoid(2x) - 1
CAUDAL_INLINE f32x8 hyperbolic_tangent(f32x8 x) {
    return splat(2.0f) * sigmoid(x + x) - splat(1.0f);
}

// 1 - erf(x) for x ≥ 0 with an error below 2e-7 (Abramowitz and Stegun, 7.1.26).
CAUDAL_INLINE f32x8 complementary_error(f32x8 x) {
    const f32x8 t = splat(1.0f) / multiply_add(splat(0.3275911f), x, splat(1.0f));
    f32x8 p = splat(1.061405429f);
    p = multiply_add(p, t, splat(-1.453152027f));
    p = multiply_add(p, t, splat(1.421413741f));
    p = multiply_add(p, t, splat(-0.284496736f));
    p = multiply_add(p, t, splat(0.254829592f));
    return p * t * exponential(-(x * x));
}

CAUDAL_INLINE f32x8 activated(Activation activation, f32x8 x) {
    switch (activation) {
        case Activation::Silu:
            return x * sigmoid(x);
        case Activation::Gelu: {
            // x/2 · (1 + erf(x/√2)); for x < 0, 1 + erf(-y) is 1 - erf(y), without cancellation.
            const f32x8 magnitude = maximum(x, -x);
            const f32x8 tail = complementary_error(magnitude * splat(0.70710678f));
            const f32x8 twice = select(x < splat(0.0f), tail, splat(2.0f) - tail);
            return splat(0.5f) * x * twice;
        }
        case Activation::Relu:
            return select(x < splat(0.0f), splat(0.0f), x);
        case Activation::Tanh:
            return hyperbolic_tangent(x);
        case Activation::GeluTanh:
            break;
    }
    // gelu(x) ≈ x/2 · (1 + tanh(u)) = x · sigmoid(2u), u = sqrt(2/π)(x + 0.044715 x³)
    const f32x8 cube = x * x * x;
    const f32x8 u = splat(0.7978845608f) * multiply_add(splat(0.044715f), cube, x);
    return x * sigmoid(u + u);
}

// One vector's function applied to `n` floats; a tail is padded to a full vector.
template <class Function>
CAUDAL_INLINE void map_padded(int64_t n, float* out, Function function) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(out + i, function(i, int64_t{kLanes}));
    if (i < n) {
        const f32x8 tail = function(i, n - i);
        std::memcpy(out + i, &tail, static_cast<size_t>(n - i) * sizeof(float));
    }
}

CAUDAL_INLINE f32x8 load_part(const float* from, int64_t count) {
    if (count == kLanes) return load(from);
    f32x8 value = splat(0.0f);
    std::memcpy(&value, from, static_cast<size_t>(count) * sizeof(float));
    return value;
}

void gated(Activation activation, const float* gate, const float* up, float* out, int64_t n) {
    map_padded(n, out, [&](int64_t i, int64_t count) {
        return activated(activation, load_part(gate + i, count)) * load_part(up + i, count);
    });
}

void activate(Activation activation, float* x, int64_t n) {
    map_padded(n, x, [&](int64_t i, int64_t count) {
        return activated(activation, load_part(x + i, count));
    });
}

void add(const float* a, const float* b, float* out, int64_t n) {
    for_each_vector(
        n, [&](int64_t i) { store(out + i, load(a + i) + load(b + i)); },
        [&](int64_t i) { out[i] = a[i] + b[i]; });
}

void scale(float* x, float factor, int64_t n) {
    for_each_vector(
        n, [&](int64_t i) { store(x + i, load(x + i) * splat(factor)); },
        [&](int64_t i) { x[i] *= factor; });
}

void softcap(float* x, float cap, int64_t n) {
    map_padded(n, x, [&](int64_t i, int64_t count) {
        const f32x8 y = load_part(x + i, count) / splat(cap);
        return splat(cap) * hyperbolic_tangent(y);
    });
}

// Keeps what is stored finite: an infinity in a block that another sequence reuses would turn its
// masked positions (weight 0) into NaN. NaN itself stays (both comparisons with it are false): it
// is this sequence's own failure.
void store_kv(const KVLayer& layer, int64_t block, int64_t slot, const float* key,
              const float* value) {
    for (int64_t head = 0; head < layer.kv_heads; ++head) {
        const int64_t base = layer.offset(block, head);
        const float* k = key + head * layer.head_dim;
        const float* v = value + head * layer.head_dim;
        if (layer.type == KVType::F32) {
            float* keys = reinterpret_cast<float*>(layer.keys) + base;
            for (int64_t d = 0; d < layer.head_dim; ++d) keys[d * kBlockTokens + slot] = k[d];
            std::memcpy(reinterpret_cast<float*>(layer.values) + base + slot * layer.head_dim, v,
                        static_cast<size_t>(layer.head_dim) * sizeof(float));
            continue;
        }
        Half* keys = reinterpret_cast<Half*>(layer.keys) + base;
        Half* values = reinterpret_cast<Half*>(layer.values) + base + slot * layer.head_dim;
        for (int64_t d = 0; d < layer.head_dim; d += kLanes) {
            Half key_part[kLanes];
            const f32x8 limit = splat(65504.0f);
            store(key_part, minimum(limit, maximum(-limit, load(k + d))));
            for (int lane = 0; lane < kLanes; ++lane) {
                keys[(d + lane) * kBlockTokens + slot] = key_part[lane];
            }
            store(values + d, minimum(limit, maximum(-limit, load(v + d))));
        }
    }
}

TokenKernels token_kernels() {
    return {rms_norm, layer_norm, rope,           gated,  activate,       add,      scale,
            softcap,  store_kv,   attend_scratch, attend, merge_partials, normalise};
}

}  // namespace
}  // namespace caudal::CAUDAL_ISA
