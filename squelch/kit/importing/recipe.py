"""From a configuration of another trainer to a recipe: its settings, and what is to be said of each key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from squelch.kit.base.disk import write_whole
from squelch.kit.base.dotted import nested
from squelch.kit.base.errors import UserError
from squelch.kit.base.gpu_split import ON_ONE, of_each, on_several, shares
from squelch.kit.importing.rewards import WRAPPED, wrapper
from squelch.kit.importing.sources import Source
from squelch.kit.importing.tables import ALWAYS, RELEASES, Row, rows, rows_of
from squelch.kit.importing.values import Lost, Nothing, Unknown, converted
from squelch.kit.process.terminal import say
from squelch.kit.untrusted.files import brief
from squelch.kit.untrusted.text import written_yaml

NEEDED = {
    "sampling.group_size": "the group size",
    "loop.prompts": "the batch",
    "learner.optimizer.learning_rate": "the learning rate",
    "model.path": "the model",
    "environment.options.data": "the data",
}
"""Settings without which there is no recipe."""
PROMPT_TOKENS = 1024
"""Tokens for the prompt where the trainer bounds only the response."""
LEFT_OUT = ("name", "recorder.", "--validation")
"""Settings for which the trainer's defaults do not count: whoever leaves them out has not asked for them."""
STEP_TIMEOUT_S = 75.0
"""Above `environment.options.timeout_s` of the environment Prompts."""


@dataclass(frozen=True)
class Taken:
    """A key that became a setting. `default`: whether it is the trainer's default, because the file leaves it out."""

    key: str
    given: Any
    setting: str
    value: Any
    note: str
    default: bool


@dataclass
class Imported:
    """A recipe in the making. `reward`: the text of the file that holds the reward function; empty if there is none."""

    source: Source
    settings: dict[str, Any] = field(default_factory=dict)
    taken: dict[str, Taken] = field(default_factory=dict)
    """By setting; the last key that decides it."""
    lost: list[tuple[str, Any, str]] = field(default_factory=list)
    """(key, value, why) of what has no counterpart here."""
    unknown: list[tuple[str, str]] = field(default_factory=list)
    """(key, why) of what is not known."""
    silent: int = 0
    """Keys that concern the trainer's own processes, or have the value that nothing has to express."""
    reward: str = ""

    def take(self, one: Taken) -> None:
        """Sets a setting to what a key gives."""
        self.settings[one.setting] = one.value
        self.taken.pop(one.setting, None)  # it stands where its last key does
        self.taken[one.setting] = one

    def write(
        self,
        out: Path,
        given: str,
        beside: Mapping[Path, Callable[[Path], object]],
        check: Callable[[], object] = lambda: None,
    ) -> None:
        """Prints what became of each key, and writes the recipe with the files beside it, each by its function.

        Args:
            given: how the user gives a setting, which stands for {}.
            check: raises UserError for settings that are no recipe.

        Raises:
            UserError: a file exists, a value is unknown without which there is no recipe, or `check` refuses it.
                Nothing is written then.
        """
        if taken := [path for path in (out, *beside) if path.exists()]:
            raise UserError(f"{taken[0]} exists; give another file, or remove it")
        say("\n".join(self.report()))
        self.require(given)
        check()
        for path, write in beside.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
        write_whole(out, self.recipe())
        written = " and ".join(map(str, (out, *beside)))
        say(f"written: {written}\nnext: squelch plan {out} --gpus N --device-gib GIB; squelch train {out}")

    def require(self, given: str) -> None:
        """UserError unless everything is known without which there is no recipe. `given`: as in `write`."""
        if lacking := [key for key in NEEDED if self.settings.get(key) is None]:
            known = [f"{NEEDED[key]} ({key}{_because(self, key)})" for key in lacking]
            raise UserError(
                f"{self.source.where}: no recipe, because these are unknown: {', '.join(known)}. Give each "
                f"{given.format(lacking[0])}"
            )

    def recipe(self) -> str:
        """The recipe's text."""
        about = [f"# Imported from {self.source.trainer}'s {self.source.where} by `squelch import`."]
        about += [f"# no counterpart here: {key}={brief(value)}. {why}" for key, value, why in self.lost]
        about += [f"# unknown: {key}: {why}" for key, why in self.unknown]
        return "\n".join([*(one.replace("\n", " ") for one in about), written_yaml(nested(self.settings))])

    def report(self) -> list[str]:
        """What became of each key, in lines."""
        source = self.source
        release = f"{source.trainer} {RELEASES[source.trainer]}"
        lines = [f"{release}: {len(source.values)} keys of {source.where}", "taken over"]
        for one in self.taken.values():
            came = f"{one.key}={brief(one.given)}{' (its default)' * one.default}" if one.key != ALWAYS else "always"
            lines.append(f"  {one.setting}={brief(one.value)}  <-  {came}")
        if meanings := [f"  {one.setting}: {one.note}" for one in self.taken.values() if one.note]:
            lines += ["differences of meaning", *dict.fromkeys(meanings)]
        if self.lost:
            lines += ["no counterpart here", *(f"  {key}={brief(value)}: {why}" for key, value, why in self.lost)]
        if self.unknown:
            lines += ["unknown, or chosen", *(f"  {key}: {why}" for key, why in self.unknown)]
        return [*lines, f"keys of {source.trainer}'s own processes, or that say what is so here: {self.silent}"]


