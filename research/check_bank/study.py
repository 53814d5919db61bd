"""Live runs of TRL, clean and with one fault planted in each, by which `squelch check` is judged.

    python -m research.check_bank --run [--only CELL...] [--dir FOLDER]    # runs what is not done, and checks it
    python -m research.check_bank [--json]                                 # judges research/results/check_bank.csv

A tiny policy (`policy.py`) is trained for ten steps on CPU by TRL's `GRPOTrainer` (`trainer_worker.py`), with and
without a tool, whole and with a LoRA adapter. What a run leaves is checked as TRL and the guide's `keep_ids` write it,
and in the forms of eight other trainers (`forms.py`). Runs and the checks of a run are kept in FOLDER, and are not made
again.

| actor | waits for | on time-out |
|---|---|---|
| study | TRL's process, which runs all cells | RuntimeError that quotes the end of its log |
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.common import REPOSITORY, finished, parser_of, search_path, without_vllm
from benchmarks.peer.on_gpu import trl_side
from docs.writers.checks import formats_of
from research.check_bank.forms import checkpoints, format_of, forms
from research.check_bank.plan import CELLS, NEW, Cell
from research.judging import Report, show
from research.tables import FOLDER, read_csv, write_csv
from squelch.kit.checks.catalogue import checks
from squelch.kit.checks.run import CheckResult, check
from squelch.kit.process.terminal import say

OLD = REPOSITORY / ".cache" / "trl-0.29.0"
"""Where TRL 0.29.0 is, for `complaint_worker.py`: pip install --no-deps --target .cache/trl-0.29.0 trl==0.29.0"""
RESULTS = FOLDER / "check_bank.csv"
COLUMNS = ("cell", "form", "rows", "expected", "also", "verdict", "faults", "says")
CLAIMS = {"temperature": "1", "top_p": "1", "top_k": "0", "min_p": "0", "group_size": "4", "max_staleness": "0"}
CLAIMS |= {"max_tokens": str(NEW)}
"""What the runs' settings say."""
OF_IDS_ALONE, FEW_TOKENS = ("columns", "turns", "verl"), 2500
"""Forms without log-probabilities; and how many tokens of the others are scored, which decide with few."""
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
KINDS = ("found", "unknown", "silent", "missed", "wrong")
RUN_S = 3000.0
Row = Mapping[str, str]


def run(root: Path, names: Sequence[str]) -> None:
    """Runs the cells and checks them; those that are done are only checked."""
    root.mkdir(parents=True, exist_ok=True)
    waiting = [CELLS[name] for name in names if not (root / name / "done").exists()]
    in_trl(root, "trainer_worker", [cell.name for cell in waiting if not cell.old])
    in_trl(root, "complaint_worker", [cell.name for cell in waiting if cell.old])
    kept = {(row["cell"], row["form"]): row for row in read_csv(RESULTS)}
    for name in names:
        found = list(checked(root, CELLS[name]))
        kept = {key: row for key, row in kept.items() if key[0] != name} | {(name, row["form"]): row for row in found}
        write(list(kept.values()))
        say(f"{name}: " + ", ".join(f"{row['form']} {outcome(row)}" for row in found))


