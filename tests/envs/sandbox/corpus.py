"""The hostile programs under hostile/: read, and run with the sandbox off in a throw-away place, to show their harm.

A file holds sections that begin with `=== NAME: MODE`; the mode says what its control shows.

- `prints`: it prints HARM once its harm is done. `root prints`: only for root; for others no control is possible.
- `alive`: it is still there, or has burned CPU, long after its time.
- `after`: a second program (after `--- after`), run later in the same place, prints HARM. `same interpreter`: that one
  runs in the interpreter that the first one ran in.
- no mode: `naive_judge.py` passes it.
- `excepted: WHY`: no control, because it would harm this machine or tell nothing.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).with_name("hostile")
NAIVE_JUDGE = Path(__file__).with_name("naive_judge.py")
ANSWERS = {3: 718_239, 9: 551_210}
"""What the forgers would have to return; nothing in the arguments tells it."""
AT_ONCE = 4
GIVE_UP_S = 60.0


@dataclass(frozen=True)
class Hostile:
    """One program. `why` says why it is excepted, or what to know about its control."""

    file: str
    name: str
    mode: str
    why: str
    program: str
    after: str
    number: int

    def text(self, place: dict[str, str], after: bool = False) -> str:
        """The program with the names of this run's place put in."""
        text = self.after if after else self.program
        for name, value in {**place, "number": str(self.number)}.items():
            text = text.replace(f"@{name}@", value)
        return text


def corpus() -> list[Hostile]:
    """Every program, in a fixed order."""
    found: list[Hostile] = []
    for path in sorted(FOLDER.glob("*.txt")):
        for section in path.read_text().split("\n=== ")[1:]:
            head, _, body = section.partition("\n")
            name, _, mode = head.partition(":")
            mode, _, why = mode.strip().partition(":")
            program, _, after = body.partition("--- after\n")
            found.append(Hostile(path.stem, name, mode or "naive", why.strip(), program, after, len(found)))
    return found


def controlled(hostile: Hostile) -> bool:
    """Whether its harm can be shown here."""
    return hostile.mode != "excepted" and not (hostile.mode.startswith("root") and os.geteuid() != 0)


def _ends(path: Path) -> bytes:
    """The first and the last 64 KiB: some controls leave files of gigabytes, with holes."""
    with path.open("rb") as file:
        first = file.read(2**16)
        file.seek(max(0, path.stat().st_size - 2**16))
        return first + file.read(2**16)


@dataclass
class Control:
    """One program running with the sandbox off, in a folder and session of its own."""

    hostile: Hostile
    folder: Path
    process: subprocess.Popen[bytes]
    started: float

    def verdict(self) -> bool | None:
        """Whether it did its harm; None while that is open."""
        if self.hostile.mode == "alive":
            return self._outlasts()
        if self.process.poll() is None:
            return None
        output = _ends(self.folder / "output")
        if self.hostile.mode != "naive":
            return b"HARM" in output
        verdict = self.folder / "verdict.json"
        passed = verdict.exists() and all(json.loads(verdict.read_text())) and "true" in verdict.read_text()
        return passed or b"all tests passed" in output or self.process.returncode == 0

    def _outlasts(self) -> bool | None:
        if self.process.poll() is not None:
            return False
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        waits = fields[0] in "ST" and time.monotonic() > self.started + 1.0
        return True if used > 0.4 or waits else None

    def end(self) -> None:
        """Kill its session."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            self.process.wait(180)


def start(hostile: Hostile, place: dict[str, str], descriptors: Iterable[int]) -> Control:
    """Start the control of one program."""
    folder = Path(place["place"]) / f"run-{hostile.number}"
    folder.mkdir()
    (folder / "program.py").write_text(hostile.text(place))
    tests = [{"arguments": [x], "expected": answer} for x, answer in ANSWERS.items()]
    (folder / "tests.json").write_text(json.dumps(tests))
    command = [sys.executable, "-B", "program.py"]
    if hostile.mode == "naive":
        command = [sys.executable, "-S", "-B", str(NAIVE_JUDGE), "tests.json", "program.py"]
    elif hostile.after:
        (folder / "after.py").write_text(hostile.text(place, after=True))
        (folder / "both.py").write_text(BOTH if hostile.mode == "after" else ONE_INTERPRETER)
        command = [sys.executable, "-S", "-B", "both.py"]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env={"SECRET": "HARM", "HOME": place["place"], "PATH": os.environ["PATH"]},
            pass_fds=tuple(descriptors),
            start_new_session=True,
            preexec_fn=_bound,
        )
    return Control(hostile, folder, process, time.monotonic())


def _bound() -> None:
    """Even a control must end, and must not fill the disk."""
    resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**33, 2**33))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 16 * 2**30))


BOTH = """import subprocess, sys
for name in ("program.py", "after.py"):
    subprocess.run([sys.executable, "-S", "-B", name])
"""
ONE_INTERPRETER = """
for text in [open(name).read() for name in ("program.py", "after.py")]:
    exec(text, {"__name__": "__main__"})
"""


def run_controls(jobs: list[tuple[Hostile, dict[str, str]]], descriptors: Iterable[int]) -> Iterator[Control]:
    """Every control with its verdict; a few at a time. TimeoutError when one neither does its harm nor ends."""
    waiting, running = list(reversed(jobs)), []
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            running.append(start(*waiting.pop(), descriptors))
        for control in list(running):
            if control.verdict() is not None:
                running.remove(control)
                yield control
                control.end()
                shutil.rmtree(control.folder, ignore_errors=True)  # some hold what would fill a disk in time
            elif time.monotonic() > control.started + GIVE_UP_S:
                raise TimeoutError(f"the control of {control.hostile.name} is undecided after {GIVE_UP_S:g} s")
        time.sleep(0.005)


def is_running(pid: int) -> bool:
    """Whether the process is there, neither stopped nor dead and waiting to be noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TZ"
    except (FileNotFoundError, ProcessLookupError):
        return False
