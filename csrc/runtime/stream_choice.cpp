#include "runtime/stream_choice.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace caudal {

namespace {

using Level = StreamPolicy::Level;

constexpr int32_t kKilobyte = 1024;
constexpr std::array<StreamPolicy, 5> kPolicies{{
    {Level::First, 20 * kKilobyte, 1},
    {Level::First, 4 * kKilobyte, 2},
    {Level::Second, 8 * kKilobyte, 1},
    {Level::Second, 8 * kKilobyte, 2},
    {Level::Second, 4 * kKilobyte, 2},
}};

constexpr int kRounds = 4;  // the fastest counts
// What a thread reads in a turn, which is a policy's in a round: half a millisecond's worth.
constexpr int64_t kTurnBytes = 8 << 20;
constexpr int64_t kSliceBytes = 512 << 10;
// Less than this is in a cache of any processor that a difference can be measured on.
constexpr int64_t kLeastBytes = 16 << 20;
// By so much another policy has to be faster than the usual one.
constexpr double kMargin = 1.02;

// Panels of a matrix.
struct Slice {
    const PackedMatrix* matrix;
    int64_t begin;
    int64_t end;
};

// All weights of a type, and what a row is multiplied in.
class Reading {
  public:
    Reading(const LinearKernels& kernels, ThreadTeam& threads,
            std::span<const PackedMatrix* const> matrices)
        : kernels_(kernels),
          threads_(threads),
          kind_(kernels.preferred_activations(matrices.front()->type)) {
        int64_t cols = 0;
        int64_t rows = 0;
        for (const PackedMatrix* matrix : matrices) {
            const auto bytes = static_cast<int64_t>(
                kernels.packed_bytes(matrix->type, matrix->rows, matrix->cols));
            const int64_t count = std::max<int64_t>(1, bytes / kSliceBytes);
            for (int64_t i = 0; i < count; ++i) {
                const Slice slice{matrix, matrix->panels() * i / count,
                                  matrix->panels() * (i + 1) / count};
                if (slice.begin < slice.end) slices_.push_back(slice);
            }
            total_bytes_ += bytes;
            cols = std::max(cols, matrix->cols);
            rows = std::max(rows, matrix->rows);
        }
        // Zeros are activations of every kind.
        activations_.resize(kernels.activation_bytes(kind_, 1, cols) / sizeof(Line) + 1);
        y_.resize(static_cast<size_t>(threads.size()));
        for (std::vector<float>& y : y_) y.resize(static_cast<size_t>(rows));
    }

    int64_t total_bytes() const { return total_bytes_; }

    // Bytes a second of a turn, which goes on where the one before ended.
    double turn(const StreamPolicy& policy) {
        const auto threads = static_cast<size_t>(threads_.size());
        const auto each = static_cast<size_t>(kTurnBytes / kSliceBytes);
        std::vector<int64_t> bytes(threads);
        const auto began = std::chrono::steady_clock::now();
        threads_.run([&](int thread) {
            int64_t read = 0;
            for (size_t i = 0; i < each; ++i) {
                const auto index = next_ + static_cast<size_t>(thread) * each + i;
                const Slice& slice = slices_[index % slices_.size()];
                PackedMatrix matrix = *slice.matrix;
                matrix.stream = policy;
                kernels_.multiply(matrix, kind_, activations_.front().bytes.data(), 1, slice.begin,
                                  slice.end, nullptr, false, y_[static_cast<size_t>(thread)].data(),
                                  matrix.rows);
                read += static_cast<int64_t>(kernels_.packed_bytes(
                    matrix.type, (slice.end - slice.begin) * kPanelRows, matrix.cols));
            }
            bytes[static_cast<size_t>(thread)] = read;
        });
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
        next_ = (next_ + threads * each) % slices_.size();
        int64_t all = 0;
        for (const int64_t read : bytes) all += read;
        return static_cast<double>(all) / took.count();
    }

  private:
    struct alignas(64) Line {
        std::array<std::byte, 64> bytes{};
    };

    const LinearKernels& kernels_;
    ThreadTeam& threads_;
    const ActivationKind kind_;
    std::vector<Slice> slices_;
    std::vector<Line> activations_;
    std::vector<std::vector<float>> y_;  // per thread
    int64_t total_bytes_ = 0;
    size_t next_ = 0;
};

StreamChoice choose(TensorType type, Reading& reading) {
    StreamChoice choice{type, usual_stream(), 0};
    if (reading.total_bytes() < kLeastBytes) return choice;
    std::array<double, kPolicies.size()> rates{};
    reading.turn(choice.policy);  // wakes threads
    for (int round = 0; round < kRounds; ++round) {
        for (size_t i = 0; i < kPolicies.size(); ++i) {
            rates[i] = std::max(rates[i], reading.turn(kPolicies[i]));
        }
    }
    const auto usual = std::find(kPolicies.begin(), kPolicies.end(), choice.policy);
    choice.rate = rates[static_cast<size_t>(usual - kPolicies.begin())];
    const auto best = std::max_element(rates.begin(), rates.end());
    if (*best > kMargin * choice.rate) {
        choice.rate = *best;
        choice.policy = kPolicies[static_cast<size_t>(best - rates.begin())];
    }
    return choice;
}

}  // namespace

StreamPolicy usual_stream() {
#if defined(__x86_64__)
    // Zen 5 has the bandwidth into its first-level cache. Others of AMD's, and Intel's, have too
    // few places for lines that are on their way there.
    unsigned int a = 0, vendor = 0, c = 0, d = 0;
    unsigned int signature = 0, unused = 0;
    constexpr unsigned int kAmd = 0x68747541;  // "Auth"
    if (__get_cpuid(0, &a, &vendor, &c, &d) != 0 &&
        __get_cpuid(1, &signature, &unused, &c, &d) != 0) {
        const unsigned int family = ((signature >> 8) & 15) + ((signature >> 20) & 255);
        if (vendor != kAmd || family < 26) return {Level::Second, 8 * kKilobyte, 2};
    }
#endif
    return {Level::First, 20 * kKilobyte, 1};
}

std::vector<StreamChoice> choose_streams(const KernelTable& kernels, ThreadTeam& threads,
                                         std::span<const PackedMatrix> matrices) {
    std::map<TensorType, std::vector<const PackedMatrix*>> by_type;
    for (const PackedMatrix& matrix : matrices) by_type[matrix.type].push_back(&matrix);
    std::vector<StreamChoice> choices;
    for (const auto& [type, of_type] : by_type) {
        Reading reading(kernels.linear, threads, of_type);
        choices.push_back(choose(type, reading));
    }
    return choices;
}

}  // namespace caudal
