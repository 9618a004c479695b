"""Answers of models with windows and states are the same to the bit, whatever is kept of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.reference_hybrids import TinyLFM2, TinyQwen35
from support.reference_model import TinyModel
from support.served import ANSWER, Served

MODELS = {
    "gemma3": TinyModel(architecture="gemma3", layers=7, window=20, kv_heads=1, head_dim=24),
    "qwen35": TinyQwen35(),
    "lfm2": TinyLFM2(),
}
PROMPT = [(7 * i * i + 3 * i) % 60 + 1 for i in range(75)]


@pytest.mark.parametrize("name", MODELS)
def test_an_answer_is_the_same_alone_among_others_in_small_memory_and_resumed(
    name: str, tmp_path: Path
) -> None:
    served = Served(MODELS[name], tmp_path)
    kinds = served.kinds
    assert kinds.windows or kinds.states
    [(alone, cached)] = served.answers(PROMPT)
    assert cached == 0
    others = [[number, *PROMPT[number:]] for number in range(1, 8)]
    among = served.answers(PROMPT, *others)
    assert among[0] == (alone, 74 if kinds.states is None else 64)
    # The next turn computes what is new only: all but the answer's last token is there.
    history = [*PROMPT, *(token for token, _ in alone), 5, 6, 7]
    [(resumed, cached)] = served.answers(history)
    assert cached == len(PROMPT) + ANSWER - 1
    # Cut as if memory were short, and with nobody's help.
    small = Served(
        MODELS[name],
        tmp_path,
        max_num_batched_tokens=12,
        max_num_seqs=3,
        kv_memory=kinds.sequence_bytes(128) * 5 // 2,
    )
    assert [scored for scored, _ in small.answers(PROMPT, *others)] == [
        scored for scored, _ in among
    ]
    cold = Served(MODELS[name], tmp_path, prefix_cache=False)
    assert cold.answers(history) == [(resumed, 0)]
    for each in (served, small, cold):
        each.engine.close()
