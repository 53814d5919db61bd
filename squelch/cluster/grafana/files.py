"""The dashboards as files in a folder that Grafana reads at its start (provisioning), with the alert rules; and both as
objects for a Kubernetes cluster.

    dashboards/NAME.json                       mounted where `mount` says
    provisioning/dashboards/squelch.yml        mounted at /etc/grafana/provisioning/dashboards
    provisioning/datasources/squelch.yml       the same, if the address of Prometheus is given
    alerts.yml                                 for Prometheus' `rule_files`
    kubernetes.yaml                            for `kubectl apply`, in place of all of these

A file that exists with another content is somebody's own, and is kept unless `overwrite`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from squelch.cluster.grafana import boards, kubernetes
from squelch.cluster.grafana.push import FOLDER_TITLE, SOURCE_NAME, data_source
from squelch.kit.base.disk import write_whole
from squelch.kit.base.errors import UserError, bad_files_are_the_users
from squelch.kit.untrusted.files import is_file, read_bytes

MOUNT = "/var/lib/grafana/dashboards"
MAX_FILE = 16 * 2**20


def texts(prometheus: str | None, mount: str, docs: str, labels: Mapping[str, str]) -> dict[Path, str]:
    """The text of each file, by its path in the folder. `docs`: the address of the docs, or empty; `labels`: of the
    objects for Kubernetes."""
    found = {Path("dashboards") / f"{name}.json": boards.text(name, docs) for name in boards.NAMES}
    found[Path("provisioning/dashboards/squelch.yml")] = _yaml("providers", _provider(mount))
    if prometheus is not None:
        found[Path("provisioning/datasources/squelch.yml")] = _yaml("datasources", data_source(prometheus))
    return found | {Path("alerts.yml"): boards.rules(docs), Path("kubernetes.yaml"): kubernetes.text(docs, labels)}


def _provider(mount: str) -> dict[str, Any]:
    return {
        "name": SOURCE_NAME,
        "folder": FOLDER_TITLE,
        "type": "file",
        "disableDeletion": True,
        "allowUiUpdates": False,
        "options": {"path": mount},
    }


def _yaml(kind: str, entry: dict[str, Any]) -> str:
    return yaml.safe_dump({"apiVersion": 1, kind: [entry]}, sort_keys=False)


def export(folder: Path, wanted: Mapping[Path, str], overwrite: bool) -> list[Path]:
    """Writes those of `texts` that are missing or differ; returns their paths.

    Raises:
        UserError: a file has another content and `overwrite` is false, or cannot be written. Nothing is written then.
    """
    wanted = {folder / path: text for path, text in wanted.items()}
    with bad_files_are_the_users():
        present = {path: read_bytes(path, MAX_FILE) for path in wanted if is_file(path)}
    different = [path for path, content in present.items() if content != wanted[path].encode()]
    if different and not overwrite:
        raise UserError(
            f"{', '.join(map(str, different))}: exists with another content, which may be somebody's own; "
            "--overwrite replaces it"
        )
    changed = [path for path in wanted if path not in present or path in different]
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, wanted[path])
    return changed
