// Threads that spin briefly between operations and sleep when there is no work.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace caudal {

// Runs one function on `size()` threads at once (the caller is thread 0). Not reentrant; called
// from one thread at a time. Threads that wait spin for half a millisecond, then sleep on a futex:
// idle costs no CPU.
class ThreadTeam {
  public:
    // Throws std::runtime_error where the system doesn't let so many threads start.
    explicit ThreadTeam(int num_threads);
    ~ThreadTeam();
    ThreadTeam(const ThreadTeam&) = delete;
    ThreadTeam& operator=(const ThreadTeam&) = delete;

    int size() const { return num_threads_; }

    // Calls `body(thread_index)` on every thread and returns when all have returned. An exception
    // that a body throws on any thread is rethrown here; a body that uses `barrier` must not throw
    // between barriers, since the other threads would wait for it for ever.
    void run(const std::function<void(int)>& body);

    // Has the threads sleep at once until the next `run`: others could use their processors.
    void rest();

    // Inside `run`: waits until every thread has arrived.
    void barrier();

  private:
    void stop();
    void worker(int index);
    void run_guarded(int index);

    const int num_threads_;
    std::vector<std::thread> threads_;
    const std::function<void(int)>* body_ = nullptr;
    std::exception_ptr error_;
    std::mutex error_mutex_;
    std::atomic<uint32_t> generation_{0};
    std::atomic<int> running_{0};
    std::atomic<bool> stopping_{false};
    std::atomic<bool> resting_{false};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> barrier_generation_{0};
};

}  // namespace caudal
