"""Programs as environments: what they are given, what they report, and what a fault of theirs costs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from multidict import CIMultiDict

from squelch.envs.agent import called, folders, keeper
from squelch.envs.agent.environment import Agent
from squelch.envs.agent.folders import remove_left
from squelch.envs.agent.keeper import remove
from squelch.envs.contract import Access, AgentCall, AgentDriven, AgentFailed, AgentInterrupted, AgentResult, lacking
from squelch.envs.registry import make

USER = Path(__file__).with_name("user_agent.py")
ACCESS = Access("http://127.0.0.1:9", "token-of-this-trajectory")


def agent(script: str = "", seed: int = 0, split: str = "train", **options: Any) -> Agent:
    """An agent with its task started; `script`: what its command runs."""
    if script:
        options["command"] = [sys.executable, "-S", "-c", textwrap.dedent(script)]
    made = make("Agent", split, options)
    made.reset(seed=seed, options={"noise_seed": 11})
    return made


def ran(one: Agent) -> AgentResult:
    async def bounded() -> AgentResult:
        async with asyncio.timeout(180):
            try:
                return await one.run(ACCESS)
            finally:
                await one.clean_up()
                await called.close_hosts()

    return asyncio.run(bounded())


def together(function: str, seeds: list[int], **options: Any) -> list[AgentResult | BaseException]:
    """Trajectories of one function at once; one that is interrupted begins again."""

    async def one(made: Agent) -> AgentResult:
        for _ in range(3):
            try:
                return await made.run(ACCESS)
            except AgentInterrupted:
                continue
        raise AssertionError("interrupted too often")

    async def all_of_them() -> list[AgentResult | BaseException]:
        made = [agent(seed=seed, call=f"{USER}:{function}", **options) for seed in seeds]
        async with asyncio.timeout(180):
            try:
                return await asyncio.gather(*map(one, made), return_exceptions=True)
            finally:
                await called.close_hosts()

    return asyncio.run(all_of_them())


def ended(*pids: int) -> None:
    """Waits until none of the processes is there."""
    deadline = time.monotonic() + 180
    while any(map(psutil.pid_exists, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- commands ---


def test_a_command_gets_its_task_and_the_endpoint_and_reports_in_its_last_line():
    found = ran(
        agent(
            """
            import json, os, sys
            task = json.load(sys.stdin)
            same = task == json.load(open(os.environ["SQUELCH_TASK"]))
            names = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")
            right = [os.environ[name] for name in names] == [
                "http://127.0.0.1:9/v1", "token-of-this-trajectory", "http://127.0.0.1:9", "token-of-this-trajectory"]
            print("thinking aloud")
            print(json.dumps({"reward": task["seed"] + 0.1, "rewards": [0.1, 0.2], "penalties": [0, -0.1],
                              "success": same and right and task["noise_seed"] == 11 and task["split"] == "train"}))
            """,
            seed=7,
        )
    )
    assert found == AgentResult(True, 7.1, (0.1, 0.2), (0.0, -0.1))


def test_a_result_may_be_a_file_and_the_folder_of_the_trajectory_is_removed(tmp_path):
    told = tmp_path / "told"
    found = ran(
        agent(
            f"""
            import os, tempfile
            open(os.environ["SQUELCH_RESULT"], "w").write('{{"reward": 1}}')
            tempfile.mkstemp()
            open({str(told)!r}, "w").write(os.environ["TMPDIR"])
            print("no result here")
            """
        )
    )
    assert found == AgentResult(True, 1.0)
    assert not Path(told.read_text()).exists()


def test_no_proxy_stands_before_the_endpoint(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "example.org")
    found = ran(
        agent("import os; print('{\"reward\": %d}' % (os.environ['NO_PROXY'] == 'example.org,127.0.0.1,localhost'))")
    )
    assert found.reward == 1.0


def test_variables_of_a_provider_in_the_shell_lead_no_client_away_from_the_endpoint(monkeypatch):
    addresses = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_URL", "ANTHROPIC_API_BASE")
    dropped = ("ANTHROPIC_AUTH_TOKEN", "OPENAI_CUSTOM_HEADERS", "OPENAI_PROXY", "OPENAI_API_TYPE")
    for name in (*addresses, *dropped):
        monkeypatch.setenv(name, "https://api.provider.example/v1")
    found = ran(
        agent(
            f"""
            import json, os
            led = [name for name in {addresses} if os.environ[name].removesuffix("/v1") != {ACCESS.base_url!r}]
            print(json.dumps({{"reward": len(led) + len({set(dropped)} & os.environ.keys())}}))
            """
        )
    )
    assert found.reward == 0.0


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "import sys; sys.stderr.write('no such file'); sys.exit(3)",
            "command ended with exit code 3; it last wrote: no such file",
        ),
        ("import os; print('hm'); os.kill(os.getpid(), 9)", r"command was ended by signal 9 \(SIGKILL\)"),
        ("import os; import sys; sys.exit(os.environ['OPENAI_API_KEY'])", r"it last wrote: \*\*\*"),
        ("pass", "reported no result: the last line of its standard output must be a JSON object"),
        ("print('fine')", "the last line of the agent's standard output"),
        ("print('[1]')", "one JSON object is needed"),
        ("print('{}')", "reported neither reward nor rewards"),
        ('print(\'{"answer": "5"}\')', "rewarded only with environment.options.reward"),
        ("print('{\"reward\": NaN}')", "reported nan in reward"),
        ('print(\'{"reward": "1"}\')', "reported '1' in reward; a finite number is needed"),
        ("print('{\"reward\": true}')", "reported True in reward"),
        ("print('{\"rewards\": 1}')", "reported rewards as 1; a list with one number for each answered call"),
        ('print(\'{"reward": 1, "penalties": [0.1]}\')', "the penalty 0.1; a penalty is 0 or negative"),
        ('print(\'{"reward": 1, "success": 1}\')', "success as 1; true or false is needed"),
        ('print(\'{"rewards": [1], "penaltys": [0]}\')', "'penaltys', which is no field; did you mean 'penalties'"),
        ("print('x' * 3_000_000)", "longer than 1048576 bytes"),
    ],
)
def test_whatever_is_no_result_fails_the_trajectory_with_its_reason(script, said):
    with pytest.raises(AgentFailed, match=said):
        ran(agent(script))


def failed(one: Agent) -> AgentFailed:
    with pytest.raises(AgentFailed) as found:
        ran(one)
    return found.value


@pytest.mark.parametrize(
    ("script", "reward"),
    [
        ("raise ValueError('prose')", -0.5),
        ("import sys; print('{\"reward\": 9}'); sys.exit(7)", 0.25),
        ("import sys; sys.exit(8)", None),
        ("import os; os.kill(os.getpid(), 9)", None),
        ("pass", None),
        ("print('{}')", None),
    ],
    ids=["1", "7, beside a result", "another code", "a signal", "no result", "a wrong result"],
)
def test_an_exit_code_that_the_user_named_earns_its_reward_and_no_other_ending(script, reward):
    assert failed(agent(script, failure_reward={1: -0.5, 7: 0.25})).reward == reward


def test_an_ending_without_a_name_given_earns_nothing():
    assert failed(agent("raise ValueError('prose')")).reward is None


NAMED = {"KeyError": -1.0, "LookupError": -2.0, "json.decoder.JSONDecodeError": -3.0, "user_agent.Wrong": -4.0}


@pytest.mark.parametrize(
    ("seed", "reward"),
    [(1, -1.0), (2, -2.0), (3, -3.0), (4, -4.0), (5, None), (6, None), (7, None)],
    ids=["itself", "its base", "with its module", "the user's own", "not named", "SystemExit", "the process ends"],
)
def test_an_exception_of_a_function_earns_the_reward_of_its_nearest_class_that_is_named(seed, reward):
    found = failed(agent(call=f"{USER}:raises", seed=seed, failure_reward=NAMED))
    assert found.reward == reward, str(found)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"command": ["cat"], "failure_reward": {"0": 1}}, "names exit codes from 1 to 255"),
        ({"command": ["cat"], "failure_reward": {256: 1}}, "names exit codes from 1 to 255"),
        ({"command": ["cat"], "failure_reward": {"01": 1}}, "names exit codes from 1 to 255"),
        ({"command": ["cat"], "failure_reward": {"ValueError": 1}}, "names exit codes from 1 to 255"),
        ({"command": ["cat"], "failure_reward": {1: 1, "2": 1}}, "write all exit codes alike"),
        ({"call": "a:b", "failure_reward": {1: 1}}, "names classes of exceptions"),
        ({"call": "a:b", "failure_reward": {"a b": 1}}, "names classes of exceptions"),
        ({"call": "a:b", "failure_reward": {"ValueError": float("nan")}}, "finite"),
        ({"call": "a:b", "failure_reward": 1.0}, "dict"),
        ({"call": "a:b", "untrained": [{}]}, "a rule needs a condition"),
        ({"call": "a:b", "untrained": [{"modle": "x"}]}, "modle"),
    ],
)
def test_names_and_rules_that_can_match_nothing_are_refused_before_anything_starts(options, said):
    with pytest.raises(ValueError, match=said):
        make("Agent", "train", options)


@pytest.mark.parametrize(
    ("rule", "words", "left_out"),
    [
        ({"model": "*-mini"}, "model *-mini", ["title", "compaction"]),
        ({"no_tools": True}, "no tools", ["title", "bare"]),
        ({"model": "*-mini", "no_tools": True}, "model *-mini, no tools", ["title"]),
        (
            {"headers": {"x-codex-turn-metadata": '*"request_kind":"compaction"*'}},
            'x-codex-turn-metadata: *"request_kind":"compaction"*',
            ["compaction"],
        ),
        ({"headers": {"x-none": "*"}}, "x-none: *", []),
    ],
)
def test_a_call_is_not_trained_on_where_all_that_a_rule_says_holds(rule, words, left_out):
    compacting = CIMultiDict({"X-Codex-Turn-Metadata": '{"turn_id":"1","request_kind":"compaction"}'})
    calls = {
        "work": AgentCall("a-large", CIMultiDict({"X-Codex-Turn-Metadata": '{"request_kind":"turn"}'}), True),
        "title": AgentCall("a-mini", CIMultiDict(), False),
        "compaction": AgentCall("a-mini", compacting, True),
        "bare": AgentCall("A-Mini", CIMultiDict(), False),
    }
    one = make("Agent", "train", {"command": ["cat"], "untrained": [{"model": "nothing"}, rule]})
    assert {name: one.untrained(call) for name, call in calls.items() if one.untrained(call)} == dict.fromkeys(
        left_out, words
    )


def test_a_command_gets_its_secret_and_no_failure_shows_it():
    one = agent(
        command=[sys.executable, "-c", "import sys; sys.exit('key ' + sys.argv[-1])", "--api-key", "sk-12345678"]
    )
    with pytest.raises(AgentFailed, match=r"it last wrote: key \*\*\*$"):
        ran(one)


def test_what_a_command_floods_is_bounded_and_its_last_line_counts():
    found = ran(agent("for _ in range(200): print('x' * 100_000)\nprint('{\"reward\": 2}')"))
    assert found.reward == 2.0


def test_processes_that_a_command_leaves_behind_end_with_it_whatever_their_session(tmp_path):
    ids = tmp_path / "ids"
    script = f"""
        import os, sys, time
        reading, writing = os.pipe()
        for _ in range(2):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.write(writing, b"%d\\n" % os.getpid())
                    os.close(writing)
                    time.sleep(3600)  # and holds standard output open
                os._exit(0)
        os.close(writing)
        data = b""
        while piece := os.read(reading, 100):
            data += piece
            if data.count(b"\\n") == 2:
                break
        open({str(ids)!r}, "wb").write(data)
        print('{{"reward": 1}}')
    """
    assert ran(agent(script)).reward == 1.0
    pids = [int(line) for line in ids.read_text().split()]
    assert len(pids) == 2 and not any(map(psutil.pid_exists, pids))


def test_a_command_that_is_cancelled_ends_with_all_that_it_started(tmp_path):
    ids = tmp_path / "ids"
    one = agent(
        f"""
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = os.fork()
        if child:
            open({str(ids)!r} + ".new", "w").write(f"{{os.getpid()}} {{child}}")
            os.rename({str(ids)!r} + ".new", {str(ids)!r})
        time.sleep(600)
        """
    )

    async def cancelled() -> None:
        running = asyncio.create_task(one.run(ACCESS))
        async with asyncio.timeout(180):
            while not ids.exists():
                await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    assert not any(psutil.pid_exists(int(pid)) for pid in ids.read_text().split())


def test_agents_end_when_the_process_that_runs_them_is_killed(tmp_path):
    ids = tmp_path / "ids"
    told = "f'{os.getpid()} {os.environ[\"TMPDIR\"]}'"
    script = f"import os, time; open({str(ids)!r}, 'w').write({told}); time.sleep(600)"
    starts = f"""
