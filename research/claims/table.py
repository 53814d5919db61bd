"""Every claim, with the statistic and the region that were fixed before the first run; nothing was tuned to a result.
What was changed or added after runs had been seen stands in `changes.md`, with why.

Where a row has a tolerance, the smallest effect that would matter, it is 0.03 of success or 0.05 of a share. "End" and
"beginning" are the last and the first fifth of the horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from research.claims import plan
from research.claims import statistics as of
from research.claims.statistics import SUCCESS, Estimate, Metric, Pool
from research.claims.verdict import Claim, Region, above, below, within
from research.kept import ACTIONS
from research.kept import DEPENDENCE as D
from research.kept import SHARE as D_SHARE

MI, RETRIEVAL = "first_turn/mi_seq_est", "first_turn/retrieval_accuracy"
PER_TOKEN, ENTROPY = "first_turn/mi_est", "first_turn/conditional_entropy"
PROBE, VALIDITY = "probe/mi", "format_validity"
WORTH, SHARE = 0.03, 0.05
SOKOBAN, LAKE, COUNTDOWN = "sokoban", "frozenlake", "countdown"
TITLE = {SOKOBAN: "Sokoban", LAKE: "FrozenLake", COUNTDOWN: "Countdown"}
LONG = {SOKOBAN: plan.LONG_STEPS, LAKE: plan.LONG_STEPS}
SHORT = {SOKOBAN: plan.SHORT_STEPS, LAKE: plan.SHORT_STEPS, COUNTDOWN: plan.COUNTDOWN_STEPS}


SMALL = {(LAKE, "GRPO"), (LAKE, "DAPO"), (LAKE, "Dr. GRPO"), (COUNTDOWN, "GRPO")}
"""Cells of the paper's Table 4 whose gain is below `WORTH`: an estimate that holds it must not fail for being small."""


def worth(recipe: str, algorithm: str = "GRPO") -> float:
    """The smallest gain of success by the filter that would matter; 0 where the paper's own is smaller."""
    return 0.0 if (recipe, algorithm) in SMALL else WORTH


@dataclass(frozen=True)
class Measure:
    """A metric of a run and its words."""

    words: str
    metric: Metric


LAST = Measure("last validation", of.at_end(SUCCESS))
BEST = Measure("best validation after step 0", of.peak(SUCCESS))
WORST = Measure("worst validation after step 0", of.least(SUCCESS))
TRUE = Measure("judge's true share among reasonings that name any, end", of.true_share)
TRUE_CHANGE = Measure("that share, end minus beginning", of.true_share_change)
TRUE_SINCE_FIRST = Measure("that share, end minus the first scoring", of.true_share_since_first)
PROBE_END = Measure("MI of the fixed probe, nats", of.at_end(PROBE))
PROBE_CHANGE = Measure("change of the fixed probe's MI, nats", of.gained(PROBE))
LINK_CHANGE = Measure("change of the fixed probe's D, nats an answer", of.gained(D))
LINK_SHARE = Measure("change of the fixed probe's D / surprise", of.gained(D_SHARE))
ACTIONS_CHANGE = Measure("actions an episode, end minus beginning", of.change(ACTIONS))
ACTIONS_END = Measure("actions an episode, end", of.last(ACTIONS))
MI_END = Measure("MI-Seq-Est, end, nats", of.last(MI))
RETRIEVAL_BEST = Measure("retrieval, when success is best", of.at_best(RETRIEVAL))
RETRIEVAL_CHANGE = Measure("retrieval, end minus beginning", of.change(RETRIEVAL))
ENTROPY_END = Measure("H(Z|X), end, nats a token", of.last(ENTROPY))
ENTROPY_BEST = Measure("H(Z|X), when success is best, nats a token", of.at_best(ENTROPY))
ENTROPY_CHANGE = Measure("H(Z|X), end minus beginning, nats a token", of.change(ENTROPY))
SHORTER = Measure("rank correlation of reasoning length with the step", of.trend("reasoning_length"))
KEPT = Measure("share of groups kept, end minus beginning", of.change("kept_fraction"))
FLAT = Measure("groups of 8 without reward variance, end minus beginning", of.change("zero_variance_groups"))
FAIL = Measure("share of prompts that always fail, end minus beginning", of.change("tasks_all_fail"))
MIXED = Measure("share of prompts that sometimes succeed, end minus beginning", of.change("tasks_mixed"))
VARIANCE = Measure("mean reward variance, end minus beginning", of.change("reward_variance_mean"))
VALID_AND_MI = Measure("rank correlation of validity with retrieval over a run", of.together(RETRIEVAL, VALIDITY))
LOW_RETRIEVAL = 0.25
"""Twice chance, with 8 prompts: MI is low."""
VALID_AT_LEAST = Measure(
    f"mean validity of the ten steps around the scoring of least retrieval, in runs in which it fell below "
    f"{LOW_RETRIEVAL:g}",
    of.where_least(VALIDITY, RETRIEVAL, LOW_RETRIEVAL),
)
BUCKET_TREND = Measure("rank correlation of bucket and norm, with A = R - mean R", of.bucket_trend("task"))
TASK_RATIO = Measure("log of the norms' ratio, highest to lowest bucket, with A = R - mean R", of.bucket_ratio("task"))
STD_TREND = Measure("rank correlation of bucket and norm, as GRPO divides", of.bucket_trend("task_std"))
STD_RATIO = Measure("log of the norms' ratio, highest to lowest bucket, as GRPO divides", of.bucket_ratio("task_std"))
LOWEST_BUCKET = Measure(
    "log of the task's norm to the regularisers', lowest bucket", of.part_ratio(1, "task", "regulariser")
)
LOWEST_AS_TRAINED = Measure(
    "the same of the task's gradient as GRPO divides", of.part_ratio(1, "task_std", "regulariser")
)
OTHER_RATIO = Measure("log of the norms' ratio, highest to lowest bucket", of.bucket_ratio("regulariser"))


