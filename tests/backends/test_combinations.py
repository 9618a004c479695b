"""What makes answers come sooner changes none of them, whatever it is combined with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.combinations import MODELS, Combination, Model

SEEDS = (4, 8, 15, 26, 28, 30, 31, 38, 41, 42, 46, 48, 53)
"""Each model, type of keys and values, and kind of guess; all with what is pre-empted, damaged or
comes back from a tier. For more of them: `PYTHONPATH=tests python -m support.combinations 0 1000`.
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Model]]:
    path = tmp_path_factory.mktemp("models")
    made = {name: Model(name, path) for name in MODELS}
    yield made
    for model in made.values():
        model.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_tokens_are_those_that_a_request_gets_alone(
    seed: int, models: dict[str, Model], tmp_path: Path
) -> None:
    Combination(seed, models, tmp_path).run(14)
