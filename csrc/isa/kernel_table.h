// The dispatch table: every kernel whose code depends on the instruction set, chosen once at
// start-up.
#pragma once

#include <vector>

#include "kernels/linear.h"
#include "kernels/low_rank.h"
#include "kernels/quantise.h"
#include "kernels/recurrent.h"
#include "kernels/sampling.h"
#include "kernels/token_ops.h"

namespace caudal {

struct KernelTable {
    const char* name;  // "portable", "avx2", …
    LinearKernels linear;
    TokenKernels token;
    RecurrentKernels recurrent;
    SamplingKernels sampling;
    LowRankKernels low_rank;
    QuantiseKernels quantise;
};

// The tables this processor can run, best first.
std::vector<const KernelTable*> runnable_kernels();

// The best table this processor can run, or the one that the environment variable CAUDAL_ISA names.
// Throws std::invalid_argument if that one is unknown or can't run here.
const KernelTable& select_kernels();

}  // namespace caudal
