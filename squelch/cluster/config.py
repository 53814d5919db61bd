"""The configuration tree of a run, composed of the settings of every package and of `loop_config`; YAML recipes and
dotted overrides.

A recipe is a YAML file of this tree; it may extend another recipe (`extends: NAME`). `load` reads the file, applies
overrides (`filter.rho=0.5`) and validates everything before the run starts; its error is one paragraph that names the
key and the nearest valid key. A recipe may be hostile (`kit.untrusted.text` bounds it). This module imports neither
torch nor Ray.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from squelch.actors.config import EnvironmentActorConfig, RolloutConfig, ScorerConfig
from squelch.actors.formats.families import ALL
from squelch.actors.sampling import SamplingConfig
from squelch.actors.weight_ways import AUTOMATIC, Way
from squelch.cluster.first_task import made
from squelch.cluster.kept_secrets import with_secrets, without_secrets
from squelch.cluster.loop_config import (
    ClusterConfig,
    GradientsConfig,
    LoopConfig,
    ModelConfig,
    UploadConfig,
    ValidationConfig,
)
from squelch.cluster.presets import KEY as PRESET
from squelch.cluster.presets import layered
from squelch.cluster.setting_keys import flat
from squelch.cluster.wrong_settings import what_is_wrong
from squelch.envs.config import EnvironmentConfig, EnvironmentEntry, spoken
from squelch.envs.contract import AgentDriven, Environment, lacking
from squelch.envs.mixture import Entry, Mixture
from squelch.envs.registry import environment_class, resolved
from squelch.kit.archive.store import check_store
from squelch.kit.base.errors import UserError, as_user_error, bad_files_are_the_users, did_you_mean
from squelch.kit.base.settings import Settings
from squelch.kit.base.user_files import option_of_missing, settings_with_absolute_paths
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.filter.statistics import STATISTICS
from squelch.kit.findings.settings import FindingsConfig
from squelch.kit.metrics.settings import RecorderConfig
from squelch.kit.text.answer_start import COMPLETION
from squelch.kit.untrusted.files import Unreadable, brief, is_file, read_bytes, state, text_of
from squelch.kit.untrusted.text import MAX_RECIPE, YamlVersion, parse_yaml, written_yaml
from squelch.learner.config import MAX_GRADIENTS, LearnerConfig
from squelch.learner.objective.algorithms import differences, merged, with_filter

RECIPES = Path(__file__).parent / "recipes"
GONE_FROM_FILTER = ("replays",)
"""Settings of the filter that files of earlier runs have, and that decided nothing."""
MAX_EXTENDED = 16
"""Recipes of which each extends the next."""
Make = Callable[[EnvironmentConfig, float], Environment | None]
"""Makes an environment within so many seconds, or gives None if its class's own numbers have to do."""


