"""Measures the cost of one training step of the learner, and compares it with the ratio of counted operations.

    python -m benchmarks.learner [--quick] [--json] [--threads 2] [--trajectories 128] [--model DIR]

All metrics are of one rank in this process. CPU seconds, where stated, are those of all its threads. The variants of a
comparison alternate.

- rates: float32 matrix products by MKL, and by oneDNN, which the learner uses;
- layouts: a packed step against the same step padded to the longest row with causal SDPA and a mask, through
  transformers' own modules as in TRL and the paper's authors' code. `floor` is the ratio of the counted operations of
  both. Inputs are the demos' tokens and single-turn groups of 16;
- kept: step time against the share of tokens kept, for the demo's step of 128 trajectories and for one of 512, and its
  deviation from proportionality. The deviation has two parts: fewer groups have fewer rows that share the system
  prompt's tokens (`by_less_sharing`), and a fed token takes more time (`by_time_a_token_fed`), because an optimizer
  step has a fixed cost. `empty` is the share of the step's time that the same number of optimizer steps on almost no
  tokens takes, `empty_optimizer` the share of their optimizer, in wall seconds;
- seconds by part for both anchors and with KL on, and seconds of a publication and a checkpoint.

The model is random unless `--model` names a folder; the arithmetic does not depend on its weights.
"""

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils import logging as hf_logging

from benchmarks import common
from benchmarks.learner import random_work
from benchmarks.learner import work as learner_work
from squelch.actors.messages import StepReport, StepTerms
from squelch.kit.records.records import Trajectory, Turn
from squelch.learner import process_group
from squelch.learner.batching import collate, to_rows
from squelch.learner.checkpoint.seal import seal
from squelch.learner.config import LearnerConfig
from squelch.learner.kernels.linear import product
from squelch.learner.process_environment import ENVIRONMENT
from squelch.learner.tensors import inputs_of
from squelch.learner.trainer import Trainer

VOCABULARY = 192
SYSTEM, PROMPT, FED = 43, 69, 24
"""Numbers of tokens for the tiny policy on FrozenLake: the common beginning of all prompts, the first prompt, and the
tokens fed between two turns."""
SAMPLED = (20, 48)
GROUP_SIZE = 16
VARIANTS: dict[str, dict[str, Any]] = {
    "anchor=rollout": {},
    "anchor=recomputed": {"objective": {"anchor": "recomputed"}},
    "anchor=rollout, KL k3": {"objective": {"kl": {"coefficient": 0.001}}},
}
LAYOUTS: dict[str, tuple[int, int] | None] = {
    "frozenlake": None,
    "sokoban": None,
    **{f"{prompt} + {answer}": (prompt, answer) for prompt in (20, 150, 600) for answer in (30, 60)},
}
QUICK_LAYOUTS = ("frozenlake", "150 + 30")
KEPT = (1.0, 0.75, 0.5, 0.25)
KEPT_GROUPS = (8, 32)


def make_trajectory(rng: np.random.Generator, index: int, prompt: np.ndarray) -> Trajectory:
    """A trajectory of one to five turns; its reward is 1 with probability 0.4."""
    ids, mask, turns = [prompt], [np.zeros(len(prompt), bool)], []
    for turn in range(int(rng.integers(1, 6))):
        fed, sampled = FED if turn else 0, int(rng.integers(*SAMPLED))
        ids.append(rng.integers(0, VOCABULARY, fed + sampled))
        mask.append(np.arange(fed + sampled) >= fed)
        end = sum(map(len, ids))
        turns.append(Turn(end - sampled, end, end - sampled, end, 0.0, 0.0, True, False, 1, 0, 0))
    turns[-1].reward = float(rng.random() < 0.4)
    tokens = np.concatenate(ids).astype(np.int32)
    return Trajectory(index, tokens, np.concatenate(mask), np.zeros(len(tokens), np.float32), turns, False, False)


