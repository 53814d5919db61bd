"""A job as the command line follows it, on a job server made up here; a real one: tests/e2e/test_cluster.py."""

import json
import shlex
import subprocess
import sys
import threading
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import requests
from ray.job_submission import JobStatus

from squelch.cluster import kept_secrets
from squelch.cluster.cli import main
from squelch.cluster.config import RunConfig, load
from squelch.cluster.fleet import bootstrap, job_files, jobs
from squelch.cluster.fleet.bootstrap import cached_tiny_policy
from squelch.cluster.fleet.job_files import Code, chosen, pack
from squelch.cluster.fleet.jobs import Job
from squelch.cluster.loop import run
from squelch.kit.base.errors import UserError
from squelch.kit.base.package import require_versions, versions
from squelch.kit.untrusted import secrets


class Server:
    """Ends every job with a status; a server that has just started has no agent at first."""

    def __init__(self, status: JobStatus, agentless: int = 0) -> None:
        self.status, self.agentless, self.entrypoints = status, agentless, list[str]()
        self.environments, self.sent = list[dict[str, Any]](), list[dict[str, bytes]]()

    def submit_job(self, entrypoint: str, runtime_env: dict[str, Any], metadata: dict[str, str]) -> str:
        if self.agentless:
            self.agentless -= 1
            raise RuntimeError("No available agent to submit job")
        self.entrypoints.append(entrypoint)
        self.environments.append(runtime_env)
        if "working_dir" in runtime_env:
            with zipfile.ZipFile(runtime_env["working_dir"]) as sent:
                self.sent.append({name: sent.read(name) for name in sent.namelist()})
        return "job-1"

    def list_jobs(self) -> list[SimpleNamespace]:
        facts = {"status": JobStatus.RUNNING, "metadata": {"recipe": "sokoban"}}
        return [
            SimpleNamespace(submission_id="job-1", start_time=1_000, **facts),
            SimpleNamespace(submission_id="job-2", start_time=2_000, status=JobStatus.FAILED, metadata=None),
            SimpleNamespace(submission_id=None, start_time=3_000, **facts),
        ]

    async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
        command = [f"Running entrypoint for job job-1: {one}\n" for one in self.entrypoints]
        for lines in (*command, "ready after 1 s\n", "step    1/1\nstep    2/2\n"):
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
    job = Job("frozenlake", ["name=a b"], resume=True)
    assert jobs.submit("http://it", job, True, said.append) == code
    words = f"train frozenlake 'name=a b' --address auto --resume --submitted-by {versions()}"
    assert server.entrypoints[0] == f"{jobs.TRAIN} {words}" and "sed" not in server.entrypoints[0]
    assert said[0].startswith("submitted job-1;") and said[-1] == last
    assert said[1] == f"Running entrypoint for job job-1: squelch {words}"
    assert "\n".join(said[2:-1]) == "ready after 1 s\nstep    1/1\nstep    2/2"


def test_whoever_stops_following_a_job_is_told_that_it_goes_on(monkeypatch) -> None:
    async def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "_follow", interrupted)
    served(monkeypatch, Server(JobStatus.RUNNING))
    said = list[str]()
    with pytest.raises(KeyboardInterrupt):
        jobs.submit("http://it", Job("frozenlake", []), True, said.append)
    rest, end = "squelch job logs job-1 --address http://it --follow", "squelch job stop job-1 --address http://it"
    assert said[-1] == f"job-1 goes on: `{rest}` shows the rest, `{end}` ends it"


def test_a_job_that_is_not_waited_for_is_only_submitted(monkeypatch) -> None:
    served(monkeypatch, Server(JobStatus.FAILED))
    said = list[str]()
    assert jobs.submit("http://it", Job("frozenlake", []), False, said.append) == 0 and len(said) == 1