import asyncio, sys
from squelch.envs.contract import Access
from squelch.envs.registry import make
one = make("Agent", "train", {{"command": [sys.executable, "-S", "-c", {script!r}]}})
one.reset(seed=0, options={{"noise_seed": 0}})
asyncio.run(one.run(Access("http://127.0.0.1:9", "t")))
"""
    actor = subprocess.Popen([sys.executable, "-c", starts])
    deadline = time.monotonic() + 180
    while not (ids.exists() and ids.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    actor.send_signal(signal.SIGKILL)
    actor.wait(180)
    pid, folder = ids.read_text().split()
    ended(int(pid))
    while Path(folder).exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_each_command_has_a_home_of_its_own_with_links_to_what_is_kept(tmp_path, monkeypatch):
    ours = tmp_path / "ours"
    (ours / ".config" / "tool").mkdir(parents=True)
    (ours / ".gitconfig").write_text("[user]")
    (ours / ".claude.json").write_text("a login")
    monkeypatch.setenv("HOME", str(ours))
    for name in ("CODEX_HOME", "CLAUDE_CONFIG_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(ours))
    script = """
        import json, os, pathlib
        home = pathlib.Path.home()
        (home / ".memory").write_text("")
        named = [name for name in ("CODEX_HOME", "CLAUDE_CONFIG_DIR", "XDG_CONFIG_HOME") if name in os.environ]
        print(json.dumps({"answer": " ".join([str(home), *named, *sorted(os.listdir(home))])}))
    """
    kept = (".gitconfig", ".config/tool")
    data = {"data": str(rows(tmp_path)), "reward": f"{USER}:right"}
    homes = []
    for _ in range(2):
        home, *seen = (ran(agent(script, keep_home=kept, **data)).answer or "").split()
        assert seen == [".config", ".gitconfig", ".memory"] and not Path(home).exists()
        homes.append(home)
    assert len({*homes, str(ours)}) == 3
    assert (ours / ".config" / "tool").is_dir() and not (ours / ".memory").exists()
    for everything in (".", "./"):
        home, *seen = (ran(agent(script, keep_home=[everything], **data)).answer or "").split()
        assert home == str(ours) and seen[:3] == ["CODEX_HOME", "CLAUDE_CONFIG_DIR", "XDG_CONFIG_HOME"]


def is_over(pid: int) -> bool:
    """Whether a process has ended; whoever inherited it may not have taken note of that."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def write_to_told(told: Path) -> str:
    """What has a command's process tell its id and its folder, once both are there."""
    return (
        "import os, time\n"
        f"with open({str(told)!r} + '.new', 'w') as file:\n"
        "    file.write(f'{os.getpid()} {os.getppid()} {os.environ[\"TMPDIR\"]}')\n"
        f"os.rename({str(told)!r} + '.new', {str(told)!r})\n"
        "time.sleep(600)\n"
    )


