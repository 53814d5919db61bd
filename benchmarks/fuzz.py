"""Fuzzes the readers of files: recipes, run folders, archives, data sets, score files, model folders and checkpoints.

    python -m benchmarks.fuzz [--quick] [--json] [--seed N] [--only TARGET[:NUMBER]]

Inputs are valid files with hostile bytes or values (`tests.fuzz.mutation`). Files are read in process, many inputs
a process; model folders and checkpoints in a child process each. An input is at fault if reading it raises an error
that a command does not turn into one paragraph, if that paragraph is long or does not name the file, if it takes more
than 10 s (a folder: 60 s), or if the process grows by more than 1 GiB or ends. All three counts should be 0.

`--only TARGET:NUMBER` reads one input again, with the seed that the fault was printed with, and shows its traceback.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import output_of, parser_of, print_metrics
from tests.fuzz.in_process_worker import MOST_GROWTH, Found, content
from tests.fuzz.readers import TARGETS

FILES, FOLDERS = 100_000, 2_000
QUICK_FILES, QUICK_FOLDERS = 2_700, 40
BLOCK_S = 3_600.0
"""Seconds that one process may take for its share of the inputs."""
MOST_DEATHS = 20
"""Inputs that end their process, per target, before the target is given up."""
SHOWN = 5
"""Faults of a target that are printed."""


def over_files(inputs: int, seed: int, only: str | None = None) -> Iterator[Found]:
    """Fuzzes every reader of files with its share of the inputs, each in a process of its own."""
    for target in TARGETS:
        if only in (None, target.name):
            yield _over_target(target.name, inputs if only else inputs // len(TARGETS), seed)


def _over_target(name: str, count: int, seed: int) -> Found:
    """Fuzzes one reader. An input that ends the process is a fault, and the inputs after it are read by another."""
    whole, first, deaths = Found(name), 0, 0
    with tempfile.NamedTemporaryFile(prefix="fuzz-progress-") as progress:
        while first < count and deaths < MOST_DEATHS:
            words = [name, str(seed), str(first), str(count - first), progress.name]
            done = subprocess.run(
                [sys.executable, "-m", "tests.fuzz.in_process_worker", *words],
                capture_output=True,
                timeout=BLOCK_S,
                check=False,
            )
            if done.returncode == 0:
                _add(whole, json.loads(done.stdout.splitlines()[-1]))
                break
            number = int(Path(progress.name).read_bytes() or b"0")
            words_of_it = done.stderr.decode(errors="replace").strip().splitlines()[:1]
            whole.faults.append((number, f"the process ended with {done.returncode}: {words_of_it}"))
            whole.inputs += number - first + 1
            first, deaths = number + 1, deaths + 1
    return whole


def _add(whole: Found, part: dict[str, Any]) -> None:
    whole.inputs += part["inputs"]
    whole.refused += part["refused"]
    whole.slowest_s = max(whole.slowest_s, part["slowest_s"])
    whole.growth_mib = max(whole.growth_mib, part["growth_mib"])
    whole.faults += [(number, fault) for number, fault in part["faults"]]


def over_folders(inputs: int, seed: int) -> list[Found]:
    """Fuzzes the readers of model folders and checkpoints, each input in a child process."""
    said = output_of([sys.executable, "-m", "tests.fuzz.folders_worker", str(seed), "0", str(inputs)], {}, BLOCK_S)
    parts = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    found = [Found(part["target"]) for part in parts]
    for whole, part in zip(found, parts, strict=True):
        _add(whole, part)
    return found


def again(name: str, number: int, seed: int) -> None:
    """Reads one input once more, and lets its error be seen."""
    target = next(one for one in TARGETS if one.name == name)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = target.path(Path(folder))
        path.write_bytes(content(target, seed, number))
        sys.stderr.write(f"{path.read_bytes()[:2000]!r}\n")
        target.read(path)


def summary(found: list[Found], seed: int) -> dict[str, Any]:
    """The counts over all targets, and each fault with the words that repeat it."""
    faults = [(one.target, number, text) for one in found for number, text in one.faults]
    hangs = sum("a hang" in text for *_, text in faults)
    return {
        "seed": seed,
        "inputs": sum(one.inputs for one in found),
        "refused": sum(one.refused for one in found),
        "faults": len(faults) - hangs,
        "hangs": hangs,
        "slowest_s": max(one.slowest_s for one in found),
        "largest_growth_mib": max(one.growth_mib for one in found),
        "growth_allowed_mib": MOST_GROWTH // 2**20,
        "every_fault": [{"target": target, "number": number, "fault": text} for target, number, text in faults],
    }


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The parsed flags."""
    parser = parser_of(__doc__, f"{QUICK_FILES} files and {QUICK_FOLDERS} folders")
    parser.add_argument("--seed", type=int, default=0, help="seed of all inputs (default: %(default)s)")
    parser.add_argument("--only", metavar="TARGET[:NUMBER]", help="one reader of files, or one input of it")
    parser.add_argument("--files", type=int, help="number of files instead of the usual one")
    parser.add_argument("--folders", type=int, help="number of model folders and checkpoints")
    return parser.parse_args(argv)


def main() -> None:
    """Prints the metrics; the exit code is 1 if there is a fault."""
    args = arguments()
    if args.only and ":" in args.only:
        name, _, number = args.only.rpartition(":")
        return again(name, int(number), args.seed)
    files = args.files if args.files is not None else QUICK_FILES if args.quick else FILES
    folders = args.folders if args.folders is not None else QUICK_FOLDERS if args.quick else FOLDERS
    found = list(over_files(files, args.seed, args.only))
    found += over_folders(folders, args.seed) if folders and not args.only else []
    all_of_it = summary(found, args.seed)
    rows = [[one.target, one.inputs, one.refused, len(one.faults), one.slowest_s, one.growth_mib] for one in found]
    notes = [
        f"{one.target}:{number} (--seed {args.seed}): {text}" for one in found for number, text in one.faults[:SHOWN]
    ]
    columns = ("reader", "inputs", "refused", "faults", "slowest, s", "growth, MiB")
    print_metrics(all_of_it, args.json, columns, rows, notes)
    sys.exit(1 if all_of_it["every_fault"] else 0)


if __name__ == "__main__":
    main()
