"""Groups that bound a program's memory: each program's own, given back, removed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from squelch.envs.sandbox import Limits, Pool, Question, cgroup
from squelch.envs.sandbox.cgroup import PREFIX, MemoryGroups


@pytest.fixture
def groups() -> Iterator[MemoryGroups]:
    made = MemoryGroups()
    if not made.available:
        pytest.skip(f"no memory control group here: {made.reason}")
    yield made
    made.close()


def test_a_process_is_in_its_group_and_two_pools_share_none(groups: MemoryGroups) -> None:
    others = MemoryGroups()
    with subprocess.Popen(["sleep", "60"]) as one, subprocess.Popen(["sleep", "60"]) as two:
        first, second = groups.acquire(one.pid, 2**27), others.acquire(two.pid, 2**27)
        assert first is not None and second is not None and first != second
        assert (first / "cgroup.procs").read_text().split() == [str(one.pid)]
        for process in (one, two):
            process.kill()
    groups.release(first)
    others.release(second)
    others.close()
    assert not second.exists() and first.exists()


def test_a_process_that_is_gone_is_an_error_with_its_number(groups: MemoryGroups) -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    with pytest.raises(RuntimeError, match=f"process {gone.pid} cannot enter"):
        groups.acquire(gone.pid, 2**27)


def test_memory_of_all_processes_together_is_bounded(pool: Pool, groups: MemoryGroups) -> None:
    program = (  # each holds its memory until all have theirs, or are dead: the pipe `have` is at its end then
        "import os\ncount = int(input())\n(have, mine), (wait, end) = os.pipe(), os.pipe()\nfor _ in range(count):\n"
        "    if os.fork() == 0:\n        os.close(end)\n        b = bytearray(b'x') * (55 * 2**20)\n"
        "        os.close(mine)\n        os.read(wait, 1)\n        os._exit(0)\nos.close(mine)\nos.read(have, 1)\n"
        "os.close(end)\nprint(sum(os.waitstatus_to_exitcode(os.wait()[1]) == 0 for _ in range(count)))"
    )
    limits = Limits(memory_mb=100, wall_s=10, total_s=20)  # MiB of address space: each process by itself fits
    alone, together = (pool.run(program, [Question(count)], limits)[0].output for count in ("1", "4"))
    assert alone == b"1\n" and together != b"4\n"
    assert pool.run(program, [Question("4")], limits.model_copy(update={"memory_mb": 256}))[0].output == b"4\n"


def test_groups_are_removed_with_their_pool(pool: Pool, groups: MemoryGroups) -> None:
    mine = Pool(pool.backend, warm=1)
    assert mine.run("print(1)", [Question()], Limits(wall_s=10))[0].output == b"1\n"
    made = list(mine._groups._made)
    mine.close()
    assert made and not any(Path(group).exists() for group in made)


def test_groups_of_processes_that_are_gone_are_removed_at_the_start(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(cgroup, "own_group", lambda: (tmp_path, "memory.max", ""))
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    stale, living = tmp_path / f"{PREFIX}-{gone.pid}-0", tmp_path / f"{PREFIX}-{os.getppid()}-0"
    stale.mkdir()
    living.mkdir()
    made = MemoryGroups()
    assert living.exists() and not stale.exists()
    assert not made.available and "memory.max is missing" in made.reason, "a folder is no control group"


def test_without_control_groups_a_process_enters_none_and_the_reason_is_there(monkeypatch) -> None:
    monkeypatch.setattr(cgroup, "own_group", lambda: (None, "", "none is mounted"))
    made = MemoryGroups()
    assert (made.available, made.reason, made.acquire(os.getpid(), 2**27)) == (False, "none is mounted", None)
