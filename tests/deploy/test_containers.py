"""The container file passes hadolint, the compose file its schema, and both keep to what the docs promise."""

import copy
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from jsonschema import validators

from squelch.deploy.dashboards import ROOT
from tests.deploy.kuberay.schema import MANIFESTS
from tests.prometheus import need_prometheus

SCRIPTS = Path(sysconfig.get_path("scripts"))
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
COMPOSE = ROOT / "deploy" / "compose"
SERVICES = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
Tree = dict[str, Any]


def hadolint(text: str) -> str:
    """What hadolint finds in a container file; empty if nothing."""
    done = subprocess.run(
        [SCRIPTS / "hadolint", "--no-color", "-"], input=text, capture_output=True, text=True, timeout=180
    )
    assert (done.returncode == 0) == (done.stdout == ""), done.stderr
    return done.stdout


def compose_errors(tree: Tree) -> str:
    """What the schema of compose files finds, which comes with check-jsonschema; empty if nothing."""
    schema = get_builtin_schema("vendor.compose-spec")
    found = validators.validator_for(schema)(schema).iter_errors(tree)
    return "\n".join(f"{error.json_path}: {error.message}" for error in found)


def undeclared(tree: Tree) -> set[str]:
    """Secrets and named volumes that a service uses and the file does not declare."""
    used = {secret for service in tree["services"].values() for secret in service.get("secrets", [])}
    mounts = [mount.split(":")[0] for service in tree["services"].values() for mount in service.get("volumes", [])]
    used |= {mount for mount in mounts if not mount.startswith((".", "/"))}
    return used - {*tree.get("secrets", {}), *tree.get("volumes", {})}


def test_hadolint_finds_nothing_in_the_container_file() -> None:
    assert hadolint(DOCKERFILE.read_text()) == ""


@pytest.mark.parametrize(
    ("line", "instead", "rule"),
    [
        ("USER 1000:1000", "USER root", "DL3002"),
        ("@${PYTHON_DIGEST} AS base", " AS base", ""),
        ("    && rm -rf /var/lib/apt/lists/*\n", "    && true\n", "DL3009"),
        ("--no-install-recommends ", "", "DL3015"),
        ("WORKDIR /src", "WORKDIR src", "DL3000"),
    ],
)
def test_a_container_file_with_one_mistake_is_refused(line: str, instead: str, rule: str) -> None:
    text = DOCKERFILE.read_text()
    assert line in text
    mutated = text.replace(line, instead)
    found = hadolint(mutated)
    assert rule in found if rule else unpinned(mutated)


def unpinned(text: str) -> list[str]:
    """The base images from outside that no digest pins."""
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE))
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    return [base for base in bases if base not in stages and not base.endswith("@${PYTHON_DIGEST}")]


def test_every_base_image_is_pinned_by_a_digest_that_has_no_default() -> None:
    text = DOCKERFILE.read_text()
    assert unpinned(text) == []
    assert re.search(r"^ARG PYTHON_DIGEST$", text, re.MULTILINE)


