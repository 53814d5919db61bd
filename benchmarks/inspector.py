"""Measures `squelch inspect` in headless Chromium on a run of 100,000 groups.

    python -m benchmarks.inspector [--keep FOLDER] [--quick] [--json]

The run has 12,500 steps of 8 groups with the index, metrics and spans of such a run. Its tokens are those of 1,000
groups, repeated: FrozenLake as its demonstrator plays it. `--keep` builds the run in a folder and leaves it there; a
run that is already in it is measured again.

The server runs in a process of its own, as `squelch inspect` starts it. A metric is the time from the browser's request
until the page is painted; a group is opened both as a new page and from the list, as a click does it. Memory is the
server's resident set at the end.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from playwright.sync_api import Page, sync_playwright

from benchmarks.common import parser_of, print_targets
from squelch.cluster.config import dump, load
from squelch.cluster.inspector.run_metrics import KEYS
from squelch.kit.archive.group_index import index_rows
from squelch.kit.archive.parts import GROUPS, STEPS_PER_BLOCK, block_of, part_key
from squelch.kit.archive.reader import block_key, read_index
from squelch.kit.archive.rows import to_table
from squelch.kit.archive.schema import ARCHIVE_SCHEMA, DECISION, INDEX_SCHEMA
from squelch.kit.archive.writer import ROWS_PER_ROW_GROUP
from squelch.kit.records.records import Group, Task, Ticket, Trajectory, Turn

STEP_GROUPS, GROUP_SIZE = 8, 16
REAL_GROUPS, ALL_GROUPS = 1_000, 100_000
SPANS_PER_STEP = 60
SECONDS_PER_STEP = 3.0
OPENED = 40
"""Groups that are opened in each way, drawn from the whole run."""
TARGETS = {
    "first_page_ms": 1000.0,
    "group_new_page_ms_max": 300.0,
    "group_from_list_ms_max": 300.0,
    "memory_mib": 500.0,
}
PAINTED = "() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))"
OPEN = """async (path) => {
  const started = performance.now();
  await htmx.ajax("GET", path, {target: "#main", select: "#main", swap: "outerHTML"});
  await new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)));
  if (!document.querySelector(".trajectory .sampled i")) throw new Error("no group is shown: " + path);
  return performance.now() - started;
}"""


# --- the run ---


def build(folder: Path, num_groups: int, num_real: int) -> None:
    """Writes the run: parts, index, metrics, spans, configuration and tokenizer."""
    (folder / "groups").mkdir(parents=True)
    (folder / "config.yaml").write_text(dump(load("frozenlake", [f"name={folder.name}"])))
    steps = _played(num_real, folder)
    count = -(-num_groups // STEP_GROUPS)
    _write_groups(folder, steps, count)
    _write_lines(folder, count)


def _played(num_real: int, folder: Path) -> list[pa.Table]:
    """Groups of FrozenLake as its demonstrator plays it, with random log-probabilities and rewards, a table a step."""
    from benchmarks.learner.work import demonstrated
    from squelch.actors.play.codec import ChatCodec

    with tempfile.TemporaryDirectory() as made:
        groups = demonstrated("frozenlake", num_real, GROUP_SIZE, Path(made) / "policy")
        codec = ChatCodec(Path(made) / "policy")
        shutil.copy(Path(made) / "policy" / "tokenizer.json", folder / "tokenizer.json")
    rng = np.random.default_rng(0)
    tables = [_table(number, members, codec, rng) for number, (_, members) in enumerate(groups)]
    return [pa.concat_tables(tables[at : at + STEP_GROUPS]) for at in range(0, len(tables), STEP_GROUPS)]


def _table(number: int, members: Sequence[Trajectory], codec: Any, rng: np.random.Generator) -> pa.Table:
    step, place = divmod(number, STEP_GROUPS)
    ticket = Ticket(f"{step + 1:06d}-{place:03d}", step + 1, Task("FrozenLake", number), len(members), 0)
    made = [_in_turns(one, codec, rng) for one in members]
    table = to_table(Group(ticket, f"{number % 700:032x}", made))
    kept = bool(rng.random() < 0.7)
    values = {"score": 0.2, "decision": "kept" if kept else "dropped", "reason": "" if kept else "below top_p cut"}
    for column in DECISION:
        value = values.get(column.name, "top_p rho=0.9")
        table = table.append_column(column.field, pa.array([value] * len(table), column.type))
    return table.cast(ARCHIVE_SCHEMA)


def _in_turns(one: Trajectory, codec: Any, rng: np.random.Generator) -> Trajectory:
    """The demonstration with a turn for each run of sampled ids."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], one.loss_mask, [False]]).astype(np.int8)))
    turns, win = [], float(rng.random() < 0.4)
    for start, end in edges.reshape(-1, 2).tolist():
        span = codec.reasoning_span(one.token_ids[start:end])
        reward = win if end == edges[-1] else 0.0
        turns.append(Turn(start, end, start + span[0], start + span[1], reward, 0.0, True, False, 1, 0, 0))
    log_probs = np.where(one.loss_mask, -rng.exponential(0.6, len(one.token_ids)), 0.0).astype(np.float32)
    return Trajectory(one.index, one.token_ids, one.loss_mask, log_probs, turns, bool(win), False, worker="rollout-0")


