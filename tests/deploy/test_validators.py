"""`deploy/` as those programs see it that will read it; `make test-deploy` fetches them."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from caudal.cli.app import app
from support.debian_prometheus import promtool
from support.deploy_tools import tool

pytestmark = pytest.mark.deploy

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCKER, KUBERNETES, CHART = DEPLOY / "docker", DEPLOY / "kubernetes", DEPLOY / "helm/caudal"

VERSIONS = ("1.29", "1.37")
"""The oldest Kubernetes that the chart is for, and the newest that there is a schema of."""

FOREIGN = {"ScaledObject", "ServiceMonitor"}
"""Kinds that aren't Kubernetes' own, of which there is no schema here."""

SCENARIOS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "for-itself": {
        "keys": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "serviceAccount": {"create": False},
        "service": {"affinitySeconds": 0},
        "models": [],
        "config": "",
        "replicas": 1,
    },
    "for-many": {
        "image": {"repository": "registry.example:5000/ai/caudal", "digest": "sha256:" + "a" * 64},
        "imagePullSecrets": [{"name": "registry"}],
        "keys": {"file": f'[keys.a]\nhash = "sha256:{hashlib.sha256(b"a").hexdigest()}"\n'},
        "drain": {"notice": 2.5, "timeout": 900},
        "persistence": {"storageClass": "fast", "size": "1Ti", "whenScaled": "Delete"},
        "resources": {"requests": {"cpu": 16, "memory": "64Gi"}, "limits": {"memory": "64Gi"}},
        "service": {"type": "LoadBalancer", "port": 80, "annotations": {"a.example/b": "c"}},
        "ingress": {"enabled": True, "className": "nginx", "host": "ai.example", "tlsSecret": "c"},
        "autoscaling": {"enabled": True, "maxReplicas": 20},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "networkPolicy": {"fetch": False, "from": []},
        "serviceAccount": {"name": "ai", "annotations": {"a.example/b": "c"}},
        "podAnnotations": {"a.example/b": "c"},
        "podLabels": {"team": "ai"},
        "priorityClassName": "high",
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "ai", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "ai", "operator": "In", "values": ["yes"]}]}
                    ]
                }
            }
        },
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
        ],
        "extraArgs": ["--vllm-metrics"],
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "extraEnvFrom": [{"secretRef": {"name": "hub"}}],
        "extraVolumes": [{"name": "cas", "configMap": {"name": "cas"}}],
        "extraVolumeMounts": [{"name": "cas", "mountPath": "/etc/ssl/private"}],
    },
    "keda": {"autoscaling": {"enabled": True, "kind": "keda", "minReplicas": 1}},
}


def validated(tmp_path: Path, text: str) -> list[dict[str, Any]]:
    """Objects, all of which Kubernetes' schemas allow, with no field that these don't know."""
    file = tmp_path / "objects.yaml"
    file.write_text(text)
    versions = [word for version in VERSIONS for word in ("--kubernetes-version", version)]
    said = tool("kubernetes-validate", "--strict", *versions, file)
    objects = [each for each in yaml.safe_load_all(text) if each]
    lines = said.splitlines()
    assert len(lines) == len(objects) * len(VERSIONS)
    for line in lines:
        if line.startswith("WARN"):
            assert re.search(r"find schema for kind (\w+)", line)[1] in FOREIGN  # type: ignore[index]
    return objects


def rendered(tmp_path: Path, scenario: str, release: str = "ours") -> list[dict[str, Any]]:
    """What the chart makes of values."""
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(SCENARIOS[scenario]))
    tool("helm", "lint", "--strict", CHART, "--values", values)
    arguments = ("--namespace", "ai", "--values", values)
    return validated(tmp_path, tool("helm", "template", release, CHART, *arguments))


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == kind]


def check_coherent(objects: list[dict[str, Any]]) -> None:
    """Selectors find the pods, names are those of what is there, and pods are confined."""
    [stateful_set] = of_kind(objects, "StatefulSet")
    name, template = stateful_set["metadata"]["name"], stateful_set["spec"]["template"]
    labels, pod = template["metadata"]["labels"], template["spec"]
    selectors = [stateful_set["spec"]["selector"]["matchLabels"]]
    selectors += [each["spec"]["selector"] for each in of_kind(objects, "Service")]
    for each in of_kind(objects, "PodDisruptionBudget"):
        selectors.append(each["spec"]["selector"]["matchLabels"])
    for each in of_kind(objects, "NetworkPolicy"):
        selectors.append(each["spec"]["podSelector"]["matchLabels"])
    for selector in selectors:
        assert selector and selector.items() <= labels.items()
    for each in of_kind(objects, "Pod"):
        assert not selectors[0].items() <= each["metadata"]["labels"].items()
    services = {each["metadata"]["name"]: each for each in of_kind(objects, "Service")}
    assert stateful_set["spec"]["serviceName"] in services
    for monitor in of_kind(objects, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        [_] = [each for each in services.values() if wanted <= each["metadata"]["labels"].items()]
        assert labels[monitor["spec"]["jobLabel"]] == "caudal"
    scalers = of_kind(objects, "HorizontalPodAutoscaler") + of_kind(objects, "ScaledObject")
    assert bool(scalers) == ("replicas" not in stateful_set["spec"])
    assert {each["spec"]["scaleTargetRef"]["name"] for each in scalers} <= {name}
    configurations = {each["metadata"]["name"] for each in of_kind(objects, "ConfigMap")}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["configuration"]["configMap"]["name"] in configurations
    volumes |= {each["metadata"]["name"]: each for each in claims(stateful_set)}
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        assert {each["name"] for each in container["volumeMounts"]} <= volumes.keys()
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def claims(stateful_set: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stateful_set["spec"]["volumeClaimTemplates"]
    return found


def check_arguments(tmp_path: Path, objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Have Caudal check what the chart starts it with, and return the options."""
    [stateful_set] = of_kind(objects, "StatefulSet")
    [configuration] = of_kind(objects, "ConfigMap")
    (tmp_path / "caudal.toml").write_text(configuration["data"]["caudal.toml"])
    secrets = of_kind(objects, "Secret")
    (tmp_path / "keys.toml").write_text(secrets[0]["stringData"]["keys.toml"] if secrets else "")
    pod = stateful_set["spec"]["template"]["spec"]
    command, option, _, *options = pod["containers"][0]["args"]
    assert (command, option) == ("serve", "--config")
    here = [str(tmp_path / "keys.toml") if each.endswith("keys.toml") else each for each in options]
    checked = CliRunner().invoke(app, ["config", "check", str(tmp_path / "caudal.toml"), *here])
    assert checked.exit_code == 0, checked.output
    given = dict(zip(here[::2], here[1::2], strict=False))
    grace = pod["terminationGracePeriodSeconds"]
    assert grace >= float(given["--drain-notice"]) + float(given["--drain-timeout"]) + 10
    return given


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_chart_makes_valid_objects_that_fit_together(tmp_path: Path, scenario: str):
    objects = rendered(tmp_path, scenario)
    check_coherent(objects)
    given = check_arguments(tmp_path, objects)
    assert ("--api-keys" in given) == (scenario != "for-itself")


