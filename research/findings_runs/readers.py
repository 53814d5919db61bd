"""What five readers get who know RL and not this project: each a picture or a text, and one question.

python -m research.findings_runs.readers [--only NAME ...] [--out FOLDER] [--make] [--quick] [--json]

It prints the commands of each; `--make` runs them, in a checkout whose `make setup` and `make setup-smollm2` (and
`deploy/setup.sh trl`) were run, and leaves run-N.txt or run-N.png in FOLDER. A reader gets this file and the question,
nothing else; the answer is written down before `truth`, which stands here since before the first of them, is told.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import REPOSITORY, parser_of, print_metrics, search_path
from benchmarks.peer.on_gpu import trl_side
from research.findings_runs.plan import FAULTS
from squelch.kit.base.errors import UserError
from squelch.kit.process.terminal import say

QUESTION = (
    "This is what a training run with reinforcement learning shows. What is wrong with it, if anything, and what would "
    "you do next?"
)
FIRST_PAGE = "/"
SHORT = ("loop.steps=6", "validation.tasks=32")


@dataclass(frozen=True)
class Reading:
    """What one reader gets. `train`: the words of the command that trains; `shown`: `picture`, the inspector's first
    page; `check`, the text of `squelch check`; or `errors`, what the training wrote to standard error."""

    name: str
    train: Sequence[str]
    shown: str
    truth: str

    @property
    def number(self) -> str:
        """The name of its run and of its file."""
        return f"run-{[one.name for one in READINGS].index(self.name) + 1}"

    def commands(self, out: Path, quick: bool) -> list[list[str]]:
        """The commands that make it; the last one's output is the text, or its picture."""
        run = str(out / "runs" / self.number)  # its name is shown, and says nothing
        if self.shown == "errors":
            return [[sys.executable, *self.train, str(out / self.number)]]
        places = [f"name={self.number}", f"runs_dir={out / 'runs'}", "recorder.report=false"]
        train = [sys.executable, "-m", "squelch.cluster.cli", "train", *self.train, *places, *(SHORT if quick else ())]
        if self.shown == "check":
            return [train, [sys.executable, "-m", "squelch.cluster.cli", "check", run]]
        picture = [
            sys.executable,
            "-m",
            "docs.writers.inspector_picture",
            run,
            FIRST_PAGE,
            str(out / f"{self.number}.png"),
            "--whole",
        ]
        return [train, picture]


READINGS = (
    Reading(
        "demo",
        ["frozenlake"],
        "picture",
        "Nothing is wrong: success rises from 0.4 to 0.7, and the reasoning depends on its prompt. Next: go on.",
    ),
    Reading(
        "left",
        [
            *("frozenlake", "seed=71", "loop.steps=40", "filter.rule=none", "environment.options.pays=left"),
            "scorer.probe.every=5",
        ],
        "picture",
        "The reward pays for something else than the task: it rises while success falls, and the answers no longer "
        "follow from the reasoning. Next: read what earns most, mend the reward, and go back to the best checkpoint.",
    ),
    Reading(
        "trl",
        ["-m", "tests.kit.trl.cut"],
        "errors",
        "The limit of tokens cuts every completion inside its reasoning, so nothing can be scored. Next: raise "
        "max_completion_length.",
    ),
    Reading(
        "prompts",
        ["prompts", "loop.steps=20", "sampling.group_size=4", "validation.tasks=32"],
        "check",
        "The model marks no reasoning, so it is not known whether its reasoning depends on the prompt. Next: say where "
        "the reasoning stands (before the answer), or measure the dependence of the whole completion.",
    ),
    Reading(
        "agents",
        ["prompts", *(f"{key}={json.dumps(value)}" for key, value in FAULTS["agents"].settings.items())],
        "check",
        "Every trajectory fails because the agent's program raises KeyError: 'question'; nothing is learned. Next: "
        "mend the program, which asks its task for a column that it has not.",
    ),
)


def make(reading: Reading, out: Path, quick: bool) -> Path:
    """Runs the commands; returns the file for the reader. UserError if one fails."""
    out.mkdir(parents=True, exist_ok=True)
    search = search_path(*([trl_side.SITE] if reading.name == "trl" else []))
    *before, last = reading.commands(out, quick)
    for command in before:
        subprocess.run(command, cwd=REPOSITORY, check=False)  # a run whose members all fail ends with an exit code
    env = os.environ | {"PYTHONPATH": search, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        last, cwd=REPOSITORY, env=env, capture_output=reading.shown != "picture", text=True, check=False
    )
    if reading.shown == "picture":
        file, text = out / f"{reading.number}.png", ""
    else:
        file, text = out / f"{reading.number}.txt", done.stderr if reading.shown == "errors" else done.stdout
        file.write_text(text)
    if not file.is_file() or (reading.shown != "picture" and not text.strip()):
        raise UserError(f"{shlex.join(last)} shows nothing (exit code {done.returncode}): {done.stderr}")
    return file


def main(argv: Sequence[str] | None = None) -> int:
    """Prints or runs the commands; returns the exit code."""
    parser = parser_of(__doc__, "steps that only show that the commands run")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[one.name for one in READINGS], help="these")
    parser.add_argument(
        "--out", type=Path, default=REPOSITORY / "build" / "readers", metavar="FOLDER", help="of the files"
    )
    parser.add_argument("--make", action="store_true", help="run the commands")
    args = parser.parse_args(argv)
    chosen = [one for one in READINGS if not args.only or one.name in args.only]
    try:
        for one in chosen if args.make else ():
            say(f"{one.name}: {make(one, args.out, args.quick)}")
    except UserError as error:
        parser.error(str(error))
    found: list[dict[str, Any]] = [
        {"reader": one.name, "shown": one.shown, "commands": list(map(shlex.join, one.commands(args.out, args.quick)))}
        for one in chosen
    ]
    rows = [[one.name, one.shown, one.number] for one in chosen]
    notes = [QUESTION, *(f"{one['reader']}: {command}" for one in found for command in one["commands"])]
    print_metrics({"question": QUESTION, "readers": found}, args.json, ("reader", "shown", "file"), rows, notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
