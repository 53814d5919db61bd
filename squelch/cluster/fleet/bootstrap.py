"""Prepares a run before its actors start: joins or starts the Ray cluster, builds the tiny policy, checks a model."""

from __future__ import annotations

import logging
import math
import os
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import ray
from pydantic import ValidationError
from ray.exceptions import RayError

from squelch.actors.config import ScorerConfig
from squelch.actors.formats.families import OWN
from squelch.actors.process.preparation import HOOK
from squelch.actors.process.stage import OnStage, ignore_stage
from squelch.actors.scorer.share import CHOSEN, OFTEN, PROBE_CHOSEN, StepWork, as_chosen, chosen, in_words
from squelch.cluster.config import RunConfig, read_resolved
from squelch.cluster.first_task import first_task
from squelch.cluster.fleet import local_ray
from squelch.cluster.fleet.demand import Node, needed, needs, shortfall
from squelch.cluster.fleet.emulated_dtypes import emulated
from squelch.cluster.fleet.object_store import check_joined, local_mib
from squelch.cluster.fleet.placement import make_room
from squelch.cluster.fleet.ray_internals import resources_here
from squelch.cluster.fleet.ray_token import take_token
from squelch.cluster.fleet.token_budget import settled
from squelch.envs.contract import AgentDriven, Demonstrator, Environment, MissingCapabilityError, lacking, require
from squelch.envs.format import phrases
from squelch.envs.mixture import Entry
from squelch.envs.registry import environment_class, has_twins, plays_whole_turns
from squelch.kit.base.errors import UserError, as_user_error
from squelch.kit.base.package import checkout
from squelch.kit.diagnosis.fixed_probe import MIN_TASKS
from squelch.kit.diagnosis.uncertainty import MIN_INTERVAL
from squelch.kit.pictures.geometry import PROVEN, vision_of
from squelch.kit.records.pictures import text_of
from squelch.kit.text.answer_start import MARKED, OF_A_RUN, asked_for, other_ways
from squelch.learner.refusal import SettingRefused
from squelch.learner.warmup.tiny_recipe import shows_pictures

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from squelch.actors.formats.choice import AnyFormat
    from squelch.actors.formats.protocol import Format
    from squelch.actors.play.codec import ChatCodec

