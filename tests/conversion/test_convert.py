"""Models become GGUF files that say, and compute, what the models do."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caudal.conversion import ConversionProgress, convert_model
from caudal.errors import ConversionError, ModelLoadError
from caudal.formats.gguf import GGUFFile
from caudal.formats.tensor_types import TensorType
from caudal.loading.files import open_source
from caudal.store import Store, StoredModel
from references.checks import Runner
from references.reference import VOCABULARY, Recorded
from references.weights import tokenizer_metadata, write_folder
from support.gguf_writer import Typed, random_tensor, write_gguf
from support.tiny_folder import write_tiny_folder

WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
"""Rows of whole blocks of every type."""


def stored(path: Path) -> StoredModel:
    return Store(path.parent / "no store").resolve(str(path))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A llama of two layers whose rows are whole blocks of every type."""
    shapes = {"model.norm.weight": [256], "model.embed_tokens.weight": [VOCABULARY, 256]}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}{name}_layernorm.weight": [256] for name in ("input", "post_attention")
        }
        shapes |= {f"{prefix}self_attn.{name}_proj.weight": [256, 256] for name in "qo"}
        shapes |= {f"{prefix}self_attn.{name}_proj.weight": [128, 256] for name in "kv"}
        shapes |= {f"{prefix}mlp.{name}_proj.weight": [512, 256] for name in ("gate", "up")}
        shapes[f"{prefix}mlp.down_proj.weight"] = [256, 512]
    tensors = {
        name: (shape, 1.0 if len(shape) == 1 else 0.0, 0.1 if len(shape) == 1 else 0.07)
        for name, shape in shapes.items()
    }
    config = {
        **Recorded.read("llama").config,
        **WIDE,
        "vocab_size": VOCABULARY,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "tie_word_embeddings": True,
    }
    recorded = Recorded(config=config, tensors=tensors, logprobs=[], tolerance=0.0)
    return write_folder(recorded, tmp_path / "Tiny-Llama")


def scores(path: Path) -> np.ndarray[Any, np.dtype[np.float64]]:
    with open_source(stored(path)) as (file, _):
        runner = Runner(file)
        try:
            return runner.scores()
        finally:
            runner.close()


def types_of(path: Path) -> Counter[str]:
    with GGUFFile.open(path) as file:
        return Counter(tensor.type.name for tensor in file.tensors.values())


def test_a_folder_becomes_a_file_that_computes_the_same(folder: Path, tmp_path: Path) -> None:
    seen: list[ConversionProgress] = []
    path = convert_model(stored(folder), tmp_path / "m.gguf", progress=seen.append)
    np.testing.assert_array_equal(scores(path), scores(folder))
    assert seen[-1].completed == seen[-1].total > 10**6
    assert [each.completed for each in seen] == sorted(each.completed for each in seen)
    with open_source(stored(folder)) as (_, before), open_source(stored(path)) as (file, after):
        for text in ("Hello world", " x\n\n1234", "né 🦙"):
            assert after.encode(text) == before.encode(text)
        assert after.eos_ids == before.eos_ids
        assert file.get_str("general.name") == "Tiny-Llama"
        assert file.get_str("general.size_label") == "1.3M"
        assert file.get_int("general.file_type") == 0


# Of log-probabilities whose spread is about 1; what the types' errors come to, and half as much.
@pytest.mark.parametrize(
    ("name", "limit"), [("bf16", 0.03), ("q8_0", 0.05), ("Q6_K", 0.12), ("q4_K_M", 0.4)]
)
def test_quantised_it_computes_nearly_the_same(
    folder: Path, tmp_path: Path, name: str, limit: float
) -> None:
    path = convert_model(stored(folder), tmp_path / "one.gguf", name, threads=1)
    other = convert_model(stored(folder), tmp_path / "three.gguf", name, threads=3)
    assert path.read_bytes() == other.read_bytes()
    error = np.sqrt(np.mean((scores(path) - scores(folder)) ** 2))
    assert 1e-4 < error < limit


def test_file_types_and_the_types_of_tensors(folder: Path, tmp_path: Path) -> None:
    path = convert_model(stored(folder), tmp_path / "m.gguf", "q4_k_m")
    assert types_of(path) == {"Q4_K": 12, "Q6_K": 3, "F32": 5}
    with GGUFFile.open(path) as file:
        assert file.tensor("token_embd.weight").type is TensorType.Q6_K  # it is the output too
        assert file.tensor("blk.1.ffn_down.weight").type is TensorType.Q6_K
        assert file.get_int("general.file_type") == 15
        assert file.get_int("general.quantization_version") == 2
    again = convert_model(stored(path), tmp_path / "again.gguf", "q4_k_m", requantise=True)
    with GGUFFile.open(again) as file:  # where llama-quantize puts what it sets
        own = ["general.quantization_version", "general.file_type"]
        assert list(file.metadata)[-2:] == own


