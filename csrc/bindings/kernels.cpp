// The kernels one by one, for tests and benchmarks; the model runtime doesn't go through here.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/bindings.h"
#include "isa/kernel_table.h"
#include "quant/group.h"

namespace nb = nanobind;

namespace caudal {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatVector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using NumpyVector = nb::ndarray<nb::numpy, float, nb::ndim<1>>;

// Memory in whole cache lines.
class AlignedBytes {
  public:
    explicit AlignedBytes(size_t bytes) : lines_((bytes + sizeof(Line) - 1) / sizeof(Line)) {}
    std::byte* data() { return lines_.empty() ? nullptr : lines_.front().bytes; }
    const std::byte* data() const { return lines_.empty() ? nullptr : lines_.front().bytes; }

  private:
    struct alignas(64) Line {
        std::byte bytes[64];
    };
    std::vector<Line> lines_;
};

const KernelTable& kernels_named(const std::string& name) {
    std::string names;
    for (const KernelTable* table : runnable_kernels()) {
        if (name == table->name) return *table;
        names += names.empty() ? table->name : std::string(", ") + table->name;
    }
    throw std::invalid_argument("no kernels named \"" + name + "\" here; there are: " + names);
}

std::span<const std::byte> bytes_of(const Bytes& array) {
    return std::as_bytes(std::span(array.data(), array.size()));
}

NumpyVector new_vector(size_t size) {
    auto values = std::make_unique<std::vector<float>>(size);
    float* data = values->data();
    nb::capsule owner(values.release(), [](void* pointer) noexcept {
        delete static_cast<std::vector<float>*>(pointer);
    });
    return NumpyVector(data, {size}, owner);
}

NumpyVector dequantize_bytes(uint32_t type_id, const Bytes& blocks) {
    const auto type = static_cast<TensorType>(type_id);
    const BlockGeometry geometry = block_geometry(type);
    const auto bytes = static_cast<int64_t>(blocks.size());
    if (bytes % geometry.bytes != 0) throw std::invalid_argument("not whole blocks");
    const int64_t count = bytes / geometry.bytes * geometry.elements;
    NumpyVector out = new_vector(static_cast<size_t>(count));
    dequantize(type, bytes_of(blocks).data(), count, out.data());
    return out;
}

class Matrix {
  public:
    Matrix(const std::string& isa, uint32_t type, const Bytes& source, int64_t rows, int64_t cols)
        : kernels_(kernels_named(isa).linear),
          data_(kernels_.packed_bytes(static_cast<TensorType>(type), rows, cols)),
          matrix_{static_cast<TensorType>(type), rows, cols, data_.data()} {
        kernels_.pack(matrix_.type, bytes_of(source), rows, cols, 0, matrix_.panels(),
                      data_.data());
    }

    NumpyVector row(int64_t index) const {
        if (index < 0 || index >= matrix_.rows) throw std::out_of_range("no such row");
        NumpyVector out = new_vector(static_cast<size_t>(matrix_.cols));
        kernels_.unpack_row(matrix_, index, out.data());
        return out;
    }

    size_t bytes() const { return kernels_.packed_bytes(matrix_.type, matrix_.rows, matrix_.cols); }
    ActivationKind preferred() const { return kernels_.preferred_activations(matrix_.type); }
    int64_t panels() const { return matrix_.panels(); }
    const PackedMatrix& packed() const { return matrix_; }
    const LinearKernels& kernels() const { return kernels_; }

  private:
    LinearKernels kernels_;
    AlignedBytes data_;
    PackedMatrix matrix_;
};

class Activations {
  public:
    Activations(const std::string& isa, ActivationKind kind, const FloatRows& x)
        : kernels_(kernels_named(isa).linear),
          kind_(kind),
          rows_(static_cast<int64_t>(x.shape(0))),
          cols_(static_cast<int64_t>(x.shape(1))),
          data_(kernels_.activation_bytes(kind, rows_, cols_)) {
        convert(x, 0, std::nullopt);
    }

    void convert(const FloatRows& x, int64_t row_begin, std::optional<int64_t> row_end) {
        if (static_cast<int64_t>(x.shape(0)) != rows_ ||
            static_cast<int64_t>(x.shape(1)) != cols_) {
            throw std::invalid_argument("activations of another shape");
        }
        const int64_t end = row_end.value_or(rows_);
        if (row_begin < 0 || row_begin % 4 != 0 || row_begin > end || end > rows_ ||
            (end % 4 != 0 && end != rows_)) {
            throw std::out_of_range("rows that don't begin and end with tiles of four");
        }
        kernels_.convert(kind_, x.data(), cols_, cols_, row_begin, end, data_.data());
    }

