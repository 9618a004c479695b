"""Files that are nearly right: without a tensor, with one of another shape, with a key too large.

They are those of every family that transformers was recorded of, decoders and encoders. What is
taken from them, of one layer or of all, is either said to be missing, by its name, or one of those
that files may do without.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from caudal.errors import ModelLoadError
from caudal.formats.gguf import GGUFFile
from caudal.formats.model_file import ModelFile
from caudal.formats.tensor_types import TensorType
from caudal.models import build_program
from references.checks import Runner, open_reference
from references.encoders import RecordedEncoder, write_encoder
from references.reference import Recorded
from references.weights import tokenizer_metadata, write_folder
from support.gguf_writer import write_gguf
from support.quantised_weights import numbers, random_weights

MAY_LACK = {
    "output.weight": "the embedding is taken",
    "rope_freqs.weight": "Llama 3.1's, of which earlier ones have none",
    "blk.N.ssm_conv1d.bias": "if no layer has one",
    "rope_factors_short.weight": "not for sequences as long as the context",
    "blk.N.attn_v.weight": "Gemma 4 has keys for values, where no layer of the kind has any",
}
MAY_LACK_IN_ALL_LAYERS = {
    *MAY_LACK,
    *(f"blk.N.{name}.bias" for name in ("attn_qkv", "attn_output")),
    *(f"blk.N.{name}.bias" for name in ("ffn_gate", "ffn_up", "ffn_down")),
    "blk.N.layer_output_scale.weight",
    "blk.N.ffn_down_exps.scale",
}
"""What keys of files don't tell of; llama.cpp does without, too."""
SAID_OTHERWISE = {
    "blk.N.attn_q_norm.weight": "attn_k_norm",
    "blk.N.attn_qkv.weight": "attn_q.weight is missing",
    "blk.N.ffn_gate_inp.weight": "ffn_up.weight is missing",
    "blk.N.ffn_gate_up_exps.weight": "ffn_gate_exps.weight is missing",
    "blk.N.ssm_ba.weight": "ssm_alpha.weight is missing",
    "rope_factors_long.weight": "rope_factors_short.weight",
}
"""Others that stand for the same, or aren't used without it."""

UNLIMITED = re.compile(r"context_length$|temperature_length$")
"""Keys that numbers too large turn off."""
IGNORED = re.compile(
    r"vocab_size$|dimension_sections$|n_deepstack_layers$|use_parallel_residual$"
    r"|expert_shared_count$|nemotron_h(_moe)?\.attention\.layer_norm_epsilon$"
)
"""Keys that say what other keys and tensors say, or what text doesn't need. Of them a shared
expert's width is one, and Nemotron's epsilon."""


def recorded(name: str) -> Recorded | RecordedEncoder:
    encoder = name.removeprefix("encoders/")
    return Recorded.read(name) if encoder == name else RecordedEncoder.read(encoder)


@contextmanager
def opened(model: Recorded | RecordedEncoder, path: Path) -> Iterator[ModelFile]:
    write = write_encoder if isinstance(model, RecordedEncoder) else write_folder
    with open_reference(write(model, path / "it")) as file:
        yield file


def refusal(file: ModelFile) -> str | None:
    try:
        build_program(file)
    except ModelLoadError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "name", [*Recorded.names(), *(f"encoders/{name}" for name in RecordedEncoder.names())]
)
def test_every_tensor_is_needed_and_of_its_shape(name: str, tmp_path: Path) -> None:
    with opened(recorded(name), tmp_path) as file:
        whole = dict(file.tensors)
        kinds = defaultdict(list)
        for tensor in whole:
            kinds[re.sub(r"^blk\.\d+\.", "blk.N.", tensor)].append(tensor)
        for kind, tensors in kinds.items():
            tensor = tensors[-1]
            cases = [([tensor], MAY_LACK), (tensors, MAY_LACK_IN_ALL_LAYERS)]
            for taken, may_lack in cases[: len(tensors)]:
                file.tensors = {key: info for key, info in whole.items() if key not in taken}
                reason = refusal(file)
                if reason is None:
                    assert kind in may_lack
                else:
                    stems = [each.removesuffix(".weight") for each in taken]
                    assert any(stem in reason for stem in stems) or SAID_OTHERWISE[kind] in reason
            *before, last = whole[tensor].shape
            file.tensors = {**whole, tensor: replace(whole[tensor], shape=(*before, last + 32))}
            reason = refusal(file)
            assert kind == "rope_factors_short.weight" or f"tensor {tensor} has " in str(reason)


