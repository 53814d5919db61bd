"""The memory that each actor of a recipe needs, estimated from the shapes of its model (`learner.memory`,
`actors.rollout.memory`, `actors.scorer.memory`), for `squelch plan`. No weights are read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from squelch.kit.base.errors import UserError, as_user_error

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from squelch.actors.config import RolloutConfig
    from squelch.actors.model_size import ModelSize
    from squelch.actors.rollout.memory import EngineEstimate
    from squelch.cluster.config import RunConfig
    from squelch.learner.memory import HostEstimate

GIB, MIB = 2**30, 2**20
DEVICES_GIB = (24.0, 48.0, 80.0, 141.0)
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


def needs_of(config: RunConfig, devices: Sequence[float]) -> list[Need]:
    """The memory that each actor of a recipe needs; empty for the tiny policy."""
    shape = shape_of(config)
    return [] if shape is None else list(needs_on(config, shape, size_of(shape), devices))


def hardware(config: RunConfig, needs: Sequence[Need]) -> str:
    """The GPUs of a recipe and the smallest size on which all of its actors fit, e.g. `4 GPUs of 80 GiB`; empty if it
    has none. `needs`: as `needs_of` on `DEVICES_GIB`; of fewer devices nothing is said."""
    from squelch.cluster.fleet.demand import needed

    roles = [[need for need in needs if need.role == role] for role in dict.fromkeys(need.role for need in needs)]
    if len(DEVICES_GIB) not in map(len, roles):
        return ""
    fits = [gib for gib, *at in zip(DEVICES_GIB, *map(_on_each, roles), strict=True) if not any(n.advice for n in at)]
    count = math.ceil(round(needed(config, "GPU"), 6))
    size = f"of {fits[0]:g} GiB" if fits else f"of more than {DEVICES_GIB[-1]:g} GiB"
    return f"{count} GPU{'s' if count > 1 else ''} {size}"


def _on_each(role: Sequence[Need]) -> Sequence[Need]:
    """A role's need on each device; the same if it is on CPUs."""
    return role if len(role) > 1 else [*role] * len(DEVICES_GIB)


def shape_of(config: RunConfig, file: Path | None = None) -> PreTrainedConfig | None:
    """The model's configuration, that of a `file` config.json, or of its folder, if one is given; None for the tiny
    policy, which has none before it is built. Raises UserError for a model that cannot be trained."""
    if config.model.path == "tiny" and file is None:
        return None
    from squelch.kit.models.model_folder import model_config
    from squelch.learner.policy.packed_check import check_trainable

    named = file is not None and file.name == "config.json"
    with as_user_error(about=f"model.path={config.model.path}" if file is None else f"--shape {file}"):
        shape = _given_shape(config) if file is None else model_config(file.parent if named else file)
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
        raise UserError(
            f"model.path={path}: give a local Hugging Face folder, one named {known}, or the model's config.json with "
            "--shape FILE"
        ) from error


def size_of(shape: PreTrainedConfig) -> ModelSize:
    from squelch.actors.model_counts import model_size
    from squelch.learner.memory import skeleton

    return model_size(skeleton(shape))


def needs_on(config: RunConfig, shape: PreTrainedConfig, size: ModelSize, devices: Sequence[float]) -> Iterator[Need]:
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


def store_advice(config: RunConfig, size: ModelSize) -> str | None:
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


def memory_lines(config: RunConfig, needs: Sequence[Need], store: str | None, host: HostEstimate | None) -> list[str]:
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
    if host is not None:
        count, runtime = config.learner.ranks, f"runtime {RANK_RUNTIME_GIB:.2f}"
        lines.append(f"  {count} x learner rank, beside its GPU: {host.line()}, {runtime}")
    if text := hardware(config, needs):
        lines.append(f"  hardware: {text}")
    return [*lines, *([f"  object store: {store}"] if store else [])]


def host_of(config: RunConfig, shape: PreTrainedConfig) -> HostEstimate | None:
    """The host memory of a learner rank on a GPU; None on CPU."""
    from squelch.learner import memory

    return memory.host_estimate(shape, config.learner, config.learner.ranks)


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
