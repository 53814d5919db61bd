"""One rank of the learner, without Ray: a training step from groups of trajectories to updated weights.

Invariants:

- Every rank calls `train_step` with the same groups, computes the same plan and runs the same number of micro-batches,
  so that all collectives match. Waiting for a late rank is bounded by the process group's time-out.
- A step with a non-finite value is refused as a whole: parameters, optimizer state and step counts stay as they were
  before the step, and the report names the group.
- The trainer counts optimizer steps; the coordinator counts policy versions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from squelch.actors.messages import StepReport, StepTerms, WeightBundle
from squelch.actors.process.folders import Whole, as_it_is
from squelch.kit.models.model_folder import model_config
from squelch.kit.pictures.geometry import vision_of
from squelch.kit.process.progress_marks import Marks
from squelch.learner import batching, memory, process_group
from squelch.learner import publish as publication
from squelch.learner.arithmetic import Arithmetic
from squelch.learner.batching import Groups, MicroBatch, OptimizerStep, Row
from squelch.learner.checkpoint import folder as checkpoint
from squelch.learner.checkpoint.export import export
from squelch.learner.clock import Clock
from squelch.learner.config import LearnerConfig, LoraSettings, ObjectiveConfig, OptimizerConfig
from squelch.learner.gradient_signal import signal
from squelch.learner.nonfinite_group import Search
from squelch.learner.objective import credit
from squelch.learner.objective.losses import MISMATCH_NAMES, SUM_NAMES, mismatch_metrics, mismatch_sums, policy_loss
from squelch.learner.policy.critic import ValueLearner
from squelch.learner.policy.loading import Unloaded
from squelch.learner.policy.model import Policy, equip, local, passes, reshard, shard, storage
from squelch.learner.published_copy import Copies
from squelch.learner.refusal import StepRefused
from squelch.learner.snapshot import Pages, Snapshot
from squelch.learner.tensors import Batch, Inputs, scored, to_batch

MEAN_NAMES = (*("entropy", "kl", "ratio_mean", "clip_fraction_low", "clip_fraction_high"), "clamped_share")


@dataclass
class Totals:
    """Sums of a training step over the micro-batches and optimizer steps of this rank."""

    sums: Tensor
    mismatch: Tensor
    """(len(MISMATCH_NAMES),) float64."""
    ratio_max: Tensor
    value_loss: Tensor
    passes: tuple[float, float] = (0.0, 0.0)
    """Operations of the policy's passes: products, attention's products."""
    grad_norms: list[float] = field(default_factory=list)
    critic_norms: list[float] = field(default_factory=list)

    @classmethod
    def zeros(cls, device: torch.device) -> "Totals":
        """All sums at 0, on `device`."""
        make = torch.zeros
        return cls(
            make(len(SUM_NAMES), dtype=torch.float64, device=device),
            make(len(MISMATCH_NAMES), dtype=torch.float64, device=device),
            make((), device=device),
            make((), dtype=torch.float64, device=device),
        )

    def add_passes(self, arithmetic: Arithmetic, batch: Batch) -> None:
        """Counts a forward and a backward pass of the policy over the batch."""
        ids, positions, _, _ = batch.inputs
        more = arithmetic.trained(ids.numel(), len(positions), batch.pairs)
        self.passes = (self.passes[0] + more[0], self.passes[1] + more[1])


def learning_rate(config: OptimizerConfig, taken: int) -> float:
    """Learning rate of the optimizer step after `taken` steps: linear warm-up over `warmup_steps`, times the decay.

    Linear decay reaches its floor after (1 - final_factor) * decay_steps steps, cosine decay after `decay_steps`.
    """
    rise = min(1.0, (taken + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    left = max(0.0, 1.0 - taken / config.decay_steps) if config.decay_steps else 1.0
    if config.decay == "cosine":
        fall = config.final_factor + (1 - config.final_factor) * (1 - math.cos(math.pi * left)) / 2
    else:
        fall = max(config.final_factor, left)
    return config.learning_rate * rise * fall


class Trainer:
    """One FSDP2 rank. The process group (see `learner.process_group`) must exist already.

    `seed` determines the order of the minibatches and the adapters' first values; `temperature` is the sampling
    temperature of the rollout's log-probabilities. `resumes`: the caller calls `load` next, and only the reference's
    weights are read from `model_dir`. Raises ValueError when the model does not fit into memory or `learner.lora` does
    not fit the model, RuntimeError when `rank` and `world_size` are not those of the process group.
    """

    def __init__(
        self,
        model_dir: Path | str,
        config: LearnerConfig,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        temperature: float = 1.0,
        resumes: bool = False,
    ) -> None:
        if (dist.get_rank(), dist.get_world_size()) != (rank, world_size):
            raise RuntimeError(
                f"trainer is rank {rank} of {world_size}, its process group says rank {dist.get_rank()} of "
                f"{dist.get_world_size()}"
            )
        self.model_dir, self.config, self.seed, self.temperature = Path(model_dir), config, seed, temperature
        self.rank, self.world_size = rank, world_size
        self.alone = world_size == 1 and not config.cpu_offload
        """Whether gradients of several micro-batches may be added up before they are reduced (`policy.model.passes`):
        on several ranks they would not be sharded, and with offload they would be on the GPU."""
        self.version = 0
        """The version that was published last; the initial policy's is 0."""
        self.device = torch.device("cuda" if config.num_gpus > 0 else "cpu")
        self.mesh = init_device_mesh(self.device.type, (world_size,))
        shape = model_config(self.model_dir)
        self.vision = vision_of(self.model_dir)
        """How the policy is fed pictures; None without a vision tower."""
        memory.check(shape, config, world_size, sharing=process_group.ranks_here())
        self.policy = self._load(config.lora, resumes)
        self.reference = self._load().requires_grad_(False) if config.objective.kl.coefficient > 0 else None
        self.arithmetic = Arithmetic.of(self.policy.model, self.policy.adapters)
        settings = config.optimizer
        self.optimizer = torch.optim.AdamW(
            [p for p in self.policy.parameters() if p.requires_grad],
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        wanted = config.objective.needs_critic
        self.critic = ValueLearner(self.model_dir, config, self.mesh, resumes) if wanted else None
        self.optimizer_steps = 0
        self._pages = Pages(self.device)
        self.marks = Marks()

    def _load(self, lora: LoraSettings | None = None, resumes: bool = False) -> Policy:
        kernels = self.config.kernels
        unloaded = Unloaded(self.model_dir, kernels, resumes)
        model = equip(unloaded.model, self.config, lora, self.seed)
        policy = shard(Policy(model, lora, kernels), self.mesh, self.config)
        unloaded.fill(policy, storage(self.config))
        return policy

    def train_step(self, step: int, groups: Groups, terms: StepTerms = batching.NO_TERMS) -> StepReport:
        """Learn from the groups in up to `learner.minibatches` optimizer steps. See `StepReport`."""
        clock, rows = Clock(self.device), list[Row]()
        try:
            with clock.part("prepare"):
                batching.refuse_non_finite(groups)
                rows = batching.to_rows(groups, self.config.objective, terms)
            totals = Totals.zeros(self.device)
            taken, metrics = self._learn(step, rows, terms, totals, clock)
        except StepRefused as refused:
            return self._report(step, rows, 0, {}, clock, str(refused))
        report = self._report(step, rows, taken, metrics, clock, None)
        return replace(report, operations=self.arithmetic.total(totals.passes)) if taken else report

    def _learn(
        self, step: int, rows: Sequence[Row], terms: StepTerms, totals: Totals, clock: Clock
    ) -> tuple[int, dict[str, float]]:
        """Takes the optimizer steps on the rows that have a gradient; their number and the metrics. Raises
        StepRefused."""
        with clock.part("prepare"):
            plan = self.plan(rows, self.config.minibatches, step)
        if not plan:
            return 0, {}
        batches, metrics = self._prepare(rows, plan, clock, self.config.objective)
        with clock.part("prepare"):
            num_tokens = sum(part.num_tokens for part in plan)
            found = signal(batches, self.config.objective, terms.without, num_tokens, self.device)
        taken = list(compress(plan, found.teaching))
        if not taken:
            return 0, found.shares
        groups = [part.groups(rows) for part in taken]
        self._optimize(list(compress(batches, found.teaching)), groups, terms, totals, clock)
        return len(taken), self._metrics(taken, totals) | metrics | found.shares

    def _report(
        self, step: int, rows: Sequence[Row], taken: int, metrics: dict[str, float], clock: Clock, reason: str | None
    ) -> StepReport:
        return StepReport(
            step=step,
            updated=taken > 0,
            optimizer_steps=taken,
            num_trajectories=len({row.trajectory for row in rows}),
            num_tokens=sum(row.num_sampled for row in rows),
            metrics=metrics,
            seconds=clock.seconds(),
            refused=reason,
        )

    def plan(
        self, rows: Sequence[Row], minibatches: int, step: int, objective: ObjectiveConfig | None = None
    ) -> list[OptimizerStep]:
        """Splits the rows into optimizer steps, and these into micro-batches on every rank, as `objective` (None: the
        trainer's own) needs them; `step` determines the order."""
        config = self.config
        whole = (objective or config.objective).needs_whole
        own = config.tokens, self.world_size, self.seed, step, config.share_openings, whole
        return batching.plan(rows, minibatches, *own)

    def _prepare(
        self, rows: Sequence[Row], plan: Sequence[OptimizerStep], clock: Clock, objective: ObjectiveConfig
    ) -> tuple[list[list[Batch]], dict[str, float]]:
        """Computes everything that stays fixed during the training step: this rank's micro-batches of each optimizer
        step, and metrics of the advantages. Raises StepRefused if a KL or value is not finite."""
        self.marks.begin()
        with clock.part("prepare"):  # all copies to the device, before the first pass that they would have to wait for
            own = [(part, [rows[i] for i in chosen]) for part in plan for chosen in part.micro_batches[self.rank]]
            micros = [(part, batching.collate(chosen, self.config.share_openings, self.vision)) for part, chosen in own]
            batches = [to_batch(micro, part, objective, self.device) for part, micro in micros]
        inputs = [batch.inputs for batch in batches]
        recomputed = reference = [None] * len(batches)
        with clock.part("recompute"):
            if objective.anchor == "recomputed" or objective.max_mismatch > 0:
                recomputed = self._scores(self.policy, inputs)
        with clock.part("reference"):
            if self.reference is not None and objective.kl.coefficient > 0:
                reference = self._scores(self.reference, inputs)
        with clock.part("prepare"):
            pairs = zip(batches, recomputed, reference, strict=True)
            batches = [scored(batch, objective, learner, other) for batch, learner, other in pairs]
        with clock.part("critic"):
            if self.critic is not None and objective.needs_critic:
                ends = [self._ends(micro) for _, micro in micros]
                batches = [self._valued(self.critic, *pair) for pair in zip(batches, ends, strict=True)]
        waiting = iter(batches)
        steps = [[next(waiting) for _ in part.micro_batches[self.rank]] for part in plan]
        with clock.part("prepare"):
            found = credit.assign(rows, steps, objective, self.device)
        return found.steps, found.metrics

    def _ends(self, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """Per row, the index of its last input, and whether its episode was ended from outside."""
        cut = torch.tensor([row.bootstrap for row in micro.rows], dtype=torch.bool)
        return torch.from_numpy(micro.ends).to(self.device), cut.to(self.device)

    def _valued(self, critic: ValueLearner, batch: Batch, ends: tuple[Tensor, Tensor]) -> Batch:
        """Adds the critic's values before each sampled token, and after rows whose episode was ended from outside.
        `ends`: as of `_ends`."""
        values, after = critic.values(batch.inputs, ends[0])
        self.marks.add()
        return replace(batch, values=values, ends=after * ends[1])

    @torch.no_grad()
    def _scores(self, policy: Policy, inputs: Sequence[Inputs]) -> list[Tensor]:
        """The log-probabilities of each micro-batch. Each pass counts as progress: marks must be of similar size."""
        found = []
        for own in inputs:
            found.append(policy(*own, self.temperature, False)[0])
            self.marks.add()
        reshard(policy)
        return found

    def _optimize(
        self, prepared: list[list[Batch]], groups: list[list[list[str]]], terms: StepTerms, totals: Totals, clock: Clock
    ) -> None:
        """Takes all optimizer steps; raises StepRefused, and takes none, if a loss or gradient is not finite. `groups`:
        `OptimizerStep.groups` of each."""
        trained = [self.optimizer, *([] if self.critic is None else [self.critic.optimizer])]
        before = [Snapshot.of(own, self._pages) for own in trained] if len(prepared) > 1 else []  # under way, on a GPU
        taken = self.optimizer_steps
        for k, batches in enumerate(prepared):
            with clock.part("forward_backward"):
                loss = self._accumulate(batches, terms, totals, self.config.objective, first=k == 0)
            with clock.part("critic"):
                loss += self._accumulate_values(batches, totals)
            with clock.part("optimizer"):
                self._pages.wait()
                finite = self.apply(loss, totals)
            if not finite:
                reason = Search(self, terms, clock.begun).run(batches, groups[k])
                self.zero_grad()
                for snapshot in before:
                    snapshot.restore()
                self.optimizer_steps = taken
                raise StepRefused(reason)

    def _accumulate(
        self, batches: Sequence[Batch], terms: StepTerms, totals: Totals, objective: ObjectiveConfig, first: bool
    ) -> Tensor:
        """Gradients of one optimizer step, summed over ranks; returns this rank's share of the loss, float64."""
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for batch in passes(self.policy, batches, self.alone):
            log_probs, entropies = self.policy(*batch.inputs, self.temperature, objective.entropy_coefficient > 0)
            found = policy_loss(log_probs, entropies, batch.tokens, objective, terms.loss_scale, terms.without)
            found.loss.backward()
            loss += found.sums[0]
            totals.sums += found.sums
            totals.add_passes(self.arithmetic, batch)
            totals.ratio_max = torch.maximum(totals.ratio_max, found.ratio_max)
            self._count_mismatch(batch, log_probs.detach(), totals, first)
            self.marks.add()
        return loss

    def _accumulate_values(self, batches: Sequence[Batch], totals: Totals) -> Tensor:
        """The critic's gradients of one optimizer step; returns this rank's share of its loss, float64."""
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        if self.critic is not None:
            for batch in passes(self.critic.module, batches, self.alone):
                loss += self.critic.backward(batch)
        totals.value_loss += loss
        return loss

    def zero_grad(self) -> None:
        """Clears the gradients of the policy and the critic."""
        self.optimizer.zero_grad()
        if self.critic is not None:
            self.critic.optimizer.zero_grad()

    def _count_mismatch(self, batch: Batch, log_probs: Tensor, totals: Totals, first: bool) -> None:
        """Adds the mismatch of learner and sampler at step start: on all tokens if log-probabilities were recomputed,
        else on the tokens of the first optimizer step."""
        own = batch.recomputed if batch.recomputed is not None else log_probs if first else None
        if own is not None:
            totals.mismatch += mismatch_sums(own, batch.tokens.rollout, batch.versions == self.version)

    def apply(self, loss: Tensor, totals: Totals) -> bool:
        """Clips the gradients and takes the optimizer step. Returns False, without a step, when the loss or the
        gradient of any rank is not finite."""
        norm, total, critic_norm = self._norm(loss)
        if not math.isfinite(norm + total + critic_norm):
            return False
        totals.grad_norms.append(norm)
        if norm > self.config.optimizer.max_grad_norm:
            torch._foreach_mul_(self._gradients(), self.config.optimizer.max_grad_norm / (norm + 1e-6))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config.optimizer, self.optimizer_steps)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.critic is not None:
            totals.critic_norms.append(critic_norm)
            self.critic.step(critic_norm)
        self.optimizer_steps += 1
        return True

    def _gradients(self) -> list[Tensor]:
        """This rank's gradient shards, as plain tensors (for small models DTensor's dispatch costs more than the
        arithmetic)."""
        return [local(p.grad) for p in self.policy.parameters() if p.grad is not None]

    def _norm(self, loss: Tensor) -> tuple[float, float, float]:
        """Gradient norm, loss, and the critic's gradient norm (0 without a critic), over all ranks. All ranks get the
        same values and therefore decide alike."""
        shards = [self._gradients(), [] if self.critic is None else self.critic.gradients()]
        squares = [torch.nn.utils.get_total_norm(part).double().square().to(self.device) for part in shards]
        both = torch.stack([squares[0], loss, squares[1]])
        dist.all_reduce(both)
        square, total, critic = both.tolist()
        return math.sqrt(square), total, math.sqrt(critic)

    def backward(self, batches: Sequence[Batch], terms: StepTerms) -> tuple[float, float, float]:
        """Adds the gradients of micro-batches and counts nothing; as `_norm`."""
        totals = Totals.zeros(self.device)
        loss = self._accumulate(batches, terms, totals, self.config.objective, first=False)
        return self._norm(loss + self._accumulate_values(batches, totals))

    def _metrics(self, taken: Sequence[OptimizerStep], totals: Totals) -> dict[str, float]:
        """Metrics of the optimizer steps that were taken, over all ranks. Losses and gradient norms are means over
        optimizer steps; most others are means over tokens."""
        summed = torch.cat([totals.sums, totals.mismatch])
        dist.all_reduce(summed)
        dist.all_reduce(totals.ratio_max, op=dist.ReduceOp.MAX)
        sums, mismatch = summed[: len(SUM_NAMES)].tolist(), summed[len(SUM_NAMES) :].tolist()
        values = dict(zip(SUM_NAMES, sums, strict=True))
        num_steps, tokens = len(taken), sum(part.num_tokens for part in taken)
        means = {name: values[name] / tokens for name in SUM_NAMES[2:]}
        return {
            "loss": values["loss"] / num_steps,
            "policy_loss": values["policy_loss"] / num_steps,
            **{name: means[name] for name in MEAN_NAMES},
            "kl": means["kl"] if self.reference is not None else math.nan,
            "ratio_max": float(totals.ratio_max),
            "grad_norm": sum(totals.grad_norms) / num_steps,
            "learning_rate": float(self.optimizer.param_groups[0]["lr"]),
            "advantage_std": math.sqrt(max(means["advantage_squared"] - means["advantage"] ** 2, 0.0)),
            **mismatch_metrics(mismatch),
            **self._critic_metrics(totals, num_steps),
        }

    def _critic_metrics(self, totals: Totals, num_steps: int) -> dict[str, float]:
        if self.critic is None:
            return {}
        dist.all_reduce(totals.value_loss)
        return {
            "value_loss": float(totals.value_loss) / num_steps,
            "critic_grad_norm": sum(totals.critic_norms) / num_steps,
        }

    def gradients(self, groups: Groups, terms: StepTerms = batching.NO_TERMS) -> dict[str, Tensor]:
        """Unsharded gradients by parameter name, with all groups in one optimizer step; nothing is updated.

        A collective. Raises StepRefused for groups with a non-finite value.
        """
        batching.refuse_non_finite(groups)
        self._backward(batching.to_rows(groups, self.config.objective, terms), self.config.objective, terms)
        named: list[tuple[str, Any]] = [
            (name.removeprefix(publication.PREFIX), p.grad) for name, p in self.policy.named_parameters()
        ]
        whole = {name: grad.full_tensor().clone() for name, grad in named}
        self.optimizer.zero_grad()
        return whole

    def row_gradients(self, rows: Sequence[Row], objective: ObjectiveConfig) -> list[Tensor]:
        """Copies of this rank's shards of the gradient of `objective`, with all rows in one optimizer step, in the
        order of the trained parameters. Nothing is updated. A collective: every rank passes the same rows.

        A KL term in `objective` needs the reference, which is loaded only if the trainer's own objective has a KL term.
        """
        self._backward(rows, objective, batching.NO_TERMS)
        trained = [p for p in self.policy.parameters() if p.requires_grad]
        shards = [torch.zeros_like(local(p)) if p.grad is None else local(p.grad).clone() for p in trained]
        self.optimizer.zero_grad()
        return shards

    def _backward(self, rows: Sequence[Row], objective: ObjectiveConfig, terms: StepTerms) -> None:
        """Computes the gradient of `objective` on the rows, as one optimizer step, into the parameters' `grad`."""
        plan = self.plan(rows, 1, 0, objective)
        batches, _ = self._prepare(rows, plan, Clock(self.device), objective)
        self._accumulate(batches[0], terms, Totals.zeros(self.device), objective, first=True)

    def publish(
        self, version: int, put: publication.Put, dtype: torch.dtype = torch.float32, copies: Copies | None = None
    ) -> WeightBundle | None:
        """The present weights, on rank 0; None on the other ranks. `copies`: as in `publish.publish`. A collective."""
        self.version = version
        return publication.publish(self.policy, self.device, version, put, dtype, copies=copies, vision=self.vision)

    def save(self, path: Path, loop: Mapping[str, Any], sealed: bool = True) -> dict[str, float]:
        """Write a checkpoint that contains the caller's `loop` data; the seconds of each part. `sealed`: as of
        `checkpoint.save`. A collective."""
        others, algorithm, dtype = self._others(), self.config.algorithm, self.config.export
        own = (self.policy, self.optimizer, self.model_dir, self.optimizer_steps, loop, others, algorithm)
        return checkpoint.save(path, *own, None if dtype is None else getattr(torch, dtype), sealed)

    def load(self, path: Path, whole: Whole = as_it_is) -> dict[str, Any]:
        """Load a checkpoint that any number of ranks wrote; returns the caller's `loop` data. `whole`: as in
        `checkpoint.shards.read`. A collective."""
        others, algorithm = self._others(), self.config.algorithm
        own = (self.policy, self.optimizer, others, algorithm, self.model_dir, whole)
        self.optimizer_steps, loop = checkpoint.load(path, *own)
        return loop

    def _others(self) -> checkpoint.Others:
        return {} if self.critic is None else {"critic": (self.critic.module, self.critic.optimizer)}

    def export(self, path: Path) -> None:
        """Write the policy as a Hugging Face folder. A collective."""
        export(path, self.policy, self.model_dir)
