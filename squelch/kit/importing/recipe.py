"""From a configuration of another trainer to a recipe: its settings, and what is to be said of each key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from squelch.kit.base.disk import write_whole
from squelch.kit.base.dotted import nested
from squelch.kit.base.errors import UserError
from squelch.kit.base.gpu_split import ON_ONE, first_split, of_each, shares
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
REWARD = "environment.options.reward"
VALIDATION = "environment.options.validation_data"
FILES = ("model.path", "environment.options.data", VALIDATION)
"""Settings that name files."""
LEFT_OUT = ("name", "recorder.", VALIDATION)
"""Settings for which the trainer's defaults do not count: whoever leaves them out has not asked for them."""
GIVEN = "as given"
HEADS = {"unknown": "unknown, and left to Squelch's defaults", "chosen": "chosen"}
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

    @property
    def origin(self) -> str:
        """Where the value is from, in words."""
        if self.key in (ALWAYS, GIVEN):
            return {ALWAYS: "always", GIVEN: GIVEN}[self.key]
        return f"{self.key}={brief(self.given)}{' (its default)' * self.default}"


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
    chosen: list[tuple[str, str]] = field(default_factory=list)
    """(setting, why) of what no key says."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Settings of Squelch that the user gives, which win."""
    gpus: int | None = None
    silent: int = 0
    """Keys that concern the trainer's own processes, or have the value that nothing has to express."""
    reward: str = ""
    wrapped: Taken | None = None
    """The key that names the function that the file calls."""

    def take(self, one: Taken) -> None:
        """Sets a setting to what a key gives, unless the user gives it."""
        if one.setting in self.given:
            one = Taken(GIVEN, None, one.setting, self.given[one.setting], "", False)
        self.settings[one.setting] = one.value
        self.taken.pop(one.setting, None)  # it stands where its last key does
        self.taken[one.setting] = one

    def wrapped_in(self, file: Path) -> None:
        """Takes the function in `file`, which calls the trainer's."""
        if self.wrapped is not None:
            self.take(replace(self.wrapped, setting=REWARD, value=f"{file}:reward"))

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
        plan = f"squelch plan {out} --gpus {self.gpus or 'N'} --device-gib GIB"
        lacking = self.settings.get("environment.name") == "Prompts" and REWARD not in self.settings
        say(f"written: {written}\nnext: {plan}; squelch train {out}{f' {REWARD}=FILE.py:FUNCTION' * lacking}")

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
        about += [f"# {kind}: {key}: {why}" for kind, key, why in self._open()]
        return "\n".join([*(one.replace("\n", " ") for one in about), written_yaml(nested(self.settings))])

    def report(self) -> list[str]:
        """What became of each key, in lines."""
        source = self.source
        release = f"{source.trainer} {RELEASES[source.trainer]}"
        lines = [f"{release}: {len(source.values)} keys of {source.where}", "taken over"]
        for one in self.taken.values():
            lines.append(f"  {one.setting}={brief(one.value)}  <-  {one.origin}")
        if meanings := [f"  {one.setting}: {one.note}" for one in self.taken.values() if one.note]:
            lines += ["differences of meaning", *dict.fromkeys(meanings)]
        if self.lost:
            lines += ["no counterpart here", *(f"  {key}={brief(value)}: {why}" for key, value, why in self.lost)]
        for kind in HEADS:
            own = [f"  {key}: {why}" for one, key, why in self._open() if one == kind]
            lines += [HEADS[kind], *own] if own else []
        return [*lines, f"keys of {source.trainer}'s own processes, or that say what is so here: {self.silent}"]

    def _open(self) -> list[tuple[str, str, str]]:
        """("unknown" or "chosen", key, why) of what the configuration does not say."""
        return [("unknown", *one) for one in self.unknown] + [("chosen", *one) for one in self.chosen]


