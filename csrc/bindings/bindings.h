// Only the files in this folder know Python. Each binds one part of the library.
#pragma once

#include <nanobind/nanobind.h>

namespace caudal {

void bind_kernels(nanobind::module_& module);
void bind_conversion(nanobind::module_& module);
void bind_sampling(nanobind::module_& module);
void bind_program(nanobind::module_& module);
void bind_runtime(nanobind::module_& module);
void bind_turns(nanobind::module_& module);

}  // namespace caudal
