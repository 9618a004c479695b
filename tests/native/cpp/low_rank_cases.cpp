// Factors of adapters, as floats and as BF16, by few rows and by many.
#include <bit>
#include <cmath>

#include "report.h"

namespace caudal::report {

namespace {

struct alignas(64) CacheLine {
    std::byte bytes[64];
};

// A factor with its bytes.
class Packed {
  public:
    Packed(bool exact, int64_t rows, int64_t cols, std::span<const float> values)
        : factor_{exact, rows, cols, nullptr}, lines_(factor_.bytes() / sizeof(CacheLine) + 1) {
        factor_.data = lines_.front().bytes;
        pack_factor(factor_, values, {lines_.front().bytes, factor_.bytes()});
    }

    const Factor& factor() const { return factor_; }

  private:
    Factor factor_;
    std::vector<CacheLine> lines_;
};

void report_factor(const KernelTable& table, const Report& report, bool exact, int64_t rows,
                   int64_t cols) {
    constexpr int64_t kCount = 11;
    const int64_t x_stride = cols + 3;
    const int64_t y_stride = rows + 5;
    const std::string name = std::string("low_rank/") + (exact ? "f32" : "bf16") + "/" +
                             std::to_string(rows) + "x" + std::to_string(cols);
    Random random(static_cast<uint64_t>(rows * cols));
    std::vector<float> values = random.normals(static_cast<size_t>(rows * cols));
    for (float& value : values) {  // what BF16 can say, so that nothing is rounded
        const uint32_t kept = exact ? 0xffffffff : 0xffff0000;
        value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & kept);
    }
    const std::vector<float> x = random.normals(static_cast<size_t>(kCount * x_stride));
    const std::vector<float> before = random.normals(static_cast<size_t>(kCount * y_stride));
    const Packed packed(exact, rows, cols, values);
    const Factor& factor = packed.factor();

    std::vector<float> y = before;
    table.low_rank.multiply(factor, x.data(), x_stride, kCount, 0, factor.panels(), true, y.data(),
                            y_stride);
    report.bits(name, y);
    std::vector<double> expected(before.begin(), before.end());
    std::vector<double> magnitudes(before.size(), 1.0);
    for (int64_t row = 0; row < kCount; ++row) {
        for (int64_t n = 0; n < rows; ++n) {
            const auto at = static_cast<size_t>(row * y_stride + n);
            magnitudes[at] = std::abs(expected[at]);
            for (int64_t k = 0; k < cols; ++k) {
                const double product = double{x[static_cast<size_t>(row * x_stride + k)]} *
                                       values[static_cast<size_t>(n * cols + k)];
                expected[at] += product;
                magnitudes[at] += std::abs(product);
            }
        }
    }
    report.close(name, y, expected, magnitudes, 1e-6);

    // The same row by row and panel by panel, and with what was there added afterwards.
    std::vector<float> pieces = before;
    std::vector<float> added(before.size());
    for (int64_t row = 0; row < kCount; ++row) {
        for (int64_t panel = 0; panel < factor.panels(); ++panel) {
            table.low_rank.multiply(factor, x.data() + row * x_stride, x_stride, 1, panel,
                                    panel + 1, true, pieces.data() + row * y_stride, y_stride);
        }
    }
    report.same(name + "/pieces", pieces, y);
    table.low_rank.multiply(factor, x.data(), x_stride, kCount, 0, factor.panels(), false,
                            added.data(), y_stride);
    for (size_t i = 0; i < added.size(); ++i) added[i] += before[i];
    report.same(name + "/added", added, y);
}

// Rounded to eight bits, of two equally near ones to the even.
void report_rounding(const KernelTable& table, const Report& report) {
    const std::vector<uint32_t> given = {0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001,
                                         0xbf80c000, 0x00000000, 0x3fffffff};
    const std::vector<uint32_t> rounded = {0x3f800000, 0x3f820000, 0x3f800000, 0x3f810000,
                                           0xbf810000, 0x00000000, 0x40000000};
    std::vector<float> values;
    std::vector<float> expected;
    for (const uint32_t bits : given) values.push_back(std::bit_cast<float>(bits));
    for (const uint32_t bits : rounded) expected.push_back(std::bit_cast<float>(bits));
    const auto rows = static_cast<int64_t>(values.size());
    const Packed packed(false, rows, 1, values);
    const float one = 1.0f;
    std::vector<float> y(values.size());
    table.low_rank.multiply(packed.factor(), &one, 1, 1, 0, 1, false, y.data(), rows);
    report.same("low_rank/rounding", y, expected);
}

}  // namespace

void report_low_rank(const KernelTable& table, const Report& report) {
    for (const bool exact : {true, false}) {
        // Panels that are full and that aren't, and every rest of four columns.
        report_factor(table, report, exact, 16, 320);
        report_factor(table, report, exact, 3, 101);
        report_factor(table, report, exact, 40, 3);
        report_factor(table, report, exact, 65, 18);
    }
    report_rounding(table, report);
}

}  // namespace caudal::report
