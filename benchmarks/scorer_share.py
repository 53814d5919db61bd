"""Measures the scorer's cost in the demo: its share of the run's CPU time, and a step's seconds with and without it.

`python -m benchmarks.scorer_share [--pairs N] [--steps N] [--samples K] [--quick] [--json]`. The demo (recipe
`frozenlake`) runs with the scorer on and off; the order alternates from pair to pair. If it is on, the scorer scores
the first turn, and the trajectory scope with N = 32, at step 1 and every 5 steps. Both arms do the same work, token
for token, because the scorer does not affect play or learning. The first four steps are warm-up and left out, so that
4 + 5 k steps contain k scorings with the steps that follow each. No metric includes the start of Ray and vLLM, twice
per pair; because of it even `--quick`, with 9 steps of each, takes over a minute.

CPU shares are of all CPU seconds of the run's process tree (`benchmarks.loop`); a step's time excludes validation and
the fixed probe. The probe, with the links from answers, is read before training, every 25 steps and after the last one.
Its share is that of a run that reads it every 25 steps: the CPU seconds of its scoring as its process counts them, and
for its play the run's mean load over `seconds/probe`. `--samples` is `scorer.probe.samples`, its trajectories per task.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import parser_of, print_metrics
from benchmarks.loop import run_steps
from squelch.kit.archive.reader import is_of_step, read_metrics
from squelch.kit.scoring.metrics import OUTCOMES

RECIPE, WARM_UP, EVERY, PROBE_EVERY = "frozenlake", 4, 5, 25
ARMS = {
    "on": [f"scorer.every={EVERY}", "scorer.trajectory_draws=32", f"scorer.probe.every={PROBE_EVERY}"],
    "off": ["scorer.enabled=false"],
}
PARTS = ("step", "train", "rollout")
MOST_CPU_SHARE, MOST_RATIO = 0.10, 1.1
"""Targets: largest CPU share of the scorer, and largest ratio of a step's seconds with it to those without."""


@dataclass(frozen=True)
class Run:
    """One run of the demo. `metrics`: its lines, warm-up included; `cpu`: CPU seconds by role after the warm-up."""

    arm: str
    metrics: list[dict[str, Any]]
    cpu: dict[str, float]

    def seconds(self, part: str) -> list[float]:
        """Seconds of a part in each measured step."""
        return [line[f"seconds/{part}"] for line in self.metrics if line["step"] > WARM_UP and is_of_step(line)]

    def total(self, key: str) -> float:
        """A metric summed over all steps."""
        return sum(line.get(key) or 0.0 for line in self.metrics)


def order_of(pairs: int) -> list[str]:
    """The arms in the order in which they run: on, off, off, on, ..."""
    return [arm for pair in range(pairs) for arm in (("on", "off") if pair % 2 == 0 else ("off", "on"))]


def run_arm(arm: str, steps: int, samples: int | None = None) -> Run:
    """Runs the demo once, with the scorer on or off. `samples`: the probe's trajectories per task; None: as set."""
    probe = [f"scorer.probe.samples={samples}"] if samples is not None and arm == "on" else []
    with tempfile.TemporaryDirectory() as folder:
        cpu, _ = run_steps(RECIPE, steps, [*ARMS[arm], *probe], Path(folder), WARM_UP)
        return Run(arm, read_metrics(Path(folder) / "loop"), cpu)


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """CPU shares, and the ratios on / off of medians and means over the pooled steps."""
    on, off = ([run for run in runs if run.arm == arm] for arm in ("on", "off"))
    cpu = sum(run.cpu.get("scorer", 0.0) for run in on) / sum(sum(run.cpu.values()) for run in on)
    scored = [line["scorer/cpu_seconds"] for run in on for line in run.metrics if line.get("scorer/cpu_seconds")]
    found: dict[str, Any] = {
        "steps": sum(len(run.seconds("step")) for run in on),
        "same_work": len({tuple(line["tokens/sampled"] for line in run.metrics if is_of_step(line)) for run in runs})
        == 1,
        "scorer_cpu_share": cpu,
        "scoring_cpu_seconds": float(np.median(scored)) if scored else None,
        "probe_cpu_share": probe_share(on),
        "outcomes": {name: sum(run.total(f"scorer/{name}") for run in on) for name in OUTCOMES},
        "seconds": {},
    }
    for part in PARTS:
        with_it, without = (np.concatenate([run.seconds(part) for run in arm]) for arm in (on, off))
        found["seconds"][part] = {
            "on": float(np.median(with_it)),
            "off": float(np.median(without)),
            "ratio": float(np.median(with_it) / np.median(without)),
            "ratio_of_means": float(with_it.mean() / without.mean()),
        }
    ratio = found["seconds"]["step"]["ratio"]
    all_done = found["outcomes"]["done"] == sum(found["outcomes"].values()) > 0
    probe = found["probe_cpu_share"]
    cheap = max(cpu, 0.0 if probe is None else probe) <= MOST_CPU_SHARE
    found["reached"] = cheap and ratio <= MOST_RATIO and all_done and found["same_work"]
    return found


