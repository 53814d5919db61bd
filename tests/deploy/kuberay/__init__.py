"""The checks of the manifests in `deploy/kubernetes/`, for Kubernetes with the operators of KubeRay and Prometheus.

    schema       condenses the operators' definitions into `schema.json`, in which unknown keys are errors
    validation   the errors of a manifest: against `schema.json`, Kubernetes' own schemas and `policy.yaml`

Nothing here talks to a cluster. docs/guide/containers.md says what has been run and what has not.
"""