def leaves(told: Path) -> str:
    """A script whose child, in a session of its own, tells and stays."""
    body = textwrap.indent(write_to_told(told), "    ")
    return f"import os, time\nif os.fork() == 0:\n    os.setsid()\n{body}time.sleep(600)\n"


def test_a_command_whose_keeper_is_killed_fails_and_leaves_neither_process_nor_folder(tmp_path):
    told = tmp_path / "told"
    one = agent(leaves(told))

    async def course() -> tuple[int, str]:
        running = asyncio.create_task(one.run(ACCESS))
        async with asyncio.timeout(180):
            while not told.exists():
                await asyncio.sleep(0.01)
            pid, parent, folder = told.read_text().split()
            psutil.Process(int(parent)).parent().kill()
            with pytest.raises(AgentFailed, match="was ended from outside"):
                await running
            await one.clean_up()
        return int(pid), folder

    pid, folder = asyncio.run(course())
    assert is_over(pid) and not Path(folder).exists()


def test_what_a_killed_actor_and_its_killed_keeper_leave_is_ended_and_removed_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    told = tmp_path / "told"
    starts = f"""
import asyncio
from squelch.envs.contract import Access
from squelch.envs.registry import make
one = make("Agent", "train", {{"command": [{sys.executable!r}, "-S", "-c", {leaves(told)!r}]}})
one.reset(seed=0, options={{"noise_seed": 0}})
asyncio.run(one.run(Access("http://127.0.0.1:9", "t")))
"""
    actor = subprocess.Popen([sys.executable, "-c", starts])
    deadline = time.monotonic() + 180
    while not told.exists():
        assert time.monotonic() < deadline and actor.poll() is None
        time.sleep(0.02)
    pid, parent, folder = told.read_text().split()
    remove_left()
    assert not is_over(int(pid)) and Path(folder).exists(), "its actor lives"
    keeper = psutil.Process(int(parent)).parent()
    actor.send_signal(signal.SIGSTOP)
    keeper.kill()
    actor.kill()
    actor.wait(180)
    assert not is_over(int(pid)) and Path(folder).exists()
    remove_left()
    assert is_over(int(pid)) and not Path(folder).exists()