log = logging.getLogger(__name__)
PROBE_TIMEOUT_S = 10.0
TINY_VOCABULARY = 10_000
"""Every tiny policy has fewer tokens, and every pretrained language model has more."""
_SETTINGS_FRAME = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""An empty SETTINGS frame of HTTP/2: length 0, type 4, no flags, stream 0."""
PREPARED = {"worker_process_setup_hook": HOOK}
"""Ray's runtime environment that prepares each actor's process (`actors.process.preparation`)."""


def connect(
    config: RunConfig,
    say: Callable[[str], None],
    learning: bool = True,
    weights: int = 0,
    joined: Callable[[], object] = lambda: None,
) -> None:
    """Joins the cluster at `cluster.address`, or starts a cluster on this machine.

    Args:
        learning: if false, the cluster needs room only for the actors that play.
        weights: bytes of a published version, which the object store must hold.
        joined: called once this process is connected, before it waits for room; begins to watch Ray.

    Raises:
        UserError: the cluster cannot be joined, or is too small for the run, even after its autoscaler had time.
    """
    address = _address(config)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    if address:
        check_address(config)
        _join(config, options)
        joined()
        check_joined(weights, ray.nodes())
        say(f"joined the Ray cluster at {address}")
    else:
        store = local_mib(weights, config.cluster.object_store_mib) * 2**20
        options["ray_metrics"] = config.rollout.engine_metrics
        local_ray.start(_local_cpus(config, learning), store, PREPARED, config.run_dir if learning else None, **options)
        joined()
    make_room(config, learning, say)


def check_machine(config: RunConfig) -> None:
    """Raises UserError if a cluster on this machine would be too small for the run. A cluster at an address is asked
    once it is joined."""
    if not _address(config) and not config.cluster.autoscaler:
        here = Node("this machine", resources_here(_local_cpus(config)), {})
        if missing := shortfall([replace(need, selector={}) for need in needs(config)], [here]):
            raise UserError(missing)


def _local_cpus(config: RunConfig, learning: bool = True) -> int:
    """The CPUs of a cluster on this machine: what is set, else all that it has, or as many as the run asks for."""
    return math.ceil(config.cluster.num_cpus or max(needed(config, "CPU", learning), float(os.cpu_count() or 1)))


def check_address(config: RunConfig) -> None:
    """Raises UserError within seconds if the address is neither HOST:PORT nor `auto` nor ray://..., or if nothing at
    HOST:PORT answers as Ray does; Ray itself would retry for minutes. Whether the others answer is not checked."""
    try:
        address = _address(config)
        if not (address in ("", "auto") or "://" in address or re.fullmatch(r".+:\d+", address)):
            raise ValueError("give HOST:PORT, or auto")
        probe(address)
    except (OSError, ValueError) as error:
        raise _unreachable(config, error) from error


def probe(address: str, timeout_s: float = PROBE_TIMEOUT_S) -> None:
    """Raises OSError within seconds if no Ray head answers at an address of the form host:port, or for one of the job
    server; other forms are not checked."""
    if address.startswith(("http://", "https://")):
        raise OSError(
            "that is an address of the job server, for `squelch submit` and `squelch job`; give the port that nodes "
            f"join, usually {urlsplit(address).hostname or 'HOST'}:6379, or auto on a node of the cluster"
        )
    host, colon, port = address.rpartition(":")
    if "://" in address or not (colon and port.isdigit()):
        return
    with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s) as connection:
        if os.environ.get("RAY_USE_TLS", "0") in ("", "0"):
            _require_grpc(connection)


def _require_grpc(connection: socket.socket) -> None:
    """Raises OSError unless the peer speaks gRPC, as Ray's head does on the port that nodes join: it answers the
    opening of HTTP/2 with a frame of its settings."""
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS_FRAME)
    if connection.recv(9)[3:4] != _SETTINGS_FRAME[3:4]:
        raise OSError("what listens there is no Ray head; it may be the dashboard, whose port is for `squelch submit`")


def starts_ray(config: RunConfig) -> bool:
    """Whether the run starts a cluster of its own on this machine."""
    return not _address(config)


def _address(config: RunConfig) -> str:
    return config.cluster.address or os.environ.get("RAY_ADDRESS", "")


def _join(config: RunConfig, options: dict[str, Any]) -> None:
    repository = checkout()
    code = {"env_vars": {"PYTHONPATH": str(repository)}} if repository else {}
    local_ray.require_free()
    take_token(_address(config))
    try:
        with local_ray.patient_client(), local_ray.away():
            ray.init(address=_address(config), runtime_env={**code, **PREPARED}, **options)
    except (OSError, ValueError, RuntimeError, RayError) as error:
        raise _unreachable(config, error) from error


def _unreachable(config: RunConfig, error: Exception) -> UserError:
    key, without = "cluster.address", "leave the key empty"
    if not config.cluster.address:
        key, without = "RAY_ADDRESS", "unset the variable"
    return UserError(
        f"{key}={_address(config)!r}: {error}. Start a cluster with `ray start --head`, and give its address, or "
        f"{without} to start one on this machine."
    )


def disconnect() -> None:
    """Leaves the cluster; a cluster that `connect` started ends. Bounded (`local_ray.stop`)."""
    local_ray.stop()


def build_tiny_policy(config: RunConfig, say: Callable[[str], None], on_stage: OnStage = ignore_stage) -> Path:
    """Returns the folder of the tiny policy, which is built unless the cache holds it."""
    mixture = config.mixture
    for entry in mixture.entries:
        check_demonstrator(entry.environment.name, "set model.path to the folder of a trained model instead")
    # imports transformers, which no other model needs here
    from squelch.learner.warmup.tiny import build_tiny
    from squelch.learner.warmup.tiny_recipe import recipe_of

    recipe, folder = recipe_of(mixture, config.model.tiny_tokens), _tiny_folder(config)
    if not folder.exists():
        lasts = "two to four minutes" if len(mixture.entries) == 1 else "minutes for each environment"
        say(f"warming up the tiny policy for {mixture.name} in {folder} ({lasts}, once)")
    with as_user_error(SettingRefused):
        report = build_tiny(folder, mixture, config.model.tiny_seed, recipe, on_stage)
    if not report.reused:
        say(f"tiny policy: {report.num_parameters / 1e6:.2f} M parameters, {report.seconds:.0f} s")
    return folder.resolve()


def cached_tiny_policy(config: RunConfig) -> Path | None:
    """The folder of the tiny policy if the cache holds it, and the run begins with it."""
    if config.model.path != "tiny" or not any(Path(config.model.cache).glob(f"{config.mixture.file_name}-*")):
        return None
    folder = _tiny_folder(config)
    return folder if folder.is_dir() else None


def _tiny_folder(config: RunConfig) -> Path:
    from squelch.learner.warmup.tiny import build_digest
    from squelch.learner.warmup.tiny_recipe import recipe_of

    recipe = recipe_of(config.mixture, config.model.tiny_tokens)
    digest = build_digest(config.mixture, config.model.tiny_seed, recipe)
    return Path(config.model.cache) / f"{config.mixture.file_name}-{digest}"


def weight_bytes(model_dir: Path, config: RunConfig) -> int:
    """Bytes of one published version of a model folder's weights."""
    from squelch.actors.model_size import BYTES
    from squelch.kit.models.model_folder import num_parameters

    return BYTES[config.rollout.dtype] * num_parameters(model_dir)