@pytest.mark.parametrize("release", ["caudal", "x" * 53])
def test_releases_may_have_any_name(tmp_path: Path, release: str):
    objects = rendered(tmp_path, "for-many", release)
    check_coherent(objects)
    assert all(len(each["metadata"]["name"]) <= 63 for each in objects)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"replica": 3}, "additional properties 'replica' not allowed"),
        ({"drain": {"timeout": "2m"}}, "at '/drain/timeout': got string, want number"),
        ({"keys": {"existingSecret": ""}}, "keys.existingSecret or keys.file is needed"),
        ({"ingress": {"enabled": True}}, "ingress.host is needed"),
    ],
)
def test_the_chart_refuses_values_that_it_would_not_follow(
    tmp_path: Path, values: dict[str, Any], reason: str
):
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    with pytest.raises(AssertionError, match=re.escape(reason)):
        tool("helm", "template", "ours", CHART, "--values", file)


@pytest.mark.parametrize("folder", ["base", "autoscaling", "monitoring"])
def test_manifests_are_valid_and_fit_together(tmp_path: Path, folder: str):
    objects = validated(tmp_path, tool("kubectl", "kustomize", KUBERNETES / folder))
    assert {each["metadata"].get("namespace", "caudal") for each in objects} == {"caudal"}
    if folder != "monitoring":
        check_coherent(objects)