@pytest.mark.parametrize("name", Recorded.names())
def test_sizes_too_large_are_named(name: str, tmp_path: Path) -> None:
    with opened(Recorded.read(name), tmp_path) as file:
        whole = file.metadata
        for key in (key for key in whole if key.startswith(f"{file.architecture}.")):
            file.metadata = {**whole, key: 2**63}
            reason = refusal(file)
            if reason is None:
                # Without rotary positions nobody reads their base.
                assert UNLIMITED.search(key) or IGNORED.search(key) or key.endswith("freq_base")
            else:
                assert key.removesuffix(".freq_base").removesuffix(".freq_base_swa") in reason


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("encoders/modernbert_pairs", "head.norm.weight"),
        ("encoders/nomic_bert", "token_type_embeddings.weight"),
        ("encoders/nomic_bert_moe", "mlp.fc1.bias"),
        ("encoders/xlm_roberta", "attention.self.key.bias"),
        ("encoders/xlm_roberta_pairs", "classifier.out_proj.bias"),
        ("deepseek_v3", "mlp.gate.e_score_correction_bias"),
        ("gemma4_experts", "layer_scalar"),
        ("gemma4_experts", "router.per_expert_scale"),
        ("gemma4_small", "self_attn.v_proj.weight"),
        ("glm4", "self_attn.q_proj.bias"),
        ("glm4_moe", "mlp.gate.e_score_correction_bias"),
        ("glm4_moe", "self_attn.q_norm.weight"),
        ("glm4_moe", "self_attn.v_proj.bias"),
        ("glm4_moe_lite", "mlp.gate.e_score_correction_bias"),
        ("gpt_oss", "mlp.experts.down_proj_bias"),
        ("gpt_oss", "self_attn.o_proj.bias"),
        ("granite_hybrid", "mamba.conv1d.bias"),
        ("lfm2_moe", "feed_forward.expert_bias"),
        ("llama_tied_biases_llama3", "mlp.up_proj.bias"),
        ("llama_tied_biases_llama3", "self_attn.o_proj.bias"),
        ("minimax_m2", "e_score_correction_bias"),
        ("nemotron_h", "mixer.conv1d.bias"),
        ("nemotron_h_moe", "mixer.gate.e_score_correction_bias"),
        ("qwen2", "self_attn.k_proj.bias"),
        ("qwen2_moe", "self_attn.q_proj.bias"),
        ("qwen2_vl", "self_attn.v_proj.bias"),
        ("stablelm", "post_attention_layernorm.weight"),
        ("stablelm", "self_attn.q_proj.bias"),
        ("starcoder2", "mlp.c_fc.bias"),
    ],
)
def test_what_a_folders_configuration_says_is_there_has_to_be(
    name: str, tensor: str, tmp_path: Path
) -> None:
    """Also where no layer has it."""
    model = recorded(name)
    found = [each for each in model.tensors if each.endswith(tensor)]
    assert found
    for each in found:
        del model.tensors[each]
    with (
        pytest.raises(ModelLoadError, match=r"tensor \S+ is missing, which config\.json says"),
        opened(model, tmp_path),
    ):
        pass


@pytest.mark.parametrize("expert", [3, 7])
def test_an_expert_that_is_missing_is_named(expert: int, tmp_path: Path) -> None:
    model = recorded("qwen3_moe")
    del model.tensors[f"model.layers.1.mlp.experts.{expert}.up_proj.weight"]
    message = rf"blk\.1\.ffn_up_exps\.weight: expert {expert} is missing of 8"
    with pytest.raises(ModelLoadError, match=message), opened(model, tmp_path):
        pass


@pytest.mark.parametrize("name", ["granite_hybrid", "lfm2", "nemotron_h", "gemma4_experts"])
def test_arrays_may_have_numbers_for_layers_that_are_left_out(name: str, tmp_path: Path) -> None:
    with opened(Recorded.read(name), tmp_path) as file:
        arch, layers = file.architecture, file.get_int(f"{file.architecture}.block_count")
        metadata = {**file.metadata, **tokenizer_metadata()}
        tensors = {
            tensor: (info.type, info.shape, file.tensor_bytes(tensor).tobytes())
            for tensor, info in file.tensors.items()
        }
    arrays = [
        key
        for key, value in metadata.items()
        if key.startswith(f"{arch}.") and getattr(value, "shape", None) == (layers,)
    ]
    assert arrays
    plain = {key: metadata[key].tolist() for key in arrays}
    longer = {key: [*values, values[0]] for key, values in plain.items()}
    ahead = {f"{arch}.block_count": layers + 1, f"{arch}.nextn_predict_layers": 1}
    programs = []
    for keys in (plain, plain | ahead, longer | ahead):
        path = write_gguf(tmp_path / "model.gguf", metadata | keys, tensors)
        with GGUFFile.open(path) as model:
            programs.append(build_program(model))
    assert programs[1:] == programs[:1] * 2


def test_vectors_may_be_quantised(tmp_path: Path) -> None:
    with opened(Recorded.read("qwen2"), tmp_path) as file:
        metadata = {**file.metadata, **tokenizer_metadata()}
        tensors = {
            tensor: (info.type, info.shape, file.tensor_bytes(tensor).tobytes())
            for tensor, info in file.tensors.items()
        }
    scores = []
    for kind in ("Q8_0", "F32"):
        for tensor in ("blk.0.attn_norm.weight", "blk.1.attn_q.bias"):
            shape = tensors[tensor][1]
            blocks = random_weights("Q8_0", 1, shape[0])
            data = blocks if kind == "Q8_0" else numbers("Q8_0", blocks)
            tensors[tensor] = (TensorType[kind], shape, data.tobytes())
        path = write_gguf(tmp_path / f"{kind}.gguf", metadata, tensors)
        with GGUFFile.open(path) as model:
            runner = Runner(model)
            scores.append(runner.scores().tolist())
            runner.close()
    assert scores[0] == scores[1]