def _write_groups(folder: Path, steps: Sequence[pa.Table], count: int) -> None:
    """The parts of `count` steps, which repeat the parts of `steps`, and their index. A copy of a part keeps its
    groups' ids."""
    indexed, block = [index_rows(table) for table in steps], list[pa.Table]()
    for step in range(1, count + 1):
        at = (step - 1) % len(steps)
        path = folder / part_key(GROUPS, step)
        if step <= len(steps):
            pq.write_table(steps[at], path, compression="zstd", row_group_size=ROWS_PER_ROW_GROUP)
        else:
            shutil.copyfile(folder / part_key(GROUPS, at + 1), path)
        number = indexed[at].schema.get_field_index("step")
        block.append(indexed[at].set_column(number, "step", pa.array([step] * len(indexed[at]), pa.int32())))
        if (step + 1) % STEPS_PER_BLOCK == 0 or step == count:
            table = pa.concat_tables(block).cast(INDEX_SCHEMA)
            pq.write_table(table, folder / block_key(block_of(step)), compression="zstd")
            block = []


def _write_lines(folder: Path, count: int) -> None:
    """Figures of as many keys, and spans of as many pieces of work, as a step of the demo has."""
    rng = np.random.default_rng(0)
    with open(folder / "metrics.jsonl", "w") as metrics, open(folder / "events.jsonl", "w") as events:
        for step in range(1, count + 1):
            began = 1.7e9 + SECONDS_PER_STEP * step
            values = {key: round(float(value), 6) for key, value in zip(KEYS, rng.random(len(KEYS)), strict=True)}
            others = {f"metric/{number}": float(value) for number, value in enumerate(rng.random(180))}
            metrics.write(json.dumps(values | others | {"step": step, "time": began + SECONDS_PER_STEP}) + "\n")
            for span in range(SPANS_PER_STEP):
                start = began + span * SECONDS_PER_STEP / SPANS_PER_STEP
                actor = ("env-0", "env-1", "rollout-0", "learner")[span % 4]
                events.write(json.dumps({"actor": actor, "name": "work", "start": start, "end": start + 0.02}) + "\n")


# --- the browser ---


@dataclass(frozen=True)
class Served:
    """A server: its address, its process, and how long it took to be ready."""

    address: str
    process: psutil.Process
    seconds: float


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Served]:
    """`squelch inspect` on the run, in a process of its own."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "squelch.cluster.cli", "inspect", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            found = re.search(r"http://\S+", line)
            if found is None:
                raise RuntimeError(f"the inspector did not start: {line!r}")
            yield Served(found[0], psutil.Process(server.pid), time.perf_counter() - started)
        finally:
            server.terminate()
            server.wait(15)


def timed(page: Page, address: str, drawn: str) -> float:
    """Milliseconds until a page is loaded, has drawn the element, and is painted."""
    started = time.perf_counter()
    page.goto(address)
    page.wait_for_selector(drawn, state="attached")
    page.evaluate(PAINTED)
    return 1000 * (time.perf_counter() - started)


def measure(folder: Path, chromium: str) -> dict[str, float]:
    """All metrics, milliseconds unless the name says otherwise."""
    index = read_index(folder)
    with served(folder) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.set_default_timeout(60_000)
        metrics = {"groups": float(len(index)), "start_s": server.seconds}
        metrics |= _visit(page, server.address, index)
        metrics["memory_mib"] = server.process.memory_info().rss / 2**20
        browser.close()
    return metrics


def _visit(page: Page, address: str, index: pa.Table) -> dict[str, float]:
    home = address.rstrip("/")
    found = {"first_page_ms": timed(page, address, ".first-page")}
    drawn = index.take(np.random.default_rng(1).integers(len(index), size=OPENED)).to_pylist()
    paths = [f"/group?step={row['step']}&group={row['group_id']}" for row in drawn]
    pages = [timed(page, home + path, ".trajectory .sampled i") for path in paths]
    page.goto(f"{home}/groups")
    clicks = [page.evaluate(OPEN, path) for path in reversed(paths)]
    for name, values in (("group_new_page", pages), ("group_from_list", clicks)):
        found |= {f"{name}_ms_median": statistics.median(values), f"{name}_ms_max": max(values)}
    return found


def main() -> int:
    """Prints the metrics; returns 1 if a target was missed, else 0."""
    parser = parser_of(__doc__, "2,000 groups instead of 100,000")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="build the run there, and leave it")
    args = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        parser.error("no chromium is installed; on Debian: apt-get install chromium")
    with tempfile.TemporaryDirectory() as made:
        folder = args.keep or Path(made) / "large"
        if not (folder / "config.yaml").exists():
            build(folder, *((2_000, 80) if args.quick else (ALL_GROUPS, REAL_GROUPS)))
        found = measure(folder, chromium)
    missed = [name for name, most in TARGETS.items() if found[name] > most]
    print_targets(found, args.json, {name: f"<= {most:g}" for name, most in TARGETS.items()})
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
