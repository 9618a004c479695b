#include "runtime/adapters.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace caudal {

namespace {

void require(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(std::string("bad adapter: ") + what);
}

}  // namespace

Adapter::Adapter(ThreadTeam& threads, const Weights& weights, bool exact,
                 std::span<const AdapterFactors> factors)
    : index_of_(weights.num_matrices(), -1) {
    std::vector<size_t> sizes;  // of each change's a, then its b
    for (const AdapterFactors& given : factors) {
        require(given.matrix >= 0 && given.matrix < static_cast<int>(index_of_.size()),
                "a matrix that doesn't exist");
        const PackedMatrix& matrix = weights.matrix(given.matrix);
        require(given.rank > 0 && given.a.size() == static_cast<size_t>(given.rank * matrix.cols) &&
                    given.b.size() == static_cast<size_t>(matrix.rows * given.rank),
                "the size of its factors");
        int& index = index_of_[static_cast<size_t>(given.matrix)];
        require(index < 0, "two changes of one matrix");
        index = static_cast<int>(changes_.size());
        const Factor a{exact, given.rank, matrix.cols, nullptr};
        const Factor b{exact, matrix.rows, given.rank, nullptr};
        changes_.push_back({a, b, given.scale});
        sizes.insert(sizes.end(), {a.bytes(), b.bytes()});
        rank_ = std::max(rank_, given.rank);
    }
    memory_.emplace(reserve(sizes));
    const std::vector<std::span<std::byte>> parts = split(memory_->bytes(), sizes);
    threads.run([&](int thread) {
        const auto step = static_cast<size_t>(threads.size());
        for (size_t i = static_cast<size_t>(thread); i < changes_.size(); i += step) {
            const auto pack = [](Factor& factor, std::span<const float> values,
                                 std::span<std::byte> place) {
                pack_factor(factor, values, place);
                factor.data = place.data();
            };
            pack(changes_[i].a, factors[i].a, parts[2 * i]);
            pack(changes_[i].b, factors[i].b, parts[2 * i + 1]);
        }
    });
}

}  // namespace caudal