def test_a_trajectory_that_is_cancelled_while_its_folder_is_made_leaves_neither_folder_nor_lock(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    making, go_on, lock = threading.Event(), threading.Event(), folders._locked
    held: list[int | None] = []

    def slow(path: Path) -> int | None:
        held.append(lock(path))
        making.set()
        assert go_on.wait(120)
        return held[-1]

    monkeypatch.setattr(folders, "_locked", slow)
    monkeypatch.setattr(folders, "_remove_left_once", lambda: None)

    async def course() -> None:
        async def play() -> None:
            async with folders.folder_of_trajectory():
                raise AssertionError("it was cancelled")

        playing = asyncio.create_task(play())
        await asyncio.to_thread(making.wait, 120)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        go_on.set()

    asyncio.run(course())
    assert list(tmp_path.iterdir()) == [] and held[0] is not None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(held[0])


def unprivileged(work: Callable[[], None]) -> None:
    """Does the work in a fork whose user is not root, for whom modes do not count."""
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setresuid(65534, 65534, 65534)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def seal(folder: Path, kept: Path) -> None:
    """Makes what an agent may leave: folders in which nothing can be removed, with links to what is not its own."""
    for place in (folder / "read-only", folder / "closed", kept):
        place.mkdir()
        (place / "file").write_text("")
    for name, target in (("to-folder", kept), ("to-file", kept / "file")):
        (folder / "read-only" / name).symlink_to(target)
        (folder / name).symlink_to(target)
    (kept / "file").chmod(0o400)
    for place, mode in ((folder / "read-only", 0o500), (folder / "closed", 0), (folder, 0o500), (kept, 0o500)):
        place.chmod(mode)


@pytest.mark.parametrize("by", ["its actor", "its keeper", "a later process"])
def test_what_an_agent_made_read_only_is_removed_and_what_its_links_lead_to_stays_as_it_is(by, monkeypatch):
    base = Path(tempfile.mkdtemp(dir="/tmp"))
    base.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    kept = base / "kept"

    async def played() -> None:
        async with folders.folder_of_trajectory() as folder:
            seal(Path(folder), kept)

    def work() -> None:
        if by == "its actor":
            asyncio.run(played())
        else:
            folder = Path(tempfile.mkdtemp(prefix=folders.PREFIX))
            seal(folder, kept)
            if by == "its keeper":
                ours, theirs = socket.socketpair()
                ours.close()
                keeper.main(str(theirs.detach()), "0", str(folder), "sleep", "600")
            else:
                remove_left()
        assert os.listdir(base) == ["kept"]
        assert [path.stat().st_mode & 0o777 for path in (kept, kept / "file")] == [0o500, 0o400]

    try:
        unprivileged(work)
    finally:
        remove(str(base))


def test_what_an_agent_leaves_is_removed_off_the_event_loop_and_keeps_no_other_work_from_its_threads(monkeypatch):
    removing, go_on = threading.Semaphore(0), threading.Event()

    def slow(folder: str) -> None:
        removing.release()
        assert go_on.wait(120), "the event loop stands still"
        remove(folder)

    monkeypatch.setattr(folders, "remove", slow)
    monkeypatch.setattr(folders, "_remove_left_once", lambda: None)
    number = 2

    async def played() -> None:
        async with folders.folder_of_trajectory():
            pass

    async def course() -> None:
        # as few threads for all other work as there are removals at once
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(number))
        playing = [asyncio.create_task(played()) for _ in range(number)]
        for _ in playing:
            while not removing.acquire(blocking=False):
                await asyncio.sleep(0.001)
        assert await asyncio.to_thread(sum, [1, 2]) == 3
        go_on.set()
        await asyncio.gather(*playing)

    asyncio.run(course())