def imported(source: Source, given: Mapping[str, Any] | None = None) -> Imported:
    """The recipe of a configuration. `given`: settings of Squelch that the user gives, which win."""
    made = Imported(source)
    special: dict[str, Any] = {}
    for row in rows(source.trainer):
        if not row.pattern:
            _take(made, row, special)
    for key, value in source.values.items():
        _rest(made, key, value)
    if source.more:
        made.unknown.append(("other keys", f"{source.more}; what is left out has no known value"))
    _finish(made, special)
    for setting, value in (given or {}).items():
        made.take(Taken("as given", value, setting, value, "", False))
    return made


def _look(source: Source, key: str) -> tuple[Any, bool]:
    """(value, whether it is the default) of a key under any of its spellings."""
    named = next((row for row in rows(source.trainer) if key in row.names and not row.pattern), None)
    for name in (key, *(named.names if named else ())):
        if name in source.values:
            return source.values[name], False
    return (None if named is None or source.complete or source.more else named.default_value), True


def _take(made: Imported, row: Row, special: dict[str, Any]) -> None:
    value, default = (row.default_value, False) if row.key == ALWAYS else _look(made.source, row.key)
    if not row.here or (default and row.here.startswith(LEFT_OUT)):
        return
    if value is None and default and (made.source.more or "null=" not in row.value):
        return
    found = converted(row, value, lambda key: _look(made.source, key)[0])
    if isinstance(found, Nothing):
        return
    if isinstance(found, Unknown):
        made.unknown.append((row.key, f"{row.setting or row.note}: {found.why}" if row.setting else found.why))
    elif isinstance(found, Lost):
        made.lost.append((row.key, value, " ".join(filter(None, (f"{found.why.capitalize()}.", row.note)))))
    elif row.setting:
        made.take(Taken(row.key, value, row.setting, found, row.note, default))
    else:
        special[row.here] = found


def _rest(made: Imported, key: str, value: Any) -> None:
    """What is to be said of a key that no setting takes."""
    found = rows_of(made.source.trainer, key)
    if not found:
        trainer = made.source.trainer
        made.unknown.append((key, f"no key of {trainer} {RELEASES[trainer]} that is known here"))
        return
    if any(row.here for row in found):
        return
    row = found[0]
    if row.pattern or not row.note or value == row.default_value:
        made.silent += 1
    elif isinstance(value, Unknown):
        made.unknown.append((key, value.why))
    else:
        made.lost.append((key, value, row.note))


def _finish(made: Imported, special: Mapping[str, Any]) -> None:
    """The settings that follow from several keys."""
    settings, trainer = made.settings, made.source.trainer
    if "name" not in settings:
        settings["name"] = Path(made.source.where).stem.strip(".") or "imported"
    if isinstance(data := settings.get("environment.options.data"), str | list):
        settings["environment.options.data"] = _expanded(data)
    if "--validation" in special:
        why = next(row.note for row in rows(trainer) if row.here == "--validation")
        made.lost.append((_key_of(trainer, "--validation"), special["--validation"], why))
    if "--verifiers" in special:
        _verifiers(made, special["--verifiers"])
    elif settings.get("environment.name") == "Prompts":
        _reward(made, special)
        settings["environment_actor.step_timeout_s"] = STEP_TIMEOUT_S
    tokens = settings.get("sampling.max_tokens_per_turn")
    if "rollout.max_model_len" not in settings and isinstance(tokens, int):
        settings["rollout.max_model_len"] = tokens + PROMPT_TOKENS
        made.unknown.append(("rollout.max_model_len", f"chosen: the response and {PROMPT_TOKENS} tokens of prompt"))
    _place(made, special.get("--gpus"))


