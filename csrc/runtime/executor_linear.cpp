// What one thread does with a piece of a linear stage.
#include <algorithm>

#include "runtime/executor.h"

namespace caudal {

void Executor::run_linear(const LinearStage& stage, Storage& storage, int64_t rows, int64_t begin,
                          int64_t end) const {
    for (const LinearStage::Part& part : stage.parts) {
        const PackedMatrix& matrix = weights_.matrix(part.op.weight);
        const auto activations = static_cast<size_t>(part.activations);
        const int64_t first = std::max<int64_t>(begin - part.first_panel, 0);
        const int64_t last = std::min(end - part.first_panel, part.panels);
        if (first >= last) continue;
        const float* bias = part.op.bias < 0 ? nullptr : weights_.vector(part.op.bias).data();
        kernels_.linear.multiply(
            matrix, storage.plan.activations[activations].kind,
            storage.activations[activations].data(), rows, part.of_matrix + first,
            part.of_matrix + last, bias, part.op.accumulate,
            storage.buffers[static_cast<size_t>(part.op.out)].data(), stride(part.op.out));
    }
}

}  // namespace caudal
