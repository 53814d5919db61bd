"""Mutants: small changes of the code that some test should notice. `python -m tests.mutants [ROOM ...]`.

    python -m tests.mutants [ROOM ...] [--each 20] [--seed 0] [--fast] [--out build/mutants.jsonl] [--list]

A room is a folder of the product with the places of the tests that hold it (`ROOMS`). From all places where a change
is possible (`changes_of`) so many are drawn by the seed, each in another function where there are enough. Every mutant
is written into a copy of the repository, and tests run there until one fails: first the room's fast ones that enter the
function, then all fast ones of their files; where none enters it (module level, a process of its own), those of the
module's name, then the room's. Then come others that import the module, and slow ones (`tests/slow.txt`) in that order,
but neither with `--fast`, and never one that starts Ray. A test that fails without the change too ends the call. A
mutant that no test notices is a survivor: it needs a test, or a line in `EQUIVALENT`.

Which test enters which function stands in `entered.json` beside `--out`, and is found again for each file of tests that
changed.

What is found stands in the file of `--out`, a line for each mutant. One that was noticed is not tried again unless its
file has changed: an interrupted call goes on, and a survivor is tried on the tests that there are now. Exit code 1 if a
mutant survives.

| waits | for | unblocked by | on time-out |
|---|---|---|---|
| the script | the tests of a mutant | their end | after `LIMIT_S` they are ended, and the mutant counts as noticed |

Tests run in a fork of this process, which has imported what is no part of the repository, as imports take longest.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import importlib.util
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

import pytest

from tests.tracked import copied, named

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "mutants.jsonl"
ROOMS: dict[str, tuple[str, ...]] = {
    "filter": ("squelch/kit/filter", "tests/kit/filter"),
    "scoring": ("squelch/kit/scoring", "tests/kit/scoring"),
    "diagnosis": ("squelch/kit/diagnosis", "tests/kit/diagnosis"),
    "archive": ("squelch/kit/archive", "tests/kit/archive"),
    "objective": ("squelch/learner/objective", "tests/learner/objective", "tests/learner/policy/test_critic.py"),
    "checkpoint": ("squelch/learner/checkpoint", "tests/learner/checkpoint"),
    "control": ("squelch/cluster/control", "tests/cluster/control"),
    "loop": ("squelch/cluster/loop", "tests/cluster/loop"),
    "endpoint": ("squelch/actors/endpoint", "tests/actors/endpoint"),
    "sandbox": ("squelch/envs/sandbox", "tests/envs/sandbox"),
}
EQUIVALENT: Mapping[str, str] = {
    "squelch/actors/endpoint/responses_api.py _end: 1 -> 2": "every number below 0 is no rank",
    "squelch/actors/endpoint/server.py _read: len(data) < LARGE_BYTES -> len(data) <= LARGE_BYTES": "either reads it",
    "squelch/cluster/control/autoscaling.py _mean: 1 -> 2": "as many workers in all loads (in 60,000 random steps too)",
    "squelch/cluster/control/rank_client.py: 6 -> 7": "how often within a time-out; more than once will do",
    "squelch/envs/sandbox/harness.py execute: 1 -> 2": "a program has failed with every exit code but 0",
    "squelch/kit/archive/score_matrices.py: 200_000 -> 200001": "a bound of size; files of one pair more fit too",
    "squelch/kit/scoring/cross_scoring.py _at: temperature == 1 -> temperature != 1": "asked on a GPU alone",
    "squelch/kit/scoring/picture_features.py: 1 -> 2": "a bound of size; twice as many features fit too",
    "squelch/learner/checkpoint/export.py: 4 -> 5": "files of another size, which every reader takes",
}
"""Mutants that change nothing that anybody could notice, as `FILE FUNCTION: BEFORE -> AFTER`, and why."""
LIMIT_S = 900.0
IMPORTED = (
    *("aiohttp.web", "anthropic", "boto3", "gymnasium", "hypothesis", "numpy", "openai", "peft", "pyarrow.parquet"),
    *("pydantic", "ray", "rich", "sympy", "torch", "torch._dynamo", "torch.distributed.fsdp", "transformers"),
)
"""What most tests import, and is no part of the repository."""
PYTEST = ("-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--timeout=120")
FAST, SLOW = "not ray and not slow", "not ray and slow"
COMPARISONS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In},
}
OPERATORS: Mapping[type[ast.operator], type[ast.operator]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
OTHER_NAME = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Change:
    """A change of an expression. `start`, `end`: its place in the file's bytes; `function`: the one that it is in."""

    file: str
    line: int
    function: str
    start: int
    end: int
    before: str
    after: str

    @property
    def where(self) -> str:
        """The change with its line."""
        return f"{self.file}:{self.line}: {self.before} -> {self.after}"

    @property
    def says(self) -> str:
        """The change in words, as in `EQUIVALENT`."""
        return f"{self.file}{self.function and ' '}{self.function}: {self.before} -> {self.after}"


