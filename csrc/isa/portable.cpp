// All kernels, compiled for the portable instruction set. The .inl files hold the code once; each
// instruction set includes them in a namespace of its own, so that no two share an inline function
// (the linker would keep just one of the copies, perhaps one this machine can't run).
#define CAUDAL_ISA portable

#include "isa/kernel_table.h"
#include "kernels/linear.inl"
#include "kernels/low_rank.inl"
#include "kernels/quantise.inl"
#include "kernels/recurrent.inl"
#include "kernels/sampling.inl"
#include "kernels/token_ops.inl"

namespace caudal::portable {

const KernelTable& kernels() {
    static const KernelTable table{"portable",          linear_kernels(),   token_kernels(),
                                   recurrent_kernels(), sampling_kernels(), low_rank_kernels(),
                                   quantise_kernels()};
    return table;
}

}  // namespace caudal::portable