def test_the_shell_words_find_the_interpreter_of_the_workers_grandparent(tmp_path: Path) -> None:
    raylet = f"--python_worker_command={sys.executable} /x/setup_worker.py --a=b"
    shell = jobs.TRAIN.replace("exec", "echo found")
    worker = f"import os,sys,subprocess; os.environ[{jobs.FIND!r}] = {jobs.INTERPRETER!r}"
    worker += "; subprocess.run(sys.argv[1], shell=True)"
    start = "import sys,subprocess; subprocess.run([sys.executable, '-c', sys.argv[1], sys.argv[2]])"
    command = [sys.executable, "-c", start, worker, shell, raylet]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180)
    assert done.stdout == f"found {sys.executable} -m squelch.cluster.cli\n"
    done = subprocess.run(command[:-1], capture_output=True, text=True, check=True, timeout=180)
    assert done.stdout == "found python -m squelch.cluster.cli\n" and not done.stderr


def test_variables_are_forwarded_by_name_and_packages_by_rays_own_installers(monkeypatch) -> None:
    server = served(monkeypatch, Server(JobStatus.SUCCEEDED))
    monkeypatch.setenv("MY_SETTING", "value")
    job = Job("frozenlake", [], installer="uv", packages=["textarena==0.7.4"], forwarded=["MY_SETTING"])
    jobs.submit("http://it", job, False, lambda _: None)
    sent = server.environments[0]
    own = {"RAY_JOB_STOP_WAIT_TIME_S": "300", jobs.FIND: jobs.INTERPRETER}
    assert sent["env_vars"] == {"MY_SETTING": "value", **own}
    assert sent["uv"] == ["textarena==0.7.4"] and "pip" not in sent and "working_dir" not in sent
    assert server.entrypoints[0].startswith("exec python -m squelch.cluster.cli"), (
        "the environment that Ray makes is on PATH"
    )
    with pytest.raises(UserError, match="--env NOT_SET: this environment has no such variable"):
        jobs.submit("http://it", Job("frozenlake", [], forwarded=["NOT_SET"]), False, lambda _: None)


def test_a_recipe_that_is_a_file_travels_with_the_files_that_it_extends(monkeypatch, tmp_path: Path) -> None:
    server = served(monkeypatch, Server(JobStatus.SUCCEEDED))
    (tmp_path / "base.yaml").write_text("extends: frozenlake\nloop: {steps: 3}\n")
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\nloop: {prompts: 2}\n")
    (tmp_path / "module").mkdir()
    (tmp_path / "module/my_env.py").write_text("RULES = 1\n")
    recipe = str(tmp_path / "mine.yaml")
    jobs.submit("http://it", Job(recipe, [], Code(folder=tmp_path / "module")), False, lambda _: None)
    assert " train squelch-job.yaml " in server.entrypoints[0] and set(server.sent[0]) == {
        "my_env.py",
        "squelch-job.yaml",
    }
    (tmp_path / "there.yaml").write_bytes(server.sent[0]["squelch-job.yaml"])
    assert load(str(tmp_path / "there.yaml")) == load(recipe)


def test_no_command_shows_a_secret_of_the_overrides_and_the_job_has_it(monkeypatch, tmp_path: Path) -> None:
    server, given = served(monkeypatch, Server(JobStatus.SUCCEEDED)), list[RunConfig]()
    monkeypatch.setattr(kept_secrets, "_known", [])
    monkeypatch.setattr(secrets, "_known", set())
    options = ["data=null", "reward=null", "command=[python, -c, pass, --api-key, sk-very-secret]"]
    words = ["environment.name=Agent", "environment.prompt=natural", *(f"environment.options.{one}" for one in options)]
    assert main(["submit", "prompts", "--installed", f"runs_dir={tmp_path}", "name=it", *words]) == 0
    assert "sk-very-secret" not in str((server.entrypoints, server.environments))
    monkeypatch.chdir(tmp_path)
    for name, data in server.sent[0].items():
        Path(name).write_bytes(data)
    monkeypatch.setattr(run, "train", lambda config, *_: given.append(config) or 0)
    assert main(shlex.split(server.entrypoints[0].removeprefix(jobs.TRAIN))) == 0
    assert given[0].environment.options["command"][-1] == "sk-very-secret" and given[0].name == "it"


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
def test_the_status_of_a_job_is_printed_and_a_job_is_stopped(monkeypatch, action, status, code, says) -> None:
    served(monkeypatch, Server(status))
    said = list[str]()
    assert jobs.act("http://it", action, "job-1", False, said.append) == code and said == [says]


