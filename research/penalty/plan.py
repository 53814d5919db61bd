"""Four questions about one effect, and the runs that answer them. All of it was fixed before the first run. Pure.

Divided by the group's standard deviation and without a filter, the Sokoban agent learns to play one action a turn, and
its success falls (docs/research/mechanism.md, three seeds, exploratory). An account: where every attempt of a group
fails only the penalty of an action differs, and the division makes it as large as success.

    setting   Sokoban, GRPO, constant rate 1e-4, no KL term, entropy bonus 0.001, token_mean; 90 steps; seeds 20 to 24.
              Filter top_p: rule top_p 0.9, absolute epsilon 0.01. One warm-up a seed is shared by all of its arms, also
              across action rewards: half of its demonstrations show the rewards of each, and their actions do not
              depend on them. Equal weights are shown by their checksum. No arm stops early; a step of which nothing is
              kept is skipped
    success   on the 512 fixed validation tasks after step 90
    actions   an episode, in training; a change is the last ten steps minus the first ten
    tests     differences paired by seed, two-sided 95% t-intervals over five seeds; "within 0.05" and "as good as" ask
              that the 90% interval lies within 0.05 of 0. Every seed's value is printed. The questions are tested in
              this order, and one is confirmatory only if those before it were decided, so nothing is corrected for
              their number; all else is exploratory. Judged once, at five seeds; before that "n of 5 seeds". A cell that
              failed is repeated with its own seed and counted; none is left out

    P  Is it the penalty?   std_none and std_top_p at an action reward of -0.1, free_none and free_top_p at 0.
         primary      the interaction on success, (top_p - none at -0.1) - (top_p - none at 0)
         holds        its interval is above 0, and top_p - none at 0 is within 0.05
         falsified    the 90% interval of top_p - none at 0 is above 0.05
         secondary    the change of actions: -2.5 or lower in std_none alone. If success falls there while the actions
                      stay above 7, the account is wrong
    A  Does one divisor do what the filter does?   window_none: divided by the root of the window's mean group variance.
         primary      window_none - std_none on success, above 0
         then         window_none - std_top_p: as good as
         record       window_top_p, last, for the interaction of divisor and filter that the closed study asked for
    B  Do regularisers harm through groups of low variance?   Divisor window, bonus 0.1, sequence_mean (under token_mean
       the longer groups of low variance get the larger dose), `filter.target=regulariser`, top_k 0.5 with zeros
       included: the bonus is on the half of largest variance (largest) or of smallest (smallest).
         condition    the summed weight of the bonus is equal in both arms, to 1%
         primary      largest - smallest on success, above 0. "Only the dose matters" asks that it is within 0.05
         then         the same of MI at the last evaluation of the probe (every 30 steps) at which both have a format
                      validity of at least 0.9 over ten steps
    C  Template or noise?   No filter, divisor window, bonus 0.03 and 0.1, 300 steps, seeds 20 to 22: exploratory.
         noise        MI of the probe falls while H(Z|X) rises, or while validity ends below 0.9
         template     MI falls with both steady: H(Z|X) changes by less than 10%, and validity ends at 0.9 or above

    power     at 80%, five seeds, with the deviations of the three seeds before: 0.07 of success for the interaction
              (0.15 at the upper 80% bound of its deviation), 0.05 for a difference of two arms (0.10). "Within 0.05" is
              found, if there is no difference, with 0.89 at a deviation of 0.028 and 0.40 at 0.045
    order     by seed std_none, std_top_p, free_none, free_top_p, window_none; then B by seed; window_top_p; C. After
              three seeds of the first block: a statement, no verdict. Cut first: C, then window_top_p, then B
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from research.cells import StudyCell

Settings = Mapping[str, Any]
RECIPE, STEPS, LONG_STEPS = "sokoban", 90, 300
SEEDS, LONG_SEEDS = (20, 21, 22, 23, 24), (20, 21, 22)
STEP_S = 5.2
"""Expected seconds of a step on two idle cores, validation, scoring and the probe included."""
ROOM, LONG_ROOM = 35.0, 75.0
"""Minutes that must be left when a cell is started: the slowest earlier ones took them."""
COMMON = (
    *("recorder.report=false", "recorder.port=0", "scorer.every=10", "scorer.probe.every=30", "validation.every=30"),
    *("loop.checkpoint_every=30", "loop.keep_checkpoints=1", "filter.no_signal_limit=1000"),
    *("learner.optimizer.decay_steps=0", "learner.optimizer.learning_rate=1e-4"),
)
BONUS = "learner.objective.entropy_coefficient"
NONE: Settings = {"filter.rule": "none"}
TOP_P: Settings = {
    "filter.rule": "top_p",
    "filter.rho": 0.9,
    "filter.epsilon": 0.01,
    "filter.epsilon_unit": "absolute",
}
FREE: Settings = {"environment.options.action_reward": 0.0}
WINDOW: Settings = {"learner.objective.divisor": "window"}
SPARING: Settings = {
    **WINDOW,
    BONUS: 0.1,
    "learner.objective.aggregation": "sequence_mean",
    "filter.target": "regulariser",
    "filter.rule": "top_k",
    "filter.rho": 0.5,
    "filter.include_zero": True,
}
FIRST: Mapping[str, Settings] = {
    "std_none": NONE,
    "std_top_p": TOP_P,
    "free_none": {**NONE, **FREE},
    "free_top_p": {**TOP_P, **FREE},
    "window_none": {**NONE, **WINDOW},
}
REGULARISERS: Mapping[str, Settings] = {keep: {**SPARING, "filter.keep": keep} for keep in ("largest", "smallest")}
RECORD: Mapping[str, Settings] = {"window_top_p": {**TOP_P, **WINDOW}}
LONG: Mapping[str, Settings] = {f"bonus{bonus:g}": {**NONE, **WINDOW, BONUS: bonus} for bonus in (0.03, 0.1)}
PARTS: Mapping[str, Mapping[str, Settings]] = {
    "first": FIRST,
    "regularisers": REGULARISERS,
    "record": RECORD,
    "long": LONG,
}
"""The arms by part, in the order in which the parts are run."""


def warm_up_folder(seed: int) -> str:
    """Where the warm-up of a seed is built, from the folder in which the study runs."""
    return f".cache/tiny/penalty-sokoban-{seed}"


def every_cell() -> Iterator[StudyCell]:
    """The cells, those of the first three questions seed by seed."""
    for part, arms in PARTS.items():
        long = part == "long"
        for seed in LONG_SEEDS if long else SEEDS:
            for arm, chosen in arms.items():
                settings = {**chosen, "model.path": warm_up_folder(seed)}
                steps, room = (LONG_STEPS, LONG_ROOM) if long else (STEPS, ROOM)
                yield StudyCell(part, RECIPE, arm, settings, seed, steps, STEP_S, room)
