// Chooses the kernel for a weight type and a kind of activations.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/linear_float.inl"
#include "kernels/linear_int16.inl"
#include "kernels/linear_int8.inl"
#include "kernels/tiles.inl"

namespace caudal::CAUDAL_ISA {

static ActivationKind preferred_activations(TensorType type) {
    const Encoding encoding = encoding_of(type);
    if (encoding.scales == Scales::None || encoding.scales == Scales::Float) {
        return ActivationKind::F32;
    }
    return panel_layout(type).wide ? ActivationKind::Int16 : ActivationKind::Int8;
}

static void multiply_integers(const PackedMatrix& matrix, const std::byte* activations,
                              int64_t terms, int64_t rows, int64_t panel_begin, int64_t panel_end,
                              const Output& output) {
    const auto run = [&]<class Kernel>(Kernel) {
        multiply_tiles<Kernel>(matrix, activations, terms, rows, panel_begin, panel_end, output);
    };
    switch (matrix.type) {
        case TensorType::Q4_0:
            return run(Int8Kernel<TensorType::Q4_0>{});
        case TensorType::Q4_1:
            return run(Int8Kernel<TensorType::Q4_1>{});
        case TensorType::Q5_0:
            return run(Int8Kernel<TensorType::Q5_0>{});
        case TensorType::Q5_1:
            return run(Int8Kernel<TensorType::Q5_1>{});
        case TensorType::Q2_K:
            return run(Int8Kernel<TensorType::Q2_K>{});
        case TensorType::Q3_K:
            return run(Int8Kernel<TensorType::Q3_K>{});
        case TensorType::Q4_K:
            return run(Int8Kernel<TensorType::Q4_K>{});
        case TensorType::Q5_K:
            return run(Int8Kernel<TensorType::Q5_K>{});
        case TensorType::Q6_K:
            return run(Int8Kernel<TensorType::Q6_K>{});
        case TensorType::MXFP4:
            return run(Int8Kernel<TensorType::MXFP4>{});
        case TensorType::NVFP4:
            return run(Int8Kernel<TensorType::NVFP4>{});
        case TensorType::IQ1_S:
            return run(Int8Kernel<TensorType::IQ1_S>{});
        case TensorType::IQ1_M:
            return run(Int8Kernel<TensorType::IQ1_M>{});
        case TensorType::IQ2_XXS:
            return run(Int8Kernel<TensorType::IQ2_XXS>{});
        case TensorType::IQ2_XS:
        case TensorType::IQ2_S:
            return run(Int8Kernel<TensorType::IQ2_S>{});
        case TensorType::IQ3_XXS:
            return run(Int8Kernel<TensorType::IQ3_XXS>{});
        case TensorType::IQ3_S:
            return run(Int8Kernel<TensorType::IQ3_S>{});
        case TensorType::TQ1_0:
        case TensorType::TQ2_0:
            return run(Int8Kernel<TensorType::TQ2_0>{});
        case TensorType::Q1_0:
        case TensorType::Q2_0_G128:
            return run(Int8Kernel<TensorType::Q1_0>{});
        case TensorType::Q2_0:
            return run(Int8Kernel<TensorType::Q2_0>{});
        case TensorType::Q8_0:
            return run(Int16Kernel<TensorType::Q8_0>{});
        case TensorType::IQ4_NL:
            return run(Int16Kernel<TensorType::IQ4_NL>{});
        case TensorType::IQ4_XS:
            return run(Int16Kernel<TensorType::IQ4_XS>{});
        case TensorType::INT4_G32:
            return run(Int8Kernel<TensorType::INT4_G32>{});
        case TensorType::INT4_G64:
            return run(Int8Kernel<TensorType::INT4_G64>{});
        case TensorType::INT4_G128:
            return run(Int8Kernel<TensorType::INT4_G128>{});
        case TensorType::NVFP4_ROW:
            return run(Int8Kernel<TensorType::NVFP4_ROW>{});
        case TensorType::INT8_ROW:
            return run(Int16Kernel<TensorType::INT8_ROW>{});
        case TensorType::INT8_G32:
        case TensorType::FP8_G32:
        case TensorType::FP8_G128:
        case TensorType::NF4_G64:
        case TensorType::F32:
        case TensorType::F16:
        case TensorType::BF16:
            break;
    }
}

static void multiply(const PackedMatrix& matrix, ActivationKind kind, const std::byte* activations,
                     int64_t rows, int64_t panel_begin, int64_t panel_end, const float* bias,
                     bool accumulate, float* y, int64_t y_stride) {
    const Output output{y, y_stride, matrix.rows, bias, accumulate};
    if (kind == ActivationKind::F32) {
        multiply_floats(matrix, activations, rows, panel_begin, panel_end, output);
    } else if (kind == preferred_activations(matrix.type)) {
        multiply_integers(matrix, activations, 1, rows, panel_begin, panel_end, output);
    } else if (kind == ActivationKind::Int8Twice &&
               preferred_activations(matrix.type) == ActivationKind::Int8) {
        multiply_integers(matrix, activations, 2, rows, panel_begin, panel_end, output);
    } else {
        throw std::invalid_argument(std::string(block_geometry(matrix.type).name) +
                                    " weights don't multiply this kind of activations");
    }
}

static LinearKernels linear_kernels() {
    return {kPanelLayout,          packed_bytes,     pack_panels,         unpack_row,
            preferred_activations, activation_bytes, convert_activations, multiply};
}

}  // namespace caudal::CAUDAL_ISA
