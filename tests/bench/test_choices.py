from __future__ import annotations

import pytest
import typer

from benchmarks import cases, files
from benchmarks.peers import all_peers
from benchmarks.report import CAUDAL
from benchmarks.run import choose
from benchmarks.setup_peers import INSTALLERS, main


def test_names_are_unique_and_the_quick_choice_is_of_them():
    for known, quick in ((cases.CASES, cases.QUICK), (files.KNOWN_FILES, files.QUICK)):
        names = [item.name for item in known]
        assert len(set(names)) == len(names)
        assert set(quick) <= set(names)


def test_every_peer_but_caudal_can_be_installed():
    first, *others = [peer.name for peer in all_peers()]
    assert first == CAUDAL
    assert set(others) == set(INSTALLERS)


def test_one_file_of_each_family_stands_for_it():
    families = {file.family for file in files.KNOWN_FILES}
    standing = [file.family for file in files.KNOWN_FILES if file.represents_family]
    assert sorted(standing) == sorted(families)


def test_choices_keep_the_order_known_and_name_what_is_not():
    assert [case.name for case in choose(cases.CASES, ["long", "decode"], "--case")] == [
        "decode",
        "long",
    ]
    with pytest.raises(typer.BadParameter, match=r"'wide' is none of prefill, decode"):
        choose(cases.CASES, ["wide"], "--case")


def test_an_unknown_peer_is_not_installed(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["ollama"])
    assert "there is no peer ollama" in capsys.readouterr().err