def _place(made: Imported, gpus: Any) -> None:
    """On how many GPUs each actor is: the trainer's own numbers, else a first split of all."""
    settings = made.settings
    size = settings.get("rollout.tensor_parallel_size", 1)
    if gpus == 1:
        settings |= of_each(ON_ONE[0])
    elif isinstance(gpus, int) and gpus > 1:
        ranks = 1 << ((gpus // 2).bit_length() - 1)
        split = on_several(ranks, gpus - ranks, size, scored=True, shared=size == 1)
        settings |= split | {"rollout.count": max(1, split["rollout.count"])}
    elif "learner.ranks" in settings:
        settings |= of_each(shares(size, scored=True, shared=size == 1))
    else:
        return
    settings["scorer.dtype"] = "bfloat16" if settings.get("learner.dtype") == "bfloat16" else "float32"
    settings.setdefault("rollout.enforce_eager", False)
    made.unknown.append(
        (
            "num_gpus",
            "a first split of the GPUs; `squelch plan RECIPE --gpus N --device-gib GIB` proposes one that fits",
        )
    )


def _reward(made: Imported, special: Mapping[str, Any]) -> None:
    trainer, settings = made.source.trainer, made.settings
    if "--rewards" in special:
        names, weights = special["--rewards"], special.get("--weights")
        if isinstance(names, str):
            names = [names]
        settings["environment.options.reward"] = (
            names[0]
            if len(names) == 1 and not weights
            else dict(zip(names, weights or [1.0] * len(names), strict=True))
        )
        return
    where = special.get("--reward")
    if where is None:
        made.unknown.append(("reward", _no_reward(trainer)))
    elif isinstance(where, list) or not str(where).endswith(".py") or trainer not in WRAPPED:
        why = "A reward function is FILE.py:FUNCTION or module:function."
        made.lost.append((_key_of(trainer, "--reward"), where, why))
    else:
        label = made.source.values.get("data.label_key", made.source.values.get("label_key", "label"))
        path = Path(str(where)).expanduser()
        own = str(path.resolve() if path.exists() else path)
        made.reward = wrapper(trainer, own, str(special.get("--reward-name", "")), str(label))


def _no_reward(trainer: str) -> str:
    built_in = ", which chose a built-in one by the column data_source" if trainer == "verl" else ""
    return f"no function is named{built_in}: give environment.options.reward=FILE.py:FUNCTION"


def _verifiers(made: Imported, environments: Any) -> None:
    """prime-rl's environments, whose tasks a command of the bridge writes."""
    given = environments if isinstance(environments, list) else []
    ids = [str((one.get("taskset") or {}).get("id") or one.get("id")) for one in given if isinstance(one, dict)]
    if len(ids) > 1:
        why = "several environments: give environments=[...] with their weights"
        made.unknown.append(("orchestrator.train.env", why))
    named = ids[0] if ids else "MODULE:TASKSET"
    made.unknown.append(
        (
            "environment.options.data",
            f"tasks of verifiers' {named}: write them with `python -m squelch.envs.agent.verifiers_bridge PYTHON "
            f"MODULE:TASKSET > tasks.jsonl`, then give environment.options.data=tasks.jsonl and "
            "environment.options.python=PYTHON (docs/guide/agents.md)",
        )
    )


def _key_of(trainer: str, here: str) -> str:
    return next(row.key for row in rows(trainer) if row.here == here)


def _because(made: Imported, setting: str) -> str:
    keys, why = [row.key for row in rows(made.source.trainer) if row.setting == setting], dict(made.unknown)
    known = next((why[key] for key in (setting, *keys) if key in why), "")
    return f": {known.removeprefix(f'{setting}: ')}" if known else ""


def _expanded(data: str | Sequence[str]) -> str | list[str]:
    """Paths with the user's home."""
    if isinstance(data, str):
        return str(Path(data).expanduser()) if data.startswith("~") else data
    return [str(_expanded(one)) for one in data]
