"""XLM-RoBERTa whole: text in, scores of pairs or vectors out, as its files have it."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from caudal.conversion import convert_model
from caudal.errors import ModelLoadError, ParameterError
from caudal.loading.load import load_model
from caudal.loading.options import LoadOptions
from caudal.models.pooling import cosine_similarity
from caudal.service.embedding import Embedder
from caudal.service.work import EmbedWork, ScoreWork
from caudal.store.store import Store
from references.checks import open_reference, write_as_gguf
from references.encoders import RecordedEncoder, vectors, write_encoder
from references.weights import tokenizer_metadata
from support.unigram_vocabulary import BOS, EOS, tokenizer_json

NAME = "xlm_roberta_pairs"


def test_pairs_have_two_separators_and_no_segments(tmp_path: Path) -> None:
    recorded = RecordedEncoder.read(NAME)
    folder = write_encoder(recorded, tmp_path / "it")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    model = load_model(str(folder), LoadOptions(activations="f32", kv_type="f32", threads=2))
    # Two positions come before the first token's, and padding's stands for none.
    assert model.program.context_length == recorded.config["max_position_embeddings"] - (
        recorded.config["pad_token_id"] + 1
    )
    engine = model.start_engine()
    embedder = Embedder.of(model, engine)

    async def run() -> float:
        try:
            [result] = await embedder.score(ScoreWork(pairs=[("Who serves?", "Caudal serves.")]))
            return result.score
        finally:
            await engine.shutdown()

    score = asyncio.run(run())
    pair = embedder.reader.encode_pair("Who serves?", "Caudal serves.")
    first, second = (
        model.tokenizer.encode(text, add_special=False)
        for text in ("Who serves?", "Caudal serves.")
    )
    assert pair.tokens == [BOS, *first, EOS, EOS, *second, EOS]
    assert pair.second_segment is None
    [[alone]] = vectors(folder, [pair.tokens])
    assert 1 / (1 + math.exp(-alone)) == pytest.approx(score, abs=1e-6)


def test_what_a_model_was_trained_to_read_before_texts_is_put_there(tmp_path: Path) -> None:
    folder = write_encoder(RecordedEncoder.read("xlm_roberta"), tmp_path / "it")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    prompts = {"query": "query: ", "passage": "passage: ", "Clustering": "task: "}
    settings = {"prompts": prompts, "default_prompt_name": "passage"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    model = load_model(str(folder), LoadOptions(threads=2))
    engine = model.start_engine()
    embedder = Embedder.of(model, engine)

    async def read(name: str | None) -> list[int]:
        work = EmbedWork(inputs=["Caudal"], show_token_ids=True, prompt_name=name)
        [result] = await embedder.embed(work)
        return list(result.token_ids)

    async def run() -> None:
        try:
            for name, text in ((None, "passage: "), ("query", "query: "), ("Clustering", "task: ")):
                assert await read(name) == model.tokenizer.encode(f"{text}Caudal")
            with pytest.raises(ParameterError, match="it has: query, passage, Clustering"):
                await read("title")
            work = ScoreWork(pairs=[("a", "b")], prompt_names=("query", None))
            [score] = await embedder.score(work)
            whole = [model.tokenizer.encode(text) for text in ("query: a", "passage: b")]
            made = await embedder.embed(EmbedWork(inputs=whole))
            assert score.score == cosine_similarity(made[0].vector, made[1].vector)
        finally:
            await engine.shutdown()

    asyncio.run(run())
    gguf = convert_model(Store().resolve(str(folder)), tmp_path / "it.gguf")
    assert load_model(str(gguf), LoadOptions(threads=2)).program.pooling == embedder.pooling
    of_type = embedder.pooling.prompts.of_type
    assert [of_type(each) for each in ("search_query", "document", "clustering", "image")] == [
        "query",
        "passage",
        "Clustering",
        None,
    ]


def test_a_gguf_file_has_one_segments_embedding_as_a_vector(tmp_path: Path) -> None:
    """So llama.cpp's tools write it when they quantise: multilingual E5, BGE M3, Nomic Embed 2."""
    folder = write_encoder(RecordedEncoder.read("xlm_roberta"), tmp_path / "it")
    with open_reference(folder) as file:
        info = file.tensors["token_types.weight"]
        assert info.shape[0] == 1
        file.tensors = {**file.tensors, info.name: replace(info, shape=info.shape[1:])}
        gguf = write_as_gguf(file, tmp_path / "model.gguf", tokenizer_metadata())
    assert vectors(gguf) == vectors(folder)


def test_positions_that_padding_leaves_none_of_are_refused(tmp_path: Path) -> None:
    recorded = RecordedEncoder.read(NAME)
    recorded.config["pad_token_id"] = 600
    folder = write_encoder(recorded, tmp_path / "it")
    with pytest.raises(ModelLoadError, match=r"pad_token_id \+ 1 is 601 of 514 positions"):
        load_model(str(folder), LoadOptions())
