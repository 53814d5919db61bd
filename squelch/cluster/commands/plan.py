"""`squelch plan`: the memory that each actor of a recipe needs, and how many rollout workers its learner needs.

Memory is always estimated, from the shapes of the model (`learner.memory`, `actors.rollout.memory`,
`actors.scorer.memory`); no weights are read. The time of a step is a model (`cluster.runs.timing.step_time`) with
constants from runs (`--run`), or counted from shapes and data sheets for recipes on GPUs
(`cluster.runs.timing.counted_step`). The output says which.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squelch.cluster.commands.arguments import add_recipe, run_folder, run_path
from squelch.cluster.runs.timing.step_time import NEARLY, Observed, StepModel, fitted, observed
from squelch.kit.base.errors import UserError, as_user_error
from squelch.kit.commands.arguments import positive
from squelch.kit.process.terminal import say, say_json

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from squelch.actors.config import RolloutConfig
    from squelch.actors.model_size import ModelSize
    from squelch.actors.rollout.memory import EngineEstimate
    from squelch.cluster.config import RunConfig
    from squelch.learner.memory import HostEstimate

GIB, MIB = 2**30, 2**20
DEVICES_GIB = (24.0, 48.0, 80.0, 141.0)
ON_GPUS = ("learner.num_gpus=1", "rollout.num_gpus=1", "scorer.num_gpus=1")
"""The settings that `--device-gib` assumes if no actor of a recipe runs on a GPU."""
TINY_GIB = 4
"""An actor of the tiny policy needs less, libraries and the rollout worker's cache included."""
RANK_RUNTIME_GIB = 1.0
"""Libraries, contexts and the allocator's overhead of a learner rank: an allowance, not counted in its estimate."""


@dataclass(frozen=True)
class Need:
    """The memory that one member of a role needs on one device. `device_gib`: its device, or its share of one; None on
    CPU."""

    role: str
    count: int
    needs_gib: float
    device_gib: float | None
    parts: str
    advice: str
    """The settings that help; empty if it fits."""
    resolved: str = ""
    """The setting that `auto` is on this device."""


@dataclass(frozen=True)
class StepRow:
    """The predicted step with one number of rollout workers. Shares of the time are in [0, 1]."""

    workers: int
    window_s: float
    step_s: float
    idle_workers: float
    idle_learner: float
    waits_for: str