@dataclass(frozen=True)
class Setting:
    """Where a claim is tested. `arms`: one arm, or two whose difference, first minus second, is paired by seed."""

    source: str
    recipe: str
    arms: tuple[str, ...]
    steps: int
    least: int = 3

    def claim(self, says: str, measure: Measure, region: Region) -> Claim:
        """The claim about the mean over seeds."""
        names = " minus ".join(self.arms)
        return Claim(
            self.source,
            says,
            where(self.recipe, names, self.steps),
            measure.words,
            self._of(measure),
            region,
            self.least,
        )

    def _of(self, measure: Measure) -> Callable[[Pool], Estimate]:
        if len(self.arms) == 1:
            return lambda pool: pool.mean(self.recipe, self.arms[0], measure.metric, self.steps)
        more, less = self.arms
        return lambda pool: pool.paired(self.recipe, more, less, measure.metric, self.steps)


def where(recipe: str, arms: str, steps: int) -> str:
    """Environment, arms and horizon in words."""
    return f"{TITLE[recipe]}, {arms}, {steps} steps"


FILTERED = ("top_p", "none")


def lead() -> Iterator[Claim]:
    """The lead: does the filter keep reasoning true where MI cannot see it? Five seeds a side."""
    both = Setting("Beyond the paper", SOKOBAN, FILTERED, plan.LEAD_STEPS, least=5)
    yield both.claim("The filter raises success", LAST, above(0, WORTH))
    yield both.claim("The filter keeps more of the reasoning true", TRUE, above(0, SHARE))
    yield both.claim("MI does not tell the two apart", PROBE_END, within(0.2))
    yield both.claim("MI does not tell the two apart", MI_END, within(0.2))
    for arm in plan.BASE:
        own = Setting("Beyond the paper", SOKOBAN, (arm,), plan.LEAD_STEPS, least=5)
        yield own.claim("MI rises during training", PROBE_CHANGE, above(0))
        yield own.claim("The reasoning becomes less true", TRUE_CHANGE, below(0))
        yield own.claim("The answer follows less from the reasoning", LINK_CHANGE, below(0))
        yield own.claim("The answer follows less from the reasoning", LINK_SHARE, below(0))
        yield own.claim("The agent plays fewer actions", ACTIONS_CHANGE, below(-1))
    fresh = Setting("Beyond the paper", SOKOBAN, FILTERED, plan.LONG_STEPS)
    yield fresh.claim("With the filter the answer follows more from the reasoning", LINK_CHANGE, above(0))
    yield fresh.claim("With the filter the answer follows more from the reasoning", LINK_SHARE, above(0))
    yield fresh.claim("With the filter the agent plays more actions", ACTIONS_END, above(0))
    for arm in plan.BASE:
        own = Setting("Beyond the paper", SOKOBAN, (arm,), plan.LONG_STEPS)
        yield own.claim("The reasoning becomes less true than it was at first", TRUE_SINCE_FIRST, below(0))


