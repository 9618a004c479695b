// The only file that knows Python.
#include <nanobind/nanobind.h>

#include "isa/kernel_table.h"

namespace nb = nanobind;

NB_MODULE(_native, module) {
    module.def(
        "instruction_set", [] { return caudal::select_kernels().name; },
        "Name of the kernels that run on this machine.");
}
