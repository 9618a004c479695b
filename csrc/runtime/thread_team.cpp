#include "runtime/thread_team.h"

#include <exception>
#include <stdexcept>
#include <string>
#include <system_error>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace caudal {

namespace {

// Some 500 µs on current processors: longer than what the caller does between two iterations, which
// is 200 µs with 16 sequences, and far shorter than what a person would notice as CPU use of an
// idle server. Waking a sleeping thread takes 90 µs where processors are virtual.
constexpr int kSpins = 20000;
// After so many spins a waiting thread offers its processor: two threads pinned to the same one
// would otherwise wait a whole time slice for each other.
constexpr int kSpinsBeforeYield = 256;

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Waits until `value` differs from `old`, spinning first, unless `resting`, and then sleeping.
void wait_while_equal(const std::atomic<uint32_t>& value, uint32_t old,
                      const std::atomic<bool>& resting) {
    for (int spin = 0; spin < kSpins && !resting.load(std::memory_order_relaxed); ++spin) {
        if (value.load(std::memory_order_acquire) != old) return;
        relax();
        if (spin > kSpinsBeforeYield && spin % kSpinsBeforeYield == 0) std::this_thread::yield();
    }
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadTeam::ThreadTeam(int num_threads) : num_threads_(num_threads < 1 ? 1 : num_threads) {
    threads_.reserve(static_cast<size_t>(num_threads_ - 1));
    try {
        for (int index = 1; index < num_threads_; ++index) {
            threads_.emplace_back([this, index] { worker(index); });
        }
    } catch (const std::system_error& error) {
        stop();
        throw std::runtime_error("can't start " + std::to_string(num_threads_) +
                                 " threads: " + error.what());
    } catch (...) {
        stop();
        throw;
    }
}

ThreadTeam::~ThreadTeam() {
    stop();
}

void ThreadTeam::stop() {
    stopping_.store(true, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void ThreadTeam::run(const std::function<void(int)>& body) {
    body_ = &body;
    error_ = nullptr;
    running_.store(num_threads_ - 1, std::memory_order_relaxed);
    resting_.store(false, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    run_guarded(0);
    // The others are at most one operation behind: worth spinning for, never worth sleeping.
    for (int spin = 0; running_.load(std::memory_order_acquire) != 0; ++spin) {
        relax();
        if (spin > kSpinsBeforeYield) std::this_thread::yield();
    }
    if (error_) std::rethrow_exception(error_);
}

void ThreadTeam::rest() {
    resting_.store(true, std::memory_order_relaxed);
}

void ThreadTeam::run_guarded(int index) {
    try {
        (*body_)(index);
    } catch (...) {
        const std::lock_guard<std::mutex> lock(error_mutex_);
        if (!error_) error_ = std::current_exception();
    }
}

void ThreadTeam::barrier() {
    if (num_threads_ == 1) return;
    const uint32_t generation = barrier_generation_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        barrier_generation_.store(generation + 1, std::memory_order_release);
        return;
    }
    for (int spin = 0; barrier_generation_.load(std::memory_order_acquire) == generation; ++spin) {
        relax();
        if (spin > kSpinsBeforeYield) std::this_thread::yield();
    }
}

void ThreadTeam::worker(int index) {
    uint32_t seen = 0;
    while (true) {
        wait_while_equal(generation_, seen, resting_);
        seen = generation_.load(std::memory_order_acquire);
        if (stopping_.load(std::memory_order_relaxed)) return;
        run_guarded(index);
        running_.fetch_sub(1, std::memory_order_release);
    }
}

}  // namespace caudal
