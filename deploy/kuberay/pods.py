"""Templates of the pods of a Ray cluster, as plain data.

Every pod keeps to the restricted profile of Kubernetes' pod security standards: no root, no capabilities, no privilege
escalation, the container runtime's seccomp filter. KubeRay completes the templates: it sets the command (`ray start`),
Ray's token, /dev/shm of the size of the container's memory, and in workers an init container that waits for the head
and runs under the security context of the first container.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

USER = 1000
"""User and group of the images (`deploy/Dockerfile`). Kubernetes can verify `runAsNonRoot` for a number only."""
RUNS, CLAIM = "/runs", "squelch-runs"
"""Where the head has run folders and models, and the claim that holds them (`deploy/kubernetes/base/storage.yaml`)."""
GPU = "nvidia.com/gpu"
HEALTH_PORT, HEALTH_PATH = 52365, "/api/healthz"
"""Ray's agent on every node answers there without a token: for the raylet, and on the head for the GCS too."""
HEAD_PORTS = {"gcs": 6379, "dashboard": 8265, "metrics": 8080}
WORKER_PORTS = {"metrics": 8080}
GRACE_S = 60
"""Ray drains a node for up to 30 s after SIGTERM; Kubernetes' default would kill it at that moment."""
CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,  # lets the user write to the claim
    "seccompProfile": {"type": "RuntimeDefault"},
}
HEALTH_CHECKS = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
"""With these Ray noticed a killed node after 2.6 s and a frozen one after 8.7 s, against 13.7 and 63.9 s by default."""
JOB_STOP = {"RAY_JOB_STOP_WAIT_TIME_S": "300"}
"""Seconds that a stopped job has to finish its step and write a checkpoint, as for `squelch job submit`; by default 3.
The job's supervisor reads it, an actor on the head, which inherits the environment of `ray start`."""


@dataclass(frozen=True)
class Resources:
    """What a container requests, and its limit: equal, because Ray offers a container's limits to the scheduler."""

    cpus: int
    memory_gib: int
    gpus: int = 0

    def spec(self) -> dict[str, Any]:
        """The container's `resources`."""
        amounts = {"cpu": str(self.cpus), "memory": f"{self.memory_gib}Gi"}
        amounts |= {GPU: str(self.gpus)} if self.gpus else {}
        return {"requests": amounts, "limits": amounts}


def head(image: str, resources: Resources) -> dict[str, Any]:
    """The template of the head: Ray's control plane and, as a Ray job, the driver of a run."""
    container = _container("ray-head", image, resources, HEAD_PORTS, HEALTH_CHECKS | JOB_STOP)
    mount = {"volumeMounts": [{"name": "runs", "mountPath": RUNS}]}
    volumes = [{"name": "runs", "persistentVolumeClaim": {"claimName": CLAIM}}]
    return _template(container | mount, {"volumes": volumes})


def worker(image: str, resources: Resources) -> dict[str, Any]:
    """The template of a worker. It runs programs that a model wrote, so it gets no Kubernetes credentials. It gets
    models, and hands over checkpoints, through Ray's object store."""
    container = _container("ray-worker", image, resources, WORKER_PORTS, {})
    tolerated = {"tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]} if resources.gpus else {}
    return _template(container, {"automountServiceAccountToken": False, **tolerated})


def _container(
    name: str, image: str, resources: Resources, ports: dict[str, int], settings: dict[str, str]
) -> dict[str, Any]:
    environment = {"RAY_USAGE_STATS_ENABLED": "0", **settings}
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "ports": [{"name": port, "containerPort": number} for port, number in ports.items()],
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "resources": resources.spec(),
        "securityContext": CONTAINER_SECURITY,
        # Generous, because a busy node answers late: Ray's own health check is the fast one.
        "startupProbe": _probe(period_s=5, failures=60),
        "readinessProbe": _probe(period_s=5, failures=3),
        "livenessProbe": _probe(period_s=10, failures=12),
    }


def _probe(period_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": HEALTH_PATH, "port": HEALTH_PORT},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _template(container: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return {
        "spec": {
            "restartPolicy": "Never",  # KubeRay replaces pods; a restarted container would be another Ray node
            "terminationGracePeriodSeconds": GRACE_S,
            "securityContext": POD_SECURITY,
            **more,
            "containers": [container],
        }
    }
