"""The manifests are valid and fit the code; what a slip of the pen would make of them is not."""

import copy
import importlib.util
import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from squelch.cluster.config import RunConfig, load
from squelch.cluster.fleet import jobs
from squelch.cluster.grafana import kubernetes
from squelch.deploy.dashboards import ROOT
from squelch.kit.metrics import exporter
from tests.deploy.kuberay import schema, validation

DEFINITIONS = "SQUELCH_KUBERAY_DEFINITIONS"
FOLDER = schema.MANIFESTS
FILES = sorted(FOLDER.rglob("*.yaml"))
JOB = yaml.safe_load((FOLDER / "cpu" / "job" / "rayjob.yaml").read_text())
CLUSTER = ("spec", "rayClusterSpec")
HEAD = (*CLUSTER, "headGroupSpec", "template", "spec")
WORKER = (*CLUSTER, "workerGroupSpecs", 0)
HARDWARE = ("cpu", "gpu")
REMOVED = object()


def at(node: Any, path: tuple[str | int, ...]) -> Any:
    """The value at a path of keys and indices."""
    for part in path:
        node = node[part]
    return node


def errors(document: dict[str, Any]) -> list[str]:
    return list(validation.errors(document, ROOT))


def changed(path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    """The RayJob with one value replaced, added or REMOVED."""
    job = copy.deepcopy(JOB)
    node = at(job, path[:-1])
    if value is REMOVED:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return job


def read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


def cluster_of(path: Path) -> dict[str, Any]:
    """The cluster of a RayCluster or a RayJob."""
    spec = read(path)["spec"]
    return spec.get("rayClusterSpec", spec)


@pytest.mark.parametrize("name", HARDWARE)
def test_a_cluster_that_stays_and_the_one_of_a_job_are_alike(name: str) -> None:
    assert cluster_of(FOLDER / name / "cluster/raycluster.yaml") == cluster_of(FOLDER / name / "job/rayjob.yaml")


def test_every_group_of_pods_is_alike_but_for_its_size_and_its_rights() -> None:
    """A change at one of the six places of a pod's security, probes or settings is made at all of them."""
    shared = list[Any]()
    for name in HARDWARE:
        for group in cluster_of(FOLDER / name / "job/rayjob.yaml")["workerGroupSpecs"]:
            pod = copy.deepcopy(group["template"]["spec"])
            (container,) = pod["containers"]
            assert container["image"] == f"squelch:{name}" and container["resources"].pop("requests")
            gpu = container.pop("resources")["limits"].get("nvidia.com/gpu")
            assert (gpu, bool(pod.pop("tolerations", None))) == (("1", True) if name == "gpu" else (None, False))
            del container["image"]
            shared.append(pod)
    head = at(JOB, (*HEAD,))
    assert all(pod == shared[0] for pod in shared) and shared[0]["securityContext"] == head["securityContext"]
    for key in ("securityContext", "startupProbe", "readinessProbe", "livenessProbe"):
        assert head["containers"][0][key] == shared[0]["containers"][0][key]


@pytest.mark.parametrize("path", [path for path in FILES if path.name.startswith("ray")], ids=lambda path: path.name)
def test_every_container_requests_what_it_may_use(path: Path) -> None:
    cluster = cluster_of(path)
    groups = (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    containers = [one for group in groups for one in group["template"]["spec"]["containers"]]
    for resources in (*(one["resources"] for one in containers), cluster["autoscalerOptions"]["resources"]):
        assert resources["requests"] == resources["limits"], "Ray offers a container's limits to its scheduler"


def test_a_stopped_job_has_the_time_to_write_a_checkpoint_that_a_submitted_one_has() -> None:
    for path in FILES:
        if read(path)["kind"] in ("RayJob", "RayCluster"):
            environment = cluster_of(path)["headGroupSpec"]["template"]["spec"]["containers"][0]["env"]
            assert {"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": str(jobs.STOP_S)} in environment, path


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "No such file"), ("a: [", "expected"), ("hello", "a document is str"), (b"\xff", "utf-8")],
)
def test_a_file_that_is_no_manifest_is_named_without_a_trace(tmp_path: Path, capsys, content, says: str) -> None:
    file = tmp_path / "one.yaml"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert validation.main([str(file)]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith(f"{file}: ") and says in printed


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_file_for_kubernetes_is_valid(path: Path) -> None:
    assert validation.problems(path) == []


def test_the_command_prints_every_error_and_exits_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = changed(("spec", "entripoint"), "true")
    job["spec"]["backoffLimit"] = "3"
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    assert validation.main([str(FILES[0])]) == 0
    assert validation.main([str(tmp_path / "job.yaml")]) == 1
    printed = capsys.readouterr().out
    assert "job.yaml: RayJob: spec" in printed and "entripoint" in printed and "spec.backoffLimit" in printed


def test_every_module_that_a_file_of_deploy_names_exists() -> None:
    texts = [path.read_text() for path in (ROOT / "deploy").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    named = {name for text in texts for name in re.findall(r"python -m ((?:squelch|tests|docs)[\w.]*)", text)}
    assert "tests.deploy.kuberay.validation" in named
    assert [name for name in named if importlib.util.find_spec(name) is None] == []


OBJECTS = kubernetes.objects("https://example.com/docs", {"release": "monitoring"})


@pytest.mark.parametrize("each", OBJECTS, ids=lambda each: f"{each['kind']} {each['metadata']['name']}")
def test_every_object_for_the_prometheus_operator_and_the_sidecar_is_valid(each: dict[str, Any]) -> None:
    assert errors(each) == [] and each["metadata"]["labels"]["release"] == "monitoring"


def test_a_mistake_in_an_object_of_the_prometheus_operator_is_refused() -> None:
    monitor, rules = copy.deepcopy(OBJECTS[:2])
    monitor["spec"]["podMetricsEndpoints"][0]["intervall"] = "5s"
    rules["spec"]["groups"][0]["rules"][0]["for"] = "2 minutes"
    assert any("intervall" in error for error in errors(monitor))
    assert any("2 minutes" in error for error in errors(rules))


def test_the_operator_scrapes_what_the_pods_open_with_the_token_that_they_have() -> None:
    own, rays = OBJECTS[0]["spec"]["podMetricsEndpoints"]
    policy = read(FOLDER / "base" / "network-policy.yaml")["spec"]
    service = read(FOLDER / "base" / "run-metrics.yaml")["spec"]
    assert OBJECTS[0]["spec"]["selector"] == policy["podSelector"]
    for path in (path for path in FILES if path.name.startswith("ray")):
        cluster = cluster_of(path)
        groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
        opened = [group["template"]["spec"]["containers"][0]["ports"] for group in groups]
        assert all({"name": rays["port"], "containerPort": 8080} in ports for ports in opened)
        mine = {"name": own["port"], "containerPort": exporter.PORTS[0]}
        assert [mine in ports for ports in opened] == [True, False, False]
        environment = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["env"]
        secret = {"secretKeyRef": own["authorization"]["credentials"]}
        assert {"name": exporter.TOKEN, "valueFrom": secret} in environment
    assert service["ports"] == [{"name": own["port"], "port": exporter.PORTS[0]}]
    (from_prometheus,) = (rule for rule in policy["ingress"] if "prometheus" in str(rule["from"]))
    assert [port["port"] for port in from_prometheus["ports"]] == [8080, exporter.PORTS[0]]


@pytest.mark.parametrize("name", HARDWARE)
def test_the_run_of_the_job_lets_prometheus_read_its_metrics(name: str) -> None:
    recorder = configuration(name).recorder
    assert (recorder.host, recorder.port) == ("0.0.0.0", None)


SETTINGS = at(JOB, (*HEAD, "containers", 0, "env"))
UNKNOWN_KEYS = {
    "of a RayJob": (("spec", "backoffLimits"), 3, "backoffLimits"),
    "of a cluster": ((*CLUSTER, "authOption"), {}, "authOption"),
    "of a group": ((*WORKER, "maxReplica"), 8, "maxReplica"),
    "of the metadata": (("metadata", "labelz"), {}, "labelz"),
    "of a pod": ((*HEAD, "restartPolice"), "Never", "restartPolice"),
    "of a container": ((*HEAD, "containers", 0, "comand"), ["ray"], "comand"),
    "of a probe": ((*HEAD, "containers", 0, "livenessProbe", "period"), 5, "period"),
}
WRONG_TYPES = {
    "a number as text": ((*WORKER, "maxReplicas"), "8", "maxReplicas"),
    "a parameter of Ray as a number": ((*CLUSTER, "headGroupSpec", "rayStartParams", "num-cpus"), 1, "num-cpus"),
    "a variable as a number": ((*HEAD, "containers", 0, "env", 0, "value"), 0, "env.0.value"),
    "a probe's period as text": ((*HEAD, "containers", 0, "livenessProbe", "periodSeconds"), "5", "periodSeconds"),
    "a quantity out of words": ((*HEAD, "containers", 0, "resources", "limits", "memory"), ["8Gi"], "memory"),
    "an unknown mode": ((*CLUSTER, "autoscalerOptions", "version"), "v3", "version"),
    "another kind": (("kind",), "RayJobs", "RayJobs"),
}
MISSING = {
    "the token's secret": ((*CLUSTER, "authOptions", "secretName"), REMOVED, "must come from a secret"),
    "the name of the token's secret": ((*CLUSTER, "authOptions", "secretName"), "", "must name a secret"),
    "authentication": ((*CLUSTER, "authOptions"), REMOVED, "must come from a secret"),
    "authentication, switched off": ((*CLUSTER, "authOptions", "mode"), "disabled", "can run code"),
    "the autoscaler": ((*CLUSTER, "autoscalerOptions"), REMOVED, "autoscaler"),
    "a group for learners": ((*CLUSTER, "workerGroupSpecs"), [at(JOB, WORKER)], "groups of their own"),
    "a group's label": ((*WORKER, "labels"), {}, "squelch/role"),
    "the pod's security": ((*HEAD, "securityContext"), REMOVED, "securityContext"),
    "the container's security": ((*HEAD, "containers", 0, "securityContext"), REMOVED, "securityContext"),
    "a request": ((*HEAD, "containers", 0, "resources", "requests"), REMOVED, "requests and limits"),
    "a probe": ((*HEAD, "containers", 0, "startupProbe"), REMOVED, "startupProbe"),
    "a health check": ((*HEAD, "containers", 0, "env"), [], "noticed late"),
    "a job's time to stop": (
        (*HEAD, "containers", 0, "env"),
        [one for one in SETTINGS if "health" in one["name"]],
        "loses the steps since its checkpoint",
    ),
    "the container's name": ((*HEAD, "containers", 0, "name"), REMOVED, "name"),
    "the entrypoint's cluster": (CLUSTER, REMOVED, "makes its own cluster"),
}
UNSAFE = {
    "root": ((*HEAD, "securityContext", "runAsNonRoot"), False, "root"),
    "no seccomp": ((*HEAD, "securityContext", "seccompProfile", "type"), "Unconfined", "Unconfined"),
    "escalation": ((*HEAD, "containers", 0, "securityContext", "allowPrivilegeEscalation"), True, "gain privileges"),
    "capabilities": ((*HEAD, "containers", 0, "securityContext", "capabilities", "drop"), [], "dropped"),
    "the host's network": ((*HEAD, "hostNetwork"), True, "host's network"),
    "the host's files": ((*HEAD, "volumes"), [{"name": "a", "hostPath": {"path": "/"}}], "never the host's"),
    "a token in plain text": (
        (*HEAD, "containers", 0, "env"),
        [*SETTINGS, {"name": "RAY_AUTH_TOKEN", "value": "abc"}],
        "must come from a secret",
    ),
    "credentials for workers": (
        (*WORKER, "template", "spec", "automountServiceAccountToken"),
        True,
        "automountServiceAccountToken",
    ),
    "an image of any version": ((*HEAD, "containers", 0, "image"), "squelch:latest", "tag or a digest"),
}
MUTATIONS = {
    f"{title} {name}": case
    for title, cases in (
        ("unknown key", UNKNOWN_KEYS),
        ("wrong type:", WRONG_TYPES),
        ("missing:", MISSING),
        ("unsafe:", UNSAFE),
    )
    for name, case in cases.items()
}


@pytest.mark.parametrize(("path", "value", "said"), MUTATIONS.values(), ids=MUTATIONS)
def test_a_manifest_with_one_mistake_is_refused_by_name(path: tuple[str | int, ...], value: object, said: str) -> None:
    found = errors(changed(path, value))
    assert found and any(said in error for error in found), found


def test_a_manifest_may_name_its_namespace_as_kustomize_writes_it() -> None:
    assert errors(changed(("metadata", "namespace"), "squelch")) == []


def test_a_mistake_in_a_core_resource_is_refused() -> None:
    policy = yaml.safe_load((FOLDER / "base" / "network-policy.yaml").read_text())
    policy["spec"]["ingres"] = policy["spec"].pop("ingress")
    assert any("ingres" in error for error in errors(policy))
    assert any("Namespaze" in error for error in errors({"apiVersion": "v1", "kind": "Namespaze"}))


def test_a_kustomization_that_names_a_missing_file_is_refused(tmp_path: Path) -> None:
    lines = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    wrong = {**lines, "resources": ["rayjob.yaml"], "resorces": []}
    found = list(validation.errors(wrong, tmp_path))
    assert any("rayjob.yaml does not exist" in error for error in found)
    assert any("resorces: unknown key" in error for error in found)


def test_the_pods_use_only_claims_and_secrets_that_are_made_somewhere() -> None:
    claim = read(FOLDER / "base" / "storage.yaml")["metadata"]["name"]
    assert at(JOB, (*HEAD, "volumes")) == [{"name": "runs", "persistentVolumeClaim": {"claimName": claim}}]
    page, secret = (ROOT / "docs/guide/containers.md").read_text(), at(JOB, (*CLUSTER, "authOptions", "secretName"))
    assert f"create secret generic {secret} --from-literal=auth_token=" in page
    name, key = kubernetes.TOKEN["name"], kubernetes.TOKEN["key"]
    assert f"create secret generic {name} --from-literal={key}=" in page


def test_the_versions_and_ports_are_those_of_the_code() -> None:
    assert f'"ray[default]=={at(JOB, (*CLUSTER, "rayVersion"))}"' in (ROOT / "pyproject.toml").read_text()
    policy = read(FOLDER / "base" / "network-policy.yaml")
    ports = {port["port"] for rule in policy["spec"]["ingress"] for port in rule.get("ports", [])}
    opened = {one["name"]: one["containerPort"] for one in at(JOB, (*HEAD, "containers", 0, "ports"))}
    assert ports == {opened["dashboard"], opened["metrics"], opened["run-metrics"]}
    assert f"--uid {at(JOB, (*HEAD, 'securityContext', 'runAsUser'))} " in (ROOT / "deploy/Dockerfile").read_text()


def entrypoint(name: str) -> str:
    return read(FOLDER / name / "job/rayjob.yaml")["spec"]["entrypoint"]


def configuration(name: str) -> RunConfig:
    """The configuration that the RayJob's entrypoint asks for."""
    _, _, recipe, *words = shlex.split(re.sub(r"\$\(.*\)", "", entrypoint(name)))
    return load(recipe, [word for word in words if "=" in word])


@pytest.mark.parametrize("name", HARDWARE)
def test_the_largest_groups_have_room_for_the_run_of_the_job(name: str) -> None:
    config, room = configuration(name), dict[str, tuple[int, int]]()
    for group in cluster_of(FOLDER / name / "job/rayjob.yaml")["workerGroupSpecs"]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        each = int(limits["cpu"]), int(limits.get("nvidia.com/gpu", 0))
        room[group["groupName"]] = group["maxReplicas"] * each[0], group["maxReplicas"] * each[1]
    playing = config.rollout.count * config.rollout.num_cpus
    playing += config.environment_actor.count * config.environment_actor.num_cpus
    assert playing <= room["rollouts"][0] and config.rollout.count * config.rollout.num_gpus <= room["rollouts"][1]
    ranks = config.learner.ranks
    assert ranks * config.learner.num_cpus <= room["learners"][0]
    assert ranks * config.learner.num_gpus <= room["learners"][1]
    (mount,) = at(JOB, (*HEAD, "containers", 0, "volumeMounts"))
    assert config.run_dir == Path(mount["mountPath"]) / config.name


@pytest.mark.parametrize("name", HARDWARE)
def test_each_actor_of_the_run_is_kept_to_its_group_of_pods(name: str) -> None:
    config, groups = configuration(name), cluster_of(FOLDER / name / "job/rayjob.yaml")["workerGroupSpecs"]
    labels = {group["groupName"]: group["labels"] for group in groups}
    assert config.rollout.label_selector == config.environment_actor.label_selector == labels["rollouts"]
    assert config.learner.label_selector == labels["learners"]


def test_the_entrypoint_resumes_a_run_that_has_started(tmp_path: Path) -> None:
    command = entrypoint("cpu")
    resume = command[command.index("$(") :].replace("/runs", str(tmp_path))
    assert os.popen(f"echo {resume}").read().strip() == ""
    (tmp_path / "frozenlake").mkdir()
    (tmp_path / "frozenlake" / "config.yaml").touch()
    assert os.popen(f"echo {resume}").read().strip() == "--resume"


def closed_everywhere(node: object) -> bool:
    """Whether every object of a schema that lists keys refuses others."""
    if isinstance(node, list):
        return all(closed_everywhere(value) for value in node)
    if not isinstance(node, dict):
        return True
    open_object = "properties" in node and node.get("additionalProperties") is not False
    return not open_object and all(closed_everywhere(value) for value in node.values())


def test_the_schema_is_closed_and_small() -> None:
    text = schema.SCHEMA.read_text()
    assert closed_everywhere(json.loads(text)["$defs"]) and len(text) < 30_000


def test_the_schema_is_what_the_operators_definitions_give() -> None:
    folder = os.environ.get(DEFINITIONS)
    if not folder:
        pytest.skip(f"{DEFINITIONS} names no folder with the operators' definitions (tests/deploy/kuberay/schema.py)")
    assert schema.SCHEMA.read_text() == schema.condensed(Path(folder)), "run: python -m tests.deploy.kuberay.schema"


def test_a_key_that_a_definition_lacks_cannot_enter_the_schema() -> None:
    node = {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "type": "object", "required": ["a"]}
    assert schema.closed(node, [{"a": "x"}], "spec") == {
        "type": "object",
        "additionalProperties": False,
        "required": ["a"],
        "properties": {"a": {"type": "string"}},
    }
    with pytest.raises(ValueError, match="spec: its definition has no c"):
        schema.closed(node, [{"a": "x", "c": 1}], "spec")
