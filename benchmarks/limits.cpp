// What this machine can do at best, on a given number of threads. `limits THREADS [read]` prints
// lines of "name rate": the bytes a second at which memory is read, and for every instruction set
// the processor has, the operations a second of multiply-adds in registers (one counts as two).
//
// The int8 rates are of the instructions that kernels for quantised weights consist of:
// `vpmaddubsw`
// + `vpaddw` (unsigned codes x signed activations, accumulated in 16 bits), and where there is
// VNNI, `vpdpbusd` (accumulated in 32 bits). Built where it runs, with -march=native.

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <vector>

namespace {

constexpr int kRuns = 11;
constexpr long kIterations = 2'000'000;

// Independent accumulators, to hide latency: the busiest processors start two multiply-adds a cycle
// and take four cycles for each. Ten and their operands fit into sixteen registers.
constexpr int kChains = 10;

// Each thread reads its own part of this, or the least that is far larger than its share of caches.
constexpr std::size_t kReadBytes = std::size_t{512} << 20;
constexpr std::size_t kLeastRegion = std::size_t{32} << 20;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPrefetchAhead = 2048;
constexpr std::size_t kCacheLine = 64;

double seconds() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
}

// The best of several runs of `work(thread)` on all threads at once: the sum of their amounts over
// the time from their common start to the end of the last.
template <typename Work>
double best_rate(int threads, double amount_per_thread, const Work& work) {
    double best = 0;
    for (int run = 0; run < kRuns; ++run) {
        double start = 0;
        std::vector<double> ends(static_cast<std::size_t>(threads));
        std::barrier gate(threads, [&start]() noexcept { start = seconds(); });
        {
            std::vector<std::jthread> workers;
            for (std::size_t thread = 0; thread < ends.size(); ++thread) {
                workers.emplace_back([&, thread] {
                    gate.arrive_and_wait();
                    work(thread);
                    ends[thread] = seconds();
                });
            }
        }
        const double end = *std::max_element(ends.begin(), ends.end());
        best = std::max(best, amount_per_thread * threads / (end - start));
    }
    return best;
}

// The instructions measured. They are written out in assembly since a compiler would merge, reorder
// or drop arithmetic whose result it sees through.

template <typename Vector>
struct Fma {
    using Register = Vector;
    static constexpr std::size_t kOperations = sizeof(Vector) / sizeof(float) * 2;
    static void step(Vector& acc, const Vector& x, const Vector& y) {
        asm volatile("vfmadd231ps %2, %1, %0" : "+v"(acc) : "v"(x), "v"(y));
    }
};

template <typename Vector>
struct Maddubs {
    using Register = Vector;
    static constexpr std::size_t kOperations = sizeof(Vector) * 2;
    static void step(Vector& acc, const Vector& x, const Vector& y) {
        Vector product;
        asm volatile("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
                     : "+v"(acc), "=&v"(product)
                     : "v"(x), "v"(y));
    }
};

template <typename Vector>
struct Dpbusd {
    using Register = Vector;
    static constexpr std::size_t kOperations = sizeof(Vector) * 2;
    static void step(Vector& acc, const Vector& x, const Vector& y) {
#if defined(__AVXVNNI__) && !(defined(__AVX512VNNI__) && defined(__AVX512VL__))
        asm volatile("{vex} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(x), "x"(y));
#else
        asm volatile("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(x), "v"(y));
#endif
    }
};

template <typename Instruction>
void print_arithmetic(const char* name, int threads) {
    using Register = typename Instruction::Register;
    const auto work = [](std::size_t) {
        Register acc[kChains] = {};
        Register x{};
        Register y{};
        asm volatile("" : "+v"(x), "+v"(y));  // of unknown value
        for (long i = 0; i < kIterations; ++i) {
#pragma GCC unroll 16
            for (auto& chain : acc) {
                Instruction::step(chain, x, y);
            }
        }
    };
    const double amount = static_cast<double>(kIterations) * kChains * Instruction::kOperations;
    std::printf("%s %.6g\n", name, best_rate(threads, amount, work));
}

struct Unmap {
    std::size_t bytes = 0;
    void operator()(std::byte* region) const { munmap(region, bytes); }
};
using Region = std::unique_ptr<std::byte, Unmap>;

// Memory that has been written, in huge pages where the system grants them.
Region make_region(std::size_t bytes) {
    void* const mapped =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
        throw std::bad_alloc();
    }
    Region region(static_cast<std::byte*>(mapped), Unmap{bytes});
    madvise(region.get(), bytes, MADV_HUGEPAGE);
    std::fill_n(region.get(), bytes, std::byte{1});
    return region;
}

// Reads the parts of a region beside one another; which number of parts is fastest depends on the
// machine's prefetchers and memory banks.
template <std::size_t Parts>
void read_region(const std::byte* begin, std::size_t bytes) {
    const std::size_t part = bytes / Parts;
    __m256i sum = _mm256_setzero_si256();
    for (std::size_t offset = 0; offset < part; offset += kCacheLine) {
#pragma GCC unroll 4
        for (std::size_t i = 0; i < Parts; ++i) {
            const std::byte* const at = begin + i * part + offset;
            _mm_prefetch(at + kPrefetchAhead, _MM_HINT_T0);
            const auto* const line = reinterpret_cast<const __m256i*>(at);
            sum = _mm256_xor_si256(sum, _mm256_load_si256(line));
            sum = _mm256_xor_si256(sum, _mm256_load_si256(line + 1));
        }
    }
    asm volatile("" : : "x"(sum));
}

void print_read(int threads) {
    const std::size_t share = kReadBytes / static_cast<std::size_t>(threads);
    const std::size_t bytes = std::max(share / kHugePage * kHugePage, kLeastRegion);
    std::vector<Region> regions;
    for (int thread = 0; thread < threads; ++thread) {
        regions.push_back(make_region(bytes));
    }
    const auto rate = [&](auto read) {
        return best_rate(threads, static_cast<double>(bytes),
                         [&](std::size_t thread) { read(regions[thread].get(), bytes); });
    };
    std::printf("read %.6g\n",
                std::max({rate(read_region<1>), rate(read_region<2>), rate(read_region<4>)}));
}

}  // namespace

int main(int argc, char** argv) {
    const int threads = argc == 2 || argc == 3 ? std::atoi(argv[1]) : 0;
    const bool only_read = argc == 3 && std::strcmp(argv[2], "read") == 0;
    if (threads < 1 || (argc == 3 && !only_read)) {
        std::fprintf(stderr, "usage: limits THREADS [read]\n");
        return 2;
    }
    print_read(threads);
    if (only_read) return 0;
    print_arithmetic<Fma<__m256>>("fp32/avx2", threads);
    print_arithmetic<Maddubs<__m256i>>("int8/avx2", threads);
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
    print_arithmetic<Dpbusd<__m256i>>("int8/vnni256", threads);
#endif
#if defined(__AVX512F__) && defined(__AVX512BW__)
    print_arithmetic<Fma<__m512>>("fp32/avx512", threads);
    print_arithmetic<Maddubs<__m512i>>("int8/avx512", threads);
#endif
#if defined(__AVX512VNNI__)
    print_arithmetic<Dpbusd<__m512i>>("int8/vnni512", threads);
#endif
    return 0;
}
