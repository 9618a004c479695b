// Linear layers of every weight type with every kind of activations that goes with it.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "quant/encoding.h"
#include "quant/group.h"
#include "quant/half.h"
#include "report.h"

namespace caudal::report {

namespace {

struct TypeCase {
    TensorType type;
    std::vector<int64_t> halves;  // where a block keeps half-precision scales
};

const std::vector<TypeCase>& type_cases() {
    static const std::vector<TypeCase> cases = {
        {TensorType::F32, {}},       {TensorType::F16, {}},        {TensorType::BF16, {}},
        {TensorType::Q8_0, {0}},     {TensorType::Q4_0, {0}},      {TensorType::Q4_1, {0, 2}},
        {TensorType::Q5_0, {0}},     {TensorType::Q5_1, {0, 2}},   {TensorType::IQ4_NL, {0}},
        {TensorType::MXFP4, {}},     {TensorType::Q2_K, {80, 82}}, {TensorType::Q3_K, {108}},
        {TensorType::Q4_K, {0, 2}},  {TensorType::Q5_K, {0, 2}},   {TensorType::Q6_K, {208}},
        {TensorType::IQ4_XS, {0}},   {TensorType::NVFP4, {}},      {TensorType::IQ1_S, {0}},
        {TensorType::IQ1_M, {}},     {TensorType::IQ2_XXS, {0}},   {TensorType::IQ2_XS, {0}},
        {TensorType::IQ2_S, {0}},    {TensorType::IQ3_XXS, {0}},   {TensorType::IQ3_S, {0}},
        {TensorType::TQ1_0, {52}},   {TensorType::TQ2_0, {64}},    {TensorType::Q1_0, {0}},
        {TensorType::INT4_G32, {0}}, {TensorType::INT4_G64, {0}},  {TensorType::INT4_G128, {0}},
        {TensorType::INT8_ROW, {}},  {TensorType::NVFP4_ROW, {}},  {TensorType::INT8_G32, {}},
        {TensorType::FP8_G32, {}},   {TensorType::FP8_G128, {}},   {TensorType::NF4_G64, {}},
        {TensorType::Q2_0, {0}},     {TensorType::Q2_0_G128, {0}},
    };
    return cases;
}

const char* kind_name(ActivationKind kind) {
    switch (kind) {
        case ActivationKind::F32:
            return "f32";
        case ActivationKind::Int8:
            return "int8";
        case ActivationKind::Int16:
            return "int16";
        case ActivationKind::Int8Twice:
            return "int8_twice";
    }
    return "";
}

struct alignas(64) CacheLine {
    std::byte bytes[64];
};

// Memory in whole cache lines, as the kernels want it.
class Buffer {
  public:
    explicit Buffer(size_t bytes) : lines_((bytes + sizeof(CacheLine) - 1) / sizeof(CacheLine)) {}
    std::byte* data() { return lines_.data()->bytes; }
    const std::byte* data() const { return lines_.data()->bytes; }