def choose_scoring(config: RunConfig, model_dir: Path, resume: bool, say: Callable[[str], None]) -> RunConfig:
    """The configuration with the scorer's interval and pairs: those with which a resumed run was started, or those that
    `scorer.share` allows. Most of a step of the tiny policy is spent outside of the model, so counting its passes
    is useless: it is scored every `OFTEN` steps."""
    scorer, saved = config.scorer, config.run_dir / "config.yaml"
    played = int(config.loop.prompts * config.mixture.shares[config.scored.label])
    prompts = min(played, scorer.max_prompts)
    if scorer.enabled and prompts < MIN_INTERVAL:
        others = "that on the fixed probe watches" if scorer.probe.every else "none watches, as the fixed probe is off"
        say(f"{prompts} prompts a scorer step: its alarm needs {MIN_INTERVAL}; {others}")
    tasks = scorer.probe.num_tasks(config.validation.tasks)
    if scorer.enabled and scorer.probe.every and tasks < MIN_TASKS:
        say(f"{tasks} tasks of the fixed probe: below {MIN_TASKS} no metric can be significant; its alarm is silent")
    if _hard_without_twins(config):
        say(
            f"scorer.probe.hard: {config.scored.name} has no near variations of its tasks; the nearest of 1,000 others "
            "stand in for them, and the MI against them bounds no information (docs/guide/probe.md)"
        )
    if not scorer.enabled or scorer.every is not None:
        return config
    if resume and saved.exists() and (before := _scorer_of(saved)).every is not None:
        return _with_scorer(config, _as_started(scorer, before, say))
    if config.model.path == "tiny":
        return _with_scorer(config, scorer.model_copy(update={"every": OFTEN}))
    work = _step_work(config, model_dir)
    say(in_words(work, found := chosen(work, scorer)))
    return _with_scorer(config, found)


def _scorer_of(file: Path) -> ScorerConfig:
    """The scorer's settings in a run's `config.yaml`, of which this release may refuse the whole."""
    try:
        return ScorerConfig.model_validate(read_resolved(file.read_bytes(), str(file)).get("scorer", {}))
    except ValidationError as error:
        raise UserError(f"{file}: scorer: {error.errors()[0]['msg']}") from error


def _as_started(given: ScorerConfig, before: ScorerConfig, say: Callable[[str], None]) -> ScorerConfig:
    """The settings `given` to a resumed run, but for those that the share chose at its start, which stay."""
    found = as_chosen(given, before)
    parts = (("", (*CHOSEN, "share"), given, before), ("probe.", PROBE_CHOSEN, given.probe, before.probe))
    ignored = [
        f"scorer.{place}{name}={vars(settings)[name]}"
        for place, names, settings, kept in parts
        for name in names
        if name in settings.model_fields_set and vars(settings)[name] != vars(kept)[name]
    ]
    if ignored:
        say(f"not used: {', '.join(ignored)}; scorer.share chose at the run's start, unless scorer.every is set")
    return found


def _with_scorer(config: RunConfig, scorer: ScorerConfig) -> RunConfig:
    return config.model_copy(update={"scorer": scorer})


