"""XLM-RoBERTa whole: text in, scores of pairs out, as its tokenizer and its positions have it."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import pytest

from caudal.errors import ModelLoadError
from caudal.loading.load import load_model
from caudal.loading.options import LoadOptions
from caudal.service.embedding import Embedder
from caudal.service.work import ScoreWork
from references.encoders import RecordedEncoder, vectors, write_encoder
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
    pair = embedder.encode_pair("Who serves?", "Caudal serves.")
    first, second = (
        model.tokenizer.encode(text, add_special=False)
        for text in ("Who serves?", "Caudal serves.")
    )
    assert pair.tokens == [BOS, *first, EOS, EOS, *second, EOS]
    assert pair.second_segment is None
    [[alone]] = vectors(folder, [pair.tokens])
    assert 1 / (1 + math.exp(-alone)) == pytest.approx(score, abs=1e-6)


def test_positions_that_padding_leaves_none_of_are_refused(tmp_path: Path) -> None:
    recorded = RecordedEncoder.read(NAME)
    recorded.config["pad_token_id"] = 600
    folder = write_encoder(recorded, tmp_path / "it")
    with pytest.raises(ModelLoadError, match=r"pad_token_id \+ 1 is 601 of 514 positions"):
        load_model(str(folder), LoadOptions())
