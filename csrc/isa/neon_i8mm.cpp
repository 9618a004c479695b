// All kernels, compiled for NEON with dot products and products of byte matrices (the i8mm
// extension of Armv8.6); see portable.cpp for how this works.
#define CAUDAL_ISA neon_i8mm
#define CAUDAL_NEON
#define CAUDAL_NEON_I8MM

#include "isa/kernel_table.h"
#include "kernels/linear.inl"
#include "kernels/low_rank.inl"
#include "kernels/quantise.inl"
#include "kernels/recurrent.inl"
#include "kernels/sampling.inl"
#include "kernels/token_ops.inl"

namespace caudal::neon_i8mm {

const KernelTable& kernels() {
    static const KernelTable table{"neon_i8mm",         linear_kernels(),   token_kernels(),
                                   recurrent_kernels(), sampling_kernels(), low_rank_kernels(),
                                   quantise_kernels()};
    return table;
}

}  // namespace caudal::neon_i8mm