def imported(source: Source, given: Mapping[str, Any] | None = None) -> Imported:
    """The recipe of a configuration. `given`: settings of Squelch that the user gives, which win."""
    made = Imported(source, given=given or {})
    special: dict[str, Taken] = {}
    for row in rows(source.trainer):
        if not row.pattern:
            _take(made, row, special)
    for setting in made.given:
        made.take(Taken(GIVEN, None, setting, None, "", False))
    for key, value in source.values.items():
        _rest(made, key, value)
    if source.more:
        made.unknown.append(("other keys", f"{source.more}; what is left out has no known value"))
    _finish(made, special)
    made.unknown = [one for one in made.unknown if not _settled(made, *one)]
    return made


def _settled(made: Imported, key: str, why: str) -> bool:
    """Whether the user gives what a key does not say."""
    decided = {setting for row in rows_of(made.source.trainer, key) for setting in row.settings}
    return why.partition(":")[0] in made.given or (bool(decided) and decided <= made.given.keys())


def _look(source: Source, key: str) -> tuple[Any, bool, str]:
    """(value, whether it is the default, its spelling) of a key under any of its spellings."""
    named = next((row for row in rows(source.trainer) if key in row.names and not row.pattern), None)
    for name in (key, *(named.names if named else ())):
        if name in source.values:
            return source.values[name], False, name
    return (None if named is None or source.complete or source.more else named.default_value), True, key


def _take(made: Imported, row: Row, special: dict[str, Taken]) -> None:
    always = row.default_value, False, row.key
    value, default, key = always if row.key == ALWAYS else _look(made.source, row.key)
    if not row.here or (default and row.here.startswith(LEFT_OUT)):
        return
    if value is None and default and (made.source.more or "null=" not in row.value):
        return
    found = converted(row, value, lambda key: _look(made.source, key)[0])
    if isinstance(found, Nothing):
        return
    if isinstance(found, Unknown):
        made.unknown.append((key, f"{row.setting or row.note}: {found.why}" if row.setting else found.why))
    elif isinstance(found, Lost):
        made.lost.append((key, value, " ".join(filter(None, (f"{found.why.capitalize()}.", row.note)))))
    elif row.setting:
        made.take(Taken(key, value, row.setting, found, row.note, default))
    else:
        special[row.here] = Taken(key, value, row.here, found, row.note, default)


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
    if row.pattern or not row.note or value in (None, row.default_value):
        made.silent += 1
    elif isinstance(value, Unknown):
        made.unknown.append((key, value.why))
    else:
        made.lost.append((key, value, row.note))


def _finish(made: Imported, special: Mapping[str, Taken]) -> None:
    """The settings that follow from several keys."""
    settings = made.settings
    if "name" not in settings:
        settings["name"] = Path(made.source.where).stem.strip(".") or "imported"
    for setting in FILES:
        if isinstance(files := settings.get(setting), str | list) and setting in made.taken:
            made.take(replace(made.taken[setting], value=_expanded(files)))
    _validation(made)
    if "--verifiers" in special:
        _verifiers(made, special["--verifiers"].value)
    elif settings.get("environment.name") == "Prompts":
        _reward(made, special)
        settings.setdefault("environment_actor.step_timeout_s", STEP_TIMEOUT_S)
    tokens = settings.get("sampling.max_tokens_per_turn")
    if "rollout.max_model_len" not in settings and isinstance(tokens, int):
        settings["rollout.max_model_len"] = tokens + PROMPT_TOKENS
        made.chosen.append(("rollout.max_model_len", f"the response and {PROMPT_TOKENS} tokens of prompt"))
    if "--gpus" in special:
        _place(made, special["--gpus"])
    elif "learner.ranks" in settings:
        size = settings.get("rollout.tensor_parallel_size", 1)
        _split(made, of_each(shares(size, scored=True, shared=size == 1)), [])
    assumed = dict(made.source.assumed)
    if home := assumed.pop("HOME", ""):
        made.chosen.append(("HOME", f"{home}, yours as of this import"))
    if assumed:
        own = ", ".join(f"{name}={brief(value)}" for name, value in assumed.items())
        made.chosen.append(("environment", f"the script's own values for variables that it does not set: {own}"))


