"""Published models by their config.json alone, against arithmetic by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from caudal.planning.figures import ModelFigures
from caudal.planning.kv_types import find_kv_type
from caudal.planning.plan import Demand, Planner
from caudal.planning.reading import read_figures

KIB, MIB, GIB = 2**10, 2**20, 2**30
F16 = find_kv_type("f16")


def published(tmp_path: Path, config: dict[str, Any], quantisation: str | None = None) -> Planner:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return Planner(read_figures(str(path), quantisation=quantisation))


def of_weights(figures: ModelFigures) -> int:
    """How many weights there are, without what is made of the configuration."""
    made = 64 if figures.architecture == "llama" else 0  # divisors of rotary frequencies
    return figures.parameters - made


LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def test_llama_3_8b(tmp_path: Path) -> None:
    found = published(tmp_path, LLAMA)
    # Embedding and output 2 × 128,256 × 4,096; a layer has queries and outputs of 4,096², keys
    # and values of 1,024 × 4,096, three matrices of 14,336 × 4,096, and two norms.
    layer = 2 * 4096**2 + 2 * 1024 * 4096 + 3 * 14336 * 4096 + 2 * 4096
    assert of_weights(found.figures) == 2 * 128256 * 4096 + 32 * layer + 4096 == 8_030_261_248
    assert found.figures.weights == pytest.approx(2 * 8_030_261_248, rel=0.001)
    assert found.sizes(F16).token_bytes == 2 * 32 * 8 * 128 * 2 == 128 * KIB
    assert found.needs(Demand(context=8192)).sequences == GIB
    # What a token goes through is all but the embedding.
    assert found.figures.active == pytest.approx(8_030_261_248 - 128256 * 4096, rel=1e-4)


def test_llama_3_70b_quantised(tmp_path: Path) -> None:
    config = {
        **LLAMA,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    }
    found = published(tmp_path, config, "Q4_K_M")
    assert of_weights(found.figures) == 70_553_706_496
    assert found.sizes(F16).token_bytes == 2 * 80 * 8 * 128 * 2 == 320 * KIB
    assert found.needs(Demand(context=131072)).sequences == 40 * GIB
    # The file of Llama 3.1 70B in Q4_K_M that is published has 42.5 GB.
    assert found.figures.file_bytes == pytest.approx(42.52e9, rel=0.002)
    # 40 GiB of weights don't fit in 24 GiB, and leave room for a conversation of 8k in 48 GiB.
    assert not found.fits(Demand(context=8192), 24 * GIB)
    assert found.fits(Demand(context=8192), 48 * GIB)


def test_deepseek_v3(tmp_path: Path) -> None:
    """A latent of 512 and 64 rotated channels is kept, of 61 layers: 68.6 KiB a token."""
    config = {
        "model_type": "deepseek_v3",
        "vocab_size": 129280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 3,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "max_position_embeddings": 163840,
        "rope_theta": 10000,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "weight_block_size": [128, 128],
        },
    }
    found = published(tmp_path, config)
    assert found.sizes(F16).token_bytes == 61 * (512 + 64) * 2 == 70272
    attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 128 * 256 * 512 + 128 * 128 * 7168
    norms = 2 * 7168 + 1536 + 512
    expert = 3 * 2048 * 7168
    sparse = 58 * (257 * expert + 256 * 7168 + 256)
    total = 61 * (attention + norms) + 3 * 3 * 18432 * 7168 + sparse + 2 * 129280 * 7168 + 7168
    assert found.figures.parameters == total == 671_026_419_200
    # 37 billion are active, as its authors say; 36.6 without the embedding.
    active = total - 129280 * 7168 - 58 * 248 * expert
    assert found.figures.active == pytest.approx(active, rel=0.001)
    # A byte each, and a scale of 4 bytes for each 128; embedding and output are in BF16, and what
    # reads a latent in float32.
    assert found.figures.weights == pytest.approx(total * 132 / 128, rel=0.02)


def test_gemma_3_27b(tmp_path: Path) -> None:
    """Every sixth of 62 layers sees all tokens, which are ten; the others see 1,024."""
    config = {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 5376,
            "intermediate_size": 21504,
            "num_hidden_layers": 62,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "head_dim": 128,
            "query_pre_attn_scalar": 168,
            "sliding_window": 1024,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        },
        "torch_dtype": "bfloat16",
    }
    found = published(tmp_path, config)
    layer = 2 * 4096 * 5376 + 2 * 2048 * 5376 + 3 * 21504 * 5376 + 4 * 5376 + 2 * 128
    assert found.figures.parameters == 262208 * 5376 + 62 * layer + 5376 == 27_009_346_304
    sizes = found.sizes(F16)
    assert sizes.token_bytes == 2 * 10 * 16 * 128 * 2 == 80 * KIB
    assert sizes.windows == ((1024, 2 * 52 * 16 * 128 * 2),)
    needs = found.needs(Demand(context=131072))
    assert needs.own == 10 * GIB  # and not the 62 GiB of as many layers that see everything
    # 1,023 tokens before the one that is computed are in 65 blocks at most; one may be copied, and
    # an iteration has 256 tokens: 82 blocks of 16.
    assert needs.windows == ((1024, 82 * 16 * 416 * KIB),)


def test_qwen3_next_80b(tmp_path: Path) -> None:
    """Every fourth of 48 layers attends, with 2 KV heads of 256; the others keep a state."""
    config = {
        "model_type": "qwen3_next",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "num_hidden_layers": 48,
        "full_attention_interval": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_value_head_dim": 128,
        "linear_num_value_heads": 32,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    found = published(tmp_path, config)
    sizes = found.sizes(F16)
    assert sizes.token_bytes == 2 * 12 * 2 * 256 * 2 == 24 * KIB
    # 36 layers: 32 heads of 128 × 128, and the last 3 inputs of a convolution of 8,192 channels.
    channels = 2 * 16 * 128 + 32 * 128
    assert sizes.slot_bytes == 36 * (32 * 128 * 128 + 3 * channels) * 4 == 79_036_416
    assert found.figures.parameters == pytest.approx(79.67e9, rel=0.001)
    assert found.figures.active == pytest.approx(3.5e9, rel=0.05)  # "A3B"
    needs = found.needs(Demand(context=262144, users=4))
    assert needs.own == 4 * 6 * GIB
    assert needs.states == (4 + 4) * 79_036_416  # of conversations, and four for forks


def test_qwen3_5_2b(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3_5",
        "text_config": {
            "model_type": "qwen3_5_text",
            "vocab_size": 248320,
            "hidden_size": 1024,
            "intermediate_size": 3584,
            "num_hidden_layers": 24,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_value_head_dim": 128,
            "linear_num_value_heads": 16,
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
        },
        "tie_word_embeddings": True,
    }
    sizes = published(tmp_path, config).sizes(F16)
    assert sizes.token_bytes == 2 * 6 * 2 * 256 * 2 == 12 * KIB
    # 18 layers: 16 heads of 128 × 128, and 3 inputs of 2 × 2,048 + 2,048 channels.
    assert sizes.slot_bytes == 18 * (16 * 128 * 128 + 3 * 6144) * 4


def test_gpt_oss_20b(tmp_path: Path) -> None:
    """Half of 24 layers have a window of 128; experts are in MXFP4, 4.25 bits a weight."""
    config = {
        "model_type": "gpt_oss",
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "max_position_embeddings": 131072,
        "rope_theta": 150000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "mxfp4"},
    }
    found = published(tmp_path, config)
    assert found.figures.parameters == pytest.approx(20.91e9, rel=0.001)
    assert found.sizes(F16).token_bytes == 2 * 12 * 8 * 64 * 2 == 24 * KIB
    assert found.sizes(F16).windows == ((128, 24 * KIB),)
    # 24 × 32 experts of 3 × 2,880² in 17 bytes for each 32; the others, 1.8 billion, in BF16.
    experts = 24 * 32 * 3 * 2880**2
    others = found.figures.parameters - experts
    assert found.figures.weights == pytest.approx(experts * 17 / 32 + 2 * others, rel=0.01)
