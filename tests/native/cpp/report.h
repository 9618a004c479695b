// What the kernels' report consists of: lines for tests/native/test_instruction_sets.py to read.
//
//   tables NAME…                     the kernels that this processor can run, best first
// then, for each of them or, if the program's argument is `best`, for the first:
//   bits TABLE CASE HASH             what a case computed; equal hashes mean equal bits
//   check TABLE CASE ok|FAILED TEXT  whether it is right, and by what measure
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "isa/kernel_table.h"

namespace caudal::report {

// Random numbers that are the same on every machine (SplitMix64, Steele et al., 2014), unlike the
// standard library's distributions.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}

    uint64_t next();
    double uniform(double low, double high);
    float normal();  // nearly: twelve uniform numbers' sum
    std::vector<float> normals(size_t count);

  private:
    uint64_t state_;
};

class Report {
  public:
    explicit Report(const char* table) : table_(table) {}

    // NaNs count as one number: which of them an operation gives depends on the processor.
    void bits(const std::string& name, std::span<const float> values) const;
    // |values - expected| relative to `magnitudes`, all of one length, is at most `limit`.
    void close(const std::string& name, std::span<const float> values,
               std::span<const double> expected, std::span<const double> magnitudes,
               double limit) const;
    // Equal to the bit.
    void same(const std::string& name, std::span<const float> values,
              std::span<const float> expected) const;
    void holds(const std::string& name, bool condition) const;

  private:
    void check(const std::string& name, bool ok, const std::string& text) const;

    const char* table_;
};

void report_linear(const KernelTable& table, const Report& report);
void report_low_rank(const KernelTable& table, const Report& report);
void report_token_operations(const KernelTable& table, const Report& report);
void report_attention(const KernelTable& table, const Report& report);
void report_quantising(const KernelTable& table, const Report& report);
void report_recurrences(const KernelTable& table, const Report& report);
void report_routing(const KernelTable& table, const Report& report);
void report_sampling(const KernelTable& table, const Report& report);

}  // namespace caudal::report
