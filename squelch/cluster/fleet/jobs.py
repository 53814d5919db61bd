"""Runs `squelch train` as a job on a running Ray cluster, and follows it.

    client                                                   cluster
    reads the recipe; compares Ray's version
    packs code and recipe (`cluster.fleet.job_files`)  ---->  unpacks them on the nodes, installs `--pip` or `--uv`
                                                             the job compares Python's and Squelch's versions, then
    prints the job's lines                             <----  trains, as `squelch train --address auto` does

The job's driver runs on the head node, in the interpreter with which Ray was started there, or with `--pip` or `--uv`
in the environment that Ray makes for the job. Paths in the recipe are the driver's: `runs_dir` must outlive the job,
unless `store` keeps the run; a model folder reaches the other nodes through Ray.

Authentication is Ray's own (`cluster.fleet.ray_token`).

Waiting: every request to the job server at most `ANSWER_TIMEOUT_S`, an upload `UPLOAD_TIMEOUT_S`, a cluster that has
just started `ACCEPT_TIMEOUT_S`. Following a job has no bound, because a run has none; the job goes on if it is
interrupted.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import ray
import requests
from ray.exceptions import RayError
from ray.job_submission import JobStatus, JobSubmissionClient

from squelch.cluster.config import RunConfig
from squelch.cluster.fleet.job_files import NOTHING, Code, pack
from squelch.cluster.fleet.ray_token import with_token
from squelch.kit.base.errors import UserError
from squelch.kit.base.package import versions
from squelch.kit.process.terminal import aligned
from squelch.kit.untrusted.files import reason

ACCEPT_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 20.0
UPLOAD_TIMEOUT_S = 600.0
STOP_S = 300
"""Seconds that `squelch job stop` gives the run to finish its step and checkpoint before Ray kills it; Ray's default
is 3."""
INTERPRETER = r"""
raylet=$(sed -n 's/^PPid:[[:space:]]*//p' /proc/$PPID/status)
python=$(tr '\0' '\n' </proc/$raylet/cmdline | sed -n 's/^--python_worker_command=\([^ "]*\) .*/\1/p')
echo "${python:-python}"
""".strip().replace("\n", "; ")
"""Shell words that find the interpreter with which Ray was started: the job's parent is a worker, whose parent, the
raylet, has the command for workers on its command line. `ray` may have been started by its path, without its
environment on PATH."""
FIND = "SQUELCH_FIND_PYTHON"
"""Variable of the job with these words, so that the command that Ray shows and logs is short."""
TRAIN = f'exec "$(eval "${FIND}")" -m squelch.cluster.cli'
"""How the command of such a job begins."""


@dataclass(frozen=True)
class Job:
    """The job to submit. `packages`: for `pip` or `uv`, as lines of a requirements file; `forwarded`: names of
    environment variables; `policy`: the folder of the tiny policy, if it is cached here; `secret`: whether the
    overrides hold a secret, so that no command shows them."""

    recipe: str
    overrides: Sequence[str]
    code: Code = NOTHING
    resume: bool = False
    installer: str = ""
    packages: Sequence[str] = ()
    forwarded: Sequence[str] = ()
    policy: Path | None = None
    secret: bool = False


class _Client(JobSubmissionClient):
    """Ray's client, with a bound on every request."""

    def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
        bound = UPLOAD_TIMEOUT_S if method == "PUT" else ANSWER_TIMEOUT_S
        return super()._do_request(method, endpoint, timeout=bound, **options)


def client(address: str) -> JobSubmissionClient:
    """A client of the cluster's job server.

    Raises:
        UserError: the server cannot be reached, refuses the token, or has another version of Ray.
    """
    try:
        found = with_token(lambda: _Client(address), address)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        raise UserError(
            f"--address {address}: the cluster's job server did not answer ({reason(error)}). Give the dashboard's "
            "address, e.g. http://127.0.0.1:8265"
        ) from error
    _require_same_ray(found, address)
    return found