def _step_work(config: RunConfig, model_dir: Path) -> StepWork:
    from squelch.actors.formats.choice import open_format  # imports transformers

    learner = config.learner
    passes = 3 + learner.activation_checkpointing + (learner.objective.kl.coefficient > 0)
    turns, speech = config.mixture.most_turns, open_format(model_dir)
    opening = max(_opening(entry, config, speech) for entry in config.mixture.entries)
    sampling = config.sampling
    tasks = config.scorer.probe.num_tasks(config.validation.tasks)
    pictures = _scores_pictures(config, model_dir)
    return StepWork(
        *(config.loop.prompts, sampling.group_size, opening, config.most_turn_tokens, turns, passes, tasks),
        twins=has_twins(config.scored.name),
        pictures=pictures,
        texts_differ=pictures and not config.pictures_alone,
        generation=config.rollout.dtype,
        training=learner.dtype,
        scoring=config.scorer.dtype,
    )


def _hard_without_twins(config: RunConfig) -> bool:
    """Whether the fixed probe's hard negatives are of an environment without near variations of its tasks."""
    probe = config.scorer.probe
    return bool(config.scorer.enabled and probe.every and probe.hard) and not has_twins(config.scored.name)


def check_scoring(config: RunConfig) -> None:
    """Raises UserError if the scorer's settings cannot hold, whatever the policy."""
    if _hard_without_twins(config) and shows_pictures(config.scored.environment):
        raise UserError(
            f"scorer.probe.hard=true: {config.scored.name} shows pictures and has no near variations of its tasks, and "
            "the nearest of other tasks are found by text alone; leave it unset"
        )
    if config.scorer.enabled and config.scorer.model is not None:
        from squelch.kit.models.model_folder import check_model_folder  # imports transformers

        with as_user_error(about="scorer.model"):
            check_model_folder(Path(config.scorer.model))


def check_fixed_scorer(config: RunConfig, model_dir: Path) -> None:
    """Raises UserError if a fixed model is to score what the policy of the folder says, and cannot."""
    from squelch.actors.scorer.fixed_model import check_scorer_model

    if config.scorer.enabled and config.scorer.model is not None:
        with as_user_error():
            check_scorer_model(config.scorer.model, model_dir, _scores_pictures(config, model_dir))


def _scores_pictures(config: RunConfig, model_dir: Path) -> bool:
    """Whether the scored environment shows pictures, and the model of the folder has a tower to see them."""
    return shows_pictures(config.scored.environment) and vision_of(model_dir) is not None


def check_demonstrator(name: str, instead: str) -> None:
    """Raises UserError if the environment has no demonstrations, from which a warm-up learns. `instead`: what the user
    can do then."""
    try:
        require(name, environment_class(name), Demonstrator, "a warm-up on its demonstrations")
    except MissingCapabilityError as error:
        raise UserError(f"{error}; {instead}") from error


def check_model(folder: Path, config: RunConfig, say: Callable[[str], None]) -> Path:
    """Checks that a model folder is whole and can be trained, served and prompted with the environment's turns.

    Returns its path.

    Raises:
        UserError: a file is missing, the tokenizer or context cannot hold the environment's texts, or a learner rank
            has too little memory.
    """
    from squelch.kit.models.model_folder import check_model_folder, read_config  # imports transformers

    with as_user_error(about="model.path"):
        check_architecture(folder, config)
        shape, own = check_model_folder(folder), read_config(folder)
        for line in _check_speech(folder, own, config):
            say(line)
    say(_check_memory(shape, config))
    pretrained = own.get("vocab_size", 0) > TINY_VOCABULARY
    for entry in config.mixture.entries:
        if pretrained and entry.environment.prompt == "tiny" and not plays_whole_turns(entry.environment):
            say(
                f"{entry.key}.prompt=tiny is the language of the tiny policy, and this is a pretrained model; set "
                f"{entry.key}.prompt=natural"
            )
    if slow := emulated(config):
        say(slow)
    return folder.resolve()


def check_architecture(folder: Path, config: RunConfig) -> None:
    """Raises ValueError, naming the architecture, if the model of the folder cannot be trained; its weights need not be
    there."""
    from squelch.kit.models.model_folder import model_config  # imports transformers
    from squelch.learner.policy.packed_check import check_trainable

    check_trainable(model_config(folder), config.learner.kernels)


def _check_memory(shape: PreTrainedConfig, config: RunConfig) -> str:
    """The learner's memory needs in words, computed from shapes. UserError if a rank has too little memory."""
    from squelch.learner import memory

    held = config.held_gradients
    with as_user_error(about="model.path"):
        if _address(config) and config.learner.max_memory_gib is None:  # ranks may run on other machines than this one
            learner = settled(config, shape, None)
            return f"learner needs {memory.estimate(shape, learner, learner.ranks, held).line()}"
        learner = settled(config, shape, memory.available(config.learner))
        return memory.check(shape, learner, learner.ranks, held, config.rollout.max_model_len)


