"""Whether Squelch learns what TRL learns.

    python -m benchmarks.peer.learning [--dir FOLDER] [--plot FILE.svg] [--quick] [--json]

One file of prompts, one reward function (`on_gpu/reward.py`, the share of even ids) and the same GRPO
in both, from the same random model of 3.3 M parameters: 60 steps of 8 prompts x 8 samples x at most 32 tokens, five
seeds, on two threads. Squelch's curve is that of a run as users start it (`squelch train prompts KEY=VALUE ...`, with
Ray, vLLM and weight updates), TRL's that of its own trainer (`learning_worker.py`). The filter is off: TRL has none.
Seeds alternate between the trainers, so that other load on the machine affects both. `UNEQUAL` lists what remains
different. TRL's packages lie beside this environment's (`deploy/setup.sh trl`).

Invariant: a finished curve is a file `TRAINER-SEED.json` in the folder of `--dir` and is not made again there, so an
interrupted benchmark goes on.

| actor | waits for | on time-out |
|---|---|---|
| benchmark | a training | RuntimeError that names the trainer and its seed and quotes the end of its log |
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
import statistics
import string
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import common, paired
from benchmarks.peer import work as peer_work
from benchmarks.peer.on_gpu import trl_side
from benchmarks.peer.work import Work
from squelch.cluster.sweep.table import t_interval
from squelch.kit.archive.reader import is_of_step, read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REWARD = Path(__file__).with_name("on_gpu") / "reward.py"
TRAINERS = ("squelch", "trl")
NAMES = {"squelch": "Squelch", "trl": "TRL"}
SEEDS = 5
LAST = 10
"""Steps at the end whose mean reward is compared."""
WANTED = 0.05
"""Largest difference of it, and the bound on its 95% interval."""
LEVEL = 0.75
"""Reward whose time is compared: halfway between chance and the most that there is."""
SMOOTHED = 5
"""Steps over which a curve is averaged before it is compared with `LEVEL`."""
RUN_S = 1200.0
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SHAPE = {"width": 256, "layers": 4, "hidden": 768, "heads": 4}
COLUMNS = ("mean over seeds", "Squelch", "TRL", "difference", "low", "high")
UNEQUAL = (
    "each trainer shuffles the file and samples with its own random numbers (each prompt is used once by both)",
    "the ratio's denominator: vLLM's log-probability in Squelch, TRL's own; in float32 they differ by rounding",
    "TRL adds 1e-4 to a group's standard deviation",
)


def work_of(quick: bool) -> Work:
    """The work of both trainers."""
    return Work(3, 8) if quick else Work(60, 32)


def prepare(folder: Path, work: Work, seed: int) -> None:
    """Writes the model, the prompts and the work of a seed."""
    shutil.rmtree(folder, ignore_errors=True)  # of a training that was interrupted
    common.random_qwen2(folder / "model", vocabulary=work.vocabulary, seed=peer_work.SEED + seed, **SHAPE)
    chat_tokenizer(folder / "model", work.vocabulary)
    peer_work.save(work, folder)
    write_prompts(folder, work, seed)


def write_prompts(folder: Path, work: Work, seed: int) -> None:
    """Writes the file of prompts, which are letters, one prompt for each in the training; and one for validation, which
    is off, so that the other is used whole."""
    counts = {"train": work.num_steps * work.num_prompts, "validation": work.num_prompts}
    peer_work.write_letters(folder / "data", counts, work.prompt_tokens, seed)


def chat_tokenizer(folder: Path, vocabulary: int) -> None:
    """Writes a tokenizer of bytes and pairs of letters, with the ChatML template."""
    pairs = [(first, second) for first in string.ascii_lowercase for second in string.ascii_lowercase]
    write_tokenizer(folder, vocabulary, map("".join, pairs), pairs)


def write_tokenizer(
    folder: Path, vocabulary: int, words: Iterable[str], merges: Sequence[tuple[str, str]] = ()
) -> None:
    """Writes a tokenizer of `vocabulary` tokens with the ChatML template: control tokens, bytes, and the first `words`,
    of which those that the first `merges` make are read in texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from squelch.kit.text.shipped_templates import template_text

    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    more = list(itertools.islice(words, vocabulary - len(SPECIAL) - len(bytes_)))
    ids = {word: index for index, word in enumerate((*SPECIAL, *bytes_, *more))}
    inner = Tokenizer(models.BPE(ids, list(merges[: len(more)])))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(list(SPECIAL))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token=SPECIAL[0], eos_token=SPECIAL[2])
    tokenizer.chat_template = template_text("chatml")
    tokenizer.save_pretrained(folder)


