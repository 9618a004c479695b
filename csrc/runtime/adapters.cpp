#include "runtime/adapters.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace caudal {

namespace {

void require(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(std::string("bad adapter: ") + what);
}

size_t bytes_of(TensorType type, int64_t rows, int64_t cols) {
    return static_cast<size_t>(rows * cols * block_geometry(type).bytes);
}

PackedMatrix matrix_of(TensorType type, int64_t rows, int64_t cols) {
    PackedMatrix matrix;
    matrix.type = type;
    matrix.rows = rows;
    matrix.cols = cols;
    return matrix;
}

}  // namespace

Adapter::Adapter(const KernelTable& kernels, ThreadTeam& threads, const Weights& weights,
                 std::span<const AdapterFactors> factors)
    : index_of_(weights.num_matrices(), -1) {
    std::vector<size_t> sizes;  // of each change's a, then its b
    for (const AdapterFactors& given : factors) {
        require(given.matrix >= 0 && given.matrix < static_cast<int>(index_of_.size()),
                "a matrix that doesn't exist");
        require(given.type == TensorType::F32 || given.type == TensorType::BF16,
                "the type of its factors");
        const PackedMatrix& matrix = weights.matrix(given.matrix);
        require(given.rank > 0 && given.a.size() == bytes_of(given.type, given.rank, matrix.cols) &&
                    given.b.size() == bytes_of(given.type, matrix.rows, given.rank),
                "the size of its factors");
        int& index = index_of_[static_cast<size_t>(given.matrix)];
        require(index < 0, "two changes of one matrix");
        index = static_cast<int>(changes_.size());
        changes_.push_back({given.matrix, matrix_of(given.type, given.rank, matrix.cols),
                            matrix_of(given.type, matrix.rows, given.rank), given.scale});
        rank_ = std::max(rank_, given.rank);
        for (const PackedMatrix* factor : {&changes_.back().a, &changes_.back().b}) {
            sizes.push_back(kernels.linear.packed_bytes(factor->type, factor->rows, factor->cols));
        }
    }
    memory_.emplace(reserve(sizes));
    const std::vector<std::span<std::byte>> parts = split(memory_->bytes(), sizes);
    threads.run([&](int thread) {
        const auto step = static_cast<size_t>(threads.size());
        for (size_t i = static_cast<size_t>(thread); i < changes_.size(); i += step) {
            const auto pack = [&](PackedMatrix& factor, std::span<const std::byte> source,
                                  std::span<std::byte> place) {
                kernels.linear.pack(factor.type, source, factor.rows, factor.cols, 0,
                                    factor.panels(), place.data());
                factor.data = place.data();
            };
            pack(changes_[i].a, factors[i].a, parts[2 * i]);
            pack(changes_[i].b, factors[i].b, parts[2 * i + 1]);
        }
    });
}

}  // namespace caudal