def test_images_locks_and_documents_name_the_python_that_the_project_runs_on() -> None:
    text = DOCKERFILE.read_text()
    python = re.search(r"^ARG PYTHON_TAG=(3\.\d+)-", text, re.MULTILINE)
    assert python and f"Python {python[1]} " in (ROOT / "deploy" / "lock-cpu.txt").read_text()
    promised = re.search(r"with Python 3\.(\d+) to 3\.(\d+), make and git", (ROOT / "README.md").read_text())
    required = re.search(
        r'^requires-python = ">=3\.(\d+),<3\.(\d+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert promised and required and (int(promised[1]), int(promised[2]) + 1) == (int(required[1]), int(required[2]))
    assert int(promised[1]) <= int(python[1].removeprefix("3.")) <= int(promised[2])
    named = re.findall(r"python:(\S+-bookworm)", text + (ROOT / "docs" / "guide" / "containers.md").read_text())
    assert len(named) >= 2 and set(named) == set(re.findall(r"^ARG PYTHON_TAG=(\S+)$", text, re.MULTILINE))


def test_both_images_end_in_a_stage_without_root() -> None:
    text = DOCKERFILE.read_text()
    assert re.findall(r"^FROM runtime AS (\w+)$", text, re.MULTILINE) == ["cpu", "gpu"]
    runtime = text[text.index("FROM base AS runtime") :]
    assert re.findall(r"^USER (.+)$", runtime, re.MULTILINE) == ["1000:1000"]


def test_the_image_is_built_from_what_the_wheel_is_built_from() -> None:
    ignored = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
    assert {"*", "!squelch", "!deploy", "!pyproject.toml", "!README.md"} <= set(ignored)
    copied = [
        words.split()[:-1] for words in re.findall(r"^COPY ((?!--from)[^.].*)$", DOCKERFILE.read_text(), re.MULTILINE)
    ]
    assert copied and all(any(ROOT.glob(name)) for names in copied for name in names), copied


@pytest.mark.parametrize("name", ["compose.yaml", "gpu.yaml"])
def test_the_compose_files_match_the_schema_of_compose(name: str) -> None:
    assert compose_errors(yaml.safe_load((COMPOSE / name).read_text())) == ""


def test_a_compose_file_with_one_mistake_is_refused() -> None:
    unknown, wrong, missing = (copy.deepcopy(SERVICES) for _ in range(3))
    unknown["services"]["head"]["imagee"] = "squelch:cpu"
    assert "imagee" in compose_errors(unknown)
    wrong["services"]["head"]["init"] = ["yes"]
    assert "init" in compose_errors(wrong)
    del missing["secrets"]["ray_token"]
    assert undeclared(missing) == {"ray_token"} and undeclared(SERVICES) == set()


def test_a_compose_cluster_opens_ports_on_loopback_only_and_drops_every_capability() -> None:
    services = SERVICES["services"].values()
    ports = [port for service in services for port in service.get("ports", [])]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)
    assert all(service["cap_drop"] == ["ALL"] for service in services)
    assert all("no-new-privileges:true" in service["security_opt"] for service in services)


def test_the_secrets_of_a_compose_cluster_come_from_the_environment_and_stand_in_no_file() -> None:
    assert SERVICES["secrets"] == {
        "ray_token": {"environment": "RAY_AUTH_TOKEN"},
        "grafana_password": {"environment": "GRAFANA_PASSWORD"},
    }
    ray = [SERVICES["services"][name]["environment"] for name in ("head", "worker")]
    assert all(env["RAY_AUTH_MODE"] == "token" and env["RAY_AUTH_TOKEN_PATH"] for env in ray)


def test_a_compose_cluster_notices_a_dead_node_as_soon_as_one_on_kubernetes() -> None:
    head = yaml.safe_load((MANIFESTS / "cpu/cluster/raycluster.yaml").read_text())["spec"]["headGroupSpec"]
    (container,) = head["template"]["spec"]["containers"]
    checks = {one["name"]: one["value"] for one in container["env"] if one["name"].startswith("RAY_health_check_")}
    assert len(checks) == 3 and SERVICES["services"]["head"]["environment"].items() >= checks.items()


def test_every_file_that_compose_mounts_exists() -> None:
    mounts = [mount.split(":")[0] for service in SERVICES["services"].values() for mount in service.get("volumes", [])]
    files = [mount for mount in mounts if mount.startswith(".")]
    assert len(files) == 6 and all((COMPOSE / file).exists() for file in files)


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    provisioning = COMPOSE / "provisioning"
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"][0]
    assert source["url"] == "http://head:9090" and SERVICES["services"]["prometheus"]["network_mode"] == "service:head"
    provider = yaml.safe_load((provisioning / "dashboards" / "squelch.yml").read_text())["providers"][0]
    mounts = dict(mount.split(":")[:2][::-1] for mount in SERVICES["services"]["grafana"]["volumes"])
    assert list((COMPOSE / mounts[provider["options"]["path"]]).glob("*.json"))


def test_promtool_accepts_the_scrape_configuration_of_compose(tmp_path: Path) -> None:
    for file in (COMPOSE / "prometheus.yml", ROOT / "squelch" / "deploy" / "alerts.yml"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    words = [need_prometheus("promtool"), "check", "config", tmp_path / "prometheus.yml"]
    check = subprocess.run(words, capture_output=True, text=True, timeout=180)
    assert check.returncode == 0, check.stdout + check.stderr
    jobs = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["scrape_configs"]
    assert [job["job_name"] for job in jobs] == ["squelch", "ray"]