def changes_of(file: str, text: str) -> Iterator[Change]:
    """Every change of a file, in the order of its places."""
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, function in _expressions(ast.parse(text), ""):
        if (after := _changed(node)) is not None and node.end_lineno is not None and node.end_col_offset is not None:
            start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
            before = " ".join(text.encode()[start:end].decode().split())
            found.append(Change(file, node.lineno, function, start, end, before, ast.unparse(after)))
    return iter(sorted(found, key=lambda change: (change.start, change.end)))


def _expressions(node: ast.AST, function: str) -> Iterator[tuple[ast.expr, str]]:
    """The expressions that run, with the function that they are in: no annotations, docstrings or words, and not the
    `strict` of a zip, whose lengths are equal."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "format_spec"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_left_out(child):
                continue
            own = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
            if isinstance(child, ast.expr):
                yield child, own
            if not isinstance(child, ast.JoinedStr):
                yield from _expressions(child, own)


def _is_left_out(node: ast.AST) -> bool:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.keyword(arg="strict"):
            return True
    return False


def _changed(node: ast.expr) -> ast.expr | None:
    """The node with another operator, number, name or sense; None if there is none to change."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            return ast.Compare(node.left, [COMPARISONS[type(op)]()], node.comparators)
        case ast.BoolOp(op=op, values=values):
            return ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS and not _is_text(left, right):
            return ast.BinOp(left, OPERATORS[type(op)](), right)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            return operand
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return ast.IfExp(test, orelse, body)
        case ast.Constant(value=bool() as value):
            return ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            return ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in OTHER_NAME:
            return ast.Call(ast.Name(OTHER_NAME[name]), node.args, node.keywords)
    return None


def _is_text(*nodes: ast.expr) -> bool:
    return any(
        isinstance(n, ast.JoinedStr) or (isinstance(n, ast.Constant) and isinstance(n.value, str)) for n in nodes
    )


def changed(text: str, change: Change) -> str:
    """The file's text with the change, in brackets."""
    data = text.encode()
    return (data[: change.start] + b"(" + change.after.encode() + b")" + data[change.end :]).decode()