def _validation(made: Imported) -> None:
    """Leaves out a file of validation that is trained on."""
    train, own = (made.settings.get(setting) for setting in ("environment.options.data", VALIDATION))
    if own and VALIDATION not in made.given and {*_listed(own)} <= {*_listed(train)}:
        made.settings.pop(VALIDATION)
        made.lost.append((made.taken.pop(VALIDATION).key, own, "It is trained on; every eighth prompt is held out."))


def _listed(files: Any) -> list[Any]:
    return list(files) if isinstance(files, list | tuple) else [files]


def _place(made: Imported, gpus: Taken) -> None:
    """A first split of all GPUs."""
    count, size = gpus.value, made.settings.get("rollout.tensor_parallel_size", 1)
    if not isinstance(count, int) or count < 1:
        return
    made.gpus = count
    split = of_each(ON_ONE[0]) if count == 1 else first_split(count, size)
    if not split:
        why = f"too few for a learner, a scorer and rollout.tensor_parallel_size={size}: lower it, or take more GPUs"
        made.unknown.append((gpus.key, f"{count} GPUs are {why}"))
        return
    _split(made, split, [gpus])


def _split(made: Imported, split: Mapping[str, Any], origin: Sequence[Taken]) -> None:
    """Puts each actor on its GPUs. `origin`: the key that says how many there are."""
    for place, (setting, value) in enumerate(split.items()):
        for one in origin:
            made.take(replace(one, setting=setting, value=value, note=one.note * (not place)))
    settings = made.settings
    for setting, value in split.items():
        settings.setdefault(setting, value)
    settings.setdefault("scorer.dtype", "bfloat16" if settings.get("learner.dtype") == "bfloat16" else "float32")
    settings.setdefault("rollout.enforce_eager", False)
    which = f"{made.gpus} GPUs" if made.gpus else "the GPUs"
    made.chosen.append(("num_gpus", f"a first split of {which}; `squelch plan` proposes one that fits"))


def _reward(made: Imported, special: Mapping[str, Taken]) -> None:
    trainer = made.source.trainer
    if REWARD in made.given:
        return
    if own := special.get("--rewards"):
        names, weights = own.value, special["--weights"].value if "--weights" in special else None
        if isinstance(names, str):
            names = [names]
        one = len(names) == 1 and not weights
        value = names[0] if one else dict(zip(names, weights or [1.0] * len(names), strict=True))
        made.take(replace(own, setting=REWARD, value=value))
        return
    where = special.get("--reward")
    if where is None:
        made.unknown.append(("reward", _no_reward(trainer)))
    elif isinstance(where.value, list) or not str(where.value).endswith(".py") or trainer not in WRAPPED:
        why = "A reward function is FILE.py:FUNCTION or module:function."
        made.lost.append((where.key, where.value, why))
    else:
        label = made.source.values.get("data.label_key", made.source.values.get("label_key", "label"))
        path = Path(str(where.value)).expanduser()
        own_path = str(path.resolve() if path.exists() else path)
        if not path.exists():
            made.unknown.append((where.key, f"{path} is not there: write its place into the file beside the recipe"))
        name = special.get("--reward-name")
        made.reward = wrapper(trainer, own_path, str(name.value) if name else "", str(label))
        called = f"It calls {name.value} of that file ({name.key})." if name else ""
        made.wrapped = replace(where, note=called)


def _no_reward(trainer: str) -> str:
    built_in = "; verl chooses a built-in one by the column data_source" if trainer == "verl" else ""
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


def _because(made: Imported, setting: str) -> str:
    keys, why = (
        [name for row in rows(made.source.trainer) if row.setting == setting for name in row.names],
        dict(made.unknown),
    )
    known = next((why[key] for key in (setting, *keys) if key in why), "")
    return f": {known.removeprefix(f'{setting}: ')}" if known else ""


def _expanded(data: str | Sequence[str]) -> str | list[str]:
    """Paths with the user's home."""
    if isinstance(data, str):
        return str(Path(data).expanduser()) if data.startswith("~") else data
    return [str(_expanded(one)) for one in data]