def _require_same_ray(found: JobSubmissionClient, address: str) -> None:
    theirs = found._server_ray_version
    if theirs != ray.__version__:
        raise UserError(
            f"--address {address}: the cluster has Ray {theirs} and this environment has Ray {ray.__version__}; submit "
            "from an environment with the cluster's version"
        )


def require_lasting(config: RunConfig) -> None:
    """Raises UserError if `runs_dir` is relative, so that the run would be lost with the job's folder."""
    if not Path(config.runs_dir).is_absolute():
        scratch = "with `store` set, a scratch folder will do, e.g. runs_dir=/tmp/runs"
        raise UserError(
            f"runs_dir={config.runs_dir!r} is relative, and a job's folder is removed with the job: give an absolute "
            f"path on the host of the job's driver, the head node, e.g. runs_dir=/shared/runs; {scratch}"
        )


def with_lasting_caches(config: RunConfig, overrides: list[str]) -> list[str]:
    """The overrides, with the caches of models under `runs_dir`, because a job's own folder is removed with it.

    Raises:
        UserError: the run would be lost with the job's folder.
    """
    require_lasting(config)
    model = config.model
    if model.path == "tiny" and not Path(model.cache).is_absolute():
        return [*overrides, _folder("model.cache", config, ".tiny")]
    made = model.warmup is not None or not Path(model.path).is_absolute()
    if model.path != "tiny" and made and not Path(model.pretrained_cache).is_absolute():
        return [*overrides, _folder("model.pretrained_cache", config, ".models")]
    return overrides


def _folder(key: str, config: RunConfig, name: str) -> str:
    """The override that puts a folder under `runs_dir`; quoted, because its path may hold what YAML reads otherwise."""
    return f"{key}={json.dumps(f'{config.runs_dir}/{name}', ensure_ascii=False)}"


def submit(address: str, job: Job, wait: bool, say: Callable[[str], None]) -> int:
    """Submits the job and, with `wait`, follows it to its end. Returns 0 if it succeeded (or was only submitted), else
    1.

    Raises:
        UserError: nothing was submitted; the message says why.
    """
    environment = runtime_environment(job)  # first: wrong names need no cluster
    jobs = client(address)
    with tempfile.TemporaryDirectory(prefix="squelch-job-") as folder:
        hidden = job.overrides if job.secret else ()
        package, recipe = pack(job.code, job.recipe, Path(folder) / "job.zip", job.policy, hidden)
        if package is not None:
            environment["working_dir"] = str(package)
        job_id = _accepted(jobs, entrypoint(job, recipe), environment, {"recipe": job.recipe})
    say(f"submitted {job_id}; `squelch job status {job_id} --address {address}` shows its progress")
    return _followed(jobs, job_id, address, say) if wait else 0


def entrypoint(job: Job, recipe: str) -> str:
    """The shell command of the job."""
    flags = [*(["--resume"] if job.resume else []), "--submitted-by", versions()]
    shown = () if job.secret else job.overrides
    words = shlex.join(["train", recipe, *shown, "--address", "auto", *flags])
    if job.packages:  # Ray has put the environment that it made on PATH
        return f"exec python -m squelch.cluster.cli {words}"
    return f"{TRAIN} {words}"


def runtime_environment(job: Job) -> dict[str, Any]:
    """Ray's runtime environment of the job, without its working directory. UserError for a variable that is not set."""
    missing = [name for name in job.forwarded if name not in os.environ]
    if missing:
        raise UserError(f"--env {missing[0]}: this environment has no such variable; the value is taken from here")
    found = {name: os.environ[name] for name in job.forwarded}
    environment: dict[str, Any] = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_S), FIND: INTERPRETER, **found}}
    return environment | ({job.installer: list(job.packages)} if job.packages else {})


