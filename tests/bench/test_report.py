from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cases import EngineCase, GuessCase, HttpCase
from benchmarks.costs import Matrices, ModelCosts
from benchmarks.files import ModelFile
from benchmarks.guess_report import GuessRow
from benchmarks.guessing import Drafts
from benchmarks.limits import Limits
from benchmarks.measure import CaseResults, Result
from benchmarks.report import Report, best_files, rows_of
from benchmarks.tables import markdown_table

LIMITS = Limits({"read": 1000.0, "fp32/avx2": 1e9, "int8/avx2": 1e9})
TITLES = {"caudal": "Caudal", "one": "Peer One", "two": "Peer Two"}
DECODE = EngineCase(name="decode", title="decode", sequences=1, prompt_tokens=1, steps=9)
HTTP = HttpCase(name="http", title="HTTP", prompt_tokens=10, output_tokens=5)


def model(name: str = "tiny-q4_0", *, four_bit: bool = True) -> ModelFile:
    """100 bytes of weights: at 1,000 bytes a second, 10 tokens a second at most."""
    return ModelFile(
        name=name,
        title=name.title(),
        family="Tiny",
        four_bit=four_bit,
        represents_family=True,
        path=Path("tiny.gguf"),
        costs=ModelCosts(
            body=Matrices(100, 0, 60),
            head=Matrices(50, 0, 40),
            layers=(),
            vocab_size=9,
            context_length=99,
        ),
    )


def decode(
    caudal: list[float], one: list[float], two: list[float], file: ModelFile | None = None
) -> CaseResults:
    rates = {"caudal": caudal, "one": one, "two": two}
    return CaseResults(
        file or model(),
        DECODE,
        {
            name: Result(rates={"all": values}) if values else Result(missing="not installed")
            for name, values in rates.items()
        },
    )


def report(*results: CaseResults, limits: Limits | None = LIMITS) -> Report:
    return Report(
        settings={"runs": "3"},
        machine={"processor": "abacus"},
        limits=limits,
        no_limits=None if limits else "c++ failed: no such file",
        titles=TITLES,
        versions={"one": "1.0"},
        rows=[row for result in results for row in rows_of(result, limits)],
    )


def test_medians_ratios_and_shares():
    [row] = rows_of(decode([8.0, 2.0, 6.0], [3.0, 1.0, 2.0], [4.0, 4.0]), LIMITS)
    assert row.median("caudal") == 6.0
    assert row.ratio("one") == 3.0
    assert row.ratio("two") == 1.5
    assert row.ratio_to_best == 1.5
    assert row.share == pytest.approx(0.6)
    assert row.limit == "read"


def test_who_has_no_figures_has_no_ratio():
    [row] = rows_of(decode([8.0], [], []), None)
    assert row.median("one") is None
    assert row.ratio("one") is None
    assert row.ratio_to_best is None
    assert row.share is None
    [row] = rows_of(decode([], [3.0], []), LIMITS)
    assert row.ratio("one") is None
    assert row.share is None


def test_the_table_and_its_notes():
    http = CaseResults(
        model(),
        HTTP,
        {
            "caudal": Result(rates={"all": [50.0]}, requests=48),
            "one": Result(rates={"all": [20.0]}, requests=48, failures=Counter({"ReadError": 2})),
            "two": Result(missing="has no server"),
        },
    )
    first = decode([6.0], [3.0], [])
    first.peers["caudal"].facts = {"instruction_set": "avx2", "threads": "2"}
    text = report(first, http).markdown()
    assert "- Caudal: instruction_set avx2, threads 2 [tiny-q4_0]" in text
    lines = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    decoded = ["Tiny-Q4_0", "decode", "6", "60% (read)", "0.0 GB/s", "3 (2.00 x)", "-", "2.00 x"]
    assert ["", *decoded, ""] in lines
    row = next(cells for cells in lines if cells[2:3] == ["HTTP"])
    assert row[1] == ""  # the same file as above
    assert row[6] == "20 (2 failed) (2.50 x)"
    assert "- Peer One: 2 of 48 requests failed: ReadError [tiny-q4_0: HTTP]" in text
    assert "- Peer Two: not installed [tiny-q4_0: decode]" in text
    assert "- Peer Two: has no server [tiny-q4_0: HTTP]" in text
    assert "- processor: abacus" in text
    assert "| memory read" in text


def test_who_was_not_asked_about_a_file_has_no_figure():
    other = decode([6.0], [3.0], [], model("other"))
    del other.peers["two"]
    lines = report(decode([6.0], [3.0], [2.0]), other).markdown().splitlines()
    last = next(line for line in lines if line.startswith("| Other"))
    assert [cell.strip() for cell in last.split("|")][6:9] == ["3 (2.00 x)", "-", "2.00 x"]


def test_guesses_are_beside_the_same_without():
    results = CaseResults(
        model(),
        GuessCase(name="guess-json-8", title="JSON, 8 at once", text="JSON", sequences=8),
        {
            "caudal": Result(
                rates={"alone": [10.0, 20.0], "guessed": [30.0, 40.0]}, drafts=Drafts(10, 9)
            ),
            "one": Result(rates={"alone": [16.0], "guessed": [8.0]}, drafts=Drafts(0, 0)),
            "two": Result(missing="has no server"),
        },
    )
    made = replace(report(), guesses=[GuessRow(results)])
    assert rows_of(results, LIMITS) == []
    text = made.markdown()
    cells = [cell.strip() for cell in text.splitlines()[-3].split("|")]
    assert cells[1:-1] == [
        "Tiny-Q4_0",
        "JSON, 8 at once",
        "15 → 35 (2.50 x, 90% right)",
        "16 → 8 (0.50 x)",
        "2.19 x",
    ]
    assert text.splitlines()[-1] == "- Peer Two: has no server"
    [row] = json.loads(made.to_json())["guesses"]
    assert row["peers"]["caudal"]["rates"]["guessed"] == [30.0, 40.0]
    assert row["ratio_to_best"] == 35 / 16


def test_without_limits_it_says_why():
    text = report(decode([6.0], [3.0], []), limits=None).markdown()
    assert "The machine's limits were not measured: c++ failed: no such file" in text


def test_each_on_its_best_four_bit_file():
    results = [
        decode([6.0], [3.0], [], model("q4_0")),
        decode([5.0], [4.0], [], model("q4_1")),
        decode([9.0], [9.0], [9.0], model("q8_0", four_bit=False)),
    ]
    rows = [row for result in results for row in rows_of(result, LIMITS)]
    table = best_files(rows, TITLES)
    assert table is not None
    cells = [cell.strip() for cell in table.splitlines()[2].split("|")]
    assert cells[1:-1] == ["decode", "6 (q4_0)", "4 (q4_1)", "-", "1.50 x"]
    assert best_files(rows[:1], TITLES) is None


def test_the_json_has_every_run():
    data = json.loads(report(decode([8.0, 6.0], [3.0], [])).to_json())
    assert data["limits"]["read"] == 1000.0
    [row] = data["rows"]
    assert (row["model"], row["case"], row["metric"]) == ("tiny-q4_0", "decode", "all")
    assert row["peers"]["caudal"]["rates"] == [8.0, 6.0]
    assert row["peers"]["one"]["ratio"] == pytest.approx(7 / 3)
    assert row["peers"]["two"]["missing"] == "not installed"


def test_a_table_lines_up():
    assert markdown_table([["a", "bb"], ["ccc", "d"]], align="lr") == (
        "| a   | bb |\n| --- | -: |\n| ccc |  d |"
    )
