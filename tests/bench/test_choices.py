from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer

from benchmarks import cases, files
from benchmarks.peers import all_peers, base
from benchmarks.peers.base import PeerError
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


def test_a_peer_that_is_missing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(base, "VENVS", tmp_path)
    caudal, *others = all_peers()
    assert "kernels" in caudal.version()
    for peer in others:
        with pytest.raises(PeerError, match=f"not installed .*setup_peers {peer.name}"):
            peer.version()


def test_an_environment_without_the_package_is_not_installed_properly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(base, "VENVS", tmp_path)
    python = tmp_path / "openvino" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    [openvino] = [peer for peer in all_peers() if peer.name == "openvino"]
    with pytest.raises(PeerError, match=r"not installed properly: .*openvino-genai"):
        openvino.version()
