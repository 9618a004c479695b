#include "runtime/tensor_conversion.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "quant/group.h"

namespace caudal {
namespace {

// Elements that a thread takes at a time: whole blocks of every type.
constexpr int64_t kChunk = 32768;

void check_bytes(TensorType type, int64_t count, size_t bytes) {
    const BlockGeometry geometry = block_geometry(type);
    if (count < 0 || count % geometry.elements != 0 ||
        bytes != static_cast<size_t>(count / geometry.elements * geometry.bytes)) {
        throw std::invalid_argument(std::to_string(bytes) + " bytes aren't those of " +
                                    std::to_string(count) + " elements of " + geometry.name);
    }
}

int64_t bytes_of(TensorType type, int64_t count) {
    const BlockGeometry geometry = block_geometry(type);
    return count / geometry.elements * geometry.bytes;
}

bool is_float(TensorType type) {
    return type == TensorType::F32 || type == TensorType::F16 || type == TensorType::BF16;
}

}  // namespace

bool convert_elements(const QuantiseKernels& kernels, TensorType from,
                      std::span<const std::byte> source, TensorType to, std::span<std::byte> out,
                      int64_t count, int threads) {
    check_bytes(from, count, source.size());
    check_bytes(to, count, out.size());
    if (!can_write(to)) {
        throw std::invalid_argument(std::string(block_geometry(to).name) + " isn't written");
    }
    const int64_t chunks = (count + kChunk - 1) / kChunk;
    const int64_t members = std::clamp<int64_t>(threads, 1, std::max<int64_t>(chunks, 1));
    // One for each thread, made here, where running out of memory is an error like any other.
    std::vector<std::vector<float>> buffers(static_cast<size_t>(members),
                                            std::vector<float>(kChunk));
    std::atomic<int64_t> next{0};
    std::atomic<bool> finite{true};
    const auto work = [&](std::vector<float>& floats) {
        for (int64_t chunk = next++; chunk < chunks && finite; chunk = next++) {
            const int64_t begin = chunk * kChunk;
            const int64_t elements = std::min(kChunk, count - begin);
            const std::byte* own = source.data() + bytes_of(from, begin);
            if (is_float(from)) {
                kernels.read_floats(from, own, elements, floats.data());
            } else {
                dequantize(from, own, elements, floats.data());
            }
            if (!kernels.write_blocks(to, floats.data(), elements,
                                      out.data() + bytes_of(to, begin))) {
                finite = false;
            }
        }
    };
    {
        std::vector<std::jthread> others;
        others.reserve(static_cast<size_t>(members));
        try {
            for (int64_t i = 1; i < members; ++i) {
                others.emplace_back(work, std::ref(buffers[static_cast<size_t>(i)]));
            }
        } catch (const std::system_error&) {
            // Those that have started do it.
        }
        work(buffers.front());
    }
    return finite;
}

}  // namespace caudal
