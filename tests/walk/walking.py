"""Walks one page: its blocks in order, and the checks after each."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.walk import checks
from tests.walk.commands import bound, commands, in_background, left_out, shortened
from tests.walk.pages import Block, Page, PageFault, read_page
from tests.walk.places import Ground, Place, free_port, keep_policies
from tests.walk.presumed import Wanted, names, presume
from tests.walk.session import Late, Session, end_all, end_cluster, tail

COMMAND_S = 1500.0
"""Bound on one command: a start with a warm-up on a slow machine."""
README = "README.md"
ON_PATH = re.compile(r"^export PATH=.*$", re.MULTILINE)
"""The README's line with which a checkout's programs are found."""
ANSWER_S = 300.0
"""Bound on the first right answer of a server in the background."""
LINGER_S = 20.0
"""How long a page's processes may go on after its last command: Ray's helpers end by themselves."""
Say = Callable[[str], None]


def _http(text: str) -> bool:
    """Whether an address that a server printed answers, or the port that its command gives."""
    return any(_answer(url) is not None for url in _addresses(text))


def _measured(text: str) -> bool:
    """Whether a monitor serves a value of MI."""
    value = re.compile(r"^squelch_mi\w*(?:\{.*\})? (?!NaN)\S+$", re.MULTILINE)
    return any(value.search(_answer(url) or "") for url in _addresses(text))


def _addresses(text: str) -> list[str]:
    ports = re.findall(r"--port (\d+)", text)
    return re.findall(r"http://[\w.]+:\d+[\w/?=&.%-]*", text) + [f"http://127.0.0.1:{port}" for port in ports]


def _answer(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode(errors="replace")
    except urllib.error.HTTPError:  # it knows no such page
        return ""
    except OSError:
        return None


SERVERS: Mapping[str, Callable[[str], bool]] = {
    "squelch watch": lambda text: bool(re.search(r"^step [1-9]\d*: ", text, re.MULTILINE)),
    "squelch inspect": _http,
    "squelch monitor": _measured,
    "tensorboard ": _http,
    "squelch.envs.remote": _http,
    "prometheus-alertmanager": lambda text: "Listening on" in text,
    "prometheus ": lambda text: "Server is ready to receive web requests" in text,
}
"""Words of commands that go on until they are stopped, and what shows a right answer in the command and its output."""


def _server(command: str) -> Callable[[str], bool] | None:
    right = next((right for words, right in SERVERS.items() if re.search(rf"(?<![\w-]){words}", command)), None)
    return right and (lambda said: right(f"{command}\n{said}"))


@dataclass
class Walk:
    """One page that is being walked."""

    ground: Ground
    page: Page
    place: Place
    say: Say
    whole: bool = False
    """Whether blocks are walked whose commands another page has."""
    faults: list[str] = field(default_factory=list)
    printed: str = ""
    """What all commands so far printed."""

    def __post_init__(self) -> None:
        self.shell = Session(self.place.folder, self.place.notes / "shell", self.place.variables)
        self._python: Session | None = None
        self._has_cluster = False
        self._bindings = self._bound_now()
        self._ran: set[tuple[Path, float]] = set()

    def go(self) -> None:
        """Every block in order; a command that does not end ends the page."""
        if self.page.mode == "checkout" and self.page.name != README:
            self._run(1, ON_PATH.search(self.ground.read(README))[0])
        for block in self.page.blocks:
            try:
                self._walk(block)
            except Late as late:
                self._fault(block.line, str(late))
                break
        else:
            self.shell.run("jobs -p | xargs -r kill; wait", COMMAND_S)  # runs that a block presumed
        self.shell.close()
        if self._python:
            self._python.close()
        if self._has_cluster:
            end_cluster(self.place.token)
        keep_policies(self.place.folder / ".cache")
        left = end_all(self.place.token, LINGER_S)
        if left:
            self._fault(len(self.page.text.splitlines()), f"left {len(left)} processes behind: {'; '.join(left[:5])}")

    def _walk(self, block: Block) -> None:
        if block.same_as and not self.whole:
            self.say(f"  {block.line:4}  as {block.same_as}")
            return
        wanted = Wanted(self.ground, self.place.folder, lambda command: self._presumed_run(block.line, command))
        for name in block.presumes:
            if name == "prompts":
                self._in_python(names())
            else:
                presume(name, wanted)
        match block.kind:
            case "file":
                (self.place.folder / block.file).write_text(block.text)
            case "output":
                self._faults(block.line, checks.order_faults(block.text, self.printed))
            case "python":
                self._python_block(block)
            case "commands":
                self._commands(block)
        for folder in self._new_runs():
            self._faults(block.line, checks.run_faults(folder, block.warns))
            self.ground.keep(folder)

    def _python_block(self, block: Block) -> None:
        text, _ = bound(block.text, self._bindings)
        began = time.monotonic()
        code, said = self._in_python(shortened(text))
        self.say(f"  {block.line:4}  python, {text.count(chr(10))} lines   {time.monotonic() - began:.1f} s")
        self._judge(block, block.line, code, 0, said)

    def _in_python(self, code: str) -> tuple[int, str]:
        if self._python is None:
            self._python = Session(
                self.place.folder, self.place.notes / "python", self.place.variables, self.place.python
            )
        return self._python.run(code, COMMAND_S)

    def _commands(self, block: Block) -> None:
        todo = [(block.line + at, text) for at, text in commands(block.text)]
        run = [(line, text) for line, text in todo if left_out(text, block.not_run) is None]
        for line, text in todo:
            if reason := left_out(text, block.not_run):
                self.say(f"  {line:4}  not run ({reason}): {text.splitlines()[0]}")
        behind = next((text for _, text in run if not text.startswith("#!") and in_background(text)), None)
        for index, (line, text) in enumerate(run):
            last = index == len(run) - 1 and not behind
            code, said = self._run(line, text)
            self._judge(block, line, code, block.exit_code if last else 0, said)
        if behind:  # it ends with the block, a server because it is stopped
            stop = "kill $!; wait $! || true" if _server(behind) else "wait $!"
            code, said = self.shell.run(stop, COMMAND_S)
            self._judge(block, block.line, code, block.exit_code, said)

    def _run(self, line: int, text: str) -> tuple[int, str]:
        if "HOST:" in text and not self._has_cluster:
            self._presumed_run(line, "ray start --head --port=6379")
        typed, used = bound(text, self._bindings)
        typed = shortened(typed)
        for name in used:
            self.say(f"        {name} = {self._bindings[name]}")
        if text.startswith("#!"):
            (self.place.folder / "job.sh").write_text(typed)
            typed = "bash job.sh"
        self._has_cluster |= typed.startswith("ray start")
        server, behind, began = _server(typed), in_background(typed), time.monotonic()
        code, said = self.shell.run(typed, COMMAND_S, None if behind else server)
        while behind and server and not server(said):
            if time.monotonic() - began > ANSWER_S:
                raise Late(f"no answer within {ANSWER_S:.0f} s: {typed}")
            time.sleep(0.2)
        self.printed += said
        self.say(f"  {line:4}  {typed}   {time.monotonic() - began:.1f} s")
        return code, said

    def _presumed_run(self, line: int, command: str) -> None:
        code, said = self._run(line, command)
        if code:
            raise RuntimeError(f"{self.page.name}:{line}: what the page presumes failed: {tail(said)}")

    def _judge(self, block: Block, line: int, code: int, wanted: int, said: str) -> None:
        found = checks.output_faults(said, [self.page.text, *block.warns])
        if code != wanted:
            found.insert(0, f"exit code {code}, not {wanted}")
        self._faults(line, found, said)

    def _faults(self, line: int, found: list[str], said: str = "") -> None:
        for fault in found:
            self._fault(line, fault)
        if found and said:
            self.say("        " + tail(said).replace("\n", "\n        "))

    def _fault(self, line: int, text: str) -> None:
        self.faults.append(f"{self.page.name}:{line}: {text}")
        self.say(f"FAULT {self.faults[-1]}")

    def _new_runs(self) -> list[Path]:
        """Folders of runs that a command ended since the last call."""
        places = [self.place.folder / name for name in ("runs", "shared", "tmp")]
        ended = {(path, path.stat().st_mtime) for place in places for path in place.glob("*/summary.json")}
        new, self._ran = ended - self._ran, ended
        return sorted(path.parent for path, _ in new)

    def _bound_now(self) -> dict[str, str]:
        model, ports = str(self.ground.model), [free_port() for _ in range(4)]
        head, board = f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}"
        found = dict.fromkeys(("MODEL", "DIR", "Qwen/Qwen3-0.6B", "Qwen3-0.6B"), model)
        found |= dict.fromkeys(("HOST:6379", "HEAD:6379"), head) | dict.fromkeys(("HOST:8265", "HEAD:8265"), board)
        found |= {
            "FILE": "tasks.jsonl",
            "PID": "$!",
            "/shared/runs": str(self.place.folder / "shared"),
            "--port=6379": f"--port={ports[0]} --dashboard-port={ports[1]} --dashboard-agent-listen-port={ports[2]}"
            f" --ray-client-server-port={ports[3]} --node-ip-address=127.0.0.1 {SMALL_NODE}",
            "store=s3://bucket/runs runs_dir=/tmp/runs": f"store=s3://bucket/runs runs_dir={self.place.folder}/tmp"
            f" --address http://{board}",
        }
        return found | OF_PAGE.get(self.page.name, {})


SMALL_NODE = "--num-cpus=4 --object-store-memory=200000000"
OF_PAGE = {
    "docs/guide/use-with-other-trainers.md": {"FILE": "out/completions/completions_00100.parquet"},
    "docs/guide/adding-an-environment.md": {"NAME": "Countdown"},
    "docs/guide/runbook.md": {
        "RECIPE": "frozenlake",
        "NEW": "new",
        "runs/NAME/checkpoints/step-N/hf": "runs/frozenlake/checkpoints/step-1/hf",
    },
}
"""Placeholders that mean something else on one page."""


def walk_page(ground: Ground, name: str, whole: bool, say: Say) -> list[str]:
    """Walks a page of the commit; its faults, each with page and line. `whole`: also blocks that another page has."""
    try:
        page = read_page(name, ground.read(name))
    except PageFault as fault:
        return [f"{name}:{fault}"]
    place = ground.place(name, page.mode)
    say(f"{name}: {page.mode} of {ground.commit[:12]}, in {place.folder}")
    walk = Walk(ground, page, place, say, whole)
    walk.go()
    return walk.faults
