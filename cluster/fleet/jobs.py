"""Runs `squelch train` as a job on a running Ray cluster, and follows it.

Authentication is Ray's own: with RAY_AUTH_MODE=token the token comes from RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH.
`python` on the nodes' PATH must be the interpreter for which Squelch is installed. A checkout is uploaded as the job's
working directory and takes precedence over the nodes' installed Squelch; an installed package is not uploaded, so the
nodes run their own.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.exceptions import RayError
from ray.job_submission import JobStatus, JobSubmissionClient

from cluster.config import RunConfig
from cluster.errors import UserError
from cluster.package import checkout

EXCLUDES = ["/.git", "/.venv", "/.bench-venv", "/.cache", "/runs", "**/__pycache__", "/.hypothesis", "/.pytest_cache"]
"""What does not travel, as in a .gitignore: a leading slash means the checkout's own folder, not one of that name in a
room."""
ACCEPT_TIMEOUT_S = 60.0


def client(address: str) -> JobSubmissionClient:
    """A client of the cluster's job server.

    Raises:
        UserError: the server cannot be reached, or refuses the token.
    """
    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        raise UserError(
            f"--address {address}: the cluster's job server did not answer ({error}). Give the dashboard's address, "
            "e.g. "
            "http://127.0.0.1:8265; with token authentication set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN."
        ) from error


def settled(recipe: str, config: RunConfig, overrides: list[str]) -> list[str]:
    """The overrides, with a cache for the tiny policy under `runs_dir`, because a job's own folder is removed with it.

    Raises:
        UserError: `runs_dir` is relative, so that the run would be lost with the job's folder; or the recipe is a file
            that the job would not find.
    """
    if recipe.endswith((".yaml", ".yml")) and not Path(recipe).is_absolute():
        raise UserError(
            f"recipe {recipe}: the job gets only its path: give an absolute path that every node of the cluster "
            f"sees, e.g. /shared/{Path(recipe).name}"
        )
    if not Path(config.runs_dir).is_absolute():
        raise UserError(
            f"runs_dir={config.runs_dir!r} is relative, and a job's folder is removed with the job: give an absolute "
            "path that every node of the cluster sees, e.g. runs_dir=/shared/runs"
        )
    if config.model.path == "tiny" and not Path(config.model.cache).is_absolute():
        return [*overrides, f"model.cache={config.runs_dir}/.tiny"]
    return overrides


def submit(
    address: str, recipe: str, overrides: list[str], resume: bool, wait: bool, say: Callable[[str], None]
) -> int:
    """Submits the recipe and, with `wait`, follows the job to its end. Returns 0 if it succeeded (or was only
    submitted), else 1."""
    jobs = client(address)
    flags = ["--resume"] if resume else []
    words = ["python", "-m", "cluster.cli", "train", recipe, *overrides, "--address", "auto", *flags]
    job_id = _accepted(jobs, shlex.join(words), recipe)
    say(f"submitted {job_id}; `squelch job status {job_id} --address {address}` shows its progress")
    return asyncio.run(_follow(jobs, job_id, say)) if wait else 0


def _accepted(jobs: JobSubmissionClient, entrypoint: str, recipe: str) -> str:
    """Submits the job and returns its id. A cluster that has just started has no agent for jobs yet, so submission is
    retried for `ACCEPT_TIMEOUT_S`."""
    deadline = time.monotonic() + ACCEPT_TIMEOUT_S
    while True:
        try:
            return jobs.submit_job(entrypoint=entrypoint, runtime_env=_code(), metadata={"recipe": recipe})
        except RuntimeError as error:
            if "No available agent" not in str(error) or time.monotonic() > deadline:
                raise UserError(f"the cluster did not accept the job: {error}") from error
            time.sleep(1.0)


def _code() -> dict[str, Any]:
    """Ray's runtime environment that uploads a checkout's code to the job; empty for an installed package."""
    repository = checkout()
    return {"working_dir": str(repository), "excludes": EXCLUDES} if repository else {}


async def _follow(jobs: JobSubmissionClient, job_id: str, say: Callable[[str], None]) -> int:
    async for lines in jobs.tail_job_logs(job_id):
        say(lines.rstrip("\n"))
    return _ended(jobs, job_id, say)


def _ended(jobs: JobSubmissionClient, job_id: str, say: Callable[[str], None]) -> int:
    info: Any = jobs.get_job_info(job_id)
    say(f"{job_id}: {info.status.value}" + (f" ({info.message})" if info.message else ""))
    return 0 if info.status == JobStatus.SUCCEEDED else 1


def job(address: str, action: str, job_id: str, say: Callable[[str], None]) -> int:
    """Prints the status or logs of a submitted job, or stops it. Returns 1 for the status of a failed job, else 0."""
    jobs = client(address)
    try:
        return _act(jobs, action, job_id, say)
    except RuntimeError as error:
        raise UserError(f"{job_id} at {address}: {error}") from error


def _act(jobs: JobSubmissionClient, action: str, job_id: str, say: Callable[[str], None]) -> int:
    if action == "logs":
        say(jobs.get_job_logs(job_id).rstrip("\n"))
        return 0
    if action == "stop":
        asked: Any = jobs.stop_job(job_id)
        say(f"{job_id}: {'asked to stop' if asked else 'had already ended'}")
        return 0
    status = jobs.get_job_status(job_id)
    say(f"{job_id}: {status.value}")
    return 1 if status == JobStatus.FAILED else 0