def probe_share(runs: Sequence[Run]) -> float | None:
    """The share of the CPU time of a run that evaluates the probe every `PROBE_EVERY` steps; None without an evaluation
    after the warm-up."""
    lines = [line for run in runs for line in run.metrics if line["step"] > WARM_UP]
    scored = [line["probe/cpu_seconds"] for line in lines if line.get("probe/step", 0) > WARM_UP]
    played = [line["seconds/probe"] for line in lines if line.get("seconds/probe")]
    if not scored or not played:
        return None
    cpu = sum(sum(run.cpu.values()) for run in runs)
    steps = [line["seconds/step"] for line in lines if is_of_step(line)]
    beside = sum(line.get(f"seconds/{part}") or 0.0 for line in lines for part in ("probe", "validation"))
    evaluation = statistics.fmean(scored) + statistics.fmean(played) * cpu / (sum(steps) + beside)
    return evaluation / (evaluation + PROBE_EVERY * (cpu - len(played) * evaluation) / len(steps))


def main() -> None:
    """Prints the metrics."""
    parser = parser_of(__doc__, "one pair of 9 steps")
    parser.add_argument("--pairs", type=int, default=2, help="runs with and runs without (default: 2)")
    parser.add_argument("--steps", type=int, default=29, help="steps per run, 4 + 5 k (default: 29)")
    parser.add_argument("--samples", type=int, help="the probe's samples of a task (default: the recipe's)")
    options = parser.parse_args()
    pairs, steps = (1, WARM_UP + EVERY) if options.quick else (options.pairs, options.steps)
    if pairs < 1 or steps < WARM_UP + EVERY:
        parser.error(f"at least one pair of {WARM_UP + EVERY} steps is needed")
    found = summary([run_arm(arm, steps, options.samples) for arm in order_of(pairs)])
    rows = [[f"seconds/{part} (median)", *values.values()] for part, values in found["seconds"].items()]
    counts = ", ".join(f"{name} {count:.0f}" for name, count in found["outcomes"].items())
    notes = [
        f"{found['steps']} steps of each; the same work in all runs: {found['same_work']}",
        f"scorer's share of the run's CPU time: {found['scorer_cpu_share']:.3f} (at most {MOST_CPU_SHARE:g} wanted); "
        f"CPU seconds of a scoring: {found['scoring_cpu_seconds'] or 0.0:.2f}",
        f"share of the fixed probe with its links, read every {PROBE_EVERY} steps: "
        f"{'not read' if found['probe_cpu_share'] is None else format(found['probe_cpu_share'], '.3f')} "
        f"(at most {MOST_CPU_SHARE:g} wanted)",
        f"scorings: {counts} (none skipped wanted); reached: {found['reached']}",
    ]
    print_metrics(found, options.json, ("", "on", "off", "on/off", "of means"), rows, notes)


if __name__ == "__main__":
    main()