def drawn(room: str, each: int, seed: int) -> list[Change]:
    """The room's mutants: `each` changes, as few as possible of them in one function."""
    rng, by_function = random.Random(f"{room} {seed}"), dict[tuple[str, str], list[Change]]()
    for path in sorted((ROOT / ROOMS[room][0]).rglob("*.py")):
        for change in changes_of(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")):
            by_function.setdefault((change.file, change.function), []).append(change)
    groups = [rng.sample(own, len(own)) for own in by_function.values()]
    rng.shuffle(groups)
    ordered = [own[turn] for turn in range(max(map(len, groups), default=0)) for own in groups if turn < len(own)]
    return [change for change in ordered if change.says not in EQUIVALENT][:each]


def files_for(room: str, file: str) -> tuple[list[str], list[str], list[str]]:
    """Test files: the room's of the module's name, the room's others, and others that import the module."""
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    found = list[str](), list[str](), list[str]()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if not {ROOT / own for own in ROOMS[room][1:]}.isdisjoint([path, *path.parents]):
            found[path.name != f"test_{Path(file).name}"].append(path.relative_to(ROOT).as_posix())
        elif module in named(path.read_text(encoding="utf-8")):
            found[2].append(path.relative_to(ROOT).as_posix())
    return found


def noticed_by(place: Path, tests: Sequence[str], chosen: str = "not ray") -> str | None:
    """The test that fails in the copy, or how the tests end instead; None if all pass, or there are none."""
    code, text = _ran(place, ["-x", "-m", chosen, *tests]) if tests else (0, "")
    if code is None:
        return f"they do not end within {LIMIT_S:g} s"
    if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return None
    failed = [line.split(" - ")[0] for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0] if failed else f"exit code {code}: {text.strip()[-200:]}"


def _ran(place: Path, words: Sequence[str], *plugins: object) -> tuple[int | None, str]:
    """pytest on the copy's code, in a fork: its exit code (None: it was ended after `LIMIT_S`) and what it said."""
    with tempfile.TemporaryDirectory(prefix="m-") as name:
        said = Path(name) / "said"
        if (process := os.fork()) == 0:
            _test(place, words, said, plugins)
        try:
            code = _exit_code(process)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
        return code, said.read_text(encoding="utf-8", errors="replace")


class Entering:
    """A plugin of pytest: notes which functions of the copy each test enters, and writes them to a file."""

    def __init__(self, place: Path, out: Path) -> None:
        self._root, self._out, self._found = f"{place}/", out, dict[str, set[str]]()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Notes what runs from the test's set-up to its tear-down, in every thread."""
        codes = set[CodeType]()

        def note(frame: FrameType, event: str, _arg: object) -> None:
            if event == "call":
                codes.add(frame.f_code)

        threading.setprofile(note)
        sys.setprofile(note)
        yield
        sys.setprofile(None)
        threading.setprofile(None)
        for code in codes:
            if code.co_filename.startswith(f"{self._root}squelch/"):
                function = f"{code.co_filename.removeprefix(self._root)} {code.co_name}"
                self._found.setdefault(function, set()).add(item.nodeid.partition("[")[0])

    def pytest_sessionfinish(self) -> None:
        """Writes the tests of each function."""
        self._out.write_text(json.dumps({function: sorted(tests) for function, tests in self._found.items()}))


def entered(place: Path, room: str, out: Path) -> dict[str, list[str]]:
    """The room's fast tests that enter a function, by `FILE FUNCTION`; what `out` lacks is found in the copy."""
    known = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
    files = {name: hashlib.sha256((ROOT / name).read_bytes()).hexdigest()[:12] for name in _files_in(ROOMS[room][1:])}
    if new := [name for name, digest in files.items() if known.get(name, {}).get("digest") != digest]:
        known |= {name: {"digest": files[name], "tests": {}} for name in new}
        with tempfile.TemporaryDirectory(prefix="e-") as folder:
            part = Path(folder) / "part.json"
            code, said = _ran(place, ["-m", FAST, *new], Entering(place, part))
            if not part.is_file():
                raise RuntimeError(f"the tests of {room} end with exit code {code}: {said.strip()[-2000:]}")
            for function, tests in json.loads(part.read_text(encoding="utf-8")).items():
                for test in tests:
                    known[test.partition("::")[0]]["tests"].setdefault(function, []).append(test)
        out.write_text(json.dumps(known), encoding="utf-8")
    found = dict[str, list[str]]()
    for name in files:
        for function, tests in known[name]["tests"].items():
            found.setdefault(function, []).extend(tests)
    return found


def _files_in(places: Sequence[str]) -> list[str]:
    """The files of tests that are these, or in these folders."""
    files, own = sorted((ROOT / "tests").rglob("test_*.py")), {ROOT / place for place in places}
    return [path.relative_to(ROOT).as_posix() for path in files if not own.isdisjoint([path, *path.parents])]


def _exit_code(process: int) -> int | None:
    """The child's exit code; None if it does not end within `LIMIT_S` and is ended."""
    end = time.monotonic() + LIMIT_S
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return None
        time.sleep(0.05)


def _test(place: Path, words: Sequence[str], said: Path, plugins: Sequence[object]) -> None:
    """In the child: runs the tests on the copy's code, writes to `said`, and ends the process."""
    code = 70
    try:
        os.setsid()
        sys.stdout = sys.stderr = said.open("w", encoding="utf-8")
        for number in (1, 2):
            os.dup2(sys.stdout.fileno(), number)
        os.chdir(place)
        os.environ |= {"PYTHONPATH": str(place), "TMPDIR": str(said.parent)}
        tempfile.tempdir, sys.dont_write_bytecode = None, False
        sys.path[:] = [str(place), *(path for path in sys.path if Path(path).resolve() != ROOT)]
        for name in [name for name in sys.modules if name.partition(".")[0] in ("squelch", "tests")]:
            del sys.modules[name]
        code = int(pytest.main([*PYTEST, *words], plugins=plugins))
        sys.stdout.flush()
    finally:
        os._exit(code)


def tried(place: Path, room: str, change: Change, entering: Sequence[str] = (), *, slow: bool = True) -> str | None:
    """Writes the mutant into the copy, runs its tests, and takes it back; the test that notices it. `entering`: the
    fast tests that enter its function.

    Raises RuntimeError if that test fails without the change too."""
    text, target = (ROOT / change.file).read_text(encoding="utf-8"), place / change.file
    for chosen, tests in _stages(files_for(room, change.file), entering, slow=slow):
        _written(target, changed(text, change))
        try:
            found = noticed_by(place, tests, chosen)
        finally:
            _written(target, text)
        if found is None:
            continue
        test = [found.partition(" ")[2]] if found.startswith(("FAILED ", "ERROR ")) else tests[:1]
        if noticed_by(place, test, chosen) == found:
            raise RuntimeError(f"fails in the copy without a change: {found}")
        return found
    return None


def _stages(
    files: tuple[list[str], list[str], list[str]], entering: Sequence[str], *, slow: bool
) -> Iterator[tuple[str, list[str]]]:
    """Which tests run one after another, each as the expression that chooses them and their files or names."""
    if entering:
        first = sorted(entering, key=lambda test: test.partition("::")[0] not in files[0])
        yield FAST, first
        rest = [*dict.fromkeys([*files[0], *(test.partition("::")[0] for test in first)])]
        yield FAST, [*rest, *(f"--deselect={test}" for test in first)]
    else:
        yield from ((FAST, some) for some in files[:2])
    if slow:
        yield FAST, files[2]
        yield from ((SLOW, some) for some in files)


def _written(target: Path, text: str) -> None:
    """Writes the module; what was compiled of it before goes, as its size and second may be the same."""
    Path(importlib.util.cache_from_source(str(target))).unlink(missing_ok=True)
    target.write_text(text, encoding="utf-8")


def known(out: Path) -> dict[str, str | None]:
    """What the file of an earlier call says of each mutant, by its key."""
    lines = out.read_text(encoding="utf-8").splitlines() if out.is_file() else []
    return {row["key"]: row["noticed"] for row in map(json.loads, lines)}


def key_of(change: Change) -> str:
    """A key that changes with the file's content."""
    digest = hashlib.sha256((ROOT / change.file).read_bytes()).hexdigest()[:12]
    return f"{digest} {change.start} {change.says}"


def run(rooms: Sequence[str], each: int, seed: int, out: Path, *, slow: bool = True) -> tuple[int, list[str]]:
    """Tries the mutants of the rooms; how many there are, and the survivors, in words."""
    found, survivors, count = known(out), list[str](), 0
    out.parent.mkdir(parents=True, exist_ok=True)
    for name in IMPORTED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="squelch-mutants-") as name:
        place = Path(name)
        copied(place)
        for cache in (".cache", ".venv"):
            if (ROOT / cache).exists():
                (place / cache).symlink_to(ROOT / cache)
        for room in rooms:
            tests = entered(place, room, out.with_name("entered.json"))
            for change in drawn(room, each, seed):
                key = key_of(change)
                if found.get(key) is None:
                    entering = tests.get(f"{change.file} {change.function}", ())
                    found[key] = tried(place, room, change, entering, slow=slow)
                    with out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"room": room, "key": key, "noticed": found[key]}) + "\n")
                said = change.where
                print(f"{room} {'SURVIVES' if found[key] is None else 'noticed'} {said}", flush=True)
                survivors += [said] if found[key] is None else []
                count += 1
    return count, survivors


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the mutants and what notices them; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"these of {', '.join(ROOMS)}; all without any")
    parser.add_argument("--each", type=int, default=20, metavar="N", help="mutants of each room")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another seed draws other mutants")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE", help="the file that keeps what was found")
    parser.add_argument("--fast", action="store_true", help="only the room's fast tests: others may notice a survivor")
    parser.add_argument("--list", action="store_true", help="print the mutants and try none")
    chosen = parser.parse_args(argv)
    if unknown := [room for room in chosen.rooms if room not in ROOMS]:
        parser.error(f"{unknown[0]} is no room; give {', '.join(ROOMS)}")
    rooms = chosen.rooms or [*ROOMS]
    if chosen.list:
        for room in rooms:
            for change in drawn(room, chosen.each, chosen.seed):
                print(f"{room} {change.where}")
        return 0
    count, survivors = run(rooms, chosen.each, chosen.seed, chosen.out, slow=not chosen.fast)
    print(f"{len(survivors)} of {count} mutants survive", *survivors, sep="\n")
    return int(bool(survivors))


if __name__ == "__main__":
    raise SystemExit(main())
