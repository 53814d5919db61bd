"""Mutants: small changes of the code that some test should notice. `python -m tests.mutants [ROOM ...]`.

    python -m tests.mutants [ROOM ...] [--each 20] [--seed 0] [--out build/mutants.jsonl] [--list]

A room is a folder of the product with the tests that hold it (`ROOMS`). From all places where a change is possible
(`changes_of`) so many are drawn by the seed, each in another function where there are enough. Every mutant is written
into a copy of the repository, and the room's fast tests run there until one fails; if none does, so do the other fast
tests that name its module. A mutant that no test notices is a survivor: it needs a test, or a line in `EQUIVALENT`.

What is found stands in the file of `--out`, a line for each mutant, and is not tried again: an interrupted call goes
on, and a mutant of a file that has changed since is tried anew. Exit code 1 if a mutant has survived.

| waits | for | unblocked by | on time-out |
|---|---|---|---|
| the script | the tests of a mutant | their end | after `LIMIT_S` they are ended, and the mutant counts as noticed |
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "mutants.jsonl"
ROOMS: Mapping[str, tuple[str, str]] = {
    "filter": ("squelch/kit/filter", "tests/kit/filter"),
    "scoring": ("squelch/kit/scoring", "tests/kit/scoring"),
    "diagnosis": ("squelch/kit/diagnosis", "tests/kit/diagnosis"),
    "archive": ("squelch/kit/archive", "tests/kit/archive"),
    "objective": ("squelch/learner/objective", "tests/learner/objective"),
    "checkpoint": ("squelch/learner/checkpoint", "tests/learner/checkpoint"),
    "control": ("squelch/cluster/control", "tests/cluster/control"),
    "loop": ("squelch/cluster/loop", "tests/cluster/loop"),
    "endpoint": ("squelch/actors/endpoint", "tests/actors/endpoint"),
    "sandbox": ("squelch/envs/sandbox", "tests/envs/sandbox"),
}
EQUIVALENT: Mapping[str, str] = {}
"""Mutants that change nothing that anybody could notice, as `FILE: BEFORE -> AFTER`, and why."""
LIMIT_S = 300.0
PYTEST = ("-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", "not ray and not slow", "--timeout=120")
NO_TESTS = 5
"""Pytest's exit code if it has collected nothing."""
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
    def says(self) -> str:
        """The change in words, as in `EQUIVALENT`."""
        return f"{self.file}: {self.before} -> {self.after}"


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
    """The expressions that run, with the function that they are in: no annotations, docstrings or words."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "format_spec"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or (isinstance(child, ast.If) and _is_for_types(child)):
                continue
            own = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
            if isinstance(child, ast.expr):
                yield child, own
            if not isinstance(child, ast.JoinedStr):
                yield from _expressions(child, own)


def _is_for_types(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


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
            if change.says not in EQUIVALENT:
                by_function.setdefault((change.file, change.function), []).append(change)
    groups = [rng.sample(own, len(own)) for own in by_function.values()]
    rng.shuffle(groups)
    ordered = [own[turn] for turn in range(max(map(len, groups), default=0)) for own in groups if turn < len(own)]
    return ordered[:each]


def tests_of(room: str, file: str) -> tuple[list[str], list[str]]:
    """The room's own tests, and the other test files that name the module or its package."""
    own = ROOMS[room][1]
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = module.rpartition(".")
    words = (module, f"from {package} import {name}")
    files = (path for path in (ROOT / "tests").rglob("test_*.py") if own not in path.as_posix())
    found = [p for p in files if any(word in p.read_text(encoding="utf-8") for word in words)]
    return [own], sorted(path.relative_to(ROOT).as_posix() for path in found)


def noticed_by(place: Path, tests: Sequence[str]) -> str | None:
    """The test that fails in the copy, or how the tests end instead; None if all pass."""
    if not tests:
        return None
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *PYTEST, *tests],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"they do not end within {LIMIT_S:g} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode in (0, NO_TESTS):
        return None
    failed = [line.split(" - ")[0] for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0] if failed else f"exit code {process.returncode}: {said.strip()[-200:]}"


def copied(place: Path) -> None:
    """Copies what git knows, and links the caches that tests read."""
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in names:
        source = ROOT / name
        if source.is_symlink() or source.is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place / name, follow_symlinks=False)
    for cache in (".cache", ".venv"):
        if (ROOT / cache).exists():
            (place / cache).symlink_to(ROOT / cache)


def tried(place: Path, room: str, change: Change) -> str | None:
    """Writes the mutant into the copy, runs its tests, and takes it back; the test that notices it."""
    text, target = (ROOT / change.file).read_text(encoding="utf-8"), place / change.file
    target.write_text(changed(text, change), encoding="utf-8")
    try:
        own, others = tests_of(room, change.file)
        return noticed_by(place, own) or noticed_by(place, others)
    finally:
        target.write_text(text, encoding="utf-8")


def known(out: Path) -> dict[str, str | None]:
    """What the file of an earlier call says of each mutant, by its key."""
    lines = out.read_text(encoding="utf-8").splitlines() if out.is_file() else []
    return {row["key"]: row["noticed"] for row in map(json.loads, lines)}


def key_of(change: Change) -> str:
    """A key that changes with the file's content."""
    digest = hashlib.sha256((ROOT / change.file).read_bytes()).hexdigest()[:12]
    return f"{digest} {change.start} {change.says}"


def run(rooms: Sequence[str], each: int, seed: int, out: Path) -> list[str]:
    """Tries the mutants of the rooms; the survivors, in words."""
    found, survivors = known(out), []
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="squelch-mutants-") as name:
        place = Path(name)
        copied(place)
        for room in rooms:
            for number, change in enumerate(drawn(room, each, seed), start=1):
                key = key_of(change)
                if key not in found:
                    found[key] = tried(place, room, change)
                    with out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"room": room, "key": key, "noticed": found[key]}) + "\n")
                said = f"{change.file}:{change.line}: {change.before} -> {change.after}"
                print(f"{room} {number}/{each} {'SURVIVES' if found[key] is None else 'noticed'} {said}", flush=True)
                survivors += [said] if found[key] is None else []
    return survivors


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the mutants and what notices them; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"these of {', '.join(ROOMS)}; all without any")
    parser.add_argument("--each", type=int, default=20, metavar="N", help="mutants of each room")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another seed draws other mutants")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE", help="the file that keeps what was found")
    parser.add_argument("--list", action="store_true", help="print the mutants and try none")
    chosen = parser.parse_args(argv)
    if unknown := [room for room in chosen.rooms if room not in ROOMS]:
        parser.error(f"{unknown[0]} is no room; give {', '.join(ROOMS)}")
    rooms = chosen.rooms or [*ROOMS]
    if chosen.list:
        for room in rooms:
            for change in drawn(room, chosen.each, chosen.seed):
                print(f"{room} {change.file}:{change.line}: {change.before} -> {change.after}")
        return 0
    survivors = run(rooms, chosen.each, chosen.seed, chosen.out)
    print(f"{len(survivors)} of {chosen.each * len(rooms)} mutants survive", *survivors, sep="\n")
    return int(bool(survivors))


if __name__ == "__main__":
    raise SystemExit(main())
