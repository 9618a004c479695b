"""What `deploy/` says of Caudal is so: files, settings, paths, ports, users, metrics, times."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from typer.testing import CliRunner

from caudal.cli.app import app
from caudal.configuration.settings import ServeSettings
from caudal.server.open_paths import OPEN_PATHS

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
DOCKER, KUBERNETES, CHART = DEPLOY / "docker", DEPLOY / "kubernetes", DEPLOY / "helm/caudal"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
STATEFUL_SET = yaml.safe_load((KUBERNETES / "base/stateful-set.yaml").read_text())
POD = STATEFUL_SET["spec"]["template"]["spec"]
KEYS = yaml.safe_load((KUBERNETES / "base/secret.example.yaml").read_text())["stringData"]

CONFIGURATIONS = {
    "docker": (DOCKER / "caudal.toml").read_text(),
    "kubernetes": (KUBERNETES / "base/caudal.toml").read_text(),
    "helm": VALUES["config"],
}


def instructions(name: str) -> list[str]:
    """What follows an instruction of the Dockerfile, each on one line."""
    text = re.sub(r"^#.*\n", "", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
    return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]


def check(tmp_path: Path, text: str, *options: str) -> None:
    """Have `caudal config check` read a configuration, with files of keys that are here."""
    (tmp_path / "keys.toml").write_text(KEYS["keys.toml"])
    (tmp_path / "metrics.key").write_text("a long and random one")
    text = re.sub(r'"/(models|etc/caudal/keys)/keys\.toml"', '"keys.toml"', text)
    text = text.replace("/run/secrets/metrics_key", "metrics.key")
    file = tmp_path / "caudal.toml"
    file.write_text(text)
    result = CliRunner().invoke(app, ["config", "check", str(file), *options])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("text", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_configurations_are_valid(tmp_path: Path, text: str):
    check(tmp_path, text)


def test_the_image_is_of_this_version_on_a_python_that_it_runs_on():
    [python] = instructions("ARG")
    version = re.match(r"PYTHON=(\d+\.\d+)-slim-\w+$", python)
    assert version and SpecifierSet(PROJECT["requires-python"]).contains(version[1])
    [labels] = instructions("LABEL")
    assert f'image.version="{PROJECT["version"]}"' in labels
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == PROJECT["version"]
    assert COMPOSE["services"]["caudal"]["image"].endswith(f":{PROJECT['version']}}}")
    [image] = yaml.safe_load((KUBERNETES / "base/kustomization.yaml").read_text())["images"]
    assert image["newTag"] == PROJECT["version"]


def test_the_image_has_what_it_is_built_from_and_nothing_else():
    let_in = {
        line.removeprefix("!")
        for line in (REPOSITORY / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    here = [each for each in instructions("COPY") if not each.startswith("--from")]
    copied = {name for each in here for name in each.split()[:-1]}
    assert copied == let_in and all((REPOSITORY / name).exists() for name in copied)
    # What the build reads besides sources.
    assert {
        "CMakeLists.txt",
        "pyproject.toml",
        PROJECT["readme"],
        *PROJECT["license-files"],
    } <= copied


def test_the_image_serves_where_others_look_for_it(tmp_path: Path):
    [entry], command = (json.loads(*instructions(name)) for name in ("ENTRYPOINT", "CMD"))
    assert entry in PROJECT["scripts"]
    assert command[0] == "serve"
    check(tmp_path, "", *command[1:])
    assert instructions("EXPOSE") == [str(ServeSettings.port)]
    [health] = instructions("HEALTHCHECK")
    test = json.loads(health[health.index("[") :])
    assert COMPOSE["services"]["caudal"]["healthcheck"]["test"] == ["CMD", *test]
    assert f"'127.0.0.1', {ServeSettings.port}," in test[-1]
    assert set(re.findall(r"'(/\w+)'", test[-1])) <= OPEN_PATHS
    compile(test[-1], "health", "exec")


def test_users_are_numbers_and_the_same_everywhere():
    [user] = instructions("USER")
    uid, gid = map(int, user.split(":"))
    assert any(
        f"--gid {gid} caudal" in run and f"--uid {uid} " in run for run in instructions("RUN")
    )
    for said in (POD["securityContext"], chart_block("caudal.restricted")):
        assert (said["runAsUser"], said["runAsGroup"], said["runAsNonRoot"]) == (uid, gid, True)


def chart_block(name: str) -> Any:
    """A named template of the chart that has nothing to fill in."""
    text = (CHART / "templates/_helpers.tpl").read_text()
    found = re.search(rf'define "{re.escape(name)}" -}}}}(.*?){{{{- end', text, re.DOTALL)
    assert found
    return yaml.safe_load(found[1])


def test_probes_need_no_key():
    [server] = POD["containers"]
    for kind in ("startup", "liveness", "readiness"):
        assert server[f"{kind}Probe"]["httpGet"]["path"] in OPEN_PATHS
    template = (CHART / "templates/statefulset.yaml").read_text()
    paths = re.findall(r"httpGet: {path: (\S+), port: http}", template)
    assert len(paths) == 3 and set(paths) <= OPEN_PATHS


def test_whoever_stops_a_server_waits_until_it_has_drained():
    kubernetes = tomllib.loads(CONFIGURATIONS["kubernetes"])["limits"]
    drained = kubernetes["drain-notice"] + kubernetes["drain-timeout"]
    assert POD["terminationGracePeriodSeconds"] >= drained + 10
    grace = COMPOSE["services"]["caudal"]["stop_grace_period"].removesuffix("s")
    assert int(grace) >= tomllib.loads(CONFIGURATIONS["docker"])["limits"]["drain-timeout"] + 10


def test_metrics_that_autoscalers_and_rules_ask_for_exist():
    documented = set(re.findall(r"`(caudal_\w+)`", (REPOSITORY / "docs/metrics.md").read_text()))
    asked = [*(KUBERNETES / "autoscaling").iterdir(), CHART / "templates/autoscaling.yaml"]
    for file in asked:
        assert set(re.findall(r"\bcaudal_\w+", file.read_text())) <= documented
    jobs = re.findall(r'job="(\w+)"', (DEPLOY / "prometheus/rules.yml").read_text())
    configuration = yaml.safe_load((DOCKER / "prometheus/prometheus.yml").read_text())
    [scraped] = configuration["scrape_configs"]
    assert set(jobs) == {scraped["job_name"]} == {STATEFUL_SET["metadata"]["name"]}


def test_what_compose_mounts_is_there():
    secrets = COMPOSE["secrets"]
    for service in COMPOSE["services"].values():
        assert set(service["secrets"]) <= secrets.keys()
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DOCKER / source).exists(), source
    for file in DOCKER.rglob("*.*ml"):
        assert set(re.findall(r"/run/secrets/(\w+)", file.read_text())) <= secrets.keys()
    ignored = (REPOSITORY / ".gitignore").read_text().splitlines()
    assert "/deploy/docker/secrets/" in ignored


def test_every_value_of_the_chart_is_explained_and_in_its_schema():
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert VALUES.keys() == schema.keys() - {"global"}
    for name, value in VALUES.items():
        if "properties" in schema[name] and name != "resources":
            assert value.keys() == schema[name]["properties"].keys(), name
    used = "".join(file.read_text() for file in (CHART / "templates").rglob("*.*"))
    assert not [name for name in VALUES if f".Values.{name}" not in used]
