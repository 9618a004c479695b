// Floats to blocks and back: how far off the numbers are, and the same blocks everywhere.
#include <algorithm>
#include <cmath>
#include <limits>

#include "quant/group.h"
#include "report.h"

namespace caudal::report {

namespace {

// Errors of numbers that are spread evenly, relative to the largest of their group: about half of
// a step, and what is lost where a step is rounded.
struct Case {
    TensorType type;
    double limit;
};

constexpr Case kCases[] = {
    {TensorType::F16, 5e-4},  {TensorType::BF16, 4e-3}, {TensorType::Q8_0, 5e-3},
    {TensorType::Q5_0, 0.07}, {TensorType::Q5_1, 0.04}, {TensorType::Q4_0, 0.13},
    {TensorType::Q4_1, 0.08}, {TensorType::Q6_K, 0.04}, {TensorType::Q5_K, 0.06},
    {TensorType::Q4_K, 0.11}, {TensorType::Q3_K, 0.35}, {TensorType::Q2_K, 0.75},
};

std::vector<std::byte> blocks_of(const QuantiseKernels& kernels, TensorType type,
                                 std::span<const float> x, bool& finite) {
    const BlockGeometry geometry = block_geometry(type);
    const auto count = static_cast<int64_t>(x.size());
    std::vector<std::byte> blocks(static_cast<size_t>(count / geometry.elements * geometry.bytes));
    finite = kernels.write_blocks(type, x.data(), count, blocks.data());
    return blocks;
}

// Bytes as floats, for `Report::bits`.
std::vector<float> as_floats(std::span<const std::byte> bytes) {
    std::vector<float> values;
    for (const std::byte byte : bytes) values.push_back(static_cast<float>(byte));
    return values;
}

void report_errors(const QuantiseKernels& kernels, const Report& report, const Case& each) {
    constexpr size_t kGroupSize = 32;
    Random random(17);
    std::vector<float> x;  // an odd number of superblocks, groups of many magnitudes
    for (size_t i = 0; i < 256 * 7; ++i) {
        const double magnitude = std::exp2(static_cast<double>(i / 256) - 3.0);
        x.push_back(static_cast<float>(random.uniform(-1, 1) * magnitude));
    }
    const std::string name = std::string("quantise/") + block_geometry(each.type).name;
    bool finite = false;
    const std::vector<std::byte> blocks = blocks_of(kernels, each.type, x, finite);
    report.holds(name + "/finite", finite);
    report.bits(name, as_floats(blocks));
    std::vector<float> read(x.size());
    dequantize(each.type, blocks.data(), static_cast<int64_t>(x.size()), read.data());
    std::vector<double> expected(x.begin(), x.end());
    std::vector<double> magnitudes;
    for (size_t i = 0; i < x.size(); ++i) {
        const auto begin = x.begin() + static_cast<int64_t>(i / kGroupSize * kGroupSize);
        double largest = 0;
        std::for_each(begin, begin + kGroupSize,
                      [&](float value) { largest = std::max(largest, std::abs(double{value})); });
        magnitudes.push_back(largest);
    }
    report.close(name, read, expected, magnitudes, each.limit);
}

// Zeros of either sign, nothing but the same number, numbers of no size, and one that stands out.
void report_edges(const QuantiseKernels& kernels, const Report& report, TensorType type) {
    Random random(18);
    std::vector<float> x(256 * 6, 0.0f);
    for (size_t i = 0; i < 256; ++i) {
        x[i] = i % 3 == 0 ? -0.0f : 0.0f;
        x[256 + i] = -0.75f;
        x[512 + i] = random.normal() * 1e-9f;
        x[768 + i] = random.normal() * 1e-30f;
        x[1024 + i] = i == 100 ? 100.0f : random.normal() * 1e-3f;
        x[1280 + i] = std::round(random.normal() * 4) / 4;
    }
    const std::string name = std::string("quantise/edges/") + block_geometry(type).name;
    bool finite = false;
    report.bits(name, as_floats(blocks_of(kernels, type, x, finite)));
    report.holds(name + "/finite", finite);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                            -std::numeric_limits<float>::infinity(), 1e30f}) {
        x[700] = bad;
        blocks_of(kernels, type, x, finite);
        const bool holds = std::isfinite(bad) && type == TensorType::BF16;
        report.holds(name + "/refused", finite == holds);
    }
}

// Floats of 16 bits, in numbers that are no multiple of a vector's.
void report_reading(const QuantiseKernels& kernels, const Report& report) {
    for (const TensorType type : {TensorType::F16, TensorType::BF16}) {
        Random random(19);
        const std::vector<float> x = random.normals(45);
        bool finite = false;
        const std::vector<std::byte> halves = blocks_of(kernels, type, x, finite);
        std::vector<float> expected(x.size());
        dequantize(type, halves.data(), 45, expected.data());
        std::vector<float> read(x.size());
        kernels.read_floats(type, halves.data(), 45, read.data());
        report.same(std::string("quantise/read/") + block_geometry(type).name, read, expected);
    }
}

}  // namespace

void report_quantising(const KernelTable& table, const Report& report) {
    for (const Case& each : kCases) {
        report_errors(table.quantise, report, each);
        report_edges(table.quantise, report, each.type);
    }
    report_reading(table.quantise, report);
}

}  // namespace caudal::report