def gradients() -> Iterator[Claim]:
    """Figure 3."""
    for arm in ("grpo_kl0.001", "ppo_kl0.001"):
        task = Setting("Figure 3a", SOKOBAN, (arm,), plan.GRADIENT_STEPS)
        yield task.claim("The task gradient grows with reward variance", BUCKET_TREND, above(0.5))
        yield task.claim("The task gradient grows with reward variance", TASK_RATIO, above(0))
        if arm.startswith("grpo"):
            yield task.claim("The task gradient grows with reward variance", STD_TREND, above(0.5))
            yield task.claim("The task gradient grows with reward variance", STD_RATIO, above(0))
        others = Setting("Figure 3c", SOKOBAN, (arm,), plan.GRADIENT_STEPS)
        yield others.claim("The regularisers' gradient is flat", OTHER_RATIO, within(0.25))
        low, says = Setting("Section 3.1", SOKOBAN, (arm,), plan.GRADIENT_STEPS), "the regularisers dominate the update"
        yield low.claim(f"Where reward variance is low, {says}", LOWEST_BUCKET, below(0))
        if arm.startswith("grpo"):
            yield low.claim(f"Where reward variance is low, {says}", LOWEST_AS_TRAINED, below(0))


def dynamics() -> Iterator[Claim]:
    """Figure 5 and section 4.2."""
    for recipe, steps in LONG.items():
        yield Setting("Figure 5a", recipe, FILTERED, steps).claim(
            "Filtering ends with more success", LAST, above(0, worth(recipe))
        )
        plain, both = (Setting("Figure 5b", recipe, arms, steps) for arms in (("none",), FILTERED))
        yield plain.claim("Without the filter MI degrades", RETRIEVAL_CHANGE, below(0))
        yield plain.claim("Without the filter MI degrades", PROBE_CHANGE, below(0))
        yield both.claim("The filter mitigates the decline of MI", RETRIEVAL_CHANGE, above(0))
        plain, both = (Setting("Figure 5c", recipe, arms, steps) for arms in (("none",), FILTERED))
        yield plain.claim("Without the filter entropy rises", ENTROPY_CHANGE, above(0))
        yield both.claim("The filter keeps entropy lower", ENTROPY_CHANGE, below(0))
    yield Claim(
        "Section 4.2",
        "MI declines before success does",
        "Sokoban and FrozenLake, none, runs whose success fell by 0.05 after MI could warn",
        "share of them in which smoothed MI-Seq-Est had lost 15% before",
        _warned,
        above(0.5),
        least=4,
    )


def _warned(pool: Pool) -> Estimate:
    runs = [run for recipe in LONG for run in pool.arm(recipe, "none", plan.LEAD_STEPS).values()]
    return of.warned(runs, MI, plan.LONG_STEPS)


def rules() -> Iterator[Claim]:
    """Figures 6 and 7."""
    for recipe, steps in SHORT.items():
        for arms in (FILTERED, ("top_p", "top_k0.25"), ("top_k0.25", "none")):
            less = "no filter" if arms[1] == "none" else arms[1]
            says = f"{arms[0]} ends with more success than {less}"
            yield Setting("Figure 6", recipe, arms, steps).claim(says, LAST, above(0, worth(recipe)))
    for recipe, steps in {**LONG, COUNTDOWN: SHORT[COUNTDOWN]}.items():
        says = "Reasoning becomes shorter and shorter"
        yield Setting("Figure 7", recipe, ("none",), steps).claim(says, SHORTER, below(0))


PLANE_ARMS = (*plan.BASE, *plan.REGULARISERS)
WITH_SUCCESS = {
    "trajectory/mi_zscore": ("Trajectory MI-ZScore goes with success", above(0)),
    "trajectory/retrieval_accuracy": ("Trajectory retrieval goes with success", above(0)),
    PER_TOKEN: ("First-turn MI-Est goes with success", above(0)),
    ENTROPY: ("H(Z|X) does not go with success", below(0.2)),
    "trajectory/marginal_entropy": ("H(Z) does not go with success", below(0.2)),
}
STRENGTHS = ("none", "top_p", "top_p0.5")