def in_trl(root: Path, module: str, names: Sequence[str]) -> None:
    """Runs the cells by a module of this folder, in a process that has TRL's packages and no vLLM, which takes long to
    load."""
    if not names:
        return
    search = search_path(*([OLD] if module == "complaint_worker" else []), trl_side.SITE)
    variables = {"PYTHONPATH": search, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    command = without_vllm(f"research.check_bank.{module}", str(root), *names)
    finished(command, variables, root / f"{module}.log", "TRL", RUN_S)


def checked(root: Path, cell: Cell) -> Iterator[Row]:
    """What the checks say of a cell's run, a row for each form."""
    out, shared = root / cell.name / "forms", root / "policy"
    shutil.rmtree(out, ignore_errors=True)
    tokenizer = out / "tokenizer"
    tokenizer.mkdir(parents=True)
    for name in TOKENIZER:
        if (shared / name).is_file():
            shutil.copyfile(shared / name, tokenizer / name)
    for form, files in forms(root / cell.name, out, shared).items():
        scored = form in cell.weights
        found = check(
            files,
            checkpoints=checkpoints(form, root / cell.name, out / f"{form}-weights") if scored else None,
            base=shared if scored else tokenizer,
            data=shared / f"{cell.prompts}.jsonl",
            format="areal" if form == "areal" else None,
            claims={**CLAIMS, **cell.claims},
            tokens=None if form in OF_IDS_ALONE else FEW_TOKENS,
        )
        yield _row(cell, form, found)


def _row(cell: Cell, form: str, found: CheckResult) -> Row:
    by_name = {one.name: one for one in found.results}
    expected = expected_in(cell, form)
    faults = [one.name for one in found.faults]
    told = [by_name[name] for name in dict.fromkeys((*expected, *faults)) if name in by_name]
    words = [f"{one.name}: {one.says}{'; needs ' + one.needs if one.needs else ''}" for one in told]
    verdicts = [by_name[name].verdict if name in by_name else "none" for name in expected]
    values = (" ".join(expected), " ".join(cell.also), " ".join(verdicts), " ".join(faults), " | ".join(words))
    return dict(zip(COLUMNS, (cell.name, form, str(found.rows), *values), strict=True))


def expected_in(cell: Cell, form: str) -> list[str]:
    """The faults that a form's files can show, by the catalogue of checks, with what it is checked with."""
    found = list[str]()
    for one in (checks()[name] for name in cell.expects):
        options = formats_of(one).get(format_of(form))
        if options is not None and (form in cell.weights or "--checkpoints" not in options):
            found.append(one.name)
    return found


def outcome(row: Row) -> str:
    """`wrong` if a fault is said that is not there; `silent` where none is expected; `found` if one of those is said;
    `unknown` where a check says what it needs; else `missed`."""
    expected, faults = set(row["expected"].split()), set(row["faults"].split())
    if faults - expected - set(row["also"].split()):
        return "wrong"
    if not expected:
        return "silent"
    if faults & expected:
        return "found"
    return "unknown" if "unknown" in row["verdict"].split() else "missed"


def write(found: Sequence[Row]) -> None:
    """Writes the table, in the order of the plan."""
    order = {name: place for place, name in enumerate(CELLS)}
    write_csv(RESULTS, sorted(found, key=lambda row: (order.get(row["cell"], len(order)), row["form"])))


def report() -> Report:
    """Of each cell the forms by outcome, and all counts."""
    found = read_csv(RESULTS)
    by_cell = {name: [row for row in found if row["cell"] == name] for name in CELLS}
    lines = [
        (name, ", ".join(own[0]["expected"].split()) if own else "", *(_forms(own, kind) for kind in KINDS))
        for name, own in by_cell.items()
    ]
    counts = Counter(map(outcome, found))
    clean = [row for row in found if row["cell"].startswith("clean")]
    metrics = {"runs": len({row["cell"] for row in found}), "checked": len(found), **counts, "clean": len(clean)}
    return Report(metrics, ("run", "expected", *KINDS), lines, [summary(found)])


def summary(found: Sequence[Row]) -> str:
    """What the rows say, as docs/research/results.md has it."""
    clean = [row for row in found if CELLS[row["cell"]].fault == ""]
    planted = [row for row in found if CELLS[row["cell"]].fault]
    able = [row for row in planted if row["expected"]]
    counts = Counter(map(outcome, planted))
    told = [f"named right in {counts['found']} of the {len(able)} files whose form has what the check needs"]
    for kind in (one for one in ("unknown", "missed", "wrong") if counts[one]):
        told.append(f"{kind} in {counts[kind]} ({', '.join(_named(planted, kind))})")
    parts = [f"Done are {_runs(found)} of {len(CELLS)} runs."]
    if clean:
        parts.append(f"Clean runs: {_runs(clean)}, in {len(clean)} files, with {_faults(clean)} faults.")
    parts.append(f"Runs with a planted fault: {_runs(planted)}, in {len(planted)} files; {'; '.join(told)}.")
    return "\n".join(parts)


def _runs(found: Sequence[Row]) -> int:
    return len({row["cell"] for row in found})


def _faults(found: Sequence[Row]) -> int:
    return sum(bool(row["faults"]) for row in found)


def _named(found: Sequence[Row], kind: str) -> list[str]:
    return list(dict.fromkeys(row["cell"] for row in found if outcome(row) == kind))


def _forms(own: Sequence[Row], kind: str) -> str:
    return " ".join(row["form"] for row in own if outcome(row) == kind)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = parser_of(__doc__, "judge the table, as without it")
    parser.add_argument("--run", action="store_true", help="run the cells that are not done, and check them")
    parser.add_argument("--only", nargs="+", choices=CELLS, default=list(CELLS), metavar="CELL", help="run: these")
    folder = REPOSITORY / "build" / "check-bank"
    parser.add_argument("--dir", type=Path, default=folder, help="run: folder of the runs")
    chosen = parser.parse_args(argv)
    if chosen.run:
        run(chosen.dir.resolve(), chosen.only)
    show(report(), chosen.json)
    return 0