  private:
    std::vector<CacheLine> lines_;
};

// A GGUF tensor of any codes, or of blocks filled with one byte, with scales of ordinary size.
std::vector<std::byte> tensor(const TypeCase& of, int64_t rows, int64_t cols, int fill) {
    const BlockGeometry geometry = block_geometry(of.type);
    const int64_t blocks = rows * cols / geometry.elements;
    std::vector<std::byte> bytes(static_cast<size_t>(blocks * geometry.bytes));
    Random random(static_cast<uint64_t>(of.type) + 1);
    for (int64_t block = 0; block < blocks; ++block) {
        std::byte* at = bytes.data() + block * geometry.bytes;
        if (encoding_of(of.type).scales == Scales::None) {
            const float value = random.normal();
            const Half half = float_to_half(value);
            const uint32_t bits = std::bit_cast<uint32_t>(value);
            const auto upper = static_cast<uint16_t>(bits >> 16);
            if (of.type == TensorType::F32) std::memcpy(at, &value, sizeof(value));
            if (of.type == TensorType::F16) std::memcpy(at, &half, sizeof(half));
            if (of.type == TensorType::BF16) std::memcpy(at, &upper, sizeof(upper));
            continue;
        }
        for (int64_t i = 0; i < geometry.bytes; ++i) {
            const uint64_t byte = random.next() >> 56;
            at[i] = static_cast<std::byte>(fill < 0 ? byte : static_cast<uint64_t>(fill));
        }
        for (const int64_t offset : of.halves) {
            const double sign = random.next() >> 63 == 0 ? 1 : -1;
            const auto scale = static_cast<float>(sign * random.uniform(0.001, 0.02));
            const Half half = float_to_half(scale);
            std::memcpy(at + offset, &half, sizeof(half));
        }
        const Encoding encoding = encoding_of(of.type);
        if (encoding.scales == Scales::Float || encoding.row_scale) {
            // Of a row or a group: what belongs to a row is the same in all of its blocks.
            const int64_t owner =
                encoding.row_scale ? block * geometry.elements / cols * 7 % 31 : block % 31;
            const auto scale = (static_cast<float>(owner) - 15.5f) * 0.001f;
            std::memcpy(at, &scale, sizeof(scale));
        }
        if (encoding.scales == Scales::Fp8) {
            std::byte* scales = at + (encoding.row_scale ? 4 : 0);
            for (int i = 0; i < 4; ++i) scales[i] = static_cast<std::byte>(16 + random.next() % 32);
        }
        if (encoding.zero) at[2] = static_cast<std::byte>(3 + random.next() % 2 * 8);
        if (encoding.floats == FloatCodes::E4m3) {  // no NaN, and small enough to add up
            for (int64_t i = 4; i < geometry.bytes; ++i) at[i] &= std::byte{0xbf};
        }
        if (of.type == TensorType::IQ1_M) {  // its scale's digits, 0x1850
            at[49] = at[49] & std::byte{0x0f};
            at[51] = (at[51] & std::byte{0x0f}) | std::byte{0x50};
            at[53] = (at[53] & std::byte{0x0f}) | std::byte{0x80};
            at[55] = (at[55] & std::byte{0x0f}) | std::byte{0x10};
        }
        if (of.type == TensorType::MXFP4) at[0] = static_cast<std::byte>(115 + random.next() % 10);
    }
    return bytes;
}

// What the kernels take x for: by the definition, groups of 32 integers with one scale.
std::vector<double> as_quantised(ActivationKind kind, std::span<const float> x) {
    std::vector<double> values(x.begin(), x.end());
    if (kind == ActivationKind::F32) return values;
    if (kind == ActivationKind::Int8Twice) {
        const std::vector<double> first = as_quantised(ActivationKind::Int8, x);
        std::vector<float> rest(x.size());
        for (size_t i = 0; i < x.size(); ++i) rest[i] = static_cast<float>(x[i] - first[i]);
        const std::vector<double> second = as_quantised(ActivationKind::Int8, rest);
        for (size_t i = 0; i < x.size(); ++i) values[i] = first[i] + second[i];
        return values;
    }
    const float limit = kind == ActivationKind::Int8 ? 127.0f : 32767.0f;
    for (size_t begin = 0; begin < x.size(); begin += kGroup) {
        float largest = 0;
        for (size_t i = begin; i < begin + kGroup; ++i) {
            largest = std::max(largest, std::abs(x[i]));
        }
        const float inverse = largest > 1e-35f ? limit / largest : 0.0f;
        for (size_t i = begin; i < begin + kGroup; ++i) {
            values[i] = std::nearbyint(x[i] * inverse) * (static_cast<double>(largest) / limit);
        }
    }
    return values;
}

// A packed matrix and its numbers.
class Layer {
  public:
    Layer(const LinearKernels& kernels, const TypeCase& of, int64_t rows, int64_t cols,
          int fill = -1)
        : Layer(kernels, of.type, tensor(of, rows, cols, fill), rows, cols) {}

    Layer(const LinearKernels& kernels, TensorType type, const std::vector<std::byte>& source,
          int64_t rows, int64_t cols)
        : kernels_(kernels),
          data_(kernels.packed_bytes(type, rows, cols)),
          matrix_{type, rows, cols, data_.data()},
          numbers_(static_cast<size_t>(rows * cols)) {
        kernels.pack(type, source, rows, cols, 0, matrix_.panels(), data_.data());
        dequantize(type, source.data(), rows * cols, numbers_.data());
    }

    int64_t rows() const { return matrix_.rows; }
    int64_t cols() const { return matrix_.cols; }
    ActivationKind preferred() const { return kernels_.preferred_activations(matrix_.type); }
    std::span<const float> numbers() const { return numbers_; }

    std::vector<float> unpacked() const {
        std::vector<float> values(numbers_.size());
        for (int64_t row = 0; row < rows(); ++row) {
            kernels_.unpack_row(matrix_, row, values.data() + row * cols());
        }
        return values;
    }

    void stream_as(const StreamPolicy& policy) { matrix_.stream = policy; }

