// Tensors' elements as those of other types.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "isa/kernel_table.h"
#include "runtime/tensor_conversion.h"

namespace nb = nanobind;

namespace caudal {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

const QuantiseKernels& kernels_named(const std::string& isa) {
    if (isa.empty()) return select_kernels().quantise;
    for (const KernelTable* table : runnable_kernels()) {
        if (isa == table->name) return table->quantise;
    }
    throw std::invalid_argument("no kernels named \"" + isa + "\" here");
}

bool convert(uint32_t from, const Bytes& source, uint32_t to, const WritableBytes& out, int threads,
             const std::string& isa) {
    const auto type = static_cast<TensorType>(from);
    const BlockGeometry geometry = block_geometry(type);
    const int64_t count = static_cast<int64_t>(source.size()) / geometry.bytes * geometry.elements;
    const QuantiseKernels& kernels = kernels_named(isa);
    const auto source_bytes = std::as_bytes(std::span(source.data(), source.size()));
    const auto out_bytes = std::as_writable_bytes(std::span(out.data(), out.size()));
    nb::gil_scoped_release unlocked;
    return convert_elements(kernels, type, source_bytes, static_cast<TensorType>(to), out_bytes,
                            count, threads);
}

bool can_convert(uint32_t to) {
    return can_write(static_cast<TensorType>(to));
}

}  // namespace

void bind_conversion(nb::module_& module) {
    nb::module_ conversion =
        module.def_submodule("conversion", "Tensors' elements as those of other types.");
    conversion.def("convert", &convert, nb::arg("source_type"), nb::arg("source"),
                   nb::arg("target_type"), nb::arg("out"), nb::arg("threads") = 1,
                   nb::arg("isa") = "",
                   "Writes whole blocks of one type as those of another; False where an element "
                   "isn't finite, or beyond what the type holds.");
    conversion.def("can_convert", &can_convert, nb::arg("target_type"),
                   "Whether elements can become those of a type.");
}

}  // namespace caudal
