"""The load that options of `caudal bench serve` ask for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from caudal.bench.serving.settings import LoadSettings


def load_settings(options: dict[str, Any], replay: Path | None) -> LoadSettings:
    """A replayed load or that of a workload, with what is asked for changed.

    Args:
        options: What the command line says, by the options' names; nothing that it doesn't say.
        replay: The report of the load to replay.

    Raises:
        typer.BadParameter: An option makes no sense, or not with another.
        ReportError: `replay` is no report.
        ParameterError: The data set can't be read.
    """
    import msgspec

    from caudal.bench.serving.dataset import file_hash
    from caudal.bench.serving.report import Report
    from caudal.bench.serving.settings import LoadSettings

    given = _read(options)
    if replay is not None:
        settings = msgspec.structs.replace(Report.read(replay).settings, **given)
        _check_dataset(settings)
        return settings
    if "workload" not in given:
        given["workload"] = _implied_workload(given)
    settings = msgspec.structs.replace(
        LoadSettings.of_workload(given["workload"]), **({"warmup": 2} | given)
    )
    if settings.rate is None and settings.sweep is None and settings.concurrency is None:
        settings = msgspec.structs.replace(settings, concurrency=16)
    if settings.sweep is not None and settings.duration is None and "requests" not in given:
        settings = msgspec.structs.replace(settings, duration=15.0)
    if settings.dataset is not None:
        digest = file_hash(Path(settings.dataset))
        settings = msgspec.structs.replace(settings, dataset_sha256=digest)
    return settings


def _read(options: dict[str, Any]) -> dict[str, Any]:
    """The options as settings have them."""
    given = dict(options)
    if "conversations" in given:
        if "requests" in given:
            raise typer.BadParameter("--requests and --conversations say the same.")
        given["requests"] = given.pop("conversations")
    if "requests" in given:
        if "duration" in given:
            raise typer.BadParameter("either --duration or a number of requests ends a load.")
        given["duration"] = None  # of what is replayed
    for name, read in (("phases", _phases), ("sweep", _rates), ("extra_body", _fields)):
        if name in given:
            given[name] = read(given[name])
    if "dataset" in given:
        given["dataset"] = str(given["dataset"].resolve())
    return given


def _implied_workload(given: dict[str, Any]) -> str:
    if "dataset" in given:
        return "dataset"
    return "shared-prefix" if given.get("prefixes") or given.get("prefix_tokens") else "random"


def _check_dataset(settings: LoadSettings) -> None:
    from caudal.bench.serving.dataset import file_hash

    if settings.dataset is None:
        return
    if file_hash(Path(settings.dataset)) != settings.dataset_sha256:
        raise typer.BadParameter(f"{settings.dataset} isn't what was sent: its contents differ.")


def _phases(written: str) -> list[str]:
    known = ("cold", "warm", "warm-prefix")
    wanted = [word.strip() for word in written.split(",")]
    wrong = [word for word in wanted if word not in known]
    if wrong:
        raise typer.BadParameter(f"phases are {', '.join(known)}; {wrong[0]!r} is none.")
    if "warm-prefix" in wanted and "warm" not in wanted:
        wanted.append("warm")  # which makes the prefixes warm
    return [word for word in known if word in wanted]


def _rates(written: str) -> list[float]:
    if written == "auto":
        return []
    try:
        return [float(word) for word in written.split(",")]
    except ValueError as error:
        raise typer.BadParameter("--sweep takes rates separated by commas, or auto.") from error


def _fields(written: str) -> dict[str, Any]:
    import json

    try:
        fields = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"--extra-body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise typer.BadParameter("--extra-body must be an object.")
    return fields