    ActivationKind kind() const { return kind_; }
    int64_t rows() const { return rows_; }
    int64_t cols() const { return cols_; }
    const std::byte* data() const { return data_.data(); }

  private:
    LinearKernels kernels_;
    ActivationKind kind_;
    int64_t rows_;
    int64_t cols_;
    AlignedBytes data_;
};

void multiply(const Matrix& matrix, const Activations& activations, const WritableRows& y,
              const std::optional<FloatVector>& bias, bool accumulate, int64_t panel_begin,
              std::optional<int64_t> panel_end,
              const std::optional<std::tuple<int, int32_t, int32_t>>& stream) {
    PackedMatrix packed = matrix.packed();
    if (stream) {
        const auto [level, bytes_ahead, streams] = *stream;
        if (level < 0 || level > 2 || bytes_ahead < 0 || streams < 1 || streams > 2) {
            throw std::invalid_argument("there is no such way to stream");
        }
        packed.stream = {static_cast<StreamPolicy::Level>(level), bytes_ahead, streams};
    }
    const int64_t end = panel_end.value_or(matrix.panels());
    if (activations.cols() != packed.cols || static_cast<int64_t>(y.shape(1)) != packed.rows ||
        static_cast<int64_t>(y.shape(0)) != activations.rows() ||
        (bias && static_cast<int64_t>(bias->size()) != packed.rows)) {
        throw std::invalid_argument("shapes of matrix, activations, bias and y don't match");
    }
    if (panel_begin < 0 || panel_begin > end || end > matrix.panels()) {
        throw std::out_of_range("no such panels");
    }
    nb::gil_scoped_release unlocked;
    matrix.kernels().multiply(packed, activations.kind(), activations.data(), activations.rows(),
                              panel_begin, end, bias ? bias->data() : nullptr, accumulate, y.data(),
                              packed.rows);
}

}  // namespace

void bind_kernels(nb::module_& module) {
    nb::module_ kernels =
        module.def_submodule("kernels", "The kernels one by one, for tests and benchmarks.");

    nb::enum_<ActivationKind>(kernels, "ActivationKind")
        .value("F32", ActivationKind::F32)
        .value("Int8", ActivationKind::Int8)
        .value("Int16", ActivationKind::Int16)
        .value("Int8Twice", ActivationKind::Int8Twice);

    kernels.def(
        "instruction_sets",
        [] {
            std::vector<std::string> names;
            for (const KernelTable* table : runnable_kernels()) names.emplace_back(table->name);
            return names;
        },
        "Names of the sets of kernels that this machine can run, best first.");
    kernels.def("dequantize", &dequantize_bytes, nb::arg("tensor_type"), nb::arg("blocks"),
                "The numbers in whole GGUF blocks of a tensor type.");

    nb::class_<Matrix>(kernels, "Matrix", "A weight matrix packed for a set of kernels.")
        .def(nb::init<const std::string&, uint32_t, const Bytes&, int64_t, int64_t>(),
             nb::arg("isa"), nb::arg("tensor_type"), nb::arg("source"), nb::arg("rows"),
             nb::arg("cols"))
        .def("row", &Matrix::row, nb::arg("index"))
        .def_prop_ro("bytes", &Matrix::bytes)
        .def_prop_ro("panels", &Matrix::panels)
        .def_prop_ro("preferred", &Matrix::preferred);

    nb::class_<Activations>(kernels, "Activations", "Rows of activations as the kernels read them.")
        .def(nb::init<const std::string&, ActivationKind, const FloatRows&>(), nb::arg("isa"),
             nb::arg("kind"), nb::arg("x"))
        .def("convert", &Activations::convert, nb::arg("x"), nb::arg("row_begin") = 0,
             nb::arg("row_end").none() = nb::none());

    kernels.def("multiply", &multiply, nb::arg("matrix"), nb::arg("activations"), nb::arg("y"),
                nb::arg("bias").none() = nb::none(), nb::arg("accumulate") = false,
                nb::arg("panel_begin") = 0, nb::arg("panel_end").none() = nb::none(),
                nb::arg("stream").none() = nb::none(),
                "Writes the columns of y that the panels hold; `stream` is the level of the cache\n"
                "that weights are asked into (0: none), bytes ahead, and streams.");
}

}  // namespace caudal
