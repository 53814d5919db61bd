"""Condenses the definitions of KubeRay and of the Prometheus operator into `schema.json`:
`python -m tests.deploy.kuberay.schema --definitions FOLDER`.

They publish the schemas of their resources as CustomResourceDefinitions of 2.5 MB. These allow unknown keys, which
Kubernetes then drops without a word. `schema.json` keeps the keys that the manifests and `squelch dashboards export`
use, with the definitions' types, and is closed: a misspelt key is an error. Templates of pods stay open here, because
`validation` holds them against Kubernetes' own schemas. The folder, or folders in it, hold the files of the releases in
`RELEASES`, from `helm-chart/kuberay-operator/crds` of KubeRay's repository and `example/prometheus-operator-crd` of
the Prometheus operator's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from squelch.cluster.grafana import kubernetes
from squelch.deploy.dashboards import ROOT

RELEASES = "KubeRay v1.7 and the Prometheus operator v0.93.0"
SCHEMA = Path(__file__).with_name("schema.json")
MANIFESTS = ROOT / "deploy/kubernetes"
FILES = {
    "RayCluster": "ray.io_rayclusters.yaml",
    "RayJob": "ray.io_rayjobs.yaml",
    "PodMonitor": "monitoring.coreos.com_podmonitors.yaml",
    "PrometheusRule": "monitoring.coreos.com_prometheusrules.yaml",
}
TEMPLATES = ("template", "submitterPodTemplate")
CONSTRAINTS = ("type", "enum", "pattern", "minimum", "minLength", "maxLength", "minItems")
METADATA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 47},
        "namespace": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
"""The definitions leave `metadata` to Kubernetes. The length is the limit of a RayJob's name."""


def condensed(definitions: Path) -> str:
    """The text of `schema.json`. ValueError if a manifest has a key that its definition lacks."""
    documents = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(MANIFESTS.rglob("ray*.yaml"))]
    documents += kubernetes.objects("", {})
    used = {kind: [document for document in documents if document["kind"] == kind] for kind in FILES}
    found = {kind: next(definitions.rglob(name)) for kind, name in FILES.items()}
    kinds = {kind: _root(_definition(path), used[kind]) for kind, path in found.items()}
    origin = f"Made from {RELEASES} by tests/deploy/kuberay/schema.py."
    return json.dumps({"$comment": origin, "$defs": kinds}, indent=2) + "\n"


def _definition(path: Path) -> dict[str, Any]:
    """The schema of version v1 in a CustomResourceDefinition."""
    resource = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return next(v for v in resource["spec"]["versions"] if v["name"] == "v1")["schema"]["openAPIV3Schema"]


def _root(definition: dict[str, Any], used: list[Mapping[str, Any]]) -> dict[str, Any]:
    version, kind = used[0]["apiVersion"], used[0]["kind"]
    spec = closed(definition["properties"]["spec"], [manifest["spec"] for manifest in used], f"{kind}.spec")
    fixed = {"apiVersion": {"const": version}, "kind": {"const": kind}}
    properties = {**fixed, "metadata": METADATA, "spec": spec}
    return {"type": "object", "additionalProperties": False, "required": list(properties), "properties": properties}


def closed(node: dict[str, Any], used: list[Any], path: str) -> dict[str, Any]:
    """The part of a definition that the values `used` need, without room for other keys.

    Raises:
        ValueError: a value has a key that the definition lacks; the text names its path.
    """
    if path.rsplit(".", 1)[-1] in TEMPLATES:
        return {"type": "object"}
    if "properties" in node:
        return _closed_object(node, used, path)
    if isinstance(inner := node.get("additionalProperties"), dict):
        values = [value for mapping in used for value in mapping.values()]
        return {"type": "object", "additionalProperties": closed(inner, values, f"{path}.*")}
    if "items" in node:
        return {"type": "array", "items": closed(node["items"], [value for values in used for value in values], path)}
    if node.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]} | {key: node[key] for key in ("pattern",) if key in node}
    return {key: node[key] for key in CONSTRAINTS if key in node}


def _closed_object(node: dict[str, Any], used: list[dict[str, Any]], path: str) -> dict[str, Any]:
    names = sorted({name for value in used for name in value})
    if unknown := [name for name in names if name not in node["properties"]]:
        raise ValueError(f"{path}: its definition has no {', '.join(unknown)}")
    properties = {
        name: closed(node["properties"][name], [value[name] for value in used if name in value], f"{path}.{name}")
        for name in names
    }
    required = {"required": node["required"]} if node.get("required") else {}
    return {"type": "object", "additionalProperties": False, **required, "properties": properties}


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes `schema.json`; returns 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.deploy.kuberay.schema", description="Writes schema.json.")
    parser.add_argument("--definitions", type=Path, required=True, help="folder with the definitions")
    SCHEMA.write_text(condensed(parser.parse_args(arguments).definitions), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