def test_manifests_that_stand_alone_are_valid(tmp_path: Path):
    for name in ("base/secret.example.yaml", "autoscaling/keda.yaml"):
        validated(tmp_path, (KUBERNETES / name).read_text())


def test_the_chart_and_the_manifests_run_the_same(tmp_path: Path):
    """What one does about pods, so does the other."""
    base = validated(tmp_path, tool("kubectl", "kustomize", KUBERNETES / "base"))
    chart = rendered(tmp_path, "defaults", "caudal")
    [mine], [its] = of_kind(base, "StatefulSet"), of_kind(chart, "StatefulSet")
    for each in (mine, its):
        pod = each["spec"]["template"]["spec"]
        for container in (*pod["containers"], *pod["initContainers"]):
            container.pop("imagePullPolicy", None)
        for volume in pod["volumes"]:
            volume.get("configMap", {}).pop("name", None)
        del pod["containers"][0]["args"], each["spec"]["template"]["metadata"], each["metadata"]
        for claim in claims(each):
            del claim["metadata"]["labels"]
    assert mine == its
    for kind in ("NetworkPolicy", "PodDisruptionBudget", "Service"):
        assert [each["spec"] for each in of_kind(base, kind)] == [
            each["spec"] for each in of_kind(chart, kind)
        ]


def test_hadolint_has_nothing_to_say_of_the_dockerfile():
    assert tool("hadolint", "--no-color", DOCKER / "Dockerfile") == ""


def test_compose_reads_its_file():
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (DOCKER / "compose.yaml").read_text())
    document = {
        key: value for key, value in yaml.safe_load(text).items() if not key.startswith("x-")
    }
    program = (
        "import compose_spec as c, sys; print(c.PyCompose.from_json(sys.stdin.read()).to_json())"
    )
    read = json.loads(tool("python", "-c", program, text=json.dumps(document)))
    for name, service in document["services"].items():
        assert service.keys() == read["services"][name].keys()


def test_promtool_has_nothing_to_say_of_prometheus_configuration(tmp_path: Path):
    text = (DOCKER / "prometheus/prometheus.yml").read_text()
    (tmp_path / "metrics.key").write_text("sesame")
    text = text.replace("/run/secrets/metrics_key", str(tmp_path / "metrics.key"))
    text = text.replace("/etc/prometheus/rules.yml", str(DEPLOY / "prometheus/rules.yml"))
    file = tmp_path / "prometheus.yml"
    file.write_text(text)
    checked = promtool("check", "config", str(file))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_what_autoscalers_ask_prometheus_is_promql(tmp_path: Path):
    autoscaling = KUBERNETES / "autoscaling"
    [rule] = yaml.safe_load((autoscaling / "adapter-values.yaml").read_text())["rules"]["custom"]
    filled = {
        "<<.GroupBy>>": "pod",
        "<<.Series>>": "caudal_requests_waiting",
        "<<.LabelMatchers>>": 'namespace="caudal",pod=~"caudal-0|caudal-1"',
    }
    adapters = rule["metricsQuery"]
    for field, value in filled.items():
        assert field in adapters
        adapters = adapters.replace(field, value)
    scaled = [yaml.safe_load((autoscaling / "keda.yaml").read_text())]
    scaled += of_kind(rendered(tmp_path, "keda"), "ScaledObject")
    queries = [each["spec"]["triggers"][0]["metadata"]["query"] for each in scaled]
    assert len(queries) == 2
    rules = [
        {"record": f"asked:{number}", "expr": query}
        for number, query in enumerate([adapters, rule["seriesQuery"], *queries])
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": rules}]}))
    checked = promtool("check", "rules", str(file))
    assert checked.returncode == 0, checked.stdout + checked.stderr