def _check_speech(folder: Path, own: dict[str, Any], config: RunConfig) -> list[str]:
    """Notes on the model's format; `own`: its `config.json`. Raises ValueError unless architecture, chat template,
    format, tokenizer and context suit the run."""
    from squelch.actors.formats.choice import open_format

    text = own.get("text_config")  # of a model with a vision tower
    positions = (text if isinstance(text, dict) else own).get("max_position_embeddings")
    speech = open_format(folder)
    limits = {"rollout.max_model_len": config.rollout.max_model_len, "the model's context": positions}
    asked = list[str]()
    for entry in config.mixture.entries:
        chosen = entry.environment
        speech.check(phrases(environment_class(chosen.name), chosen.options, chosen.format))
        longest = _opening(entry, config, speech, asked)
        turn = entry.tokens(config.sampling.max_tokens_per_turn)
        for name, limit in limits.items():
            if limit is not None and longest + turn > limit:
                raise ValueError(
                    f"the longest first prompt of {entry.name} has {longest} tokens and the turn may add "
                    f"{entry.tokens_key}={turn}, which exceeds {name}={limit}"
                )
    if positions is not None and config.rollout.max_model_len > positions:
        raise ValueError(
            f"rollout.max_model_len={config.rollout.max_model_len} is more than the model's context of {positions}"
        )
    return _notes_on_format(speech, asked)


def _require_sight(codec: ChatCodec, entry: Entry, environment: Environment) -> None:
    """UserError if the environment shows pictures and the model cannot be shown them as they are."""
    if not environment.shows_pictures:
        return
    if codec.vision is None:
        raise UserError(
            f"environment {entry.name} shows pictures, and the model of model.path has no vision tower: take one that "
            f"has ({', '.join(PROVEN)}), or observations of text"
        )
    for width, height in environment.picture_sizes():
        try:
            codec.vision.tokens(width, height)
        except ValueError as error:
            raise UserError(f"environment {entry.name}: {entry.keyed(str(error))}") from error


def _notes_on_format(speech: AnyFormat, asked: Sequence[str]) -> list[str]:
    """`asked`: prompts to which the model answers in its own format."""
    found = [] if speech.name == OWN else [f"model.format={speech.name}"]
    name = asked_for(asked)
    if speech.reasoning == MARKED and (name or not speech.reasons):
        unless = "unless turns begin with <think>" if speech.reasons else f"since model.format={speech.name} marks none"
        found.append(f"MI and D will not be known, {unless}; {other_ways(name, OF_A_RUN)}")
    return found


def _opening(entry: Entry, config: RunConfig, speech: Format, asked: list[str] | None = None) -> int:
    """Tokens of the first prompt of the first training task; with `asked`, which takes the texts of those in the
    model's own format, of the longest one of any task if the environment knows it, and then the format must be that of
    the template. ValueError for words that the tokenizer lacks."""
    from squelch.actors.formats.choice import squelch_turns
    from squelch.actors.formats.conformity import require_template

    try:
        first = first_task(entry.environment, config.cluster.start_timeout_s)
        openings = first.openings(asked is not None)
    except ValueError as error:
        raise UserError(f"environment {entry.name}: {entry.keyed(str(error))}") from error
    if not lacking(first.environment, AgentDriven):
        if require(entry.name, first.environment, AgentDriven, "an agent").turns == "squelch":
            squelch_turns(speech, entry.name)
        else:
            require_template(speech, False)
        return 0  # an agent's prompts are known when it calls
    speech.check([text_of(message["content"]) for one in openings for message in one.messages])
    if not first.environment.whole_turns:
        codec = squelch_turns(speech, entry.name)
        _require_sight(codec, entry, first.environment)
        return max(len(codec.first_fed(one.messages).ids) for one in openings)
    if first.environment.shows_pictures:
        raise UserError(f"environment {entry.name}: pictures are shown in the turns of Squelch alone")
    if asked is not None:
        asked += ["\n".join(text_of(message["content"]) for message in one.messages) for one in openings]
        try:
            require_template(speech, any(one.tools for one in openings))
        except ValueError as error:
            replaced = config.model.chat_template
            raise ValueError(f"{error}; model.chat_template={replaced} replaced it" if replaced else error) from error
    return max(len(speech.render(one.messages, one.tools)) for one in openings)
