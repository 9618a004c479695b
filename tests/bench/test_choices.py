from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer

from benchmarks import cases, files
from benchmarks.costs import Matrices, ModelCosts
from benchmarks.peers import all_peers, base
from benchmarks.peers.base import PeerError
from benchmarks.report import CAUDAL
from benchmarks.run import built_peers, choose
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


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (["ik_llama"], "'ik_llama' is not NAME=DIR"),
        (["=there"], "'=there' is not NAME=DIR"),
        (["vllm=there"], "there is a vllm already"),
        (["mine=here", "mine=there"], "there is a mine already"),
    ],
)
def test_peers_built_elsewhere_have_a_directory_and_a_name(wanted: list[str], message: str):
    with pytest.raises(typer.BadParameter, match=message):
        built_peers(wanted)


@pytest.mark.parametrize(("speaks_of", "seconds"), [("--run-time-repack", 2), ("--mmap", 1)])
def test_programs_built_elsewhere_are_run_as_they_are_fastest(
    tmp_path: Path, speaks_of: str, seconds: int
):
    *_, peer = all_peers(built_peers([f"mine={tmp_path}"]))
    assert peer.name == "mine"
    with pytest.raises(PeerError, match=f"there is no llama-bench in {tmp_path}"):
        peer.version()

    program = tmp_path / "llama-bench"
    program.write_text(f"""#!/bin/sh
case "$*" in
    *--help) echo "{speaks_of} <0|1>" >&2; exit 1 ;;
    "-m model.gguf -p 512 -n 0 -t 3 "*"-rtr 1") echo '[{{"avg_ns": 2000000000}}]' ;;
    "-m model.gguf -p 512 -n 0 -t 3 "*) echo '[{{"avg_ns": 1000000000}}]' ;;
esac
""")
    program.chmod(0o755)
    nothing = Matrices(0, 0, 0)
    model = files.ModelFile(
        name="model",
        title="model",
        family="model",
        four_bit=False,
        represents_family=True,
        path=Path("model.gguf"),
        costs=ModelCosts(nothing, nothing, (), 1, 1),
    )
    assert str(tmp_path) in peer.version()
    prefill, *_ = [case for case in cases.CASES if case.name == "prefill"]
    assert isinstance(prefill, cases.EngineCase)
    with peer.engine(model, threads=3, max_len=512, kv_type=prefill.kv_type) as session:
        assert session.measure(prefill, seed=1).total == seconds