def test_jobs_are_listed_the_newest_first_and_logs_can_be_followed(monkeypatch) -> None:
    served(monkeypatch, Server(JobStatus.SUCCEEDED))
    said = list[str]()
    assert jobs.act("http://it", "list", "", False, said.append) == 0
    assert [line.split()[0] for line in said] == ["job", "job-2", "job-1"]
    assert "FAILED" in said[1] and said[2].endswith("sokoban")
    said.clear()
    assert jobs.act("http://it", "logs", "job-1", True, said.append) == 0
    assert said[0] == "ready after 1 s" and said[-1] == "job-1: SUCCEEDED"
    monkeypatch.setattr(Server, "list_jobs", lambda _: [])
    said.clear()
    jobs.act("http://it", "list", "", False, said.append)
    assert said == ["no job was submitted to this cluster"]


def test_what_the_server_refuses_is_the_users(monkeypatch) -> None:
    served(monkeypatch, Server(JobStatus.RUNNING))
    with pytest.raises(UserError, match="job-2 at http://it: does not exist"):
        jobs.act("http://it", "status", "job-2", False, lambda _: None)
    monkeypatch.setattr(Server, "submit_job", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("no room")))
    with pytest.raises(UserError, match="did not accept the job: no room"):
        jobs.submit("http://it", Job("frozenlake", []), True, lambda _: None)

    late = requests.exceptions.ReadTimeout("Read timed out. (read timeout=20.0)")
    monkeypatch.setattr(Server, "submit_job", lambda *_, **__: (_ for _ in ()).throw(late))
    with pytest.raises(UserError, match=r"may have accepted the job all the same: see `squelch job list`"):
        jobs.submit("http://it", Job("frozenlake", []), True, lambda _: None)

    async def cut(*_: object) -> AsyncIterator[str]:
        yield "step    1/9\n"
        raise RuntimeError("WebSocket connection closed unexpectedly")

    monkeypatch.setattr(Server, "tail_job_logs", cut)
    with pytest.raises(UserError, match=r"job-1: the connection to the cluster is lost .*logs job-1 --follow"):
        jobs.act("http://it", "logs", "job-1", True, lambda _: None)


def test_a_head_that_is_gone_when_the_last_line_has_come_is_said_in_one_paragraph(monkeypatch) -> None:
    def gone(*_: object) -> None:
        raise ConnectionError("Connection refused")

    served(monkeypatch, Server(JobStatus.RUNNING))
    monkeypatch.setattr(Server, "get_job_info", gone)
    with pytest.raises(UserError, match=r"job-1: the connection to the cluster is lost \(Connection refused\)"):
        jobs.submit("http://it", Job("frozenlake", []), True, lambda _: None)


