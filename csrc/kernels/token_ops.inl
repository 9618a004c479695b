// Token-wise operations: norms, rotary positions, gated activations. See token_ops.h.

#include "kernels/attention.inl"
#include "kernels/elementwise.inl"
#include "kernels/token_ops.h"

namespace caudal::CAUDAL_ISA {
namespace {

CAUDAL_INLINE float sum_of_squares(const float* x, int64_t n) {
    return sum_terms(n, [&]<class Number>(int64_t i, Number sum) {
        const auto value = load_as<Number>(x + i);
        return multiply_add(value, value, sum);
    });
}

// out = x · factor
CAUDAL_INLINE void scaled(const float* x, float factor, float* out, int64_t n) {
    for_each_vector(
        n,
        [&]<class Floats>(int64_t i, Floats) {
            store(out + i, load_as<Floats>(x + i) * splat_as<Floats>(factor));
        },
        [&](int64_t i) { out[i] = x[i] * factor; });
}

void rms_norm(const float* x, std::span<const float> weight, float* out, int64_t groups,
              int64_t width, float eps) {
    const int64_t weights = weight.empty() ? 1 : static_cast<int64_t>(weight.size()) / width;
    for (int64_t group = 0; group < groups; ++group, x += width, out += width) {
        const float mean = sum_of_squares(x, width) / static_cast<float>(width);
        const float factor = 1.0f / std::sqrt(mean + eps);
        if (weight.empty()) {
            scaled(x, factor, out, width);
            continue;
        }
        const float* by = weight.data() + group % weights * width;
        for_each_vector(
            width,
            [&]<class Floats>(int64_t i, Floats) {
                store(out + i,
                      load_as<Floats>(x + i) * splat_as<Floats>(factor) * load_as<Floats>(by + i));
            },
            [&](int64_t i) { out[i] = x[i] * factor * by[i]; });
    }
}

void l2_norm(const float* x, float* out, int64_t groups, int64_t width, float eps) {
    for (int64_t group = 0; group < groups; ++group, x += width, out += width) {
        scaled(x, 1.0f / std::sqrt(sum_of_squares(x, width) + eps), out, width);
    }
}

void layer_norm(const float* x, const float* weight, const float* bias, float* out, int64_t width,
                float eps) {
    const float sum = sum_terms(
        width, [&]<class Number>(int64_t i, Number sum) { return sum + load_as<Number>(x + i); });
    const float mean = sum / static_cast<float>(width);
    // The variance from the differences: from the squares it would cancel where the mean is large.
    const float squares = sum_terms(width, [&]<class Number>(int64_t i, Number sum) {
        const auto difference = load_as<Number>(x + i) - splat_as<Number>(mean);
        return multiply_add(difference, difference, sum);
    });
    const float variance = squares / static_cast<float>(width);
    const float factor = 1.0f / std::sqrt(variance + eps);
    if (bias == nullptr) {
        for_each_vector(
            width,
            [&]<class Floats>(int64_t i, Floats) {
                const Floats difference = load_as<Floats>(x + i) - splat_as<Floats>(mean);
                store(out + i, difference * splat_as<Floats>(factor) * load_as<Floats>(weight + i));
            },
            [&](int64_t i) { out[i] = (x[i] - mean) * factor * weight[i]; });
        return;
    }
    for_each_vector(
        width,
        [&]<class Floats>(int64_t i, Floats) {
            const Floats difference = load_as<Floats>(x + i) - splat_as<Floats>(mean);
            store(out + i, multiply_add(difference * splat_as<Floats>(factor),
                                        load_as<Floats>(weight + i), load_as<Floats>(bias + i)));
        },
        [&](int64_t i) { out[i] = multiply_add((x[i] - mean) * factor, weight[i], bias[i]); });
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
            [&]<class Floats>(int64_t i, Floats) {
                const auto a = load_as<Floats>(x + i);
                const auto b = load_as<Floats>(x + pairs + i);
                const auto c = load_as<Floats>(cosines + i);
                const auto s = load_as<Floats>(sines + i);
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

template <class Floats>
CAUDAL_INLINE Floats gate_factor(const Gate& kind, Floats gate) {
    if (kind.activation != Activation::ClampedSwiglu) return activated(kind.activation, gate);
    const Floats bounded = minimum(splat_as<Floats>(kind.limit), gate);
    return bounded * sigmoid(splat_as<Floats>(kind.alpha) * bounded);
}

template <class Floats>
CAUDAL_INLINE Floats gated_value(const Gate& kind, Floats up) {
    if (kind.activation != Activation::ClampedSwiglu) return up;
    const Floats limit = splat_as<Floats>(kind.limit);
    return minimum(limit, maximum(-limit, up)) + splat_as<Floats>(1.0f);
}

void gated(const Gate& kind, const float* gate, int64_t gates, const float* up, float* out,
           int64_t n) {
    if (gates == n) {
        map_padded(n, out, [&]<class Floats>(Floats, int64_t i, int64_t count) {
            return gate_factor(kind, load_part<Floats>(gate + i, count)) *
                   gated_value(kind, load_part<Floats>(up + i, count));
        });
        return;
    }
    const int64_t width = n / gates;
    for (int64_t g = 0; g < gates; ++g, up += width, out += width) {
        const float factor = gate_factor(kind, splat(gate[g]))[0];
        map_padded(width, out, [&]<class Floats>(Floats, int64_t i, int64_t count) {
            return splat_as<Floats>(factor) * gated_value(kind, load_part<Floats>(up + i, count));
        });
    }
}

void activate(Activation activation, float* x, int64_t n) {
    map_padded(n, x, [&]<class Floats>(Floats, int64_t i, int64_t count) {
        return activated(activation, load_part<Floats>(x + i, count));
    });
}

void add(const float* a, const float* b, float* out, int64_t n) {
    for_each_vector(
        n,
        [&]<class Floats>(int64_t i, Floats) {
            store(out + i, load_as<Floats>(a + i) + load_as<Floats>(b + i));
        },
        [&](int64_t i) { out[i] = a[i] + b[i]; });
}

void add_weighted(const float* x, float weight, float* out, int64_t n) {
    for_each_vector(
        n,
        [&]<class Floats>(int64_t i, Floats) {
            store(out + i, multiply_add(splat_as<Floats>(weight), load_as<Floats>(x + i),
                                        load_as<Floats>(out + i)));
        },
        [&](int64_t i) { out[i] = multiply_add(weight, x[i], out[i]); });
}

void softmax(float* x, int64_t n) {
    float largest = x[0];
    for (int64_t i = 1; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
    map_padded(n, x, [&]<class Floats>(Floats, int64_t i, int64_t count) {
        return exponential(load_part<Floats>(x + i, count) - splat_as<Floats>(largest));
    });
    const float sum = sum_terms(
        n, [&]<class Number>(int64_t i, Number sum) { return sum + load_as<Number>(x + i); });
    for_each_vector(
        n,
        [&]<class Floats>(int64_t i, Floats) {
            store(x + i, load_as<Floats>(x + i) / splat_as<Floats>(sum));
        },
        [&](int64_t i) { x[i] /= sum; });
}

void scale(float* x, float factor, int64_t n) {
    scaled(x, factor, x, n);
}

void multiply(float* x, const float* factors, int64_t n) {
    for_each_vector(
        n,
        [&]<class Floats>(int64_t i, Floats) {
            store(x + i, load_as<Floats>(x + i) * load_as<Floats>(factors + i));
        },
        [&](int64_t i) { x[i] *= factors[i]; });
}

void shift(float* x, std::span<const float> by, int64_t n) {
    if (static_cast<int64_t>(by.size()) == n) {
        add(x, by.data(), x, n);
        return;
    }
    const float all = by.front();
    for_each_vector(
        n,
        [&]<class Floats>(int64_t i, Floats) {
            store(x + i, load_as<Floats>(x + i) + splat_as<Floats>(all));
        },
        [&](int64_t i) { x[i] += all; });
}

void clamp(float* x, float low, float high, int64_t n) {
    map_padded(n, x, [&]<class Floats>(Floats, int64_t i, int64_t count) {
        const Floats value = load_part<Floats>(x + i, count);
        return minimum(splat_as<Floats>(high), maximum(splat_as<Floats>(low), value));
    });
}

void softcap(float* x, float cap, int64_t n) {
    map_padded(n, x, [&]<class Floats>(Floats, int64_t i, int64_t count) {
        const Floats y = load_part<Floats>(x + i, count) / splat_as<Floats>(cap);
        return splat_as<Floats>(cap) * hyperbolic_tangent(y);
    });
}

// Stores numbers that are finite, and a failure where there is none: a value that isn't finite
// would reach queries that don't see it (their weight is 0, and 0 · ∞ is NaN), while the score of a
// key that isn't seen is replaced. So a token with such a value gets a key of NaN, and all that see
// it fail. (Half floats: what is too large becomes the largest.)
template <class Element>
CAUDAL_INLINE f32x8 storable(f32x8 numbers) {
    if constexpr (sizeof(Element) != 2) return numbers;
    const f32x8 limit = splat(65504.0f);
    return minimum(limit, maximum(-limit, numbers));
}

CAUDAL_INLINE bool all_finite(f32x8 numbers) {
    return sum_lanes(numbers - numbers) == 0.0f;  // zero where a number is finite, else NaN
}

template <class Element>
CAUDAL_INLINE void store_key(f32x8 channels, int64_t token, Element* keys) {
    Element part[kLanes];
    store(part, channels);
    for (int lane = 0; lane < kLanes; ++lane) keys[lane * kBlockTokens + token] = part[lane];
}

template <class Element>
CAUDAL_INLINE void store_head(const float* key, const float* value, const KVLayer& layer,
                              int64_t token, Element* keys, Element* values) {
    bool finite = true;
    for (int64_t d = 0; d < layer.value_dim; d += kLanes) {
        const f32x8 v = storable<Element>(load(value + d));
        finite = finite && all_finite(v);
        store(values + d, v);
    }
    for (int64_t d = 0; d < layer.key_dim; d += kLanes) {
        store_key(storable<Element>(load(key + d)), token, keys + d * kBlockTokens);
    }
    if (finite) return;
    Element failed[kLanes];
    store(failed, splat(std::numeric_limits<float>::quiet_NaN()));
    keys[token] = failed[0];
    for (int64_t d = 0; d < layer.value_dim; d += kLanes) store(values + d, splat(0.0f));
}

// The last channel is none of the values': it can hold the failure.
template <class Element>
CAUDAL_INLINE void store_latent(const float* key, const KVLayer& layer, int64_t token,
                                Element* keys) {
    bool finite = true;
    for (int64_t d = 0; d < layer.key_dim; d += kLanes) {
        const f32x8 k = storable<Element>(load(key + d));
        finite = finite && (d >= layer.value_dim || all_finite(k));
        store_key(k, token, keys + d * kBlockTokens);
    }
    if (finite) return;
    for (int64_t d = 0; d < layer.value_dim; d += kLanes) {
        store_key(splat(0.0f), token, keys + d * kBlockTokens);
    }
    store_key(splat(std::numeric_limits<float>::quiet_NaN()), token,
              keys + (layer.key_dim - kLanes) * kBlockTokens);
}

template <class Element>
void store_typed(const KVLayer& layer, int64_t block, int64_t token, const float* key,
                 const float* value) {
    for (int64_t head = 0; head < layer.kv_heads; ++head) {
        Element* keys = reinterpret_cast<Element*>(layer.keys) + layer.key_offset(block, head);
        if (layer.latent()) {
            store_latent(key + head * layer.key_dim, layer, token, keys);
            continue;
        }
        Element* values = reinterpret_cast<Element*>(layer.values) +
                          layer.value_offset(block, head) + token * layer.value_dim;
        store_head(key + head * layer.key_dim, value + head * layer.value_dim, layer, token, keys,
                   values);
    }
}

void store_bytes_kv(const KVLayer& layer, int64_t block, int64_t token, const float* key,
                    const float* value) {
    for (int64_t head = 0; head < layer.kv_heads; ++head) {
        auto* keys = reinterpret_cast<Code*>(layer.keys) + layer.key_offset(block, head);
        Code* values = nullptr;
        if (!layer.latent()) {
            values = reinterpret_cast<Code*>(layer.values) + layer.value_offset(block, head);
        }
        store_byte_head(key + head * layer.key_dim, value + head * layer.value_dim, layer, token,
                        keys, values);
    }
}

void store_kv(const KVLayer& layer, int64_t block, int64_t token, const float* key,
              const float* value) {
    switch (layer.type) {
        case KVType::F16:
            return store_typed<Half>(layer, block, token, key, value);
        case KVType::F32:
            return store_typed<float>(layer, block, token, key, value);
        case KVType::Q8:
            return store_bytes_kv(layer, block, token, key, value);
    }
}

TokenKernels token_kernels() {
    return {rms_norm,     l2_norm,        layer_norm, rope,           gated,     activate, add,
            add_weighted, scale,          multiply,   shift,          clamp,     softmax,  softcap,
            store_kv,     attend_scratch, attend,     merge_partials, normalise, add_sinks};
}

}  // namespace
}  // namespace caudal::CAUDAL_ISA
