// All kernels, compiled for AVX-512 with VNNI (see portable.cpp for how this works).
#define CAUDAL_ISA avx512

#include "isa/kernel_table.h"
#include "kernels/linear.inl"
#include "kernels/low_rank.inl"
#include "kernels/quantise.inl"
#include "kernels/recurrent.inl"
#include "kernels/sampling.inl"
#include "kernels/token_ops.inl"

namespace caudal::avx512 {

const KernelTable& kernels() {
    static const KernelTable table{
        "avx512",           linear_kernels(),   token_kernels(),   recurrent_kernels(),
        sampling_kernels(), low_rank_kernels(), quantise_kernels()};
    return table;
}

}  // namespace caudal::avx512
