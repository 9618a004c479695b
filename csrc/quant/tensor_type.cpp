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
        case TensorType::IQ1_S:
            return {"IQ1_S", 256, 50};
        case TensorType::IQ1_M:
            return {"IQ1_M", 256, 56};
        case TensorType::IQ2_XXS:
            return {"IQ2_XXS", 256, 66};
        case TensorType::IQ2_XS:
            return {"IQ2_XS", 256, 74};
        case TensorType::IQ2_S:
            return {"IQ2_S", 256, 82};
        case TensorType::IQ3_XXS:
            return {"IQ3_XXS", 256, 98};
        case TensorType::IQ3_S:
            return {"IQ3_S", 256, 110};
        case TensorType::TQ1_0:
            return {"TQ1_0", 256, 54};
        case TensorType::TQ2_0:
            return {"TQ2_0", 256, 66};
        case TensorType::NVFP4:
            return {"NVFP4", 64, 36};
        case TensorType::Q1_0:
            return {"Q1_0", 128, 18};
        case TensorType::Q2_0:
            return {"Q2_0", 64, 18};
        case TensorType::Q2_0_G128:
            return {"Q2_0_G128", 128, 34};
        case TensorType::INT4_G32:
            return {"INT4_G32", 32, 19};
        case TensorType::INT4_G64:
            return {"INT4_G64", 64, 35};
        case TensorType::INT4_G128:
            return {"INT4_G128", 128, 67};
        case TensorType::INT8_ROW:
            return {"INT8_ROW", 32, 36};
        case TensorType::NVFP4_ROW:
            return {"NVFP4_ROW", 64, 40};
        case TensorType::INT8_G32:
            return {"INT8_G32", 32, 36};
        case TensorType::FP8_G32:
            return {"FP8_G32", 32, 36};
        case TensorType::FP8_G128:
            return {"FP8_G128", 128, 132};
        case TensorType::NF4_G64:
            return {"NF4_G64", 64, 36};
    }
    throw std::invalid_argument("tensor type " + std::to_string(static_cast<uint32_t>(type)) +
                                " is not supported");
}

}  // namespace caudal