@contextmanager
def job_server(status: int, version: str, delay_s: float = 0.0) -> Iterator[str]:
    """An HTTP server that answers each request with a version of Ray; its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ended.wait(delay_s)
            body = json.dumps({"version": "1", "ray_version": version, "result": True}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    ended = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


def test_an_address_that_is_silent_or_of_another_ray_or_asks_for_a_token_is_said_at_once(monkeypatch) -> None:
    with job_server(200, ray.__version__) as address:
        assert jobs.client(address).get_version() == "1"
    with job_server(200, "2.9.0") as address, pytest.raises(UserError, match=r"cluster has Ray 2\.9\.0 and this .*Ray"):
        jobs.client(address)
    with job_server(401, "") as address, pytest.raises(UserError, match="RAY_AUTH_MODE=token"):
        jobs.client(address)
    monkeypatch.setattr(jobs, "ANSWER_TIMEOUT_S", 0.3)
    with job_server(200, "", delay_s=3600.0) as address, pytest.raises(UserError, match=f"{address}: .*did not answer"):
        jobs.client(address)


def test_every_file_of_the_code_travels_once_with_a_job_and_no_run_does() -> None:
    root = Path(jobs.__file__).parents[3]
    code = (path for path in (root / "squelch").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    needed = {str(path.relative_to(root)) for path in code}
    sent = set(job_files.listed(root))
    assert chosen("", "", False).folder == root
    assert needed <= sent, sorted(needed - sent)
    assert {"squelch/actors", "squelch/envs"} <= {"/".join(name.split("/")[:2]) for name in needed}
    assert not {name.split("/")[0] for name in sent} & {".git", ".venv", "runs", "actors", "envs"}


def test_a_folder_that_is_too_large_is_refused_unpacked_and_its_parts_are_named(monkeypatch, tmp_path) -> None:
    folder, target = tmp_path / "code", tmp_path / "job.zip"
    (folder / "data/images").mkdir(parents=True)
    (folder / "data/images/a.bin").write_bytes(b"x" * 3000)
    (folder / "ignored.bin").write_bytes(b"x" * 9000)
    (folder / ".rayignore").write_text("ignored.bin\n")
    (folder / "my_env.py").write_text("RULES = 1\n")
    monkeypatch.setattr(job_files, "MAX_BYTES", 4000)
    assert pack(Code(folder=folder), "frozenlake", target) == (target, "frozenlake")
    assert set(zipfile.ZipFile(target).namelist()) == {"data/images/a.bin", "my_env.py", ".rayignore"}
    monkeypatch.setattr(job_files, "MAX_BYTES", 2000)
    target.unlink()
    with pytest.raises(UserError, match=r"too large .* takes 2000 bytes.*: data/images \(3000 bytes\), .*\.rayignore"):
        pack(Code(folder=folder), "frozenlake", target)
    assert not target.exists()


@pytest.mark.timeout(20)
def test_no_link_of_a_strangers_folder_brings_other_files_or_has_no_end(tmp_path: Path) -> None:
    (folder := tmp_path / "code").mkdir()
    (tmp_path / "secret").write_text("mine")
    (folder / "squelch").mkdir()
    (folder / "own.py").write_text("")
    (folder / "also.py").symlink_to("own.py")
    assert set(job_files.listed(folder)) == {"own.py", "also.py"}
    for name, target in (
        ("a", "../secret"),
        ("b", ".."),
        ("c", "."),
        ("squelch/d", "../.."),
        ("squelch/e", "/etc/passwd"),
    ):
        (folder / name).symlink_to(target)
        with pytest.raises(UserError, match=f"{name} is a link to {target}, and only links to files inside"):
            job_files.listed(folder)
        (folder / ".gitignore").write_text(name)
        assert set(job_files.listed(folder)) == {"own.py", "also.py", ".gitignore"}, "an ignored one does not travel"
        (folder / ".gitignore").unlink()
        (folder / name).unlink()


def test_a_wheel_of_squelch_is_unpacked_and_nothing_else_is_taken_for_one(tmp_path: Path) -> None:
    wheel = tmp_path / "squelch_rl-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("squelch/cluster/cli.py", "print()")
        made.writestr("squelch_rl-0.1.0.dist-info/METADATA", "Version: 0.1.0")
    made_of = [pack(chosen("", str(wheel), False), "frozenlake", tmp_path / name)[0] for name in ("a.zip", "b.zip")]
    first, again = (path.read_bytes() for path in made_of if path)
    assert first == again, "Ray uploads equal files once"
    assert set(zipfile.ZipFile(tmp_path / "a.zip").namelist()) >= {"squelch/cluster/cli.py"}
    for name, content in (("other-1.0-py3-none-any.whl", b""), ("squelch_rl-0.2.0-py3-none-any.whl", b"no zip")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"--wheel .*{name}"):
            chosen("", str(tmp_path / name), False)
    with pytest.raises(UserError, match=r"--working-dir .*nowhere is no folder"):
        chosen(str(tmp_path / "nowhere"), "", False)
    assert chosen("", "", True) == Code() and pack(Code(), "frozenlake", tmp_path / "c.zip") == (None, "frozenlake")


def test_a_policy_that_is_cached_here_travels_into_the_cache_of_the_job(tmp_path: Path, monkeypatch) -> None:
    config = load("frozenlake", [f"model.cache={tmp_path}/here"])
    assert cached_tiny_policy(config) is None
    (tmp_path / "here/FrozenLake-of-another-recipe").mkdir(parents=True)
    assert cached_tiny_policy(config) is None
    policy = bootstrap._tiny_folder(config)
    policy.mkdir()
    (policy / "model.safetensors").write_bytes(b"weights")
    found = cached_tiny_policy(config)
    assert found == policy
    package, _ = pack(job_files.NOTHING, "frozenlake", tmp_path / "job.zip", found)
    assert package is not None
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile(package) as sent:
        sent.extractall(tmp_path)
    for _ in range(2):
        job_files.adopt_policies(tmp_path / "there")
        assert [one.name for one in (tmp_path / "there").iterdir()] == [policy.name]
    assert (tmp_path / "there" / policy.name / "model.safetensors").read_bytes() == b"weights"


def test_a_run_that_would_be_lost_with_the_jobs_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"runs_dir='runs' is relative.*the head node.*with `store` set"):
        jobs.with_lasting_caches(load("frozenlake"), [])
    config = load("frozenlake", [f"runs_dir={tmp_path}"])
    assert jobs.with_lasting_caches(config, ["a=b"]) == ["a=b", f'model.cache="{tmp_path}/.tiny"']
    assert jobs.with_lasting_caches(load("frozenlake", [f"runs_dir={tmp_path}", f"model.path={tmp_path}"]), []) == []
    packaged = load("smollm2-countdown", [f"runs_dir={tmp_path}"])
    assert jobs.with_lasting_caches(packaged, []) == [f'model.pretrained_cache="{tmp_path}/.models"']
    odd = tmp_path / "my: runs #2"
    caches = jobs.with_lasting_caches(load("frozenlake", [f'runs_dir="{odd}"']), [])
    assert load("frozenlake", caches).model.cache == f"{odd}/.tiny"


def test_versions_that_differ_end_the_job_before_anything_starts(monkeypatch, tmp_path: Path, capsys) -> None:
    require_versions(versions())
    for given, says in (("python=3.99,squelch=0.1.0", "python 3.99 and 3"), ("python=3.11", "squelch None and")):
        with pytest.raises(UserError, match=f"client and cluster differ: .*{says}"):
            require_versions(given)
    assert main(["train", "frozenlake", f"runs_dir={tmp_path}", "--submitted-by", "python=2.7,squelch=0"]) == 2
    assert "client and cluster differ: python 2.7 and" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["job", "status"], "squelch job status needs the id of a job; `squelch job list` shows them"),
        (["job", "status", "job-1", "--follow"], "--follow goes with `squelch job logs`"),
        (["submit", "frozenlake"], "runs_dir='runs' is relative"),
        (["submit", "frozenlake", "runs_dir=/tmp/x", "store=s3://id:hunter2@bucket"], "credentials come from the"),
        (["submit", "frozenlake", "runs_dir=/tmp/x", "--env", "NOT_SET"], "--env NOT_SET: this environment has no"),
        (["submit", "frozenlake", "runs_dir=/tmp/x", "--wheel", "none.whl"], "--wheel none.whl is no wheel of Squelch"),
    ],
)
def test_bad_words_of_a_job_are_said_before_the_cluster_is_asked(monkeypatch, capsys, words, says) -> None:
    monkeypatch.setattr(jobs, "client", lambda _: pytest.fail("the cluster was asked"))
    assert main(words) == 2
    said = capsys.readouterr().err
    assert says in said and "hunter2" not in said and said.count("\n") == 1