def diagnosis() -> Iterator[Claim]:
    """Figures 8 and 13, and the correlations of section 5.2."""
    steps = plan.SHORT_STEPS
    setting = where(SOKOBAN, "runs that differ in filter, entropy bonus and KL", steps)
    for key, (says, region) in WITH_SUCCESS.items():
        words = "rank correlation over the six arms of a seed"
        yield Claim("Figure 8", says, setting, words, _with_success(key), region)
    setting = where(SOKOBAN, "no filter, top_p 0.9, top_p 0.5", steps)
    for says, metric in (("MI is higher", of.last(PER_TOKEN)), ("success is higher", of.at_end(SUCCESS))):
        ranks = "rank correlation with the filter's strength"
        yield Claim("Figure 13", f"With a stronger filter {says}", setting, ranks, _with_strength(metric), above(0))
    for arm in ("none_ent0.1", "none_kl0.1"):
        both = Setting("Figure 13", SOKOBAN, (arm, "none"), steps)
        moved = "difference of H(Z|X) less that of MI-Est, each in its mean direction, end, nats a token"
        setting = where(SOKOBAN, f"{arm} minus none", steps)
        yield Claim("Figure 13", f"{arm} moves entropy more than MI", setting, moved, _shifted(arm), above(0))
        yield both.claim(f"{arm} does not raise success clearly", LAST, below(WORTH))
    for recipe in LONG:
        own = Setting("Section 5.2", recipe, ("none",), plan.LEAD_STEPS)
        for name, region in (("reward", above(0.3)), ("entropy", within(0.3)), ("length", within(0.3))):
            says = "goes with reward" if name == "reward" else f"hardly goes with {name}"
            measure = Measure("rank correlation over all groups of a run, however long", of.of_groups(name))
            yield own.claim(f"Reward variance {says}", measure, region)


def _with_success(key: str) -> Callable[[Pool], Estimate]:
    steps = plan.SHORT_STEPS
    return lambda pool: pool.across(SOKOBAN, PLANE_ARMS, of.at_end(key), of.at_end(SUCCESS), steps)


def _with_strength(metric: Metric) -> Callable[[Pool], Estimate]:
    return lambda pool: pool.ordered(SOKOBAN, STRENGTHS, metric, plan.SHORT_STEPS)


def _shifted(arm: str) -> Callable[[Pool], Estimate]:
    return lambda pool: of.shift(ENTROPY, PER_TOKEN, pool, SOKOBAN, arm, "none", plan.SHORT_STEPS)


def noise() -> Iterator[Claim]:
    """Figure 9, and the noise injection of section 5.2."""
    for level in plan.NOISE_LEVELS:
        arms = (plan.noise_arm("top_p", level), plan.noise_arm("none", level))
        if level in plan.MANY:
            setting = Setting("Figure 9", LAKE, arms, plan.SHORT_STEPS, least=5)
            yield setting.claim("No gap is left", LAST, within(WORTH))
        else:
            setting = Setting("Figure 9", LAKE, arms, plan.SHORT_STEPS)
            yield setting.claim("The filter keeps a clear advantage", LAST, above(0, worth(LAKE)))
    setting = where(LAKE, "top_p minus none, noise 0, 0.2 and 0.5 against 0.8 and 1", plan.SHORT_STEPS)
    words = "mean difference in the last validation at the lower levels, minus that at the higher ones"
    yield Claim("Figure 9", "The gap closes", setting, words, _narrowing, above(0))
    metrics = (
        ("top_p", "Figure 9", "Success falls as noise rises, also with the filter", LAST, below(-0.5)),
        ("none", "Figure 9", "Success falls as noise rises", LAST, below(-0.5)),
        ("none", "Section 5.2", "MI falls as noise rises", PROBE_END, below(-0.5)),
        ("none", "Section 5.2", "Entropy rises with noise", ENTROPY_END, above(0.5)),
    )
    for arm, source, says, measure, region in metrics:
        at = where(LAKE, f"{arm}, noise 0 to 1", plan.SHORT_STEPS)
        words = f"rank correlation of the level with: {measure.words}"
        yield Claim(source, says, at, words, _over_noise(arm, measure.metric), region)


def _narrowing(pool: Pool) -> Estimate:
    low = [level for level in plan.NOISE_LEVELS if level not in plan.MANY]
    near, far = ([(plan.noise_arm("top_p", at), plan.noise_arm("none", at)) for at in own] for own in (low, plan.MANY))
    return of.narrowing(pool, LAKE, near, far, LAST.metric, plan.SHORT_STEPS)


def _over_noise(arm: str, metric: Metric) -> Callable[[Pool], Estimate]:
    arms = tuple(plan.noise_arm(arm, level) for level in plan.NOISE_LEVELS)
    return lambda pool: pool.ordered(LAKE, arms, metric, plan.SHORT_STEPS)


def filter_at_work() -> Iterator[Claim]:
    """Figures 10, 11 and 12."""
    for recipe, steps in LONG.items():
        own = Setting("Figure 10", recipe, ("top_p",), steps)
        yield own.claim(
            "The filter keeps a smaller share of the groups at the end than at the beginning", KEPT, below(0)
        )
        yield own.claim("More prompts have no reward variance", FLAT, above(0))
    own = Setting("Figure 11", SOKOBAN, ("top_p",), plan.LONG_STEPS)
    yield own.claim("The hard portion shrinks", FAIL, below(0))
    yield own.claim("The mixed portion expands", MIXED, above(0))
    yield own.claim("Reward variance is lower at the end than at the beginning", VARIANCE, below(0))
    for recipe, steps in LONG.items():
        own = Setting("Figure 12", recipe, ("none",), steps)
        yield own.claim("Format validity is decoupled from MI", VALID_AND_MI, within(0.3))
        yield own.claim("Validity stays near perfect while MI is low", VALID_AT_LEAST, above(0.95))


