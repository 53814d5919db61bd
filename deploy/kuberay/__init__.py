"""Squelch on Kubernetes with the KubeRay operator: plain manifests, and the checks that hold them.

    pods         templates of the pods: head, rollouts, learners
    manifests    RayCluster and RayJob in `deploy/kubernetes/`; `python -m squelch.deploy.kuberay.manifests --write`
    schema       condenses KubeRay's definitions into `schema.json`, in which unknown keys are errors
    validation   the errors of a manifest: against `schema.json`, Kubernetes' own schemas and `policy.yaml`

Nothing here talks to a cluster. docs/guide/cluster.md says what has been run and what has not.
"""
