"""A job as the command line follows it, on a job server made up here; a real one: tests/e2e/test_cluster.py."""

import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray._private.runtime_env.packaging import create_package
from ray.job_submission import JobStatus

from cluster.errors import UserError
from cluster.fleet import jobs


class Server:
    """Ends every job with a status; a server that has just started has no agent at first."""

    def __init__(self, status: JobStatus, agentless: int = 0) -> None:
        self.status, self.agentless, self.entrypoints = status, agentless, list[str]()

    def submit_job(self, entrypoint: str, runtime_env: dict[str, object], metadata: dict[str, str]) -> str:
        if self.agentless:
            self.agentless -= 1
            raise RuntimeError("No available agent to submit job")
        self.entrypoints.append(entrypoint)
        return "job-1"

    async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
        for lines in ("ready after 1 s\n", "step    1/1\nstep    2/2\n"):
            yield lines

    def get_job_info(self, job_id: str) -> SimpleNamespace:
        return SimpleNamespace(status=self.status, message="told why" if self.status is JobStatus.FAILED else "")

    def get_job_status(self, job_id: str) -> JobStatus:
        if job_id != "job-1":
            raise RuntimeError("does not exist")
        return self.status

    def get_job_logs(self, job_id: str) -> str:
        return "step    1/1\n"

    def stop_job(self, job_id: str) -> bool:
        return self.status is JobStatus.RUNNING


def served(monkeypatch: pytest.MonkeyPatch, server: Server) -> Server:
    monkeypatch.setattr(jobs, "client", lambda address: server)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return server


@pytest.mark.parametrize(
    ("status", "code", "last"),
    [
        (JobStatus.SUCCEEDED, 0, "job-1: SUCCEEDED"),
        (JobStatus.STOPPED, 1, "job-1: STOPPED"),
        (JobStatus.FAILED, 1, "job-1: FAILED (told why)"),
    ],
)
def test_a_job_is_followed_to_its_end_and_its_status_is_the_exit_code(monkeypatch, status, code, last) -> None:
    server, said = served(monkeypatch, Server(status, agentless=2)), list[str]()
    assert jobs.submit("http://it", "frozenlake", ["name=a b"], True, True, said.append) == code
    assert server.entrypoints == ["python -m cluster.cli train frozenlake 'name=a b' --address auto --resume"]
    assert said[0].startswith("submitted job-1;") and said[-1] == last
    assert "\n".join(said[1:-1]) == "ready after 1 s\nstep    1/1\nstep    2/2"


def test_a_job_that_is_not_waited_for_is_only_submitted(monkeypatch) -> None:
    served(monkeypatch, Server(JobStatus.FAILED))
    said = list[str]()
    assert jobs.submit("http://it", "frozenlake", [], False, False, said.append) == 0 and len(said) == 1


@pytest.mark.parametrize(
    ("action", "status", "code", "says"),
    [
        ("status", JobStatus.RUNNING, 0, "job-1: RUNNING"),
        ("status", JobStatus.FAILED, 1, "job-1: FAILED"),
        ("logs", JobStatus.RUNNING, 0, "step    1/1"),
        ("stop", JobStatus.RUNNING, 0, "job-1: asked to stop"),
        ("stop", JobStatus.SUCCEEDED, 0, "job-1: had already ended"),
    ],
)
def test_a_job_is_told_of_and_stopped(monkeypatch, action, status, code, says) -> None:
    served(monkeypatch, Server(status))
    said = list[str]()
    assert jobs.job("http://it", action, "job-1", said.append) == code and said == [says]


def test_what_the_server_refuses_is_the_users(monkeypatch) -> None:
    served(monkeypatch, Server(JobStatus.RUNNING))
    with pytest.raises(UserError, match="job-2 at http://it: does not exist"):
        jobs.job("http://it", "status", "job-2", lambda _: None)
    monkeypatch.setattr(Server, "submit_job", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("no room")))
    with pytest.raises(UserError, match="did not accept the job: no room"):
        jobs.submit("http://it", "frozenlake", [], False, True, lambda _: None)


def test_every_file_of_every_room_travels_with_a_job_and_no_run_does(tmp_path: Path) -> None:
    root, package = Path(jobs.__file__).parents[2], tmp_path / "code.zip"
    rooms = [path for room in ("actors", "cluster", "deploy", "envs", "learner") for path in (root / room).rglob("*")]
    needed = {str(p.relative_to(root)) for p in rooms if p.is_file() and "__pycache__" not in p.parts}
    create_package(str(root), package, include_gitignore=True, excludes=list(jobs.EXCLUDES))
    sent = set(zipfile.ZipFile(package).namelist())
    assert needed <= sent, sorted(needed - sent)
    assert not {name.split("/")[0] for name in sent} & {".git", ".venv", "runs"}