    // Into `y`, or a y of NaN.
    std::vector<float> multiply(ActivationKind kind, std::span<const float> x,
                                std::vector<float> y = {}, const float* bias = nullptr,
                                int64_t panel_begin = 0, int64_t panel_end = -1) const {
        const int64_t count = static_cast<int64_t>(x.size()) / cols();
        const bool accumulate = !y.empty();
        if (!accumulate) {
            y.assign(static_cast<size_t>(count * rows()), std::numeric_limits<float>::quiet_NaN());
        }
        Buffer activations(kernels_.activation_bytes(kind, count, cols()));
        kernels_.convert(kind, x.data(), cols(), cols(), 0, count, activations.data());
        kernels_.multiply(matrix_, kind, activations.data(), count, panel_begin,
                          panel_end < 0 ? matrix_.panels() : panel_end, bias, accumulate, y.data(),
                          rows());
        return y;
    }

    void check(const Report& report, const std::string& name, ActivationKind kind,
               std::span<const float> x, std::span<const float> y, double limit) const {
        const std::vector<double> quantised = as_quantised(kind, x);
        std::vector<double> expected(y.size());
        std::vector<double> magnitudes(y.size());
        for (size_t i = 0; i < y.size(); ++i) {
            const double* activation =
                quantised.data() + i / static_cast<size_t>(rows()) * static_cast<size_t>(cols());
            const float* weight =
                numbers_.data() + i % static_cast<size_t>(rows()) * static_cast<size_t>(cols());
            for (int64_t k = 0; k < cols(); ++k) {
                expected[i] += activation[k] * weight[k];
                magnitudes[i] += std::abs(activation[k] * weight[k]);
            }
        }
        report.close(name, y, expected, magnitudes, limit);
    }