# --- functions ---


def test_trajectories_of_a_function_share_one_process_and_run_beside_each_other():
    found = together("tells", [1, 2, 3, 4])
    assert [one.reward for one in found] == [1.0, 2.0, 3.0, 4.0]
    only = agent(seed=5, call=f"{USER}:tells", success_at=5.0)
    assert ran(only) == AgentResult(True, 5.0)


def test_a_function_that_raises_exits_or_kills_or_blocks_its_process_loses_its_own_trajectory_only():
    found = together("breaks", [0, 1, 2, 3, 4, 5], blocked_s=1.5)
    assert [getattr(one, "reward", None) for one in found] == [1.0, None, None, None, None, 1.0]
    raised, exits, killed, blocked = map(str, found[1:5])
    assert re.search(r"function raised KeyError: 'no such tool' \(user_agent.py, line \d+, breaks\)", raised)
    assert "function raised SystemExit: 5" in exits
    assert "process ended with exit code 7" in killed
    assert re.search(r"blocked the event loop of its process for 1.5 s \(user_agent.py, line \d+, breaks\)", blocked)


def test_a_result_that_is_no_json_fails_and_says_where(tmp_path):
    (found,) = together("not_json", [0])
    assert "function raised TypeError" in str(found)


def test_a_lone_surrogate_in_a_result_or_an_error_of_a_function_fails_its_own_trajectory():
    found = together("surrogates", [0, 1, 2])
    assert [getattr(one, "reward", None) for one in found] == [1.0, None, None]
    said = b" ".join(str(one).encode() for one in found[1:])
    assert b"UnicodeEncodeError" in said and b"ValueError: \\ud800" in said


