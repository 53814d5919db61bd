"""The errors of a manifest: `python -m tests.deploy.kuberay.validation FILE [FILE ...]`; no network, no cluster.

    resource               held against
    RayCluster, RayJob     `schema.json` (KubeRay's types, closed) and `policy.yaml` (what Squelch demands beyond them)
    their pod templates    Kubernetes' schema of a PodTemplate, closed
    PodMonitor,            `schema.json` (the Prometheus operator's types, closed)
      PrometheusRule
    a kustomization        its own keys, and the files that it names
    every other resource   Kubernetes' schema, closed

Rules that the definitions state as expressions (CEL) or the operators check themselves are not evaluated here.
Needs the packages of the extra `test`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

from tests.deploy.kuberay.schema import SCHEMA, TEMPLATES

KUBERNETES = "1.34.0"
STRICT = f"kubernetes-json-schema/v{KUBERNETES}-local-strict"
"""Folder of the package `kubernetes-validate` with the schemas in which unknown keys are errors."""
POLICY = Path(__file__).with_name("policy.yaml")
KUSTOMIZATION = "Kustomization"
KUSTOMIZATION_KEYS = {"apiVersion", "kind", "namespace", "resources", "images", "patches", "labels"}


def problems(path: Path) -> list[str]:
    """`FILE: KIND: path: message` of every error in a file of YAML documents; `FILE: message` if it is none."""
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        return [f"{path}: {' '.join(str(error).split())}"]
    found = []
    for document in documents:
        if isinstance(document, dict):
            found += [f"{path}: {document.get('kind')}: {error}" for error in errors(document, path.parent)]
        else:
            found.append(f"{path}: a document is {type(document).__name__}, no mapping with apiVersion and kind")
    return found


def errors(document: dict[str, Any], folder: Path) -> Iterator[str]:
    """The errors of one resource; `folder` is where a kustomization looks for its files."""
    kind, version = document.get("kind"), str(document.get("apiVersion"))
    if version.startswith(("ray.io/", "monitoring.coreos.com/")):
        yield from _of_an_operator(document)
        for where, template in _templates(document, ""):
            pod = {"apiVersion": "v1", "kind": "PodTemplate", "template": template}
            yield from (error.replace("template", where, 1) for error in _core(pod))
    elif kind == KUSTOMIZATION:
        yield from _kustomization(document, folder)
    else:
        yield from _core(document)


def _of_an_operator(document: dict[str, Any]) -> Iterator[str]:
    """The errors of a resource of KubeRay or of the Prometheus operator, without those inside pod templates."""
    kind, schema = document.get("kind"), json.loads(SCHEMA.read_text(encoding="utf-8"))
    if kind not in schema["$defs"]:
        yield f"kind: {kind} is not one of {', '.join(schema['$defs'])}"
        return
    policy = yaml.safe_load(POLICY.read_text(encoding="utf-8"))
    root = {"$ref": f"#/$defs/{kind}"}
    yield from map(_text, Draft202012Validator({**schema, **root}).iter_errors(document))
    if kind in policy["$defs"]:
        yield from map(_rule, Draft202012Validator({**policy, **root}).iter_errors(document))


def _text(error: ValidationError) -> str:
    """`path: message` of an error."""
    return f"{_path(error)}: {error.message}"


def _rule(error: ValidationError) -> str:
    """`path: message` of an error of the policy: the `description` of the rule says more than the failed keyword."""
    rule = error.schema.get("description") if isinstance(error.schema, dict) else None
    return f"{_path(error)}: {rule or error.message}"


def _path(error: ValidationError) -> str:
    return ".".join(map(str, error.absolute_path)) or "(top)"


def _templates(node: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(path, template) of every pod template below a node."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in children:
        below = f"{path}.{name}".lstrip(".")
        if name in TEMPLATES and isinstance(value, dict):
            yield below, value
        else:
            yield from _templates(value, below)


def _core(document: dict[str, Any]) -> Iterator[str]:
    """The errors of a resource of Kubernetes."""
    group = re.sub(r"^([^./]*)[^/]*/", r"\1-", str(document.get("apiVersion")))  # networking.k8s.io/v1: networking-v1
    name = f"{str(document.get('kind')).lower()}-{group}.json"
    try:
        validator = _validator(name)
    except FileNotFoundError:
        yield f"Kubernetes {KUBERNETES} has no kind {document.get('kind')} in {document.get('apiVersion')}"
        return
    yield from map(_text, validator.iter_errors(document))


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(schema_contents(f"{STRICT}/{name}", KUBERNETES), registry=_definitions())


@cache
def _definitions() -> Registry[Any]:
    """Kubernetes' types. The package's own `validate` would read the 1.5 MB again for every resource."""
    definitions = Resource.from_contents(schema_contents(f"{STRICT}/_definitions.json", KUBERNETES))
    return (definitions @ Registry()).crawl()


def _kustomization(document: dict[str, Any], folder: Path) -> Iterator[str]:
    for key in sorted(set(document) - KUSTOMIZATION_KEYS):
        yield f"{key}: unknown key; known are {', '.join(sorted(KUSTOMIZATION_KEYS))}"
    for name in document.get("resources", []):
        if not (folder / name).exists():
            yield f"resources: {name} does not exist"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints every error; returns 1 if there is one, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.deploy.kuberay.validation", description="Checks manifests.")
    parser.add_argument("files", nargs="+", type=Path)
    found = [error for path in parser.parse_args(arguments).files for error in problems(path)]
    sys.stdout.writelines(f"{error}\n" for error in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
