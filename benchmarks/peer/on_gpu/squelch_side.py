"""Squelch's side on one GPU: a run as users start it (`squelch train one-card KEY=VALUE ...`).

One run measures several numbers of rollout workers: it begins with the largest, and `squelch scale` takes workers away
while it goes on, which costs no further start.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import REPOSITORY
from benchmarks.peer import work as peer_work
from benchmarks.peer.on_gpu.sides import Side
from benchmarks.peer.on_gpu.work import MEASURED, WHOLE_GPU, GpuWork
from squelch.kit.archive.reader import is_of_step, read_events, read_metrics

REWARD = Path(__file__).with_name("reward.py")
WAIT_S = 900
SCALE_S = 60.0
LINES = {
    "step": "seconds/step",
    "generation": "seconds/rollout",
    "update": "seconds/train",
    "passes": "learner_seconds/forward_backward",
    "sync": "seconds/publish",
    "gathered": "publish/seconds_gathered",
    "mfu_update": "mfu/train/products",
    "mfu_step": "mfu/step/products",
    "gpu_busy": "gpu/learner-0/busy",
    "memory_used": "gpu/learner-0/memory_used",
    "mismatch_nats": "learner/mismatch_abs",
}
"""What a row has, by the key of a run's metrics."""
LEARNER_GIB, ENGINE_GIB = 36.0, 6.0
"""At the shape of Qwen2.5-0.5B without recomputation, with a cache of 2 GiB an engine (`squelch plan`)."""


def settings(work: GpuWork, folder: Path, name: str, workers: int, steps: int) -> dict[str, Any]:
    """The settings of a run beside those of `one-card`: the work, its best settings, and nothing that only measures."""
    own = peer_work.run_settings(folder, name, steps, work.prompts, work.samples, work.new_tokens) | {
        "runs_dir": str(folder / "runs"),
        "environment.name": "Prompts",
        "environment.options": {"data": str(folder / "data"), "reward": f"{REWARD}:share", "timeout_s": WAIT_S},
        "environment_actor.step_timeout_s": WAIT_S + 30,
        "environment_actor.episode_timeout_s": WAIT_S + 60,
        "loop.group_timeout_s": WAIT_S + 60,
        "loop.checkpoint_every": 100 * steps,
        "rollout.count": workers,
        "rollout.max_model_len": work.context,
        "validation.early_stop": "off",
    }
    return own | (ON_CARD | {"rollout.num_gpus": round(0.3 / workers, 4)} if work.device == "cuda" else ON_CPU)


ON_CARD = {"rollout.kv_cache_gib": 2, "cluster.start_timeout_s": 400, "rollout.start_timeout_s": 400}
ON_CPU = {
    "learner.num_gpus": 0,
    "learner.dtype": "float32",
    "learner.token_budget": 2048,
    "rollout.num_gpus": 0,
    "rollout.dtype": "float32",
    "rollout.enforce_eager": True,
    "rollout.kv_cache_gib": 0.25,
}


class SquelchSide(Side):
    """A run. `workers`: the numbers of rollout workers, largest first, for `work.steps` steps each; `more`: further
    settings."""

    def __init__(
        self, name: str, folder: Path, work: GpuWork, workers: Sequence[int], more: Mapping[str, Any] | None = None
    ) -> None:
        gib = LEARNER_GIB + ENGINE_GIB * max(workers) if work.shape == MEASURED else WHOLE_GPU
        super().__init__(name, folder, gib)
        self.work, self.workers, self.more = work, list(workers), dict(more or {})
        self.run = folder / "runs" / re.sub(r"\W+", "-", name)
        self._left, self._held = self.workers[1:], set[int]()

    def command(self) -> list[str]:
        """`squelch train one-card` with the settings."""
        steps = self.work.steps * len(self.workers)
        own = settings(self.work, self.folder, self.run.name, self.workers[0], steps) | self.more
        words = [f"{key}={json.dumps(value)}" for key, value in own.items()]
        return [sys.executable, "-m", "squelch.cluster.cli", "train", "one-card", *words]

    def look(self) -> None:
        """Takes workers away once the steps of a number are through. Meanwhile the run waits for its rewards."""
        done = self.work.steps * (len(self.workers) - len(self._left))
        if self._left and len(self._steps()) >= done and not self.ended:
            self.barrier.unlink()
            wanted = self._left.pop(0)
            command = [sys.executable, "-m", "squelch.cluster.cli", "scale", str(self.run), "--rollout-workers"]
            with self.log.open("ab") as log:
                subprocess.run(
                    [*command, str(wanted)], cwd=REPOSITORY, timeout=SCALE_S, check=False, stdout=log, stderr=log
                )
            self._held |= {len(self._steps()), len(self._steps()) + 1}
            self.barrier.touch()

    def found(self) -> dict[str, dict[str, Any]]:
        """A row for each number of workers of which two steps are known; the first of each is left out, and so are the
        steps in which the number changed."""
        by_workers: dict[int, list[Mapping[str, Any]]] = {}
        for index, line in enumerate(self._steps()):
            if index in self._held:
                continue
            by_workers.setdefault(int(line["wanted/rollout"]), []).append(line)
        rows = {wanted: lines[1:] for wanted, lines in by_workers.items() if len(lines) > 1}
        several = len(self.workers) > 1
        found = {self._row(wanted) if several else self.name: medians(lines) for wanted, lines in rows.items()}
        return {name: row | self._ways() for name, row in found.items()}

    def _ways(self) -> dict[str, Any]:
        """The workers by the way in which their last weights came."""
        if not (self.run / "events.jsonl").exists():
            return {}
        events = [event for event in read_events(self.run) if event["name"] == "weights"]
        return {"ways": events[-1]["ways"]} if events else {}

    def _row(self, wanted: int) -> str:
        return f"{self.name}, {wanted} engine{'' if wanted == 1 else 's'}"

    def _steps(self) -> list[dict[str, Any]]:
        if not (self.run / "metrics.jsonl").exists():
            return []
        return [line for line in read_metrics(self.run) if is_of_step(line)]


def medians(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The medians of a run's steps, and each step's seconds."""
    known = {name: [line[key] for line in lines if line.get(key) is not None] for name, key in LINES.items()}
    trajectories = [(line.get("tokens/sampled"), line.get("trajectories")) for line in lines]
    known["new_tokens_mean"] = [tokens / number for tokens, number in trajectories if tokens and number]
    known |= {part: _slowest(lines, part) for part in ("paused", "loaded")}
    row: dict[str, Any] = {name: statistics.median(values) for name, values in known.items() if values}
    return row | {"steps": [line["seconds/step"] for line in lines]}


def _slowest(lines: Sequence[Mapping[str, Any]], part: str) -> list[float]:
    """Seconds of a part of the weight updates, each step's largest."""
    steps = ([v for key, v in line.items() if re.fullmatch(f"weights/[^/]+/seconds_{part}", key)] for line in lines)
    return [max(seconds) for seconds in steps if seconds]
