"""Measures a training step at the size of a real language model, each part beside its counted floor and TRL's.

python -m benchmarks.real_model [--without-trl] [--dtype bfloat16] [--ranks 1] [--quick] [--json]

The work has the shape of Countdown: 8 prompts of 120 tokens x 8 samples x 48 new tokens, one optimizer step, T = 1, on
two threads. The model has SmolLM2-135M's shape (134.5 M parameters, 30 layers, width 576, tied head, vocabulary 49,152)
with random weights, on which no time depends: no sample ends early. Squelch trains on all groups and on half of them by
turns. TRL runs as it comes, in the environment of `benchmarks.peer.trl`.

Floors, from products at the speed that this processor reaches on this model's largest matrix, and memory traffic at the
speed of a copy, both measured in the same run:

    rollout      the larger of all products and of reading the weights once for each decoded token of the batch
    train        six products a parameter and packed token, and attention's; checkpointing's repetition is not counted
    publication  three copies of the weights: out of the learner, into the store, into the engine

`--quick` has one step of 8 new tokens after the first and no TRL: it shows that everything works.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.peer import trl
from benchmarks.peer.work import SEED, Work

WANTED = 1.5
"""Most times its floor that a step may take."""
WANTED_PAUSE_S = 0.4
COLUMNS = ("part", "all kept, s", "floor, s", "ratio", "half kept, s", "floor, s", "ratio", "TRL, s")
PARTS = ("generation", "update", "publication", "step")


def work_of(chosen: argparse.Namespace) -> Work:
    """The work that the flags ask for."""
    return Work(
        num_steps=4 if chosen.quick else 6,
        num_samples=8,
        prompt_tokens=120,
        new_tokens=8 if chosen.quick else 48,
        vocabulary=49152,
        ranks=chosen.ranks,
        checkpointing=True,
        kept=(1.0, 0.5),
        dtype=chosen.dtype,
        store_mib=2400,
    )


def run(work: Work, trainers: tuple[str, ...], python: Path) -> dict[str, Any]:
    """The steps' metrics by trainer, without the first of each kind, and the floors."""
    with tempfile.TemporaryDirectory(prefix="squelch-real-") as name:
        folder = Path(name)
        config = common.random_smollm2(folder, SEED)
        ready, steps = trl.alternate(work, folder, python, trainers)
        floors = {kept: floor(work, config, kept) for kept in (work.num_prompts, work.kept_groups(1))}
    return {"trainers": {trainer: ready[trainer] for trainer in trainers}, "steps": steps, "floors": floors}


def floor(work: Work, config: Any, kept: int) -> dict[str, float]:
    """Seconds of the parts of a step that trains on `kept` groups, by count."""
    from squelch.actors.model_counts import model_size
    from squelch.actors.model_size import BYTES
    from squelch.learner.memory import skeleton

    size = model_size(skeleton(config))
    rate, bandwidth = rates(work.num_threads, work.dtype)
    length, weights = work.prompt_tokens + work.new_tokens, BYTES[work.dtype] * size.parameters
    fed, sampled = work.num_prompts * work.prompt_tokens, work.num_sequences * work.new_tokens
    decode = max(sampled * size.operations(length) / rate, work.new_tokens * weights / bandwidth)
    packed = kept * (work.prompt_tokens + work.num_samples * work.new_tokens)
    parts = {
        "generation": decode + fed * size.operations(work.prompt_tokens / 2) / rate,
        "update": 3 * packed * size.operations(length / 2) / rate,
        "publication": 3 * weights / bandwidth,
    }
    return parts | {"step": sum(parts.values())}


PARAMETERS = 134_515_008


def rates(threads: int, dtype: str) -> tuple[float, float]:
    """(FLOP/s of the model's largest product in `dtype`, bytes copied per second), the best of several."""
    import torch
    from torch.nn.functional import linear

    from squelch.learner.kernels.linear import product

    torch.set_num_threads(threads)
    kind = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    x, weight = torch.randn(1024, 576, dtype=kind), torch.randn(1536, 576, dtype=kind)
    multiply = product if kind == torch.float32 else linear
    source = torch.empty(64 << 20)
    target = torch.empty_like(source)
    fastest = min(_seconds(lambda: multiply(x, weight)) for _ in range(30))
    copied = min(_seconds(lambda: target.copy_(source)) for _ in range(10))
    return 2 * 1024 * 576 * 1536 / fastest, source.nbytes / copied


def _seconds(call: Any) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def summary(work: Work, found: dict[str, Any]) -> dict[str, Any]:
    """Medians by kind of step, their floors and ratios."""
    ours = found["steps"]["squelch"][len(work.kept) :]
    kinds = {"all": work.num_prompts, "half": work.kept_groups(1)}
    result: dict[str, Any] = {"benchmark": "real_model", "parameters": PARAMETERS, "dtype": work.dtype}
    for kind, kept in kinds.items():
        rows = [row for row in ours if row["kept"] == kept]
        medians = {part: statistics.median(row[part] for row in rows) for part in PARTS}
        counted = found["floors"][kept]
        ratios = {part: medians[part] / counted[part] for part in PARTS}
        result[kind] = {"seconds": medians, "floor": counted, "ratio": ratios, "steps": len(rows)}
    result["paused"] = statistics.median(row["paused"] for row in ours)
    result["parity"] = max(row["parity"] for row in ours)
    if "trl" in found["steps"]:
        rows = found["steps"]["trl"][1:]
        result["trl"] = {part: statistics.median(row[part] for row in rows) for part in PARTS}
        result["trl_ratio"] = result["trl"]["step"] / result["all"]["seconds"]["step"]
    return result


def table(found: dict[str, Any]) -> list[list[Any]]:
    """A row for each part."""
    rows = []
    for part in PARTS:
        row: list[Any] = [part]
        for kind in ("all", "half"):
            row += [found[kind][name][part] for name in ("seconds", "floor", "ratio")]
        rows.append([*row, found["trl"][part] if "trl" in found else ""])
    return rows


def notes(found: dict[str, Any]) -> list[str]:
    """The lines under the table."""
    lines = [
        f"a step takes {found['all']['ratio']['step']:.2f} times its floor with all groups kept and "
        f"{found['half']['ratio']['step']:.2f} times with half of them; wanted at most {WANTED:g}",
        f"the engine is paused for {found['paused']:.2f} s a publication; wanted at most {WANTED_PAUSE_S:g}",
        f"{found['parameters'] / 1e6:.1f} M parameters, {found['dtype']}, parity {found['parity']:.1e} nats",
    ]
    return [*lines, f"{found['trl_ratio']:.1f} times TRL's steps per minute"] if "trl" in found else lines


def main() -> None:
    """Prints the metrics."""
    parser = common.parser_of(__doc__, "one step of 8 new tokens of each kind, without TRL")
    parser.add_argument("--without-trl", action="store_true", help="Squelch and the floors only")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="Squelch's arithmetic")
    parser.add_argument("--ranks", type=int, default=1, help="learner ranks, which share the threads")
    chosen = parser.parse_args()
    alone = chosen.quick or chosen.without_trl
    work = work_of(chosen)
    python = Path(sys.executable) if alone else trl.peer_python(may_install=True)
    found = summary(work, run(work, ("squelch",) if alone else ("squelch", "trl"), python))
    common.print_metrics(found, chosen.json, COLUMNS, table(found), notes(found))


if __name__ == "__main__":
    main()
