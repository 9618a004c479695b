// How weights are streamed on this machine: measured on the weights themselves.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "isa/kernel_table.h"
#include "runtime/thread_team.h"

namespace caudal {

struct StreamChoice {
    TensorType type;
    StreamPolicy policy;
    double rate;  // bytes a second that a single row met; 0: not measured
};

// What is taken where nothing can be measured: by the processor.
StreamPolicy usual_stream();

// The fastest policy for each type among these matrices, a single row at a time on all threads.
// They are in memory. Types that are too small for it to matter have the usual one, unmeasured;
// others take some 20 ms.
std::vector<StreamChoice> choose_streams(const KernelTable& kernels, ThreadTeam& threads,
                                         std::span<const PackedMatrix> matrices);

}  // namespace caudal
