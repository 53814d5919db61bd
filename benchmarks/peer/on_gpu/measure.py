"""Whole steps of Squelch and TRL on one GPU: the same model, prompts, reward and lengths, both loaded, one working.

Each function is a part of `benchmarks.gpu` (`--parts run` names all of them, in order) and yields rows as they become
known. `--device cpu --quick` runs all of it at a tiny shape, which shows that the scripts work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peer.on_gpu.files import prepare
from benchmarks.peer.on_gpu.sides import Side, in_turn
from benchmarks.peer.on_gpu.squelch_side import SquelchSide
from benchmarks.peer.on_gpu.trl_side import TrlSide, missing
from benchmarks.peer.on_gpu.work import GpuWork

if TYPE_CHECKING:
    from benchmarks.gpu.common import Setting

WORKERS = (4, 2, 1)
OTHER_ROWS = ("tuned-64", "tuned-16")
STEPS = 6
END_S = 30.0
"""Seconds that are left for the end of the sides."""
THREE_BILLION_GIB = 130.0
"""Of a GPU on which a learner and two engines of that shape fit: 60 and 17 GiB each (`squelch plan`)."""
NOT_CPU = 1000.0
"""GiB of a GPU that holds everything: on CPU memory is not what bounds."""
COLUMNS = ("median, s", "step", "generation", "update", "sync", "paused", "GPU busy", "MFU of the step")


def workers(setting: Setting) -> Iterator[dict[str, Any]]:
    """Weight sync and steps with 4, 2 and 1 engines; TRL tuned, then as it comes."""
    counts = (2, 1) if setting.quick else WORKERS
    yield from _played(setting, {}, [("Squelch", counts, {})], {"TRL": ("tuned-32", "as_it_comes")})


def stale(setting: Setting) -> Iterator[dict[str, Any]]:
    """Steps at staleness 1, where generation and update overlap on the GPU."""
    yield from _played(setting, {}, [("Squelch, staleness 1", (2,), {"loop.max_staleness": 1})], {})


def ragged(setting: Setting) -> Iterator[dict[str, Any]]:
    """Half of the answers end early: Squelch packs rows, TRL pads them."""
    yield from _played(setting, {"ragged": True}, [("Squelch, ragged", (2,), {})], {"TRL, ragged": ("tuned-32",)})


def asleep(setting: Setting) -> Iterator[dict[str, Any]]:
    """TRL's engine gives its memory back while the learner works, which Squelch's cannot; then TRL with other numbers
    of rows per pass, of which the best counts."""
    peers = {"TRL, sleep": ("tuned-32+sleep", "tuned-64+sleep"), "TRL": OTHER_ROWS}
    if setting.device == "cpu":
        yield {"TRL, sleep": {"skipped": "vLLM has no sleep on CPU"}}
        del peers["TRL, sleep"]
    yield from _played(setting, {}, [], peers)


def three_billion(setting: Setting) -> Iterator[dict[str, Any]]:
    """Qwen2.5-3B's shape, with recomputed activations on both sides; needs a GPU of 141 GiB for Squelch."""
    more = {
        "learner.activation_checkpointing": True,
        "learner.num_gpus": 0.6,
        "rollout.num_gpus": 0.15,
        "rollout.kv_cache_gib": 8,
    }
    changes = {"shape": "Qwen2.5-3B", "steps": 3 if setting.quick else 4}
    runs: list[tuple[str, Sequence[int], Mapping[str, Any]]] = [("Squelch, 3B", (2,), more)]
    if card_gib(setting) < THREE_BILLION_GIB:
        yield {"Squelch, 3B": {"skipped": f"learner and engines need a GPU of {THREE_BILLION_GIB:g} GiB or more"}}
        runs = []
    yield from _played(setting, changes, runs, {"TRL, 3B": ("as_it_comes",)})


def _played(
    setting: Setting,
    changes: Mapping[str, Any],
    runs: Sequence[tuple[str, Sequence[int], Mapping[str, Any]]],
    peers: Mapping[str, Sequence[str]],
) -> Iterator[dict[str, Any]]:
    """The rows of Squelch's runs and of TRL's variants on the work with these changes. `peers`: the variants of each of
    TRL's processes."""
    tiny: dict[str, Any] = {
        "prompts": 2,
        "samples": 4,
        "prompt_tokens": 40,
        "new_tokens": 16,
        "steps": 6,
        "quick": True,
    }
    whole: dict[str, Any] = {"shape": "Qwen2.5-0.5B", "device": setting.device, "steps": STEPS}
    work = GpuWork(**(whole | (tiny if setting.quick else {}) | dict(changes)))
    prepare(setting.folder / "peer", work)
    yield {"work": work.facts()}
    own = partial(_squelch, setting.folder / "peer", work, setting.device)
    sides: list[Side] = [own(*run) for run in runs]
    if (reason := missing()) is not None:
        yield {name: {"skipped": reason} for name in peers}
        peers = {}
    sides += [TrlSide(name, setting.folder / "peer", work, variants) for name, variants in peers.items()]
    yield from in_turn(sides, card_gib(setting), setting.deadline - min(END_S, setting.left_s() / 4))


def _squelch(
    folder: Path, work: GpuWork, device: str, name: str, counts: Sequence[int], more: Mapping[str, Any]
) -> Side:
    """A run; on CPU without the settings of shares of a GPU."""
    shares = ("num_gpus", "kv_cache_gib") if device == "cpu" else ()
    return SquelchSide(name, folder, work, counts, {k: v for k, v in more.items() if not k.endswith(shares or "\0")})


def card_gib(setting: Setting) -> float:
    """Memory of the GPU."""
    if setting.device == "cpu":
        return NOT_CPU
    import torch

    return torch.cuda.get_device_properties(0).total_memory / 2**30


def table(rows: Mapping[str, Any]) -> list[list[Any]]:
    """The rows with a step's seconds, for `COLUMNS`."""
    names = ("step", "generation", "update", "sync", "paused", "gpu_busy", "mfu_step")
    known = {name: row for name, row in rows.items() if isinstance(row, dict) and "step" in row}
    return [[name, *(row.get(key, "") for key in names)] for name, row in known.items()]


def best_tuned(rows: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """The fastest tuned variant of TRL; None without one."""
    tuned = {name: row for name, row in rows.items() if name.startswith("TRL, tuned") and "step" in row}
    return min(tuned.items(), key=lambda item: item[1]["step"], default=None)


def notes(rows: Mapping[str, Any]) -> list[str]:
    """Lines under the table: the work, and how many times as fast as TRL Squelch is with its best number of engines."""
    found = [f"{key}: {value}" for key, value in rows.get("work", {}).items()]
    lines = [", ".join(found)]
    ours = [row["step"] for name, row in rows.items() if name.endswith((" engine", " engines"))]
    peers = {"tuned": best_tuned(rows), "as it comes": ("", rows.get("TRL, as_it_comes", {}))}
    if rows.get("work", {}).get("device") != "cuda":
        ours = []  # a tiny shape on a CPU says nothing of the ratio
    for what, peer in peers.items():
        if ours and peer is not None and "step" in peer[1]:
            lines.append(f"{peer[1]['step'] / min(ours):.2f} times as fast as TRL {what}")
    lines += [f"{name}: {row['error']}" for name, row in rows.items() if isinstance(row, dict) and "error" in row]
    return lines