def _accepted(jobs: JobSubmissionClient, command: str, environment: dict[str, Any], metadata: dict[str, str]) -> str:
    """Submits the job and returns its id. A cluster that has just started has no agent for jobs yet, so submission is
    retried for `ACCEPT_TIMEOUT_S`."""
    deadline = time.monotonic() + ACCEPT_TIMEOUT_S
    while True:
        try:
            return jobs.submit_job(entrypoint=command, runtime_env=environment, metadata=metadata)
        except requests.exceptions.ReadTimeout as error:
            raise UserError(
                f"the cluster did not answer within {ANSWER_TIMEOUT_S:g} s and may have accepted the job all the same: "
                "see `squelch job list` before you submit it again"
            ) from error
        except (OSError, RuntimeError, ValueError, RayError) as error:
            if "No available agent" not in str(error) or time.monotonic() > deadline:
                raise UserError(f"the cluster did not accept the job: {reason(error)}") from error
            time.sleep(1.0)


def _followed(jobs: JobSubmissionClient, job_id: str, address: str, say: Callable[[str], None]) -> int:
    """Follows the job to its end, or until Ctrl-C, which the job does not notice; returns the exit code."""
    try:
        return asyncio.run(_follow(jobs, job_id, say))
    except KeyboardInterrupt:
        at = f"{job_id} --address {address}"
        say(f"{job_id} goes on: `squelch job logs {at} --follow` shows the rest, `squelch job stop {at}` ends it")
        raise


async def _follow(jobs: JobSubmissionClient, job_id: str, say: Callable[[str], None]) -> int:
    try:
        async for lines in jobs.tail_job_logs(job_id):
            say(_shown(lines))
        return _ended(jobs, job_id, say)
    except (OSError, RuntimeError, RayError, aiohttp.ClientError) as error:
        raise UserError(
            f"{job_id}: the connection to the cluster is lost ({reason(error)}). The job goes on if the cluster does; "
            f"`squelch job logs {job_id} --follow` shows the rest"
        ) from error


def _shown(lines: str) -> str:
    """Lines of a job's log; the command that Ray writes above them as a user would type it."""
    return lines.rstrip("\n").replace(TRAIN, "squelch", 1)


def _ended(jobs: JobSubmissionClient, job_id: str, say: Callable[[str], None]) -> int:
    info: Any = jobs.get_job_info(job_id)
    say(f"{job_id}: {info.status.value}" + (f" ({_shown(info.message)})" if info.message else ""))
    return 0 if info.status == JobStatus.SUCCEEDED else 1


def act(address: str, action: str, job_id: str, follow: bool, say: Callable[[str], None]) -> int:
    """Prints the list of jobs, or the status or logs of one, or stops it. Returns 1 for the status of a failed job, and
    for followed logs of a job that did not succeed, else 0."""
    jobs = client(address)
    try:
        if action == "list":
            return _list(jobs, say)
        return _followed(jobs, job_id, address, say) if follow else _act(jobs, action, job_id, say)
    except (OSError, RuntimeError, RayError) as error:
        raise UserError(f"{job_id or 'the list of jobs'} at {address}: {reason(error)}") from error


def _act(jobs: JobSubmissionClient, action: str, job_id: str, say: Callable[[str], None]) -> int:
    if action == "logs":
        say(_shown(jobs.get_job_logs(job_id)))
        return 0
    if action == "stop":
        asked: Any = jobs.stop_job(job_id)
        say(f"{job_id}: {'asked to stop' if asked else 'had already ended'}")
        return 0
    status = jobs.get_job_status(job_id)
    say(f"{job_id}: {status.value}")
    return 1 if status == JobStatus.FAILED else 0


def _list(jobs: JobSubmissionClient, say: Callable[[str], None]) -> int:
    """Prints the submitted jobs, the newest first."""
    found: list[Any] = [job for job in jobs.list_jobs() if job.submission_id]
    rows = [["job", "status", "started", "recipe"]]
    for job in sorted(found, key=lambda job: job.start_time or 0, reverse=True):
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime((job.start_time or 0) / 1000))
        rows.append([job.submission_id, job.status.value, started, (job.metadata or {}).get("recipe", "-")])
    for line in aligned(rows) if found else ["no job was submitted to this cluster"]:
        say(line)
    return 0
