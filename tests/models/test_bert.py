"""BERT from both formats against a float64 forward pass that shares no code with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caudal.errors import InputTooLongError, ModelLoadError, ParameterError
from caudal.loading.load import load_model
from caudal.loading.options import LoadOptions
from caudal.service.embedding import Embedder
from caudal.service.work import EmbedWork, ScoreWork
from support.tiny_bert import CLS, SEP, VOCABULARY, TinyBert

RANDOM = np.random.default_rng(3)
INPUTS = [
    [CLS, *map(int, RANDOM.integers(5, len(VOCABULARY), length)), SEP]
    for length in (0, 1, 7, 15, 40, 62)
]

MODELS = {
    "mean": TinyBert(),
    "cls": TinyBert(pooling="pooling_mode_cls_token"),
    "last, not normalised": TinyBert(pooling="pooling_mode_lasttoken", normalize=False),
    "tanh's GELU": TinyBert(activation="gelu_new"),
    "ReLU": TinyBert(activation="relu", eps=1e-5),
    "SiLU": TinyBert(activation="silu"),
    "mean, then Dense": TinyBert(dense=(24, "Identity")),
    "cls, then Dense and Tanh": TinyBert(dense=(24, "Tanh"), pooling="pooling_mode_cls_token"),
}


@contextmanager
def loaded(path: Path, **options: Any) -> Iterator[Embedder]:
    chosen: dict[str, Any] = {"threads": 2, "kv_type": "f32"} | options
    model = load_model(str(path), LoadOptions(**chosen))
    engine = model.start_engine()
    try:
        yield Embedder.of(model, engine)
    finally:
        asyncio.run(engine.shutdown())


def embed(path: Path, inputs: list[list[int]], **options: Any) -> list[np.ndarray[Any, Any]]:
    with loaded(path, **options) as model:
        results = asyncio.run(model.embed(EmbedWork(inputs=inputs)))
    return [result.vector for result in results]


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_matches_the_reference(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    for tokens, ours in zip(INPUTS, embed(model.write_folder(tmp_path / "m"), INPUTS), strict=True):
        np.testing.assert_allclose(ours, model.embedding(tokens), atol=3e-5)


@pytest.mark.parametrize(
    ("pooling", "number"),
    [
        ("pooling_mode_mean_tokens", 1),
        ("pooling_mode_cls_token", 2),
        ("pooling_mode_lasttoken", 3),
    ],
)
def test_gguf_matches_the_reference(pooling: str, number: int, tmp_path: Path) -> None:
    model = TinyBert(pooling=pooling)
    ours = embed(model.write_gguf(tmp_path / "m.gguf", number), INPUTS)
    for tokens, vector in zip(INPUTS, ours, strict=True):
        np.testing.assert_allclose(vector, model.embedding(tokens), atol=3e-5)


def test_the_names_of_a_classifier_or_of_older_files_are_understood(tmp_path: Path) -> None:
    model = TinyBert()
    folder = model.write_folder(tmp_path / "m", prefix="bert.")
    path = folder / "model.safetensors"
    path.write_bytes(  # as long as before
        path.read_bytes()
        .replace(b'LayerNorm.weight"', b'LayerNorm.gamma" ')
        .replace(b'LayerNorm.bias"', b'LayerNorm.beta"')
    )
    for tokens, ours in zip(INPUTS, embed(folder, INPUTS), strict=True):
        np.testing.assert_allclose(ours, model.embedding(tokens), atol=3e-5)


def test_vectors_do_not_depend_on_company_or_threads(tmp_path: Path) -> None:
    folder = TinyBert().write_folder(tmp_path / "m")
    together = embed(folder, INPUTS)
    for tokens, vector in zip(INPUTS, together, strict=True):
        assert embed(folder, [tokens], threads=1)[0].tolist() == vector.tolist()


def test_a_cross_encoder_reads_pairs(tmp_path: Path) -> None:
    model = TinyBert(labels=1)
    pairs = [("abc", "the end"), ("abc", "xyz, going!"), ("q", "")]
    for path in (
        model.write_folder(tmp_path / "m", prefix="bert."),
        model.write_gguf(tmp_path / "m.gguf", 4),
    ):
        with loaded(path) as ours:
            scores = asyncio.run(ours.score(ScoreWork(pairs=pairs)))
            for (first, second), result in zip(pairs, scores, strict=True):
                pair = ours.reader.encode_pair(first, second)
                assert pair.second_segment is not None
                logit = model.score(pair.tokens, pair.second_segment)
                assert result.score == pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-5)
                assert result.tokens == len(pair.tokens)
            with pytest.raises(ParameterError, match="scores pairs of texts"):
                asyncio.run(ours.embed(EmbedWork(inputs=[[CLS, SEP]])))


def test_a_cross_encoder_may_ask_for_its_score_as_it_is(tmp_path: Path) -> None:
    activation = {"activation_fn": "torch.nn.modules.linear.Identity"}
    model = TinyBert(labels=1, extra={"sentence_transformers": activation})
    with loaded(model.write_folder(tmp_path / "m")) as ours:
        pair = ours.reader.encode_pair("abc", "xyz")
        [result] = asyncio.run(ours.score(ScoreWork(pairs=[("abc", "xyz")])))
    assert pair.second_segment is not None
    assert result.score == pytest.approx(model.score(pair.tokens, pair.second_segment), abs=1e-5)


def test_the_longest_input_is_the_models_own(tmp_path: Path) -> None:
    folder = TinyBert(max_seq_length=20).write_folder(tmp_path / "m")
    with loaded(folder) as model:
        assert model.reader.limit(None) == 20
        text = "a " * 30
        with pytest.raises(InputTooLongError, match="has 32 tokens, but at most 20"):
            model.reader.encode(text)
        assert model.reader.encode(text, truncate=-1) == [CLS, *[5] * 18, SEP]
        assert model.reader.encode(text, truncate=5) == [CLS, 5, 5, 5, SEP]
        assert model.reader.encode("a", truncate=5) == [CLS, 5, SEP]
        pair = model.reader.encode_pair("b c", text, truncate=-1)
        assert list(pair.tokens) == [CLS, 6, 7, SEP, *[5] * 15, SEP]
        with pytest.raises(InputTooLongError) as caught:
            model.reader.encode_pair(text, "a", truncate=-1)
        assert caught.value.param == "text_1"
        with pytest.raises(InputTooLongError) as caught:
            model.reader.encode_pair("a", text)
        assert caught.value.param == "text_2"
        with pytest.raises(ParameterError, match="at least 3"):
            model.reader.encode(text, truncate=2)
        with pytest.raises(InputTooLongError, match="2097152 characters"):
            model.reader.encode("a" * 2**21)
        assert len(model.reader.encode("a" * 2**21, truncate=-1)) == 3


def test_matryoshka_sizes_are_the_models_own(tmp_path: Path) -> None:
    model = TinyBert(extra={"matryoshka_dimensions": [8, 16]})
    with loaded(model.write_folder(tmp_path / "m")) as ours:
        [short] = asyncio.run(ours.embed(EmbedWork(inputs=[INPUTS[3]], dimensions=8)))
        whole = model.embedding(INPUTS[3])[:8]
        np.testing.assert_allclose(short.vector, whole / np.linalg.norm(whole), atol=3e-5)
        with pytest.raises(ParameterError, match="48 or one of 8, 16, but is 9"):
            asyncio.run(ours.embed(EmbedWork(inputs=[INPUTS[3]], dimensions=9)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "distilbert"}, "model_type 'distilbert' is not supported"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'"),
        ({"position_embedding_type": "relative_key"}, "supported is 'absolute'"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"num_attention_heads": 5}, "not a multiple of the 5 heads"),
        ({"num_attention_heads": 4}, "heads of 12 channels"),
        ({"num_hidden_layers": 0}, "must be positive"),
        ({"num_hidden_layers": "2"}, "must be of type int"),
        ({"num_hidden_layers": 3}, r"blk\.2\.attn_q\.weight is missing"),
        ({"num_hidden_layers": 1}, "is not part of a bert model"),
        ({"intermediate_size": 96}, "has shape 80 x 48 instead of 96 x 48"),
        ({"max_position_embeddings": 128}, "fewer than the context of 128"),
    ],
)
def test_a_configuration_that_cannot_be_met_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = TinyBert(extra=change).write_folder(tmp_path / "m")
    with pytest.raises(ModelLoadError, match=message):
        load_model(str(folder), LoadOptions(threads=1))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", [{"type": "x.Transformer"}, {"type": "x.WordWeights"}], "WordWeights"),
        ("modules.json", {"a": 1}, "expected a list"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "max_tokens; supported"),
        ("1_Pooling/config.json", {}, "asks for no pooling"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            "mean_tokens and pooling_mode_cls_token",
        ),
        ("config.json", [], "expected a JSON object"),
        (
            "tokenizer.json",
            {"model": {"type": "WordLevel", "vocab": []}},
            "model.type is 'WordLevel'",
        ),
        ("tokenizer.json", {}, "only 'WordPiece'"),
    ],
)
def test_files_that_ask_for_the_unsupported_are_refused(
    file: str, content: Any, message: str, tmp_path: Path
) -> None:
    folder = TinyBert().write_folder(tmp_path / "m")
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(ModelLoadError, match=message):
        load_model(str(folder), LoadOptions(threads=1))


def test_a_causal_bert_is_refused(tmp_path: Path) -> None:
    path = TinyBert(extra={"attention.causal": True}).write_gguf(tmp_path / "m.gguf")
    with pytest.raises(ModelLoadError, match="attends both ways"):
        load_model(str(path), LoadOptions(threads=1))


def test_an_encoder_keeps_no_keys_and_values(tmp_path: Path) -> None:
    folder = TinyBert().write_folder(tmp_path / "m")
    with pytest.raises(ParameterError, match="keeps no keys and values"):
        load_model(str(folder), LoadOptions(kv_memory=2**20))
    with pytest.raises(ParameterError, match="always batched dynamically"):
        load_model(str(folder), LoadOptions(batching="static"))
