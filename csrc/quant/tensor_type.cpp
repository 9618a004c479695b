#include "quant/tensor_type.h"

#include <stdexcept>
#include <string>

namespace caudal {

BlockGeometry block_geometry(TensorType type) {
    switch (type) {
        case TensorType::F32:
            return {"F32", 1, 4};
        case TensorType::F16:
            return {"F16", 1, 2};
        case TensorType::BF16:
            return {"BF16", 1, 2};
        case TensorType::Q4_0:
            return {"Q4_0", 32, 18};
        case TensorType::Q4_1:
            return {"Q4_1", 32, 20};
        case TensorType::Q5_0:
            return {"Q5_0", 32, 22};
        case TensorType::Q5_1:
            return {"Q5_1", 32, 24};
        case TensorType::Q8_0:
            return {"Q8_0", 32, 34};
        case TensorType::Q2_K:
            return {"Q2_K", 256, 84};
        case TensorType::Q3_K:
            return {"Q3_K", 256, 110};
        case TensorType::Q4_K:
            return {"Q4_K", 256, 144};
        case TensorType::Q5_K:
            return {"Q5_K", 256, 176};
        case TensorType::Q6_K:
            return {"Q6_K", 256, 210};
        case TensorType::IQ4_NL:
            return {"IQ4_NL", 32, 18};
        case TensorType::IQ4_XS:
            return {"IQ4_XS", 256, 136};
        case TensorType::MXFP4:
            return {"MXFP4", 32, 17};
    }
    throw std::invalid_argument("tensor type " + std::to_string(static_cast<uint32_t>(type)) +
                                " is not supported");
}

}  // namespace caudal