class RunConfig(Settings):
    """All settings of one run."""

    name: str = Field("run", max_length=200, pattern=r"^[A-Za-z0-9_+][A-Za-z0-9._+-]*$")
    """Name of the run's folder under `runs_dir`: at most 200 letters, digits, . _ + or -."""
    runs_dir: str = "runs"
    """Folder that holds the folders of runs."""
    store: str = ""
    """Place to which the run is uploaded while it runs, and from which `--resume` fetches it on any host:
    `s3://BUCKET/PREFIX` (also `gs://`, `az://`) or a mounted folder; the run is below it under its name. Credentials
    come from the environment. Empty: the run is on the driver's disk only."""
    upload: UploadConfig = UploadConfig()
    seed: int = Field(0, ge=0)
    """Seed of the run. Every request's seed is derived from (seed, ticket, trajectory, turn)."""
    model: ModelConfig = ModelConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    environments: tuple[EnvironmentEntry, ...] = ()
    """Several environments in place of `environment`, with a weight each (docs/guide/bring-your-own.md)."""
    loop: LoopConfig = LoopConfig()
    sampling: SamplingConfig = SamplingConfig()
    filter: FilterConfig = FilterConfig()
    learner: LearnerConfig = LearnerConfig()
    rollout: RolloutConfig = RolloutConfig()
    environment_actor: EnvironmentActorConfig = EnvironmentActorConfig()
    scorer: ScorerConfig = ScorerConfig()
    recorder: RecorderConfig = RecorderConfig()
    findings: FindingsConfig = FindingsConfig()
    validation: ValidationConfig = ValidationConfig()
    gradients: GradientsConfig = GradientsConfig()
    cluster: ClusterConfig = ClusterConfig()

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return Path(self.runs_dir) / self.name

    @property
    def mixture(self) -> Mixture:
        """The run's environments, one or several."""
        return Mixture.several(self.environments) if self.environments else Mixture.of(self.environment)

    def with_each(self, changed: Callable[[Entry], EnvironmentConfig]) -> RunConfig:
        """This configuration with `changed` settings of each environment."""
        found = tuple(changed(entry) for entry in self.mixture.entries)
        return self.model_copy(update={"environments": found} if self.environments else {"environment": found[0]})

    @property
    def scored(self) -> Entry:
        """The environment whose prompts are scored."""
        asked = self.scorer.environment
        return self.mixture.labelled(asked) if asked else self.mixture.heaviest

    @property
    def pictures_alone(self) -> bool:
        """Whether only pictures show the scored environment's tasks."""
        return self.scored.environment.options.get("observation_format") == "picture"

    @property
    def most_turn_tokens(self) -> int:
        """Most sampled tokens of a turn, in any environment."""
        return max(entry.tokens(self.sampling.max_tokens_per_turn) for entry in self.mixture.entries)

    @property
    def most_episode_tokens(self) -> int:
        """Most sampled tokens of an episode, in any environment."""
        turn = self.sampling.max_tokens_per_turn
        return max(entry.tokens(turn) * (entry.environment.format.max_turns or 1) for entry in self.mixture.entries)

    @property
    def way(self) -> Way:
        """How new weights reach rollout workers; `auto` is decided here."""
        return self.rollout.way or next(way for way in AUTOMATIC if not way.unfit(self))

    @property
    def way_text(self) -> str:
        """How new weights reach rollout workers and why, for the user."""
        why = "rollout.weight_transfer says so" if self.rollout.way else AUTOMATIC[0].unfit(self)
        return f"{self.way.words} ({why or 'learner and rollout workers have GPUs'})"

    @property
    def held_gradients(self) -> int:
        """Gradients that a learner rank holds at once, besides the model's own, for what the run measures of them."""
        return MAX_GRADIENTS * (self.gradients.every > 0)

    @property
    def tokens_fed(self) -> int:
        """`learner.token_budget`, also on a GPU as it is on a CPU where it is `auto`."""
        return max(self.learner.tokens, self.rollout.max_model_len)

    @property
    def algorithm_differences(self) -> list[str]:
        """The settings in which the run departs from `learner.algorithm`, named by the user's keys."""
        return differences(self.learner.algorithm, self.learner.model_dump(mode="json"))

    @model_serializer(mode="wrap")
    def _one_or_several(self, dumped: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out the one of `environment` and `environments` that the run does not have."""
        tree = dumped(self)
        tree.pop("environment" if self.environments else "environments", None)
        return tree

    @model_validator(mode="before")
    @classmethod
    def _not_one_and_several(cls, tree: Any) -> Any:
        """Refuses `environment` beside `environments`; null, and an object of defaults, leave it unset."""
        if not isinstance(tree, dict) or not tree.get("environments"):
            return tree
        given = tree.get("environment")
        if given is not None and given != EnvironmentConfig():
            raise ValueError(
                "environment and environments are both set, and a run has one or the other: set environment=null to "
                "play environments, also where a recipe that is extended sets it, or drop environments"
            )
        return {key: value for key, value in tree.items() if key != "environment"}

    def _faults(self) -> Iterator[str]:
        yield from self._faults_of_environments()
        yield from self._faults_of_the_model()
        yield from self._faults_of_filter_and_probe()
        yield from self._faults_of_sizes()

    def _faults_of_environments(self) -> Iterator[str]:
        labels = [entry.label for entry in self.mixture.entries]
        for place, label in enumerate(labels):
            if (first := labels.index(label)) < place:
                yield (
                    f"environments[{place}] and environments[{first}] are both called {label!r}; give each a label of "
                    f"its own, e.g. environments[{place}].label={label}-2"
                )
        try:
            self.mixture.labelled(self.scored.label)
        except ValueError as error:
            yield f"scorer.environment={self.scorer.environment}: {error}"

    def _faults_of_the_model(self) -> Iterator[str]:
        if self.model.warmup is not None and self.model.path == "tiny":
            yield (
                "model.warmup is for pretrained models, and model.path=tiny has a warm-up of its own; "
                "drop the former or set model.path"
            )
        if self.model.keep_reasoning != ALL and self.learner.objective.needs_critic:
            yield (
                f"model.keep_reasoning={self.model.keep_reasoning} makes trajectories of several segments, and "
                f"learner.objective.advantage={self.learner.objective.advantage} needs a critic, whose time runs along "
                "one sequence; set learner.algorithm to grpo, dr_grpo, dapo or gspo, or drop the former"
            )
        if self.model.reasoning == COMPLETION and self.scorer.enabled and self.scorer.probe.every:
            yield (
                "model.reasoning=completion tells no reasoning from an answer, and the fixed probe measures reasoning; "
                "set scorer.probe.every=0"
            )

    def _faults_of_filter_and_probe(self) -> Iterator[str]:
        needed, size = STATISTICS[self.filter.statistic].needs, self.sampling.group_size
        if self.filter.rule != "none" and size < needed:
            yield (
                f"sampling.group_size is {size}, but filter.statistic={self.filter.statistic} needs at least {needed} "
                "trajectories a group; raise sampling.group_size or set filter.rule=none"
            )
        kl, target = self.learner.objective.kl, self.filter.target
        if target != "groups" and kl.coefficient > 0 and kl.place == "reward":
            yield (
                f"filter.target={target} filters one term of the loss, and learner.objective.kl.place=reward makes the "
                "KL term part of the other; set kl.place=loss or filter.target=groups"
            )
        probe = self.scorer.probe
        if probe.tasks is not None and probe.tasks > self.validation.tasks:
            yield (
                f"scorer.probe.tasks={probe.tasks}, but there are validation.tasks={self.validation.tasks}; lower the "
                "former or raise the latter"
            )

    def _faults_of_sizes(self) -> Iterator[str]:
        if unfit := self.way.unfit(self):
            yield (
                f"rollout.weight_transfer={self.way.name} {self.way.terms}, and {unfit}; {self.way.mend}set "
                "rollout.weight_transfer=auto"
            )
        budget, limit = self.learner.token_budget, self.rollout.max_model_len
        if budget != "auto" and budget < limit:
            yield (
                f"learner.token_budget={budget} is below rollout.max_model_len={limit}, so a trajectory may not fit "
                "into a micro-batch; raise the former or lower the latter"
            )
        for entry in self.mixture.entries:
            turn, turns = entry.tokens_key, f"{entry.key}.format.max_turns"
            sampled = entry.tokens(self.sampling.max_tokens_per_turn) * (entry.environment.format.max_turns or 0)
            if sampled >= limit and lacking(environment_class(entry.environment.name), AgentDriven):
                yield (
                    f"rollout.max_model_len={limit} is too small for {turns} x {turn} = {sampled} sampled tokens and "
                    f"the prompts; raise rollout.max_model_len, or lower {turns} or {turn}"
                )

    @model_validator(mode="before")
    @classmethod
    def _filter_of_the_algorithm(cls, tree: Any) -> Any:
        """Fills in the filter of an algorithm that defines one. A different filter of the user is refused, so that
        neither silently takes precedence."""
        learner = tree.get("learner", {}) if isinstance(tree, dict) else None
        if not isinstance(learner, dict) or not learner.get("algorithm_filter", True):
            return tree
        given = tree.get("filter", {})
        if not isinstance(given, dict):
            return tree
        return tree | {"filter": with_filter(str(learner.get("algorithm", "grpo")), given)}

    @field_validator("store")
    @classmethod
    def _store_is_valid(cls, store: str) -> str:
        return check_store(store)


def recipe_names() -> list[str]:
    """Names of the recipes that ship with Squelch, without those that others extend and that cannot run alone."""
    return sorted(path.stem for path in RECIPES.glob("[!_]*.yaml"))


def load(recipe: str, overrides: list[str] | None = None, make: Make = made) -> RunConfig:
    """The validated configuration of a recipe (a shipped name or a YAML file) with dotted overrides applied.

    Raises:
        UserError: the file, a key or a value is wrong; the text names it and says what would be right.
    """
    return validated(read_recipe(recipe), overrides or [], recipe, make)


def validated(tree: dict[str, Any], overrides: list[str], recipe: str, make: Make = made) -> RunConfig:
    """The validated configuration of a recipe's tree, over which the preset that the overrides name and then the
    overrides are laid. Raises as `load`; the error names the `recipe`."""
    given = _validated(with_secrets(layered(_of_today(tree), overrides), recipe), recipe)
    config = given.with_each(lambda entry: _resolved(entry, given, recipe, make))
    with as_user_error(about=f"configuration {recipe}"):
        learner = _resolve_learner(config)
    return settings_with_absolute_paths(_validated({**dict(config), "learner": learner}, recipe))


def _of_today(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree of a file without `GONE_FROM_FILTER`."""
    chosen = tree.get("filter")
    if not isinstance(chosen, dict):
        return tree
    return tree | {"filter": {name: value for name, value in chosen.items() if name not in GONE_FROM_FILTER}}


def _validated(tree: dict[str, Any], recipe: str) -> RunConfig:
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise UserError(f"configuration {recipe}: {what_is_wrong(error, RunConfig)}") from error


def read_recipe(recipe: str, extended_by: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The recipe's tree as plain data, merged over the recipe that it extends.

    Args:
        extended_by: the chain of files that extend this recipe, outermost first. A file name is relative to the folder
            of the last of them.
    """
    folder = extended_by[-1].parent if extended_by else Path()
    path = folder / recipe if recipe.endswith((".yaml", ".yml")) else RECIPES / f"{recipe}.yaml"
    with as_user_error(Unreadable, about=f"recipe {brief(recipe)}{_extender(extended_by)}"):
        missing = state(path) is None
    if missing:
        meant = "" if extended_by else _run_meant(recipe)
        raise UserError(
            f"no recipe {brief(recipe)}{_extender(extended_by)}: {meant}{path} does not exist. "
            f"{did_you_mean(recipe, recipe_names())}Shipped recipes: {', '.join(recipe_names())}; or give a path that "
            "ends in .yaml."
        )
    chain = (*extended_by, path.resolve())
    if path.resolve() in extended_by:
        raise UserError(f"{path} extends itself: {' -> '.join(map(str, chain))}")
    if len(chain) > MAX_EXTENDED:
        raise UserError(f"{path} is the last of more than {MAX_EXTENDED} recipes that extend one another; join some")
    with bad_files_are_the_users():
        tree = read_settings(read_bytes(path, MAX_RECIPE), str(path))
    if PRESET in tree:
        raise UserError(f"{path}: a preset is named beside a recipe, as {PRESET}=NAME, and not in it; drop the line")
    base = tree.pop("extends", None)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise UserError(f"{path}: extends is {brief(base)}; give the name of one recipe, or a path ending in .yaml")
    return merged(read_recipe(base, chain), tree)


def _run_meant(recipe: str) -> str:
    """How a run goes on whose folder or name is given as a recipe; empty if it is none."""
    for folder in (Path(recipe), Path("runs") / recipe):
        with suppress(Unreadable):
            if is_file(own := folder / "config.yaml"):
                return f"{folder} is a run, which goes on with `squelch train {shlex.quote(str(own))} --resume`. "
    if "/" not in recipe:
        return ""
    return f"A run goes on with its recipe and its name: `squelch train RECIPE name={Path(recipe).name} --resume`. "


def _extender(extended_by: tuple[Path, ...]) -> str:
    return f", which {extended_by[-1]} extends" if extended_by else ""


def read_settings(data: bytes, where: str, version: YamlVersion = "1.2") -> dict[str, Any]:
    """The mapping in the bytes of a YAML file. UserError, whose text begins with `where`, for anything else."""
    with bad_files_are_the_users():
        tree = parse_yaml(text_of(data, where), where, version)
    if tree is not None and not isinstance(tree, dict):
        raise UserError(f"{where} must hold a mapping of settings, not {type(tree).__name__}")
    return tree or {}


def read_resolved(data: bytes, where: str) -> dict[str, Any]:
    """The mapping in the bytes of a run's `config.yaml`; those that PyYAML's own dumper wrote quote by YAML 1.1."""
    return read_settings(data, where, "1.1")


def dump(config: RunConfig) -> str:
    """The resolved configuration as YAML, without secrets; `load` reads it back as an equal configuration."""
    return written_yaml(without_secrets(config.model_dump(mode="json")))


def settings_of(file: Path) -> dict[str, Any]:
    """The settings in a run's `config.yaml` by dotted key; unchecked if this release refuses what it was started with.
    UserError if the file is none."""
    tree = read_resolved(file.read_bytes(), str(file))
    try:
        return flat(without_secrets(validated(tree, [], str(file)).model_dump(mode="json")))
    except UserError:
        return flat(tree)


def changes(old: dict[str, Any], after: RunConfig) -> list[str]:
    """`key: old -> new` for every setting that differs. `old`: settings by dotted key, of a run that has started, whose
    number for the token budget is what `auto` means in it. Secrets are not compared."""
    new = flat(without_secrets(after.model_dump(mode="json")))
    if new["learner.token_budget"] == "auto":
        new["learner.token_budget"] = old.get("learner.token_budget")
    return [
        f"{key}: {old.get(key)!r} -> {new.get(key)!r}" for key in sorted({*old, *new}) if old.get(key) != new.get(key)
    ]


def _resolve_learner(config: RunConfig) -> LearnerConfig:
    """The learner's settings with the lengths that its objective takes from the run: the largest number of tokens that
    a turn, and an episode, may sample. ValueError if the over-long penalty's part of a turn is longer than the turn."""
    objective, turn = config.learner.objective, config.most_turn_tokens
    changes: dict[str, Any] = {}
    if objective.aggregation == "constant" and not objective.normaliser_tokens:
        changes["normaliser_tokens"] = config.most_episode_tokens
    overlong = objective.overlong
    if overlong.penalty > 0:
        longest = overlong.max_tokens or turn
        cache = overlong.cache_tokens or max(1, longest // 5)
        if cache > longest:  # else the shortest turn would be penalised
            raise ValueError(
                f"learner.objective.overlong.cache_tokens={cache} exceeds sampling.max_tokens_per_turn={longest}, of "
                "which it is a part; lower it, or leave it out for a fifth of a turn"
            )
        changes["overlong"] = overlong.model_copy(update={"max_tokens": longest, "cache_tokens": cache})
    return config.learner.model_copy(update={"objective": objective.model_copy(update=changes)})


def _resolved(entry: Entry, given: RunConfig, recipe: str, make: Make) -> EnvironmentConfig:
    """The settings of an environment of the run, with defaults of its own, or of the run, for what the format leaves
    open. UserError if the environment cannot be created."""
    try:
        own = resolved(entry.environment, make(entry.environment, given.cluster.start_timeout_s))
    except ValueError as error:
        text = entry.keyed(str(error))
        raise UserError(f"configuration {recipe}: {entry.key}: {text}{_moved(entry, text)}") from error
    return spoken(own, given.model.warmup is not None, entry.tokens(given.sampling.max_tokens_per_turn))


def _moved(entry: Entry, error: str) -> str:
    """What to set if the error speaks of a file of the user that is not where the settings say."""
    given = entry.environment
    try:
        option = option_of_missing(environment_class(given.name).Options, given.options, error.partition(" (got ")[0])
    except ValueError:  # the environment's name is at fault
        return ""
    return f"; if it has moved, set {entry.key}.options.{option}" if option else ""