def test_a_function_that_outlives_its_cancellation_gets_no_more_trajectories(monkeypatch):
    monkeypatch.setattr(called, "CANCEL_S", 0.3)

    async def course() -> tuple[float, float]:
        deaf, other = agent(seed=1, call=f"{USER}:deaf"), agent(seed=0, call=f"{USER}:deaf")
        running = asyncio.create_task(deaf.run(ACCESS))
        first = second = (await other.run(ACCESS)).reward  # in the same process, after the deaf one has begun
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        while second == first:
            second = (await other.run(ACCESS)).reward
        await called.close_hosts()
        return first, second

    first, second = asyncio.run(asyncio.wait_for(course(), 60))
    ended(int(first), int(second))


# --- settings and tasks ---


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "environment.options: set either command or call"),
        ({"command": ["a"], "call": "m:f"}, "set either command or call"),
        ({"command": ["a"], "python": "python"}, "a command names its own"),
        ({"command": ["no-such-agent", "x"]}, "options.command: there is no program 'no-such-agent'"),
        ({"call": "nothing.here:play"}, "options.call: it cannot be imported: ModuleNotFoundError"),
        ({"call": "user.py:play"}, "options.call: there is no file .*user.py"),
        ({"call": f"{USER}:plays"}, "defines no function 'plays'; async def plays"),
        ({"call": f"{USER}:not_async"}, "defines no async function 'not_async'"),
        ({"call": f"{USER}:tells", "python": "/no/python"}, "options.python: there is no program '/no/python'"),
        ({"command": ["true"], "reward": f"{USER}:right"}, "reward needs data"),
        ({"command": "python agent.py"}, "options.command: give the program and its arguments as a list"),
        ({"command": ["true"], "keep_home": ["/etc"]}, "options.keep_home: '/etc' must be a path below your home"),
        ({"command": ["true"], "keep_home": ["a/../.."]}, "must be a path below your home folder"),
        ({"command": ["true"], "keep_home": ["a", "a/b"]}, "'a/b' must be a path .* neither below another one"),
        ({"command": ["true"], "keep_home": [".a", ".a/"]}, "'.a' must be a path .* nor given twice"),
        ({"command": ["true"], "keep_home": [".", ".//"]}, "'.' must be a path .* nor given twice"),
        ({"command": ["true"], "keep_home": [""]}, "'' must be a path below your home folder"),
        ({"command": ["true"], "keep_home": ["no-such-file"]}, "options.keep_home: there is no .*/no-such-file"),
        ({"call": f"{USER}:tells", "keep_home": ["."]}, "keep_home is of command"),
        ({"call": "user.py"}, "options.call: 'user.py' names no function; give module:function"),
        ({"command": ["true"], "data": "none.jsonl"}, "options.data: .*no such file"),
    ],
)
def test_an_agent_that_cannot_play_is_refused_before_anything_starts(options, said):
    with pytest.raises(ValueError, match=said):
        make("Agent", "train", options)