TABLE_4 = {
    "GRPO": FILTERED,
    "PPO": ("ppo_top_p", "ppo_none"),
    "DAPO": ("dapo_top_p", "dapo_none"),
    "Dr. GRPO": ("dr_grpo_top_p", "dr_grpo_none"),
}


UNLIKE = {(SOKOBAN, "Dr. GRPO"): " (in the paper's cell it lowers it by 0.004)"}
"""Cells that say the contrary of what the paper's text says of most."""


def algorithms() -> Iterator[Claim]:
    """Table 4: the algorithms."""
    for recipe in LONG:
        for name, arms in TABLE_4.items():
            setting = Setting("Table 4", recipe, arms, SHORT[recipe])
            says = f"Filtering raises the peak success of {name}{UNLIKE.get((recipe, name), '')}"
            yield setting.claim(says, BEST, above(0, worth(recipe, name)))
    own = Setting("Table 4", COUNTDOWN, FILTERED, SHORT[COUNTDOWN])
    yield own.claim("Filtering raises the peak success of GRPO", BEST, above(0, worth(COUNTDOWN)))


def ablation() -> Iterator[Claim]:
    """Table 5; its top-p is Table 4's GRPO on Sokoban and stands there."""
    steps = plan.SHORT_STEPS
    for arm in ("top_p0.5", "min_p0.05", "min_p0.2", "top_k0.25", "top_k0.5"):
        setting = Setting("Table 5", SOKOBAN, (arm, "none"), steps)
        yield setting.claim(f"{arm} raises peak success", BEST, above(0, WORTH))
    for arm in ("reward_sum", "entropy", "entropy_variance", "length"):
        by_variance = "top_k0.5" if arm == "reward_sum" else "top_p"  # under the same rule as the arm's own
        setting = Setting("Table 5", SOKOBAN, (by_variance, arm), steps)
        yield setting.claim(f"Reward variance is a better criterion than {arm}", BEST, above(0, WORTH))
    keep = Setting("Table 5", SOKOBAN, ("top_k0.5", "smallest"), steps)
    yield keep.claim("Keeping the largest is better than the smallest", BEST, above(0, WORTH))
    yield keep.claim("Keeping the largest preserves MI", RETRIEVAL_BEST, above(0))
    yield keep.claim("Keeping the smallest raises entropy", ENTROPY_BEST, below(0))
    plain = Setting("Table 5", SOKOBAN, ("none",), plan.LONG_STEPS)
    yield plain.claim("Without the filter training collapses", WORST, below(0.01))


NOT_COVERED = {
    "Figures 1, 2 and 4": "drawings of the idea",
    "Tables 1 and 2": "definitions; [known-truth.md](known-truth.md) compares the estimators with known information",
    "Table 3": "the environments' properties, held by the tests of each environment",
    "Figure 3b, substantial task gradients where reward variance is near 0": "the paper does not say how large",
    "Table 4, model scale and type": "models of 0.5 to 7 billion parameters; [one of 135 million](real-model-study.md) "
    "was trained",
    "Table 4, modality": "needs a vision-language model",
    "Table 4, MetaMathQA": "as Figure 6's",
    "Section 5.1, too much entropy collapses performance": "no row compares the success of these arms",
    "Section 5.1, MI predicts performance twice as reliably as entropy": "no row has the ratio",
    "Figure 6, MetaMathQA": "needs its data set and a model that can do arithmetic in words",
    "Figure 7, other testbeds": "five of its eight environments belong to other projects",
    "Figure 8, MI-ZScore-EMA": "of the z-scores the row has MI-ZScore of the trajectory; the files hold both",
    "Table 5, MI and entropy of the sampling strategies and the filtering metrics": "the files hold both",
    "Table 5, which other arms are stable": "they make 60 steps, and a collapse may come later",
    "Appendices H to N": "theorems",
}
"""The parts of the paper that no row covers, and why."""


def every_claim() -> list[Claim]:
    """All claims, in the order of the page."""
    found = (lead, gradients, dynamics, rules, diagnosis, noise, filter_at_work, algorithms, ablation)
    return [claim for claims in found for claim in claims()]