@dataclass(frozen=True)
class Timing:
    """The model of a step's time with its origin and its predictions."""

    origin: str
    model: StepModel
    staleness: int
    enough: int
    rows: list[StepRow]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = (
        "Prints the memory that each actor of a recipe needs, how long a step takes with 1, 2, 4, ... rollout workers, "
        "how many of them the learner needs, and what to set. Memory is estimated from the model's shapes. Step times "
        "come from runs of the recipe (--run), or are counted for a usual GPU with the given memory."
    )
    add_recipe(parser)
    parser.add_argument(
        "--run",
        metavar="RUN",
        type=run_path,
        action="append",
        default=[],
        dest="runs",
        help="take the times from this run, at loop.max_staleness=0; runs with other numbers of workers "
        "make the prediction better",
    )
    parser.add_argument(
        "--device-gib",
        type=positive(float),
        metavar="N",
        help="memory of a GPU, GiB (default: a table for 24, 48, 80 and 141); plans recipes on CPUs for GPUs too",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Prints the plan."""
    from squelch.cluster.config import load

    config = load(options.recipe, options.overrides)
    moved = options.device_gib is not None and not any(
        actor.num_gpus for actor in (config.learner, config.rollout, config.scorer)
    )
    if moved:
        config = load(options.recipe, [*ON_GPUS, *options.overrides])
    shape = _shape(config)
    size = None if shape is None else _size(shape)
    devices = [options.device_gib] if options.device_gib else list(DEVICES_GIB)
    needs = [] if shape is None or size is None else list(_needs(config, shape, size, devices))
    timing = _timing(config, size, options.runs, options.device_gib)
    store = None if size is None else _store_advice(config, size)
    if options.json:
        say_json(_plain(config, needs, timing, store), indent=2)
    else:
        if moved and needs:
            say(f"this recipe runs on CPUs; planned as with {' '.join(ON_GPUS)}")
        say("\n".join([*_memory_lines(config, needs, store), "", *_timing_lines(config, timing)]))
    return 0


def _plain(config: RunConfig, needs: list[Need], timing: Timing | None, store: str | None) -> dict[str, Any]:
    return {
        "recipe": config.name,
        "model": config.model.path,
        "memory": [asdict(need) for need in needs],
        "learner_host": None if (host := _host(config)) is None else asdict(host),
        "object_store": store,
        "step": None if timing is None else asdict(timing),
    }


# -- memory ------------------------------------------------------------------------------------------------------------


def needs_of(config: RunConfig, devices: Sequence[float]) -> list[Need]:
    """The memory that each actor of a recipe needs; empty for the tiny policy."""
    shape = _shape(config)
    return [] if shape is None else list(_needs(config, shape, _size(shape), devices))


def hardware(config: RunConfig, needs: Sequence[Need]) -> str:
    """The GPUs of a recipe and the smallest size on which all of its actors fit, e.g. `4 GPUs of 80 GiB`; empty if it
    has none. `needs`: as `needs_of` on `DEVICES_GIB`; of fewer devices nothing is said."""
    from squelch.cluster.fleet.demand import needed

    roles = [[need for need in needs if need.role == role] for role in dict.fromkeys(need.role for need in needs)]
    if len(DEVICES_GIB) not in map(len, roles):
        return ""
    fits = [gib for gib, *at in zip(DEVICES_GIB, *map(_on_each, roles), strict=True) if not any(n.advice for n in at)]
    count = needed(config, "GPU")
    size = f"of {fits[0]:g} GiB" if fits else f"of more than {DEVICES_GIB[-1]:g} GiB"
    return f"{count:g} GPU{'s' if count > 1 else ''} {size}"


def _on_each(role: Sequence[Need]) -> Sequence[Need]:
    """A role's need on each device; the same if it is on CPUs."""
    return role if len(role) > 1 else [*role] * len(DEVICES_GIB)


def _shape(config: RunConfig) -> PreTrainedConfig | None:
    """The model's configuration; None for the tiny policy, which has none before it is built. Raises UserError for a
    model that cannot be trained."""
    if config.model.path == "tiny":
        return None
    from squelch.learner.policy.packed_check import check_trainable

    shape = _given_shape(config)
    with as_user_error(about=f"model.path={config.model.path}"):
        check_trainable(shape, config.learner.kernels)
    return shape


def _given_shape(config: RunConfig) -> PreTrainedConfig:
    from squelch.kit.models.model_folder import model_config
    from squelch.learner.model_shapes import PACKAGED, SHAPES, published

    path = Path(config.model.path)
    name = path.name.partition("@")[0]  # OWNER/NAME@REVISION of the hub
    named = PACKAGED.get(name, name)
    name = named if named in SHAPES else named.removesuffix("-Instruct")
    if name in SHAPES:
        return published(name)
    try:
        return model_config(path)
    except ValueError as error:
        known = ", ".join(SHAPES)
        raise UserError(f"model.path={path}: give a local Hugging Face folder, or one named {known}") from error


def _size(shape: PreTrainedConfig) -> ModelSize:
    from squelch.actors.model_counts import model_size
    from squelch.learner.memory import skeleton

    return model_size(skeleton(shape))


def _needs(config: RunConfig, shape: PreTrainedConfig, size: ModelSize, devices: Sequence[float]) -> Iterator[Need]:
    """The needs of each role, on each device if the role is on GPUs."""
    own = devices if config.learner.num_gpus > 0 else [None]
    yield from _learner(config, shape, own, _published(config, size))
    for device in devices if config.rollout.num_gpus > 0 else [None]:
        yield _worker(config, size, device)
    if config.scorer.enabled:
        for device in devices if config.scorer.num_gpus > 0 else [None]:
            yield _scorer(config, size, device)


def _published(config: RunConfig, size: ModelSize) -> int:
    """Bytes of the weights that the learner shares on its GPU."""
    from squelch.actors.model_size import BYTES

    return BYTES[config.rollout.dtype] * size.parameters if config.way.on_gpu else 0


def _share(device: float | None, num_gpus: float) -> float | None:
    return None if device is None else device * min(1.0, num_gpus)


def _learner(
    config: RunConfig, shape: PreTrainedConfig, devices: Sequence[float | None], published: int
) -> Iterator[Need]:
    from squelch.cluster.fleet.token_budget import settled
    from squelch.learner import memory

    held = config.held_gradients
    for device in devices:
        has = _share(device, config.learner.num_gpus)
        learner = settled(config, shape, None if has is None else int(has * GIB) - published)
        needed = memory.estimate(shape, learner, learner.ranks, held)
        total = (needed.total + published) / GIB + RANK_RUNTIME_GIB
        parts = needed.line().partition("(")[2].rstrip(")") + f", runtime {RANK_RUNTIME_GIB:.2f}"
        if published:
            parts += f", published weights {published / GIB:.2f}"
        resolved = f"learner.token_budget={learner.tokens}" if config.learner.token_budget == "auto" else ""
        left = 0 if has is None else int((has - RANK_RUNTIME_GIB) * GIB) - published
        fits = has is None or needed.total <= left
        advice = "" if fits else memory.advice(shape, learner, learner.ranks, held, left, config.rollout.max_model_len)
        yield Need("learner rank", learner.ranks, total, has, parts, advice, resolved)


def _worker(config: RunConfig, size: ModelSize, device: float | None) -> Need:
    from squelch.actors.rollout import memory

    rollout, needed = config.rollout, memory.estimate(size, config.rollout)
    wanted, has = min(rollout.max_num_seqs, _sequences(config)), int((device or 0) * GIB)
    held, cache_gib = needed.sequences(has, rollout), rollout.cache_gib
    cache = max(1, min(held, wanted)) * needed.sequence if cache_gib is None else cache_gib * GIB
    advice = ""
    if held < wanted:
        advice = (
            _cache_advice(needed, rollout, has, wanted)
            or memory.advice(size, rollout, has)
            or f"{held} of {wanted} full sequences fit at once: set rollout.max_num_seqs={held}, or raise rollout.count"
        )
    parts = (
        f"weights {needed.weights / GIB:.2f}, batch {needed.working / GIB:.2f}, runtime {needed.runtime / GIB:.2f}, "
    )
    parts += f"cache {needed.sequence / MIB:.1f} MiB a full sequence"
    total = (needed.fixed + cache) / GIB
    return Need("rollout worker", rollout.start_count, total, _share(device, rollout.num_gpus), parts, advice)


def _cache_advice(needed: EngineEstimate, rollout: RolloutConfig, has: int, wanted: int) -> str:
    """The size of the cache that holds the most of the wanted sequences; empty if none is given or it holds as many."""
    if rollout.cache_gib is None:
        return ""
    best_gib = min(math.ceil(10 * wanted * needed.sequence / GIB), 10 * needed.room(has, rollout) // GIB) / 10
    best = needed.sequences(has, rollout.model_copy(update={"kv_cache_gib": best_gib}))
    if best <= (held := needed.sequences(has, rollout)):
        return ""
    holds = "all" if best >= wanted else best
    return f"the cache holds {held} of {wanted} full sequences; rollout.kv_cache_gib={best_gib:g} holds {holds}"


def _sequences(config: RunConfig) -> int:
    """Most sequences of the steps under way that one rollout worker has at once."""
    groups = math.ceil((config.loop.max_staleness + 1) * config.loop.prompts / config.rollout.start_count)
    return groups * config.sampling.group_size


def _scorer(config: RunConfig, size: ModelSize, device: float | None) -> Need:
    from squelch.actors.scorer import memory

    needed, has = memory.estimate(size, config.scorer), _share(device, config.scorer.num_gpus)
    advice = "" if has is None else memory.advice(size, config.scorer, int(has * GIB))
    return Need("scorer", 1, needed / GIB, has, "weights, one batch, its keys and values, runtime", advice)


def _store_advice(config: RunConfig, size: ModelSize) -> str | None:
    """The setting to change if the object store of a cluster on this machine is too small for the published weights."""
    from squelch.actors.model_size import BYTES
    from squelch.cluster.fleet.object_store import VERSIONS, needed_mib

    needed, chosen = needed_mib(size.parameters * BYTES[config.rollout.dtype]), config.cluster.object_store_mib
    if config.cluster.address or chosen is None or needed <= chosen:
        return None
    return (
        f"{VERSIONS} versions of the weights and the groups take {needed} MiB of the object store, which has {chosen}: "
        f"set cluster.object_store_mib={needed}, or leave it out"
    )


def _memory_lines(config: RunConfig, needs: list[Need], store: str | None) -> list[str]:
    if not needs:
        return [f"memory: the tiny policy has about a million parameters; each actor needs less than {TINY_GIB} GiB"]
    lines = [f"memory of {Path(config.model.path).name}, GiB, estimated from its shapes"]
    for need in needs:
        device = "host memory" if need.device_gib is None else f"{need.device_gib:g} GiB"
        verdict = need.advice or " ".join((*["fits"] * (need.device_gib is not None), need.resolved))
        lines.append(f"  {need.count} x {need.role:15s} {need.needs_gib:7.2f}  {device:12s} {verdict}".rstrip())
    for role, parts in {need.role: need.parts for need in needs}.items():
        lines.append(f"  {role}: {parts}")
    if text := _shared(config):
        lines.append(f"  {text}")
    if host := _host(config):
        count, runtime = config.learner.ranks, f"runtime {RANK_RUNTIME_GIB:.2f}"
        lines.append(f"  {count} x learner rank, beside its GPU: {host.line()}, {runtime}")
    if text := hardware(config, needs):
        lines.append(f"  hardware: {text}")
    return [*lines, *([f"  object store: {store}"] if store else [])]


def _host(config: RunConfig) -> HostEstimate | None:
    """The host memory of a learner rank on a GPU; None on CPU and for the tiny policy."""
    from squelch.learner import memory

    shape = _shape(config)
    return None if shape is None else memory.host_estimate(shape, config.learner, config.learner.ranks)


def _shared(config: RunConfig) -> str:
    """The shares of actors that share a GPU; empty if each has its own."""
    from squelch.cluster.fleet.demand import needs

    asked = {need.key: need for need in needs(config) if need.total("GPU") > 0}
    if all(need.resources["GPU"] >= 1 for need in asked.values()):
        return ""
    actors = {"learner": "learner", "rollout": "rollout worker", "scorer": "scorer"}
    given = [(actor, asked[key]) for key, actor in actors.items() if key in asked]
    each = " + ".join(f"{need.count} x {need.resources['GPU']:g} for the {actor}" for actor, need in given)
    return f"GPUs: {each} = {sum(need.total('GPU') for need in asked.values()):g}"


# -- time --------------------------------------------------------------------------------------------------------------


def _timing(config: RunConfig, size: ModelSize | None, runs: Sequence[Path], device: float | None) -> Timing | None:
    """The model of the step's time; None if nothing says how fast the machines are."""
    if runs:
        model, origin = _measured(config, runs)
    elif size is not None and config.rollout.num_gpus > 0 and config.learner.num_gpus > 0:
        model, origin = _counted(config, size, device)
    else:
        return None
    staleness = config.loop.max_staleness
    enough = model.enough(staleness)
    rows = [_row(model, workers, staleness) for workers in _shown(enough, config.rollout.start_count)]
    return Timing(origin, model, staleness, enough, rows)


def _measured(config: RunConfig, runs: Sequence[Path]) -> tuple[StepModel, str]:
    from squelch.cluster.runs.folder import RunFolder

    found: list[Observed] = []
    sizes = set()
    for path in runs:
        folder = RunFolder(run_folder(path)).require()
        of_run = folder.config()
        if of_run.loop.max_staleness:
            raise UserError(
                f"{path} ran at loop.max_staleness={of_run.loop.max_staleness}, where the play of a step overlaps with "
                "training and cannot be timed; give a run with loop.max_staleness=0, a few steps are enough"
            )
        sizes.add(of_run.sampling.group_size)
        try:
            found += observed(folder.metrics(), of_run.loop.prompts)
        except ValueError as error:
            raise UserError(f"{path}: {error}; let it run for more steps without validation") from error
    if len(sizes) > 1:
        raise UserError(f"the runs have different sampling.group_size ({sorted(sizes)}); give runs that agree")
    with as_user_error(about="--run"):
        model = fitted(found)
    steps = sum(len(one.windows) for one in found)
    origin = f"measured in {steps} steps of {', '.join(str(path) for path in runs)}"
    ratio = config.sampling.group_size / sizes.pop()
    if (ratio, config.loop.prompts) != (1.0, model.groups):
        origin += f", scaled to {config.loop.prompts} prompts x {config.sampling.group_size}"
    return model.scaled(config.loop.prompts, ratio), origin


def _counted(config: RunConfig, size: ModelSize, device: float | None) -> tuple[StepModel, str]:
    from squelch.cluster.runs.timing.counted_step import PRODUCTS, READING, counted, device_of

    kind = device_of(device or 80.0)
    origin = (
        f"estimated: counted operations at {PRODUCTS:.0%} of the products and {READING:.0%} of the bandwidth of one "
        f"{kind.name} for each actor, every turn at its limit, every group kept, no time in environments; "
        "a model below a billion parameters takes longer (docs/guide/cluster.md). Give --run for times of your own "
        "machines"
    )
    return counted(size, config, kind), origin


def _shown(enough: int, count: int) -> list[int]:
    """The numbers of rollout workers that the table shows."""
    doubled = {2**power for power in range(12) if 2**power <= 2 * enough}
    return sorted(doubled | {enough, count})


def _row(model: StepModel, workers: int, staleness: int) -> StepRow:
    return StepRow(
        workers,
        model.window(workers),
        model.step(workers, staleness),
        model.idle_workers(workers, staleness),
        model.idle_learner(workers, staleness),
        model.limit(workers, staleness),
    )


def _timing_lines(config: RunConfig, timing: Timing | None) -> list[str]:
    if timing is None:
        return ["step time: give --run RUN_DIR, a run of a few steps: the speed of CPUs is not known beforehand"]
    model = timing.model
    lines = [
        f"step time, {timing.origin}",
        f"  a window of {model.groups} groups: {model.serial:.2f} s however many workers share it, and "
        f"{model.parallel:.2f} worker seconds",
        f"    ({model.split})",
        f"  learner: train {model.train:.2f} s, publish {model.publish:.2f} s, other {model.other:.2f} s",
        f"  predicted at max_staleness {timing.staleness}:",
        "  workers  window s    step s  idle workers  idle learner  waits for",
    ]
    for row in timing.rows:
        lines.append(
            f"  {row.workers:7d}  {row.window_s:8.2f}  {row.step_s:8.2f}  {row.idle_workers:12.0%}  "
            f"{row.idle_learner:12.0%}  {row.waits_for}"
        )
    return [*lines, f"  {_answer(config, timing)}"]


def _answer(config: RunConfig, timing: Timing) -> str:
    model, staleness, enough = timing.model, timing.staleness, timing.enough
    text = f"{enough} rollout worker{'s' * (enough > 1)} are enough" if enough > 1 else "1 rollout worker is enough"
    text += f": with more, a step gets at most {NEARLY - 1:.0%} shorter. "
    key = "max_count" if config.rollout.count == "auto" else "count"
    change = "" if enough == vars(config.rollout)[key] else f"Set rollout.{key}={enough}. "
    if model.limit(enough, staleness) == "learner":
        return text + change + "The learner is then busy all the time."
    better = model.step(model.enough(staleness + 1), staleness + 1)
    gain = 1 - better / model.step(enough, staleness)
    if gain < NEARLY - 1:
        return text + change.rstrip()
    return (
        text
        + change
        + f"loop.max_staleness={staleness + 1} would let play overlap with training: {better:.2f} s a step "
        f"with {model.enough(staleness + 1)}, {gain:.0%} less."
    )
