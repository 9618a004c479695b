"""Fuzz targets take their seeds as they should: some are accepted, some refused, none harms."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.json_mutations import mutate_json, mutate_request
from fuzz.target import SEEDS
from fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_do_no_harm(name: str) -> None:
    target = TARGETS[name]
    with target.open() as run:
        accepted = {path.name: run(path.read_bytes()) for path in target.seeds}
        for nothing in (b"", b"\0", b"\xff nothing of the kind \n"):
            run(nothing)
    refused = {file for file, taken in accepted.items() if not taken}
    assert refused == {file for file in accepted if file.startswith("bad-")}
    assert len(refused) < len(accepted)


@pytest.mark.parametrize("name", [name for name, each in TARGETS.items() if each.mutate])
def test_mutations_do_no_harm(name: str) -> None:
    target = TARGETS[name]
    assert target.mutate is not None
    with target.open() as run:
        for path in target.seeds:
            for seed in range(20):
                run(target.mutate(path.read_bytes(), seed))


def test_mutations_change_values_and_are_repeatable() -> None:
    text = b'{"a": [1, {"b": "c"}], "d": true}'
    changed = [mutate_json(text, seed) for seed in range(100)]
    assert changed == [mutate_json(text, seed) for seed in range(100)]
    assert len(set(changed)) > 50
    assert mutate_json(b"{nonsense", 1) == b"{nonsense"
    assert mutate_request(b"/v1/x\n[1]", 3).startswith(b"/v1/x\n")


def test_every_folder_of_seeds_belongs_to_a_target() -> None:
    assert {path.name for path in Path(SEEDS).iterdir()} == set(TARGETS)
