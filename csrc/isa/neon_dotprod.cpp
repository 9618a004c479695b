// All kernels, compiled for NEON with dot products (the dotprod extension of Armv8.2); see
// portable.cpp for how this works.
#define CAUDAL_ISA neon_dotprod
#define CAUDAL_NEON

#include "isa/kernel_table.h"
#include "kernels/linear.inl"
#include "kernels/low_rank.inl"
#include "kernels/quantise.inl"
#include "kernels/recurrent.inl"
#include "kernels/sampling.inl"
#include "kernels/token_ops.inl"

namespace caudal::neon_dotprod {

const KernelTable& kernels() {
    static const KernelTable table{"neon_dotprod",      linear_kernels(),   token_kernels(),
                                   recurrent_kernels(), sampling_kernels(), low_rank_kernels(),
                                   quantise_kernels()};
    return table;
}

}  // namespace caudal::neon_dotprod