def test_a_file_keeps_what_it_says(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "odd": Typed("uint8", 3),
        "split.count": Typed("uint16", 1),
        **tokenizer_metadata(),
    }
    tensors = {
        "token_embd.weight": random_tensor(rng, TensorType.F16, (300, 64)),
        "blk.0.attn_q.weight": random_tensor(rng, TensorType.BF16, (32, 64)),
        "blk.0.attn_norm.weight": random_tensor(rng, TensorType.F32, (64,)),
    }
    source = write_gguf(tmp_path / "a.gguf", metadata, tensors)
    path = convert_model(stored(source), tmp_path / "b.gguf", "q5_k_s")
    with GGUFFile.open(path) as file:
        assert file.types["odd"] == "uint8"
        assert "split.count" not in file.metadata
        assert {name: tensor.type.name for name, tensor in file.tensors.items()} == {
            "token_embd.weight": "Q8_0",  # instead of Q6_K, as rows are too short
            "blk.0.attn_norm.weight": "F32",
            "blk.0.attn_q.weight": "Q5_1",
        }
    with pytest.raises(ConversionError, match=r"blk\.0\.attn_q\.weight is Q5_1 already"):
        convert_model(stored(path), tmp_path / "c.gguf", "q4_0")
    again = convert_model(stored(path), tmp_path / "c.gguf", "q4_0", requantise=True)
    assert types_of(again) == {"Q8_0": 1, "F32": 1, "Q4_0": 1}


def test_what_ends_a_conversion_leaves_no_file(folder: Path, tmp_path: Path) -> None:
    def stop(progress: ConversionProgress) -> None:
        if progress.completed > 10**6:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        convert_model(stored(folder), tmp_path / "m.gguf", "q8_0", stop)
    assert {each.name for each in tmp_path.iterdir()} == {folder.name}


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kind, shape, data = random_tensor(rng, TensorType.F32, (300, 64))
    values = np.frombuffer(data, "<f4").copy()
    values[1234] = 1e6
    metadata = {"general.architecture": "llama", "llama.block_count": 1}
    tensors = {"token_embd.weight": (kind, shape, values.tobytes())}
    source = write_gguf(tmp_path / "a.gguf", metadata, tensors)
    with pytest.raises(ModelLoadError, match=r"token_embd\.weight has weights .* for F16"):
        convert_model(stored(source), tmp_path / "b.gguf", "f16")
    assert [each.name for each in tmp_path.iterdir()] == ["a.gguf"]


def with_tokenizer(path: Path, change: dict[str, Any], **model: Any) -> Path:
    """A tiny folder with another tokenizer."""
    folder = write_tiny_folder(path)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer |= change
    tokenizer["model"] |= model
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    if "<s>" in tokenizer["model"]["vocab"]:
        (folder / "tokenizer_config.json").write_text(json.dumps(roles))
    return folder


SPACES = {
    "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    "pre_tokenizer": None,
}


def sentencepiece(merges: list[list[str]]) -> dict[str, Any]:
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    texts += ["▁", "a", "b", "c", "ab", "▁a", "abc", "bc", "▁▁", "▁▁▁", "▁▁▁▁"]
    texts += [f"<unused{i}>" for i in range(300 - len(texts))]
    return {
        "vocab": {text: token for token, text in enumerate(texts)},
        "merges": merges,
        "unk_token": "<unk>",
        "byte_fallback": True,
        "fuse_unk": True,
    }


def test_merges_of_sentencepiece_become_scores(tmp_path: Path) -> None:
    # Of one score: `▁▁`, `▁▁▁` and `▁▁▁▁`, whose merges are in the order of their parts' lengths.
    runs = [["▁▁▁", "▁"], ["▁▁", "▁▁"], ["▁▁", "▁"], ["▁", "▁▁▁"], ["▁", "▁▁"], ["▁", "▁"]]
    merges = [*runs, ["b", "c"], ["▁", "a"], ["a", "b"], ["a", "bc"], ["ab", "c"]]
    folder = with_tokenizer(tmp_path / "folder", SPACES, **sentencepiece(merges))
    path = convert_model(stored(folder), tmp_path / "m.gguf")
    with open_source(stored(folder)) as (_, before), open_source(stored(path)) as (file, after):
        assert file.get_str("tokenizer.ggml.model") == "llama"
        for text in ("abc", "a abc ab", "bcab é", "a    b      a"):
            assert after.encode(text) == before.encode(text)
        assert len(after.encode("abc", add_special=False)) == 1


@pytest.mark.parametrize(
    ("change", "model", "message"),
    [
        (
            SPACES,
            sentencepiece([["a", "b"], ["b", "c"], ["a", "bc"], ["▁", "a"], ["ab", "c"]]),
            "its merges aren't those of SentencePiece.*'abc' is made early and late",
        ),
        (
            {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}},
            {},
            "GGUF has no name for the way in which this tokenizer cuts text into words",
        ),
    ],
)
def test_tokenizers_that_gguf_has_no_words_for_are_refused(
    tmp_path: Path, change: dict[str, Any], model: dict[str, Any], message: str
) -> None:
    folder = with_tokenizer(tmp_path / "folder", change, **model)
    with pytest.raises(ConversionError, match=message):
        convert_model(stored(folder), tmp_path / "m.gguf")