def settings(work: Work, folder: Path, seed: int) -> dict[str, Any]:
    """Squelch's settings beside the recipe's: those that TRL gets, and nothing that only measures."""
    optimizer = {
        "learning_rate": work.learning_rate,
        "warmup_steps": 0,
        "decay_steps": 0,
        "betas": list(peer_work.BETAS),
        "epsilon": peer_work.EPSILON,
        "weight_decay": peer_work.WEIGHT_DECAY,
        "max_grad_norm": peer_work.MAX_GRAD_NORM,
    }
    objective = {
        "advantage": "grpo",
        "aggregation": "sequence_mean",
        "ratio": "token",
        "clip_low": work.clip_low,
        "clip_high": work.clip_high,
        "entropy_coefficient": 0.0,
        "kl.coefficient": 0.0,
    }
    own = (work.num_steps, work.num_prompts, work.num_samples, work.new_tokens)
    return peer_work.run_settings(folder, "run", *own) | {
        "runs_dir": str(folder),
        "seed": seed,
        "environment.options.data": str(folder / "data"),
        "environment.options.reward": f"{REWARD}:share",
        "loop.max_staleness": 0,
        "loop.checkpoint_every": work.num_steps,
        "sampling.temperature": work.temperature,
        "learner.algorithm": "grpo",
        "learner.num_threads": work.num_threads,
        **{f"learner.optimizer.{key}": value for key, value in optimizer.items()},
        **{f"learner.objective.{key}": value for key, value in objective.items()},
        "rollout.num_threads": work.num_threads,
        "rollout.max_model_len": 128,
    }


def curve(place: Path, trainer: str, seed: int, work: Work) -> dict[str, Any]:
    """The curve of a trainer and a seed: `reward` and `seconds` of each step. It is made unless `place` has it."""
    kept = place / f"{trainer}-{seed}.json"
    if kept.is_file():
        found = json.loads(kept.read_text())
        if len(found["reward"]) != work.num_steps:
            raise ValueError(f"{kept} has {len(found['reward'])} steps, not {work.num_steps}; name another --dir")
        return found
    folder = place / f"work-{trainer}-{seed}"
    prepare(folder, work, seed)
    found = (by_squelch if trainer == "squelch" else by_trl)(work, folder, seed)
    kept.write_text(json.dumps(found))
    return found


def by_squelch(work: Work, folder: Path, seed: int) -> dict[str, Any]:
    """The curve of a run of the recipe `prompts`."""
    words = [f"{key}={json.dumps(value)}" for key, value in settings(work, folder, seed).items()]
    command = [sys.executable, "-m", "squelch.cluster.cli", "train", "prompts", *words]
    common.finished(command, {}, folder / "log", f"the training Squelch, seed {seed}", RUN_S)
    lines = [line for line in read_metrics(folder / "run") if is_of_step(line)]
    return {"reward": [line["reward_mean"] for line in lines], "seconds": [line["seconds/step"] for line in lines]}


def by_trl(work: Work, folder: Path, seed: int) -> dict[str, Any]:
    """The curve of TRL's trainer."""
    variables = {"OMP_NUM_THREADS": str(work.num_threads), "HF_HUB_OFFLINE": "1", **trl_side.variables()}
    command = [sys.executable, "-m", "benchmarks.peer.learning_worker", str(folder), str(seed)]
    common.finished(command, variables, folder / "log", f"the training TRL, seed {seed}", RUN_S)
    return json.loads((folder / "trl.json").read_text())


def run(place: Path, quick: bool) -> dict[str, Any]:
    """All curves, seeds by turns, and their comparison."""
    work = work_of(quick)
    place.mkdir(parents=True, exist_ok=True)
    curves: dict[str, list[dict[str, Any]]] = {trainer: [] for trainer in TRAINERS}
    for seed in range(1 if quick else SEEDS):
        for trainer in TRAINERS if seed % 2 == 0 else TRAINERS[::-1]:
            curves[trainer].append(curve(place, trainer, seed, work))
    return summary(work, curves)


