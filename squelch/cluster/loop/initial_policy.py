"""The policy that a run starts from, as a local folder: found, converted, and warmed up, each once.

    model.path  --resolved-->  folder  --model.warmup-->  model.pretrained_cache/NAME-ENVIRONMENT-DIGEST
    `tiny`      --built-->     model.cache/ENVIRONMENT-DIGEST

| waits | for | unblocked by | on time-out |
|---|---|---|---|
| a start | a download, conversion or build | `actors.pretrained`, `learner.warmup.tiny` | see there |
| a start | the warm-up, in a Ray session of its own | its actors | see `cluster.loop.warming` |
| a start | another process that warms the same model up | its end | UserError that names the process |

Invariant: the digest covers everything that determines the warmed-up weights, so that a folder is reused exactly as
long as a new warm-up would equal it.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import shutil
import signal
from collections.abc import Callable
from contextlib import ExitStack
from datetime import date, datetime
from functools import partial
from pathlib import Path

from squelch.actors.formats.families import FAMILIES
from squelch.actors.pretrained.gguf_file import STAMP, intact
from squelch.actors.pretrained.source import resolved
from squelch.actors.process.folders import file_digest
from squelch.actors.process.stage import OnStage, ignore_stage
from squelch.cluster.config import RunConfig, settings_of
from squelch.cluster.control.actor_errors import ActorError, Failed
from squelch.cluster.fleet.bootstrap import (
    build_tiny_policy,
    check_architecture,
    check_demonstrator,
    check_model,
    connect,
    disconnect,
    weight_bytes,
)
from squelch.cluster.fleet.ray_actors import RayActors
from squelch.cluster.fleet.ray_watch import ray_watched
from squelch.cluster.loop.warming import REPORT, Progress, Stopped, Warming, learner_settings, truth_of
from squelch.cluster.runs.logs import log_folder, write_trace
from squelch.envs.registry import judge_of, plays_whole_turns
from squelch.kit.base.errors import Fault, UserError, as_user_error, bad_files_are_the_users
from squelch.kit.base.file_lock import held
from squelch.kit.process.signals import Signals, listening
from squelch.kit.text.shipped_templates import TEMPLATE_FILE, with_stamp, with_template
from squelch.kit.text.stamp import read_stamp
from squelch.kit.text.tokenizer import MAX_FILE_BYTES, TOKENIZER_FILE, try_tokenizer
from squelch.kit.untrusted.files import MIB, Unreadable, is_file, is_folder, read_bytes, require_regular
from squelch.kit.untrusted.text import parse_object
from squelch.learner.warmup.demonstrations import mixed
from squelch.learner.warmup.settings import WarmupConfig
from squelch.learner.warmup.tiny import NUM_FINGERPRINT

Say = Callable[[str], None]
WAIT_S = 4 * 3600.0
"""Seconds to wait for another process that warms the same model up."""


def prepare_model(
    config: RunConfig, say: Say, on_stage: OnStage = ignore_stage, check: Callable[[Path], None] = lambda _: None
) -> Path:
    """The folder of the initial policy, checked for this run. Raises UserError if it cannot be used.

    Args:
        check: called with the folder, and before a warm-up with that of the model, which has the same tokenizer.
    """
    if config.model.path == "tiny":
        folder = build_tiny_policy(config, say, on_stage)
    else:
        folder = find_model(config, say)
        if config.model.warmup is not None:
            folder = _after_warmup(config, config.model.warmup, folder, say, on_stage, check)
        folder = check_model(dated(folder, config, say), config, say)
    check(folder)
    return folder


def _after_warmup(
    config: RunConfig, warmup: WarmupConfig, folder: Path, say: Say, on_stage: OnStage, check: Callable[[Path], None]
) -> Path:
    """The folder of the model in `folder` after its warm-up, which is made unless it is there."""
    check_source(config, warmup)
    name = f"{folder.resolve().name}-{config.mixture.file_name}-{warmup_digest(config, warmup, folder)}"
    target = Path(config.model.pretrained_cache) / name.replace("/", "_").replace(":", "_")
    if not (target / REPORT).is_file():
        check_model(folder, config, say)
        check(folder)
        say(f"warming up {config.model.path} for {config.mixture.name} in {target} (once)")
    warmed_up(config, warmup, folder, target, True, say, on_stage)
    return target


def find_model(config: RunConfig, say: Say) -> Path:
    """The local folder of `model.path`, which is not `tiny`, with the chat template of `model.chat_template`."""
    cache = Path(config.model.pretrained_cache)
    with as_user_error(about="model.path"):
        folder = resolved(config.model.path, cache, say, lambda folder: check_architecture(folder, config))
    with as_user_error():
        if is_file(path := folder / TOKENIZER_FILE):
            try_tokenizer(read_bytes(path, MAX_FILE_BYTES), str(path))
        return formatted(with_template(folder, config.model.chat_template, cache), config)


def formatted(folder: Path, config: RunConfig) -> Path:
    """The folder, which says what `model.format`, `model.keep_reasoning` and `model.reasoning` do unless they are our
    own format. Raises ValueError if they do not suit the environment."""
    from squelch.actors.formats.choice import chosen  # imports transformers

    if not is_folder(folder):
        return folder
    squelchs = [entry.name for entry in config.mixture.entries if not plays_whole_turns(entry.environment)]
    squelchs += ["model.warmup"] if config.model.warmup is not None else []
    model = config.model
    stamp = chosen(folder, model.format, squelchs, model.keep_reasoning, model.reasoning, model.answer)
    return with_stamp(folder, stamp, Path(config.model.pretrained_cache))


def with_date_of_start(config: RunConfig, resume: bool) -> RunConfig:
    """The configuration; of a resumed run, with the day that its prompts name, unless another is set."""
    saved = config.run_dir / "config.yaml"
    if not resume or config.model.date is not None or not saved.exists():
        return config
    return _with_date(config, settings_of(saved).get("model.date"))


def with_date_of(config: RunConfig, model_dir: Path, say: Say) -> RunConfig:
    """The configuration with the day on the stamp of the initial policy."""
    day = read_stamp(model_dir).date or None
    if day is None and config.model.date is not None:
        say(f"setting without effect: model.date={config.model.date}; the model's chat template writes no date")
    return _with_date(config, day)


def _with_date(config: RunConfig, day: str | None) -> RunConfig:
    found = None if day is None else date.fromisoformat(day)
    return config.model_copy(update={"model": config.model.model_copy(update={"date": found})})


def dated(folder: Path, config: RunConfig, say: Say) -> Path:
    """The folder. If its prompts name a day, its stamp says which: `model.date`, else that of its own stamp, else
    today."""
    with bad_files_are_the_users():
        if not is_folder(folder) or not _names_a_day(folder):
            return folder
        stamp = read_stamp(folder)
        day = str(config.model.date or stamp.date or datetime.now().date())
        say(f"prompts name the day {day} (model.date)")
        return with_stamp(folder, stamp._replace(date=day), Path(config.model.pretrained_cache))


def _names_a_day(folder: Path) -> bool:
    family = FAMILIES.get(read_stamp(folder).format)
    if family is not None:
        return family.dated
    files = [folder / name for name in (TEMPLATE_FILE, "tokenizer_config.json") if is_file(folder / name)]
    return any(b"strftime_now" in read_bytes(file, MAX_FILE_BYTES) for file in files)


def warmed_up(
    config: RunConfig,
    warmup: WarmupConfig,
    folder: Path,
    out: Path,
    plays: bool,
    say: Say,
    on_stage: OnStage = ignore_stage,
) -> None:
    """Warms up the model in `folder` for `config` and writes it to `out`, unless it is there.

    Raises:
        UserError: the demonstrations or the settings cannot be used, or an actor failed.
    """
    work = out.with_name(f"{out.name}.warmup")
    out.parent.mkdir(parents=True, exist_ok=True)
    with as_user_error(), held(out.with_name(f".{out.name}.lock"), "warming this model up", WAIT_S):
        if not (out / REPORT).is_file():
            _warm_up(config, warmup, folder, out, work, plays, say, on_stage)


def _warm_up(
    config: RunConfig,
    warmup: WarmupConfig,
    folder: Path,
    out: Path,
    work: Path,
    plays: bool,
    say: Say,
    on_stage: OnStage,
) -> None:
    from squelch.actors.play.codec import ChatCodec
    from squelch.learner.warmup.corpus import Limits, make_corpus

    longest = config.rollout.max_model_len  # no more than RunConfig.tokens_fed
    entries = config.mixture.entries
    limits = Limits(longest, "rollout.max_model_len", config.most_turn_tokens if plays else longest)
    codec = ChatCodec(folder)
    on_stage("collecting demonstrations", None)
    corpus = make_corpus(codec, config.mixture, warmup, limits)
    judge = judge_of(entries[0].environment.name) if plays and len(entries) == 1 else None
    truth = None if judge is None else truth_of(judge, codec.text)
    steps = corpus.num_steps(warmup)
    same = f" ({corpus.num_left_out} equal held-out ones and are left out)" if corpus.num_left_out else ""
    say(f"{len(corpus.trained)} demonstrations{same}, {corpus.num_tokens} tokens, {steps} optimizer steps")
    place = {"runs_dir": str(work.parent), "name": work.name}  # not the run's folder, because the run has not begun
    settings = learner_settings(config, warmup, steps).model_copy(update=place)
    digest = f"{warmup_digest(config, warmup, folder)} {corpus.digest()}"
    try:
        on_stage("starting Ray and the actors of the warm-up", None)
        with listening() as signals, ExitStack() as watching:
            watch = partial(watching.enter_context, ray_watched(say))
            connect(settings, say, weights=weight_bytes(folder, settings), joined=watch)
            actors = RayActors(settings, folder.resolve(), log_folder(work))
            warming = Warming(settings, warmup, corpus, plays, work, actors, digest, say, truth, on_stage)
            progress = asyncio.run(_stoppable(warming, out, signals, say))
    except Stopped as stopped:
        say(f"{stopped}; repeat the command to continue")
        raise SystemExit(128 + stopped.number) from stopped
    except (ActorError, RuntimeError, OSError) as error:  # a TimeoutError is an OSError, and so is a full disk
        text = write_trace(work, error, error.cause if isinstance(error, Failed) else None)
        raise Fault(f"the warm-up failed: {text}. Repeat the command to continue it") from error
    finally:
        disconnect()
    shutil.rmtree(work)
    for line in summary(progress):
        say(line)


async def _stoppable(warming: Warming, out: Path, signals: Signals, say: Say) -> Progress:
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        say("finishing the warm-up's step or check, then a checkpoint; again to stop now")
        loop.call_soon_threadsafe(warming.stop, number)

    def last_words(number: signal.Signals) -> None:
        say(f"stopped by {number.name}, at once; repeat the command to continue")

    with signals.answering(stop, last_words):
        return await warming.run(out)


def summary(progress: Progress) -> list[str]:
    """The result of the warm-up, line by line."""
    before, after = progress.checks[0], progress.checks[-1]
    learned = f"{progress.step} steps, {progress.tokens} demonstrated tokens, {progress.seconds:.0f} s of training"
    return [f"warmed up: {learned}", f"before  {before.words()}", f"after   {after.words()}"]


def check_source(config: RunConfig, warmup: WarmupConfig) -> None:
    """Raises UserError if there is nothing to learn from, as without the file or with an environment that demonstrates
    nothing, or no judge of the share at which the warm-up is to stop."""
    entries = config.mixture.entries
    if warmup.true_reasonings is not None and (len(entries) > 1 or judge_of(entries[0].environment.name) is None):
        lacks = "have no judge in common" if len(entries) > 1 else "has no judge of reasonings"
        raise UserError(
            f"model.warmup.true_reasonings={warmup.true_reasonings:g}: {config.mixture.name} {lacks}; set "
            "model.warmup.format_validity instead"
        )
    if not warmup.data:
        for entry in entries:
            check_demonstrator(entry.environment.name, "give a file of chat messages instead (model.warmup.data)")
        return
    with as_user_error(Unreadable, about="model.warmup.data"):
        require_regular(Path(warmup.data))


COMPUTED = (
    *("ranks", "num_gpus", "num_threads", "dtype", "fp32_head", "kernels", "compile", "lora"),
    *("token_budget", "share_openings"),
)
"""Settings of the learner that decide how a step is computed, and so its last bits."""


def warmup_digest(config: RunConfig, warmup: WarmupConfig, folder: Path) -> str:
    """Digest of everything that determines the warmed-up weights: settings, model, file, and the first demonstrations
    as text, so that another wording causes another warm-up."""
    learner = config.learner.with_tokens(config.tokens_fed).model_dump(mode="json", include=set(COMPUTED))
    optimizer = config.learner.optimizer.model_dump(
        mode="json", include={"betas", "epsilon", "weight_decay", "max_grad_norm"}
    )
    seen = {"worked_turn", "response_length"}  # the texts show them
    environment = config.mixture.facts(
        exclude={"train_seed": True, "validation_seed": True, "label": True, "format": seen}
    )
    data = file_digest(Path(warmup.data)) if warmup.data else ""
    every = mixed(config.mixture, [warmup.quality] * len(config.mixture.entries), 0)
    first = [] if warmup.data else itertools.islice(every, NUM_FINGERPRINT)
    texts = [[*one.texts(), *one.identities()] for one in first]
    content = [
        warmup.model_dump(mode="json", exclude={"save_every"}),
        learner,
        optimizer,
        environment,
        data,
        texts,
        _content(folder),
        _play(config, warmup) if warmup.may_stop_early else None,
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _play(config: RunConfig, warmup: WarmupConfig) -> list[object]:
    """The settings that the play of the checks depends on, after which a warm-up may stop. A file's conversations
    do not show the prompts of the play."""
    sampling, rollout = config.sampling, config.rollout
    limits = sampling.max_tokens_per_turn, rollout.max_model_len
    forms = [entry.environment.format for entry in config.mixture.entries] if warmup.data else []
    prompts = [[form.worked_turn, form.response_length] for form in forms]
    return [sampling.temperature, *limits, rollout.dtype, rollout.fp32_head, *prompts]


def _content(folder: Path) -> list[list[object]]:
    """The digest of a converted model's source if nothing in the folder has changed since; else name, size and time of
    change of the model's files, because hashing a large model takes minutes."""
    if (folder / STAMP).is_file():
        made_from = parse_object(read_bytes(folder / STAMP, MIB), str(folder / STAMP)).get("sha256")
        if isinstance(made_from, str) and intact(folder, made_from):
            return [[STAMP, made_from]]
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]