def rows(folder: Path) -> Path:
    path = folder / "tasks.jsonl"
    made = [{"prompt": f"What is {n}?", "answer": str(n), "tools": n, "seed": -n} for n in range(40)]
    path.write_text("".join(json.dumps(one) + "\n" for one in made))
    return path


def test_a_task_has_every_column_of_its_row_and_no_prompt_is_in_both_splits(tmp_path):
    options = {"command": ["true"], "data": str(rows(tmp_path))}
    seen: dict[str, set[str]] = {}
    for split in ("train", "validation"):
        made = make("Agent", split, options)
        assert isinstance(made, Agent)
        for seed in range(40):
            _, info = made.reset(seed=seed, options={"noise_seed": 3})
            task = made._task
            assert task.keys() == {"prompt", "answer", "tools", "seed", "noise_seed", "split"}
            assert (task["answer"], task["tools"]) == (str(-task["seed"]), -task["seed"])
            seen.setdefault(split, set()).add(info["task_key"])
    assert not seen["train"] & seen["validation"] and len(seen["train"] | seen["validation"]) == 40


def test_answers_are_rewarded_by_functions_of_the_user(tmp_path):
    script = "import json, sys; t = json.load(sys.stdin); print(json.dumps({'answer': t['answer']}))"
    one = agent(script, seed=3, data=str(rows(tmp_path)), reward=f"{USER}:right")
    result = ran(one)
    assert result == AgentResult(False, 0.0, None, None, one._task["answer"])
    assert one.group_rewards([one._task["answer"], "none"], [[1], [2]]) == [[1.0, True], [0.0, False]]
    with pytest.raises(AgentFailed, match="answer None; text is needed"):
        ran(agent("print('{\"rewards\": [1]}')", data=str(rows(tmp_path)), reward=f"{USER}:right"))


def test_an_agent_has_what_the_player_asks_for_and_the_run_before_it_starts():
    assert lacking(Agent, AgentDriven) == []
    one = agent("pass", max_processes=3)
    assert (one.most_at_once, one.whole_turns, one.turns) == (3, True, "model")
    assert agent(call=f"{USER}:tells").most_at_once is None


def test_another_python_finds_a_module_of_ours_by_its_file() -> None:
    ours = "squelch.envs.agent.verifiers_bridge:play"
    assert called.Target(ours).function == ours
    assert called.Target(ours, sys.executable).function.endswith("/envs/agent/verifiers_bridge.py:play")
    assert called.Target("theirs:play", sys.executable).function == "theirs:play"
    with pytest.raises(ValueError, match=r"has no verifiers: give environment\.options\.python"):
        called.check_call(called.Target(ours, sys.executable))
