#include "report.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <string_view>

namespace caudal::report {

namespace {

uint32_t bits_of(float value) {
    return std::isnan(value) ? 0x7fc00000u : std::bit_cast<uint32_t>(value);
}

}  // namespace

uint64_t Random::next() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double Random::uniform(double low, double high) {
    return low + (high - low) * (static_cast<double>(next() >> 11) * 0x1p-53);
}

float Random::normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform(0, 1);
    return static_cast<float>(sum);
}

std::vector<float> Random::normals(size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = normal();
    return values;
}

void Report::bits(const std::string& name, std::span<const float> values) const {
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, a word at a time
    for (const float value : values) hash = (hash ^ bits_of(value)) * 0x100000001b3u;
    std::printf("bits %s %s %016llx\n", table_, name.c_str(),
                static_cast<unsigned long long>(hash));
}

void Report::close(const std::string& name, std::span<const float> values,
                   std::span<const double> expected, std::span<const double> magnitudes,
                   double limit) const {
    double worst = 0;
    bool comparable = true;
    for (size_t i = 0; i < values.size(); ++i) {
        const double error = std::abs(values[i] - expected[i]) / (magnitudes[i] + 1e-30);
        comparable = comparable && !std::isnan(error);
        worst = error > worst ? error : worst;
    }
    char text[80];
    std::snprintf(text, sizeof(text), "error %.3g of at most %.3g", worst, limit);
    check(name, comparable && worst <= limit, comparable ? text : "not a number");
}

void Report::same(const std::string& name, std::span<const float> values,
                  std::span<const float> expected) const {
    size_t different = values.size() == expected.size() ? 0 : 1;
    for (size_t i = 0; i < values.size() && i < expected.size(); ++i) {
        if (bits_of(values[i]) != bits_of(expected[i])) ++different;
    }
    check(name, different == 0, std::to_string(different) + " numbers differ");
}

void Report::holds(const std::string& name, bool condition) const {
    check(name, condition, condition ? "holds" : "doesn't hold");
}

void Report::check(const std::string& name, bool ok, const std::string& text) const {
    std::printf("check %s %s %s %s\n", table_, name.c_str(), ok ? "ok" : "FAILED", text.c_str());
}

}  // namespace caudal::report

int main(int argc, char** argv) {
    using namespace caudal;
    std::vector<const KernelTable*> tables = runnable_kernels();
    std::printf("tables");
    for (const KernelTable* table : tables) std::printf(" %s", table->name);
    std::printf("\n");
    if (argc > 1 && std::string_view(argv[1]) == "best") tables.resize(1);
    for (const KernelTable* table : tables) {
        const report::Report report(table->name);
        report::report_linear(*table, report);
        report::report_low_rank(*table, report);
        report::report_token_operations(*table, report);
        report::report_attention(*table, report);
        report::report_quantising(*table, report);
        report::report_recurrences(*table, report);
        report::report_routing(*table, report);
        report::report_sampling(*table, report);
    }
    return 0;
}
