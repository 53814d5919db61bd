"""One shell, or one Python, in which the commands of a page run one after another.

| waits | for | unblocked by | on time-out |
|---|---|---|---|
| `run` | the command's end | the shell, which writes the exit code into a pipe | `Late`; the walk then ends the page |
| `run`, of a server | its first right answer | what `answered` sees | the same |
| `run`, of a server | its end after SIGINT | the command | the same |

Whatever a session starts inherits the variable `TOKEN`, by which `remains` finds it in any process group.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

TOKEN = "SQUELCH_WALK"
STOPPED = (0, 130)
"""Exit codes of a server that SIGINT ended."""
SHELL = ("trap : INT", "set -m")
"""Commands of a shell run apart, as a terminal's; the trap keeps it alive where SIGINT kills one, which a loop of the
shell would not outlive."""
SHELL_LINE = """eval "$(cat '{file}')" </dev/null >>'{file}.out' 2>&1 CODES>&-
echo $? >&CODES"""
PYTHON = """
import os, sys, traceback
names = {{"__name__": "__main__"}}
sys.path.insert(0, "")
for file in iter(input, ""):
    out = os.open(file + ".out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1), os.dup2(out, 2), os.close(out)
    code = 0
    try:
        exec(compile(open(file).read(), file, "exec"), names)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os.write({codes}, f"{{code}}\\n".encode())
"""


class Late(Exception):
    """A command did not end in time."""


class Session:
    """A bash or a Python that takes one command after another; what a command sets stays for the next."""

    def __init__(self, folder: Path, notes: Path, variables: Mapping[str, str], python: Path | None = None) -> None:
        """`folder`: where the commands run; `notes`: where they and their output are kept; `python`: the interpreter
        of a session of Python."""
        self.notes, self._count = notes, 0
        notes.mkdir(parents=True, exist_ok=True)
        self._codes, write = os.pipe()
        self._line = "{file}" if python else SHELL_LINE.replace("CODES", str(write))
        code = PYTHON.format(codes=write)
        words = [str(python), "-u", "-c", code] if python else ["bash", "--norc", "--noprofile", "-s"]
        self._process = subprocess.Popen(
            ["env", "--default-signal=INT,HUP", *words],  # which a shell's job in the background ignores
            cwd=folder,
            env=dict(variables),
            stdin=subprocess.PIPE,
            stdout=(notes / "stray").open("a"),
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=(write,),
            start_new_session=True,
        )
        os.close(write)
        if not python:
            self._write(*SHELL)

    def run(self, command: str, timeout_s: float, answered: Callable[[str], bool] | None = None) -> tuple[int, str]:
        """The exit code and the output, errors included. `answered`: whether a server's output shows its first right
        answer, upon which SIGINT ends it, and the code is 0 if it ends as it should."""
        self._count += 1
        file = self.notes / f"{self._count:02d}"
        file.write_text(command + "\n")
        before = {child.pid for child in psutil.Process(self._process.pid).children()}
        self._write(self._line.format(file=file))
        deadline, interrupted = time.monotonic() + timeout_s, False
        while (code := self._code(0.2)) is None:
            if time.monotonic() > deadline:
                raise Late(f"did not end within {timeout_s:.0f} s; it said:\n{tail(self._said(file))}")
            if answered and not interrupted and answered(self._said(file)):
                self._interrupt(before)
                interrupted = True
        stopped = interrupted and code in STOPPED
        return 0 if stopped else code, self._said(file)

    def close(self) -> None:
        """Ends the shell; what it has left behind stays."""
        self._process.kill()
        self._process.wait()
        os.close(self._codes)

    def _write(self, *lines: str) -> None:
        self._process.stdin.write("\n".join([*lines, ""]))
        self._process.stdin.flush()

    def _code(self, timeout_s: float) -> int | None:
        if select.select([self._codes], [], [], timeout_s)[0]:
            line = os.read(self._codes, 16)
            return int(line) if line.strip() else self._process.wait()
        return None

    def _said(self, file: Path) -> str:
        out = file.with_name(f"{file.name}.out")
        return out.read_text(errors="replace") if out.exists() else ""

    def _interrupt(self, before: set[int]) -> None:
        """As Ctrl-C does: to the process group of the command, which job control (`set -m`) gives it."""
        for child in psutil.Process(self._process.pid).children():
            if child.pid not in before:
                os.killpg(os.getpgid(child.pid), signal.SIGINT)


def tail(text: str, lines: int = 25) -> str:
    """The last lines, for a message."""
    return "\n".join(text.splitlines()[-lines:])


def remains(token: str) -> list[psutil.Process]:
    """Every process that inherited the token."""
    found = list[psutil.Process]()
    for process in psutil.process_iter():
        try:
            if process.environ().get(TOKEN) == token:
                found.append(process)
        except psutil.Error:  # it has just ended, or is another user's
            continue
    return found


def end_all(token: str, patience_s: float) -> list[str]:
    """Names of the processes with the token that are still there after so many seconds; kills them."""
    deadline = time.monotonic() + patience_s
    while (left := remains(token)) and time.monotonic() < deadline:
        time.sleep(0.2)
    names = [_words(process)[:120] for process in left]
    while left:
        for process in left:
            _kill(process)
        psutil.wait_procs(left, timeout=30)
        left = remains(token)
    return names


def end_cluster(token: str) -> None:
    """Kills Ray's own processes that `ray start` has left, and that no other command ends."""
    own = [process for process in remains(token) if re.search(r"\bray(/|::|\.)", _words(process))]
    for process in own:
        _kill(process)
    psutil.wait_procs(own, timeout=30)


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return str(process.pid)


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        return