def make_groups(trainer: Trainer, num_trajectories: int) -> list[tuple[str, list[Trajectory]]]:
    """Groups of 16 whose log-probabilities are the trainer's own, as in on-policy training."""
    rng = np.random.default_rng(0)
    system = rng.integers(0, VOCABULARY, SYSTEM)
    groups = []
    for g in range(max(1, num_trajectories // GROUP_SIZE)):
        prompt = np.concatenate([system, rng.integers(0, VOCABULARY, PROMPT - SYSTEM)])
        groups.append((f"{g:03d}", [make_trajectory(rng, i, prompt) for i in range(GROUP_SIZE)]))
    for group_id, members in groups:
        for row, t in zip(to_rows([(group_id, members)], trainer.config.objective), members, strict=True):
            t.log_probs[t.loss_mask] = trainer._scores(trainer.policy, [inputs_of(collate([row]), trainer.device)])[
                0
            ].cpu()
    return groups


def measure_steps(model: Path, settings: Mapping[str, Any], groups: list, steps: int, threads: int) -> dict[str, float]:
    """Median wall seconds of a step and of its parts; `step_cpu`: CPU seconds of all threads."""
    trainer = Trainer(model, LearnerConfig.model_validate({"num_threads": threads, **settings}))
    walls, cpus, parts = [], [], []
    for step in range(steps + 1):
        start, cpu = time.perf_counter(), time.process_time()
        report = trainer.train_step(step, groups, StepTerms(0.9))
        walls.append(time.perf_counter() - start)
        cpus.append(time.process_time() - cpu)
        parts.append(report.seconds)
    found = {"step": statistics.median(walls[1:]), "step_cpu": statistics.median(cpus[1:])}
    found |= {name: statistics.median(part[name] for part in parts[1:]) for name in parts[0] if name != "fetch"}
    fed = sum(len(t.token_ids) for _, members in groups for t in members)
    return found | {"tokens_per_second": fed / found["step"]}


def cpu_seconds(action: Callable[[], Any]) -> float:
    """CPU seconds of this process during the action."""
    start = time.process_time()
    action()
    return time.process_time() - start


def measure_rates() -> dict[str, float]:
    """GFLOP/s of a matrix product of 4096 x 256 by 256 x 768, by library."""
    x, weight = torch.randn(4096, 256), torch.randn(768, 256)
    ways = {"mkl": lambda: x @ weight.t(), "onednn": lambda: product(x, weight)}
    best = {name: min(cpu_seconds(way) for _ in range(20)) for name, way in ways.items()}
    return {name: 2 * 4096 * 256 * 768 / seconds / 1e9 for name, seconds in best.items()}


def measure_layout(name: str, folder: Path, steps: int, threads: int) -> dict[str, float]:
    """CPU seconds of a step packed and padded (best of the steps after the first), their ratio, and its share of the
    floor."""
    shape = LAYOUTS[name]
    if shape is None:
        groups, minibatches = learner_work.demonstrated(name, 8, GROUP_SIZE, folder), 4
    else:
        groups, minibatches = learner_work.single_turn(4, GROUP_SIZE, *shape, folder), 1
    settings = {"num_threads": threads, "minibatches": minibatches}
    plain = LearnerConfig(**settings, share_openings=False)
    variants = {
        "packed": Trainer(folder, LearnerConfig(**settings)),
        "padded": learner_work.PaddedTrainer(folder, plain),
    }
    seconds: dict[str, list[float]] = {variant: [] for variant in variants}
    for step in range(steps + 1):
        for variant, trainer in variants.items():
            seconds[variant].append(cpu_seconds(lambda t=trainer, s=step: t.train_step(s, groups)))
    found = {variant: min(values[1:]) for variant, values in seconds.items()}
    counted = {variant: random_work.operations(t, groups, 0, variant != "packed") for variant, t in variants.items()}
    floor = counted["padded"] / counted["packed"]
    ratio = found["padded"] / found["packed"]
    gflops = counted["packed"] / found["packed"] / 1e9
    return {**found, "floor": floor, "ratio": ratio, "reached": ratio / floor, "packed_gflops": gflops}


def measure_kept(folder: Path, num_groups: int, steps: int, threads: int) -> dict[str, dict[str, float]]:
    """CPU seconds of FrozenLake's step with a share of its groups, and their deviation from proportionality to tokens.
    All metrics except the seconds are shares of the step with all groups. Wall seconds are measured too; they are the
    better metric on a quiet machine."""
    groups = learner_work.demonstrated("frozenlake", num_groups, GROUP_SIZE, folder)
    trainer = Trainer(folder, LearnerConfig(num_threads=threads))
    parts = {kept: groups[: round(kept * len(groups))] for kept in KEPT}
    tokens = {kept: sum(len(t.token_ids) for _, members in part for t in members) for kept, part in parts.items()}
    fed = {kept: random_work.tokens_fed(trainer, part, range(1, steps + 1)) for kept, part in parts.items()}
    cpu: dict[float, list[float]] = {kept: [] for kept in KEPT}
    clock: dict[float, list[float]] = {kept: [] for kept in KEPT}
    for step in range(steps + 1):
        for kept, part in parts.items():
            started = time.perf_counter()
            cpu[kept].append(cpu_seconds(lambda s=step, p=part: trainer.train_step(s, p)))
            clock[kept].append(time.perf_counter() - started)
    best, walls = ({kept: min(values[1:]) for kept, values in found.items()} for found in (cpu, clock))
    counted = {kept: random_work.operations(trainer, part, 0, padded=False) for kept, part in parts.items()}
    empty = measure_empty(trainer, steps)
    return {
        str(kept): {
            "tokens": tokens[kept] / tokens[1.0],
            "fed": fed[kept] / fed[1.0],
            "operations": counted[kept] / counted[1.0],
            "seconds": best[kept],
            **off_the_line(best[kept] / best[1.0], tokens[kept] / tokens[1.0], fed[kept] / fed[1.0]),
            "off_the_line_by_the_clock": (walls[kept] / walls[1.0]) / (tokens[kept] / tokens[1.0]) - 1,
            "empty": empty["step"] / best[kept],
            "empty_optimizer": empty["optimizer"] / best[kept],
        }
        for kept in KEPT
    }


def off_the_line(seconds: float, tokens: float, fed: float) -> dict[str, float]:
    """Deviation of a step's time from proportionality to its tokens, and its two parts: more fed tokens per kept token,
    because fewer groups share the common beginning of prompts, and more time per fed token.

    Args:
        seconds, tokens, fed: time, kept tokens and fed tokens, as shares of those of the whole step.
    """
    return {
        "off_the_line": seconds / tokens - 1,
        "by_less_sharing": fed / tokens - 1,
        "by_time_a_token_fed": (seconds - fed) / tokens,
    }


def measure_empty(trainer: Trainer, steps: int) -> dict[str, float]:
    """CPU seconds of a step with the usual number of optimizer steps on almost no tokens, and seconds of its optimizer
    (norm, clipping, AdamW over all parameters)."""
    groups = random_work.random_groups(2, trainer.config.minibatches, 2, 2, VOCABULARY // 2)
    seconds, optimizer = [], []
    for step in range(steps + 1):
        reports: list[StepReport] = []
        seconds.append(cpu_seconds(lambda s=step, r=reports: r.append(trainer.train_step(s, groups))))
        optimizer.append(reports[0].seconds["optimizer"])
    return {"step": min(seconds[1:]), "optimizer": min(optimizer[1:])}


def measure_files(trainer: Trainer, folder: Path) -> dict[str, float]:
    """Seconds of a publication (its chunks stay in this process), of a checkpoint's files, which the next update waits
    for, and of its disk, which it does not, of loading it, and of a trainer's start with and without the weights."""
    marks, (model, config) = [time.perf_counter()], (trainer.model_dir, trainer.config)
    actions = {
        "publish": lambda: trainer.publish(1, lambda chunk: chunk),
        "files": lambda: trainer.save(folder / "step-1", {}, sealed=False),
        "disk": lambda: seal(folder / "step-1"),
        "load": lambda: trainer.load(folder / "step-1"),
        "start": lambda: Trainer(model, config),
        "start to resume": lambda: Trainer(model, config, resumes=True),
    }
    for action in actions.values():
        action()
        marks.append(time.perf_counter())
    return dict(zip(actions, np.diff(marks).tolist(), strict=True))


def run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All measurements, as plain data."""
    model = Path(arguments.model) if arguments.model else folder / "model"
    if not arguments.model:
        common.random_qwen2(model, vocabulary=VOCABULARY, seed=0, **learner_work.LAYERS)
    steps = 1 if arguments.quick else 5
    trainer = Trainer(model, LearnerConfig(num_threads=arguments.threads))
    groups = make_groups(trainer, arguments.trajectories)
    names = QUICK_LAYOUTS if arguments.quick else tuple(LAYOUTS)
    kept_groups = KEPT_GROUPS[:1] if arguments.quick else KEPT_GROUPS
    threads = arguments.threads
    return {
        "gflops": measure_rates(),
        "layouts": {name: measure_layout(name, folder / name, steps, threads) for name in names},
        "kept": {
            str(num * GROUP_SIZE): measure_kept(folder / f"kept{num}", num, steps, threads) for num in kept_groups
        },
        "trajectories": sum(len(members) for _, members in groups),
        "tokens": sum(len(t.token_ids) for _, members in groups for t in members),
        "sampled_tokens": sum(int(t.loss_mask.sum()) for _, members in groups for t in members),
        "threads": arguments.threads,
        "seconds": {
            name: measure_steps(model, settings, groups, steps, arguments.threads)
            for name, settings in VARIANTS.items()
        },
        "files_seconds": measure_files(trainer, folder),
        "max_resident_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def as_text(found: Mapping[str, Any]) -> str:
    """The metrics as text, one line each."""
    lines = [
        f"{found['trajectories']} trajectories, {found['tokens']} tokens ({found['sampled_tokens']} sampled), "
        f"{found['threads']} threads, {found['max_resident_mib']:.0f} MiB"
    ]
    lines.append("GFLOP/s: " + ", ".join(f"{name} {rate:.0f}" for name, rate in found["gflops"].items()))
    for name, metrics in found["layouts"].items():
        lines.append(f"layout {name}: " + ", ".join(f"{part} {value:.3g}" for part, value in metrics.items()))
    for size, shares in found["kept"].items():
        for kept, metrics in shares.items():
            parts = ", ".join(f"{part} {value:.3g}" for part, value in metrics.items())
            lines.append(f"kept {kept} of {size} trajectories: {parts}")
    for name, metrics in found["seconds"].items():
        lines.append(f"{name}: " + ", ".join(f"{part} {value:.3g}" for part, value in metrics.items()))
    lines.append("files: " + ", ".join(f"{part} {value:.3g} s" for part, value in found["files_seconds"].items()))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the metrics; returns the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.learner", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one measured step of 32 trajectories")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    parser.add_argument(
        "--trajectories", type=int, default=None, help="trajectories in one step (128; 32 with --quick)"
    )
    parser.add_argument("--model", default=None, help="a local model folder instead of a random 0.8 M one")
    arguments = parser.parse_args(argv)
    common.restart_with(ENVIRONMENT, "benchmarks.learner", argv)
    arguments.trajectories = arguments.trajectories or (32 if arguments.quick else 128)
    torch.set_num_threads(arguments.threads)
    hf_logging.disable_progress_bar()
    process_group.start(0, 1, "127.0.0.1", 0, 600, "cpu")
    with tempfile.TemporaryDirectory() as folder:
        found = run(arguments, Path(folder))
    process_group.stop()
    sys.stdout.write((json.dumps(found) if arguments.json else as_text(found)) + "\n")
    return 0
