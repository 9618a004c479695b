// What a batch's stages cost, by name: for `caudal bench engine --profile`.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace caudal {

// One stage as it runs: how it is called and what it moves and computes by design.
struct StageCost {
    std::string_view name;
    double bytes = 0;       // of weights, or of keys and values
    double operations = 0;  // a multiply-add counts as two
};

struct StageTimes {
    double work_seconds = 0;  // summed over threads
    double wait_seconds = 0;  // at the barrier behind it, summed over threads
    double bytes = 0;
    double operations = 0;
    int64_t calls = 0;
};

// Of one thread; names outlive it, as they belong to plans.
using StageProfile = std::map<std::string_view, StageTimes>;

using ProfileClock = std::chrono::steady_clock;

inline double seconds_between(ProfileClock::time_point from, ProfileClock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

}  // namespace caudal