  private:
    LinearKernels kernels_;
    Buffer data_;
    PackedMatrix matrix_;
    std::vector<float> numbers_;
};

std::span<const float> last_rows(std::span<const float> values, int64_t count, int64_t width) {
    return values.last(static_cast<size_t>(count * width));
}

using Level = StreamPolicy::Level;
constexpr std::array<StreamPolicy, 5> kPolicies{{{Level::None, 0, 1},
                                                 {Level::First, 100, 2},
                                                 {Level::Second, 1 << 20, 1},
                                                 {Level::Second, 1 << 20, 2},
                                                 {Level::Second, 64, 2}}};

void report_type(const KernelTable& table, const Report& report, const TypeCase& of) {
    const BlockGeometry geometry = block_geometry(of.type);
    const std::string name = std::string("linear/") + geometry.name;
    // Panels that aren't full, more columns than one stretch of unpacked groups, and as many tokens
    // as make every way through the kernels: one, two, a tile, several tiles unpacked.
    Layer layer(table.linear, of, 37, 1280);
    constexpr int64_t kTokens = 27;
    Random random(7);
    std::vector<float> x = random.normals(static_cast<size_t>(kTokens * layer.cols()));
    for (size_t i = 0; i < x.size(); i += 97) x[i] *= 20;  // outliers, as models have them

    report.same(name + "/unpack_row", layer.unpacked(), layer.numbers());
    std::vector<ActivationKind> kinds = {ActivationKind::F32};
    if (layer.preferred() != ActivationKind::F32) kinds.push_back(layer.preferred());
    if (layer.preferred() == ActivationKind::Int8) kinds.push_back(ActivationKind::Int8Twice);
    for (const ActivationKind kind : kinds) {
        const std::string of_kind = name + "/" + kind_name(kind);
        const std::vector<float> y = layer.multiply(kind, x);
        report.bits(of_kind, y);
        // A rest that lies half-way between two codes may round either way.
        layer.check(report, of_kind, kind, x, y, kind == ActivationKind::Int8Twice ? 1e-5 : 2e-6);
        for (const int64_t count : {1, 2, 3, 5, 12, 13}) {
            report.same(of_kind + "/alone/" + std::to_string(count),
                        layer.multiply(kind, last_rows(x, count, layer.cols())),
                        last_rows(y, count, layer.rows()));
        }
        // Three panels are two side by side, and one; if they are long enough for how far ahead
        // they are asked for.
        for (const StreamPolicy& policy : kPolicies) {
            layer.stream_as(policy);
            for (const int64_t count : {1, 2, 9}) {
                report.same(of_kind + "/stream/" + std::to_string(&policy - kPolicies.data()) +
                                "/" + std::to_string(count),
                            layer.multiply(kind, last_rows(x, count, layer.cols())),
                            last_rows(y, count, layer.rows()));
            }
        }
        layer.stream_as({});
    }

    const ActivationKind kind = layer.preferred();
    for (const int64_t count : {int64_t{1}, kTokens}) {
        const auto some = last_rows(x, count, layer.cols());
        const std::vector<float> plain = layer.multiply(kind, some);
        std::vector<float> middle(plain.size(), std::numeric_limits<float>::quiet_NaN());
        std::vector<float> both = plain;
        const std::vector<float> bias = random.normals(static_cast<size_t>(layer.rows()));
        const std::vector<float> before = random.normals(plain.size());
        for (size_t i = 0; i < plain.size(); ++i) {
            const size_t row = i % static_cast<size_t>(layer.rows());
            if (row >= 16 && row < 32) middle[i] = plain[i];
            both[i] = plain[i] + bias[row] + before[i];
        }
        const std::string of_count = name + "/" + std::to_string(count);
        report.same(of_count + "/panels", layer.multiply(kind, some, {}, nullptr, 1, 2), middle);
        report.same(of_count + "/bias", layer.multiply(kind, some, before, bias.data()), both);
    }

    if (geometry.elements <= 32) {
        const Layer narrow(table.linear, of, 20, 96);
        const auto some = std::span(x).first(9 * 96);
        const std::vector<float> y = narrow.multiply(kind, some);
        report.bits(name + "/narrow", y);
        narrow.check(report, name + "/narrow", kind, some, y, 2e-6);
    }
}

// All bits set and all activations at the limit, in both signs: the sums' worst case.
void report_extremes(const KernelTable& table, const Report& report, const TypeCase& of) {
    for (const int fill : {0x00, 0xff, 0x77, 0x88}) {
        const Layer layer(table.linear, of, 16, 256, fill);
        for (const float value : {3.0f, -3.0f}) {
            for (const size_t count : {1, 26}) {
                const std::vector<float> x(count * 256, value);
                const std::string name = std::string("linear/") + block_geometry(of.type).name +
                                         "/extreme/" + std::to_string(fill) + "/" +
                                         std::to_string(static_cast<int>(value)) + "/" +
                                         std::to_string(count);
                const ActivationKind kind = layer.preferred();
                layer.check(report, name, kind, x, layer.multiply(kind, x), 2e-6);
            }
        }
    }
}

// Infinity and NaN give NaN in their own row and harm no other; tiny and large numbers are numbers.
void report_strange_activations(const KernelTable& table, const Report& report,
                                const TypeCase& of) {
    const Layer layer(table.linear, of, 20, 256);
    const std::string name = std::string("linear/") + block_geometry(of.type).name + "/strange";
    const auto cols = static_cast<size_t>(layer.cols());
    const ActivationKind kind = layer.preferred();
    std::vector<float> x = Random(3).normals(26 * cols);
    const std::vector<float> ordinary = layer.multiply(kind, x);
    std::fill_n(x.begin(), cols, 0.0f);
    std::fill_n(x.begin() + static_cast<int64_t>(cols), cols, 1e-42f);
    for (size_t i = 0; i < cols; ++i) x[2 * cols + i] = i % 7 == 0 ? 1e33f : 0.0f;
    x[3 * cols + 17] = std::numeric_limits<float>::infinity();
    x[4 * cols + 3] = std::numeric_limits<float>::quiet_NaN();
    x[5 * cols + 200] = -std::numeric_limits<float>::infinity();
    const std::vector<float> y = layer.multiply(kind, x);
    report.bits(name, y);
    const auto rows = static_cast<size_t>(layer.rows());
    bool as_expected = true;
    for (size_t i = 0; i < 6 * rows; ++i) {
        const size_t row = i / rows;
        as_expected = as_expected && (row == 0   ? y[i] == 0.0f
                                      : row == 1 ? std::abs(y[i]) < 1e-35f
                                                 : std::isfinite(y[i]) == (row == 2));
    }
    report.holds(name, as_expected);
    report.same(name + "/others", std::span(y).subspan(6 * rows),
                std::span(ordinary).subspan(6 * rows));
}

// Every half-precision number, by way of weights of one column.
void report_halves(const KernelTable& table, const Report& report) {
    constexpr int64_t kRows = 65536;
    std::vector<std::byte> source(2 * kRows);
    std::vector<float> expected(kRows);
    for (int64_t i = 0; i < kRows; ++i) {
        const Half half{static_cast<uint16_t>(i)};
        std::memcpy(source.data() + 2 * i, &half, sizeof(half));
        expected[static_cast<size_t>(i)] = half_to_float(half) + 0.0f;  // a sum has no −0
    }
    const Layer layer(table.linear, TensorType::F16, source, kRows, 1);
    const std::vector<float> one = {1.0f};
    report.same("linear/halves", layer.multiply(ActivationKind::F32, one), expected);
}

}  // namespace

void report_linear(const KernelTable& table, const Report& report) {
    for (const TypeCase& of : type_cases()) {
        report_type(table, report, of);
        report_strange_activations(table, report, of);
        if (table.linear.preferred_activations(of.type) != ActivationKind::F32) {
            report_extremes(table, report, of);
        }
    }
    report_halves(table, report);
}

}  // namespace caudal::report