def summary(work: Work, curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The comparison, paired by seed. `reached` is None where there are fewer seeds than `SEEDS`."""
    ends = {trainer: [statistics.fmean(one["reward"][-LAST:]) for one in found] for trainer, found in curves.items()}
    times = {trainer: [seconds_to(one, LEVEL) for one in found] for trainer, found in curves.items()}
    difference: dict[str, Any] = t_interval(
        [ours - theirs for ours, theirs in zip(*(ends[trainer] for trainer in TRAINERS), strict=True)]
    )
    pairs = [
        (theirs, ours)
        for ours, theirs in zip(*(times[trainer] for trainer in TRAINERS), strict=True)
        if ours and theirs
    ]
    whole = len(ends["trl"]) >= SEEDS
    return {
        "benchmark": "peer_learning",
        "work": {
            "steps": work.num_steps,
            "prompts": work.num_prompts,
            "samples": work.num_samples,
            "new_tokens": work.new_tokens,
        },
        "seeds": len(ends["trl"]),
        "first": {trainer: statistics.fmean(one["reward"][0] for one in found) for trainer, found in curves.items()},
        "last": ends,
        "difference": difference,
        "wanted": WANTED,
        "reached": max(abs(difference["low"]), abs(difference["high"])) <= WANTED if whole else None,
        "level": LEVEL,
        "seconds_to_level": times,
        "time_ratio": paired.ratio(pairs) if len(pairs) > 1 else None,
        "unequal": UNEQUAL,
        "curves": curves,
    }


def seconds_to(found: Mapping[str, Sequence[float]], level: float) -> float | None:
    """Seconds of steps until the mean reward of `SMOOTHED` steps reaches the level; None if it never does."""
    for step in range(SMOOTHED, len(found["reward"]) + 1):
        if statistics.fmean(found["reward"][step - SMOOTHED : step]) >= level:
            return math.fsum(found["seconds"][:step])
    return None


def figure(found: Mapping[str, Any]) -> str:
    """Both curves as an SVG: the mean over seeds and its range, by step and by seconds."""
    from squelch.cluster.plots.style import render, standalone

    reading = (
        f"Mean reward of a step in Squelch and in TRL: the mean over {found['seeds']} seeds with their range, by step "
        "and by seconds of training."
    )
    return standalone(render("learns-like-trl", "Squelch learns what TRL learns", reading, lambda: _drawn(found)))


def _drawn(found: Mapping[str, Any]) -> Figure:
    from squelch.cluster.plots import draw as drawing
    from squelch.cluster.plots.style import BLUE, VERMILLION

    drawn, ((left, right),) = drawing.grid(1, 2, height=3.0)
    for trainer, colour in zip(TRAINERS, (BLUE, VERMILLION), strict=True):
        curves = found["curves"][trainer]
        rewards = list(zip(*(one["reward"] for one in curves), strict=True))
        seconds = [statistics.fmean(step) for step in zip(*(one["seconds"] for one in curves), strict=True)]
        places = (left, range(1, len(rewards) + 1)), (right, list(itertools.accumulate(seconds)))
        means, low, high = ([of(step) for step in rewards] for of in (statistics.fmean, min, max))
        for panel, x in places:
            drawing.lines(panel, [drawing.Line(NAMES[trainer], x, means, colour, low, high, dashed=trainer == "trl")])
    drawing.heading(left, "Mean reward by step", "step")
    drawing.heading(right, "The same by seconds", "seconds of training, without the start")
    return drawing.finish(drawn)


def table(found: Mapping[str, Any]) -> list[list[Any]]:
    """Rows of (name, Squelch, TRL, difference, its interval)."""
    first, last, times, difference = (found[key] for key in ("first", "last", "seconds_to_level", "difference"))
    means = [statistics.fmean(last[trainer]) for trainer in TRAINERS]
    reached = [[one for one in times[trainer] if one is not None] for trainer in TRAINERS]
    medians = [statistics.median(some) if some else "never" for some in reached]
    return [
        ["reward of the first step", *(first[trainer] for trainer in TRAINERS), "", "", ""],
        [f"reward of the last {LAST} steps", *means, difference["mean"], difference["low"], difference["high"]],
        [f"seconds to reward {found['level']:g}, median", *medians, "", "", ""],
    ]


def notes(found: Mapping[str, Any]) -> list[str]:
    """The lines under the table."""
    work, ratio = found["work"], found["time_ratio"]
    verdict = {True: "reached", False: "NOT reached", None: "not judged on less than the whole work"}[found["reached"]]
    times = "the seconds are not compared: too few curves reach that reward"
    if ratio:
        times = f"TRL's seconds over Squelch's: {ratio['ratio']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
    return [
        f"{work['steps']} steps of {work['prompts']} prompts x {work['samples']} samples x at most "
        f"{work['new_tokens']} tokens, {found['seeds']} seeds by turns; difference and 95% interval are paired by seed",
        f"difference wanted, with its interval, within {found['wanted']:g}: {verdict}",
        f"{times} (steps alone, without the start; other load on the machine is in them)",
        *(f"not the same: {one}" for one in found["unequal"]),
    ]


def main() -> int:
    """Makes the curves, prints the comparison, and draws it if asked. Returns the exit code."""
    parser = common.parser_of(__doc__, "one seed, three steps of 8 tokens")
    parser.add_argument("--dir", help="folder that keeps the finished curves")
    parser.add_argument("--plot", type=Path, help="file for the figure (SVG)")
    chosen = parser.parse_args()
    if (reason := trl_side.missing()) is not None:
        parser.error(reason)
    with tempfile.TemporaryDirectory(prefix="squelch-learning-") as name:
        found = run(Path(chosen.dir or name).resolve(), chosen.quick)
    if chosen.plot:
        chosen.plot.write_text(figure(found))
    common.print_metrics(found, chosen.json, COLUMNS, table(found), notes(found))
    return int(found["reached"] is False)


if __name__ == "__main__":
    raise SystemExit(main())
