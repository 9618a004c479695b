// Norms, rotary positions, gated activations and what is stored in the KV pool.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "quant/half.h"
#include "report.h"

namespace caudal::report {

namespace {

std::vector<double> magnitudes_of(std::span<const double> values) {
    std::vector<double> magnitudes(values.begin(), values.end());
    for (double& magnitude : magnitudes) magnitude = std::abs(magnitude);
    return magnitudes;
}

void report_norm(const TokenKernels& kernels, const Report& report) {
    constexpr int64_t kGroups = 4;
    for (const int64_t width : {64, 576, 579}) {
        for (const int64_t weights : {0, 1, 2}) {  // groups that the weight is for
            Random random(1);
            const std::vector<float> x = random.normals(static_cast<size_t>(kGroups * width));
            const std::vector<float> weight = random.normals(static_cast<size_t>(weights * width));
            std::vector<float> out(x.size());
            kernels.rms_norm(x.data(), weight, out.data(), kGroups, width, 1e-5f);
            std::vector<float> unit(x.size());
            kernels.l2_norm(x.data(), unit.data(), kGroups, width, 1e-6f);
            std::vector<double> expected(x.size());
            std::vector<double> expected_unit(x.size());
            for (int64_t group = 0; group < kGroups; ++group) {
                double squares = 0;
                for (int64_t i = 0; i < width; ++i) {
                    const double value = x[static_cast<size_t>(group * width + i)];
                    squares += value * value;
                }
                const double factor = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-5f);
                for (int64_t i = 0; i < width; ++i) {
                    const auto at = static_cast<size_t>(group * width + i);
                    expected[at] =
                        x[at] * factor * (weights == 0 ? 1.0f : weight[at % weight.size()]);
                    expected_unit[at] = x[at] / std::sqrt(squares + 1e-6f);
                }
            }
            const std::string name = std::to_string(width) + "/" + std::to_string(weights);
            report.bits("rms_norm/" + name, out);
            report.close("rms_norm/" + name, out, expected, magnitudes_of(expected), 1e-6);
            report.bits("l2_norm/" + name, unit);
            report.close("l2_norm/" + name, unit, expected_unit, magnitudes_of(expected_unit),
                         1e-6);
        }
    }
}

void report_layer_norm(const TokenKernels& kernels, const Report& report) {
    for (const int64_t width : {384, 387}) {
        Random random(8);
        const auto count = static_cast<size_t>(width);
        const std::vector<float> x = random.normals(count);
        const std::vector<float> weight = random.normals(count);
        const std::vector<float> bias = random.normals(count);
        std::vector<float> out(count);
        kernels.layer_norm(x.data(), weight.data(), bias.data(), out.data(), width, 1e-12f);
        double mean = 0;
        for (const float value : x) mean += value / static_cast<double>(width);
        double variance = 0;
        for (const float value : x) variance += (value - mean) * (value - mean);
        variance /= static_cast<double>(width);
        std::vector<double> expected(count);
        for (size_t i = 0; i < count; ++i) {
            expected[i] = (x[i] - mean) / std::sqrt(variance + 1e-12) * weight[i];
        }
        const std::string name = "layer_norm/" + std::to_string(width);
        std::vector<float> unbiased(count);
        kernels.layer_norm(x.data(), weight.data(), nullptr, unbiased.data(), width, 1e-12f);
        report.bits("unbiased_" + name, unbiased);
        report.close("unbiased_" + name, unbiased, expected, std::vector<double>(count, 4.0), 1e-6);
        for (size_t i = 0; i < count; ++i) expected[i] += bias[i];
        report.bits(name, out);
        report.close(name, out, expected, std::vector<double>(count, 4.0), 1e-6);
    }
}

void report_rope(const TokenKernels& kernels, const Report& report) {
    constexpr int64_t kHeads = 3;
    constexpr int64_t kHeadDim = 64;
    for (const bool interleaved : {false, true}) {
        for (const int64_t pairs : {32, 21}) {
            Random random(2);
            const std::vector<float> before = random.normals(kHeads * kHeadDim);
            std::vector<float> cosines;
            std::vector<float> sines;
            for (int64_t i = 0; i < pairs; ++i) {
                const double angle = random.uniform(0, 6.28);
                cosines.push_back(static_cast<float>(std::cos(angle)));
                sines.push_back(static_cast<float>(std::sin(angle)));
            }
            std::vector<float> x = before;
            kernels.rope(x.data(), kHeads, kHeadDim, pairs, interleaved, cosines.data(),
                         sines.data());
            std::vector<double> expected(before.begin(), before.end());
            for (int64_t head = 0; head < kHeads; ++head) {
                for (int64_t i = 0; i < pairs; ++i) {
                    const auto first =
                        static_cast<size_t>(head * kHeadDim + (interleaved ? 2 * i : i));
                    const size_t second = first + static_cast<size_t>(interleaved ? 1 : pairs);
                    const double cosine = cosines[static_cast<size_t>(i)];
                    const double sine = sines[static_cast<size_t>(i)];
                    expected[first] = before[first] * cosine - before[second] * sine;
                    expected[second] = before[first] * sine + before[second] * cosine;
                }
            }
            const std::string name =
                std::string("rope/") + (interleaved ? "interleaved/" : "") + std::to_string(pairs);
            report.bits(name, x);
            report.close(name, x, expected, std::vector<double>(x.size(), 4.0), 1e-7);
        }
    }
}

double activated(Activation activation, double x) {
    switch (activation) {
        case Activation::Silu:
            return x / (1 + std::exp(-x));
        case Activation::GeluTanh:
            return 0.5 * x *
                   (1 +
                    std::tanh(std::sqrt(2 / 3.141592653589793) * (x + 0.044715 * std::pow(x, 3))));
        case Activation::Gelu:
            return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
        case Activation::Relu:
            return x > 0 ? x : 0;
        case Activation::ReluSquared:
            return x > 0 ? x * x : 0;
        case Activation::Tanh:
            return std::tanh(x);
        case Activation::Sigmoid:
            return 1 / (1 + std::exp(-x));
        case Activation::Softplus:
            return x > 30 ? x : std::log1p(std::exp(x));
        case Activation::Exp:
            return std::exp(x);
        case Activation::None:
        case Activation::ClampedSwiglu:
            return x;
    }
    return 0;
}

void report_elementwise(const TokenKernels& kernels, const Report& report) {
    constexpr int64_t kCount = 203;
    Random random(4);
    std::vector<float> a;
    for (int64_t i = 0; i < kCount; ++i) a.push_back(static_cast<float>(random.uniform(-20, 20)));
    a[5] = 200;
    a[6] = -200;
    const std::vector<float> b = random.normals(kCount);
    std::vector<float> out(kCount);
    std::vector<double> expected(kCount);

    kernels.gated({Activation::Silu}, a.data(), kCount, b.data(), out.data(), kCount);
    for (size_t i = 0; i < kCount; ++i) expected[i] = activated(Activation::Silu, a[i]) * b[i];
    report.bits("gated/silu", out);
    report.close("gated/silu", out, expected, magnitudes_of(expected), 1e-6);

    kernels.gated({Activation::GeluTanh}, a.data(), kCount, b.data(), out.data(), kCount);
    for (size_t i = 0; i < kCount; ++i) {
        expected[i] = activated(Activation::GeluTanh, a[i]) * b[i];
    }
    report.bits("gated/gelu", out);
    // x · sigmoid(2u) where the reference cancels: absolute.
    report.close("gated/gelu", out, expected, std::vector<double>(kCount, 20.0), 1e-6);

    kernels.gated({Activation::None}, a.data(), kCount, b.data(), out.data(), kCount);
    for (size_t i = 0; i < kCount; ++i) expected[i] = double{a[i]} * b[i];
    report.bits("gated/none", out);
    report.close("gated/none", out, expected, magnitudes_of(expected), 1e-7);

    kernels.gated({Activation::ClampedSwiglu, 1.5f, 2.5f}, b.data(), kCount, a.data(), out.data(),
                  kCount);
    for (size_t i = 0; i < kCount; ++i) {
        const double gate = std::min(double{b[i]}, 2.5);
        expected[i] =
            gate / (1 + std::exp(-1.5 * gate)) * (std::clamp(double{a[i]}, -2.5, 2.5) + 1);
    }
    report.bits("gated/swiglu_clamped", out);
    report.close("gated/swiglu_clamped", out, expected, std::vector<double>(kCount, 5.0), 1e-6);

    // One gate for 29 neighbours.
    kernels.gated({Activation::Sigmoid}, b.data(), kCount / 29, a.data(), out.data(), kCount);
    for (size_t i = 0; i < kCount; ++i) expected[i] = a[i] / (1 + std::exp(-double{b[i / 29]}));
    report.bits("gated/narrow", out);
    report.close("gated/narrow", out, expected, magnitudes_of(expected), 1e-6);

    // Small and large numbers alike to so many digits.
    for (const Activation activation :
         {Activation::Sigmoid, Activation::Softplus, Activation::Exp}) {
        out = a;
        out[5] = 60;
        out[6] = -60;
        for (size_t i = 0; i < kCount; ++i) expected[i] = activated(activation, out[i]);
        kernels.activate(activation, out.data(), kCount);
        const std::string name =
            "activate/relative/" + std::to_string(static_cast<int>(activation));
        report.bits(name, out);
        report.close(name, out, expected, magnitudes_of(expected), 1e-6);
    }

    for (const Activation activation :
         {Activation::Silu, Activation::GeluTanh, Activation::Gelu, Activation::Relu,
          Activation::ReluSquared, Activation::Tanh, Activation::Sigmoid, Activation::Softplus}) {
        out = a;
        kernels.activate(activation, out.data(), kCount);
        for (size_t i = 0; i < kCount; ++i) expected[i] = activated(activation, a[i]);
        const std::string name = "activate/" + std::to_string(static_cast<int>(activation));
        report.bits(name, out);
        std::vector<double> magnitudes = magnitudes_of(expected);
        for (double& magnitude : magnitudes) magnitude = std::max(magnitude, 20.0);
        report.close(name, out, expected, magnitudes, 1e-6);
    }

    kernels.add(a.data(), b.data(), out.data(), kCount);
    for (size_t i = 0; i < kCount; ++i) expected[i] = double{a[i]} + b[i];
    report.bits("add", out);
    report.close("add", out, expected, magnitudes_of(expected), 1e-7);

    out = a;
    kernels.scale(out.data(), 1.7f, kCount);
    for (size_t i = 0; i < kCount; ++i) expected[i] = double{a[i]} * 1.7f;
    report.bits("scale", out);
    report.close("scale", out, expected, magnitudes_of(expected), 1e-7);

    out = b;
    kernels.add_weighted(a.data(), 0.3f, out.data(), kCount);
    for (size_t i = 0; i < kCount; ++i) expected[i] = double{a[i]} * 0.3f + b[i];
    report.bits("add_weighted", out);
    report.close("add_weighted", out, expected, std::vector<double>(kCount, 20.0), 1e-6);

    out = a;
    kernels.softmax(out.data(), kCount);
    double sum = 0;
    for (const float value : a) sum += std::exp(value - 200.0);
    for (size_t i = 0; i < kCount; ++i) expected[i] = std::exp(a[i] - 200.0) / sum;
    report.bits("softmax", out);
    report.close("softmax", out, expected, std::vector<double>(kCount, 1.0), 1e-6);

    out = a;
    kernels.multiply(out.data(), b.data(), kCount);
    for (size_t i = 0; i < kCount; ++i) expected[i] = double{a[i]} * b[i];
    report.bits("multiply", out);
    report.close("multiply", out, expected, magnitudes_of(expected), 1e-7);

    for (const size_t shifts : {size_t{1}, b.size()}) {
        out = a;
        kernels.shift(out.data(), std::span(b).first(shifts), kCount);
        for (size_t i = 0; i < kCount; ++i) expected[i] = double{a[i]} + b[i % shifts];
        const std::string name = "shift/" + std::to_string(shifts);
        report.bits(name, out);
        report.close(name, out, expected, magnitudes_of(expected), 1e-7);
    }

    out = a;
    kernels.clamp(out.data(), -1.5f, 7.25f, kCount);
    for (size_t i = 0; i < kCount; ++i) expected[i] = std::clamp(double{a[i]}, -1.5, 7.25);
    report.bits("clamp", out);
    report.close("clamp", out, expected, magnitudes_of(expected), 0.0);

    out = a;
    kernels.softcap(out.data(), 30.0f, kCount);
    for (size_t i = 0; i < kCount; ++i) expected[i] = 30 * std::tanh(a[i] / 30.0);
    report.bits("softcap", out);
    report.close("softcap", out, expected, std::vector<double>(kCount, 30.0), 1e-6);
}

// Any bits of a float: what a pool of fp16 keeps of it is the nearest half, and finite.
void report_stored_halves(const TokenKernels& kernels, const Report& report) {
    constexpr int64_t kHeadDim = 16384;
    std::vector<std::byte> keys(kHeadDim * kBlockTokens * sizeof(Half));
    std::vector<std::byte> values(keys.size());
    KVLayer layer;
    layer.keys = keys.data();
    layer.values = values.data();
    layer.type = KVType::F16;
    layer.kv_heads = 1;
    layer.key_dim = kHeadDim;
    layer.value_dim = kHeadDim;
    Random random(5);
    std::vector<float> numbers(kHeadDim);
    for (float& number : numbers) {
        const auto bits = static_cast<uint32_t>(random.next() >> 32);
        number = std::bit_cast<float>(bits);
        // Half of them in the range of halves, where rounding is between neighbours.
        if (bits % 2 == 0)
            number = static_cast<float>(random.uniform(-1, 1) *
                                        std::ldexp(1.0, static_cast<int>(random.next() % 40) - 24));
    }
    numbers[0] = std::numeric_limits<float>::infinity();
    numbers[1] = -std::numeric_limits<float>::infinity();
    numbers[2] = std::numeric_limits<float>::quiet_NaN();
    numbers[3] = 65519.9f;
    constexpr int64_t kToken = 5;
    std::vector<float> finite_numbers = numbers;
    for (float& number : finite_numbers) {
        if (std::isnan(number)) number = 1.5f;
    }
    const auto half_at = [](const std::vector<std::byte>& pool, int64_t index) {
        Half half;
        std::memcpy(&half, pool.data() + index * static_cast<int64_t>(sizeof(Half)), sizeof(half));
        return half_to_float(half);
    };
    const auto stored_keys = [&] {
        std::vector<float> stored;
        for (int64_t i = 0; i < kHeadDim; ++i) {
            stored.push_back(half_at(keys, i * kBlockTokens + kToken));
        }
        return stored;
    };
    const auto stored_values = [&] {
        std::vector<float> stored;
        for (int64_t i = 0; i < kHeadDim; ++i) {
            stored.push_back(half_at(values, kToken * kHeadDim + i));
        }
        return stored;
    };
    const auto expected = [](std::vector<float> numbers_stored) {
        for (float& number : numbers_stored) {
            if (number > 65504.0f) number = 65504.0f;
            if (number < -65504.0f) number = -65504.0f;
            number = half_to_float(float_to_half(number));
        }
        return numbers_stored;
    };
    kernels.store_kv(layer, 0, kToken, numbers.data(), finite_numbers.data());
    report.same("store_kv/keys", stored_keys(), expected(numbers));
    report.same("store_kv/values", stored_values(), expected(finite_numbers));

    // A value that is NaN shows in the key, and nowhere else.
    kernels.store_kv(layer, 0, kToken, finite_numbers.data(), numbers.data());
    std::vector<float> failed = expected(finite_numbers);
    failed[0] = std::numeric_limits<float>::quiet_NaN();
    report.same("store_kv/keys_of_nan", stored_keys(), failed);
    report.same("store_kv/values_of_nan", stored_values(), std::vector<float>(kHeadDim));
}

}  // namespace

void report_token_operations(const KernelTable& table, const Report& report) {
    report_norm(table.token, report);
    report_layer_norm(table.token, report);
    report_rope(table.token, report);
    report_elementwise(table.token, report);
    report_stored_halves(table.token, report);
}

}  // namespace caudal::report
