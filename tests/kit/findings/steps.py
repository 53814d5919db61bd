"""Steps of a healthy run, made up, and each finding's planted fault."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from squelch.kit.findings.finder import Change, Findings
from squelch.kit.findings.view import StepView

Metrics = dict[str, float]
Fault = Callable[[int], Mapping[str, float]]


def healthy(step: int) -> Metrics:
    """The metrics of a step of a run that learns, with noise; every fifth step is scored, every twentieth validated."""
    noise = random.Random(step)
    learned = min(1.0, step / 200)
    found = {
        **{"success": 0.3 + 0.4 * learned + noise.gauss(0, 0.05), "format_validity": 0.98 + noise.uniform(-0.01, 0.01)},
        **{"reward_mean": 0.3 + 0.4 * learned + noise.gauss(0, 0.05), "reward_variance_mean": 0.15},
        **{"num_groups": 16.0, "refused_groups": 0.0, "zero_variance_groups": float(noise.randint(2, 7))},
        **{"tasks_all_fail": 0.15, "tasks_mixed": 0.7, "tasks_all_succeed": 0.15, "updates_skipped": 0.0},
        **{"trajectories": 256.0, "trajectories_failed": 0.0, "actions_per_turn": 1.0},
        **{"turns_cut/reasoning": 0.01, "turns_cut/answer": 0.0, "reasoning_length": 20 + noise.gauss(0, 2)},
        **{"learner/entropy": 0.9 - 0.3 * learned, "rollout_entropy": 0.9 - 0.3 * learned, "learner/kl": 0.05},
        **{"learner/clip_fraction_low": 0.01, "learner/clip_fraction_high": 0.02},
        **{"learner/grad_norm": noise.lognormvariate(0, 0.4), "learner/explained_variance": 0.4},
        **{"learner/mismatch_on_policy": 0.004, "learner/effective_sample_size": 0.97, "staleness_mean": 0.0},
        **{"ledger/failed/refused_by_learner": 0.0, "gaming/raised": 0.0, "collapsed": 0.0},
        **{"alarm/raised": 0.0, "alarm/blind": 0.0, "judge/untrue": 0.0, "probe/alarm/mi": 0.0},
        **{"probe/alarm/dependence": 0.0, "tasks/never_solved": 0.1, "tasks/always_solved": 0.1},
        **{"texts/repetition": 0.05, "texts/one_text": 0.1, "groups/tokens_without_signal": 0.25},
        **{"groups/length_correlation": 0.05, "groups/length_correlation_low": -0.1, "groups/format_variance": 0.05},
        **{"groups/term/right": 0.6, "groups/term/format": 0.4, "groups/differing_prompts": 0.0},
        **{"seconds/step": 3 + noise.uniform(-0.5, 0.5), "seconds/rollout": 2.0, "seconds/train": 0.8},
    }
    if step % 5 == 0:
        found |= {"scorer/step": float(step), "first_turn/mi_seq_est": 1.5, "first_turn/mi_seq_est_p_value": 0.001}
        found |= {
            "first_turn/retrieval_accuracy": 0.7,
            "first_turn/retrieval_chance": 0.06,
            "first_turn/reasoned": 0.99,
        }
        found |= {"first_turn/num_prompts": 16.0, "first_turn/num_samples": 240.0, "first_turn/num_excluded": 16.0}
        found |= {"probe/link/dependence": 2.0, "probe/link/dependence_share": 0.7, "probe/link/surprise": 2.9}
        found |= {"probe/link/follows": 1.0, "probe/saturated": 0.0}
    if step % 20 == 0:
        success = 0.3 + 0.4 * learned
        found |= {"validation/success": success, "validation/success_low": success - 0.04}
        found |= {"validation/success_high": success + 0.04}
    return found


def at_scorer_steps(**faults: float) -> Fault:
    """These keys, whose `__` is `/`, in scorer steps alone."""
    found = {key.replace("__", "/"): value for key, value in faults.items()}
    return lambda step: found if step % 5 == 0 else {}


def constant(**faults: float) -> Fault:
    """These keys, whose `__` is `/`, in every step."""
    found = {key.replace("__", "/"): value for key, value in faults.items()}
    return lambda _: found


FALLEN = {"validation/success": 0.2, "validation/success_low": 0.16, "validation/success_high": 0.24}
GONE = {"validation/success": 0.0, "validation/success_low": 0.0, "validation/success_high": 0.01}
FAULTY_FROM = 40
"""The first step with the fault."""
PLANTED: dict[str, tuple[Fault, str, int]] = {
    "trajectories_fail": (constant(trajectories=0.0, trajectories_failed=256.0), "critical", 20),
    "groups_refused": (constant(refused_groups=16.0), "critical", 20),
    "prompts_differ": (constant(groups__differing_prompts=1.0), "notice", 20),
    "step_bound": (constant(seconds__step=10.0, seconds__rollout=9.5), "notice", 20),
    "steps_slow_down": (constant(seconds__step=9.0, seconds__rollout=4.0), "notice", 20),
    "reasoning_ignores_prompt": (
        at_scorer_steps(first_turn__mi_seq_est_p_value=0.6, first_turn__retrieval_accuracy=0.07),
        "critical",
        15,
    ),
    "answer_ignores_reasoning": (at_scorer_steps(probe__link__dependence_share=0.04), "warning", 15),
    "one_text": (constant(texts__one_text=0.9), "warning", 20),
    "dependence_falls": (constant(alarm__raised=1.0, alarm__reward_trend=1.0), "warning", 20),
    "probe_falls": (constant(probe__alarm__dependence=1.0), "warning", 20),
    "reasoning_mute": (at_scorer_steps(first_turn__reasoned=0.2), "warning", 15),
    "reasoning_untrue": (constant(judge__untrue=1.0, judge__true_share=0.1), "warning", 20),
    "reasoning_blind": (constant(alarm__blind=1.0), "warning", 20),
    "nothing_scorable": (
        at_scorer_steps(first_turn__mi_seq_est=float("nan"), first_turn__excluded__unclosed=250.0),
        "warning",
        15,
    ),
    "probe_at_ceiling": (at_scorer_steps(probe__saturated=1.0), "notice", 15),
    "texts_shrink": (constant(reasoning_length=2.0), "warning", 20),
    "texts_grow": (constant(reasoning_length=100.0), "warning", 20),
    "repetition": (constant(texts__repetition=0.7), "warning", 20),
    "actions_fall": (constant(actions_per_turn=0.5, success=0.1), "warning", 20),
    "turns_cut": (constant(turns_cut__reasoning=0.97), "critical", 20),
    "format_invalid": (constant(format_validity=0.01), "warning", 20),
    "none_solved": (
        constant(tasks_all_fail=1.0, tasks_all_succeed=0.0, zero_variance_groups=16.0, success=0.0),
        "warning",
        20,
    ),
    "all_solved": (constant(tasks_all_fail=0.0, tasks_all_succeed=1.0, zero_variance_groups=16.0), "warning", 20),
    "equal_rewards": (constant(tasks_all_fail=0.0, tasks_all_succeed=0.0, zero_variance_groups=15.0), "warning", 20),
    "tokens_wasted": (constant(groups__tokens_without_signal=0.9), "notice", 20),
    "reward_constant": (constant(reward_variance_mean=0.0, reward_mean=0.0), "critical", 20),
    "reward_saturated": (constant(success=1.0), "notice", 20),
    "reward_plateau": (lambda step: {"reward_mean": 0.5 + 0.01 * (step % 2)}, "notice", 60),
    "reward_by_length": (constant(groups__length_correlation_low=0.75, groups__length_correlation=0.8), "warning", 20),
    "reward_by_format": (constant(groups__format_variance=0.9), "warning", 20),
    "reward_by_one_term": (constant(groups__term__right=0.05, groups__term__format=0.95), "warning", 20),
    "criterion_gamed": (constant(gaming__raised=1.0, gaming__variance_rise=0.4), "warning", 20),
    "reward_hacked": (lambda step: FALLEN if step % 20 == 0 else {}, "critical", 41),
    "validation_falls": (
        lambda step: {"reward_mean": 0.3, **(FALLEN if step % 20 == 0 else {})},
        "warning",
        41,
    ),
    "success_collapsed": (
        lambda step: {"collapsed": 1.0, **(GONE if step % 20 == 0 else {})},
        "critical",
        41,
    ),
    "tasks_never_solved": (constant(tasks__never_solved=0.8), "notice", 20),
    "tasks_always_solved": (constant(tasks__always_solved=0.8), "notice", 20),
    "entropy_falls": (constant(learner__entropy=0.01), "warning", 20),
    "entropy_explodes": (constant(learner__entropy=4.0), "warning", 20),
    "kl_high": (constant(learner__kl=20.0), "critical", 20),
    "updates_clipped": (constant(learner__clip_fraction_low=0.3, learner__clip_fraction_high=0.2), "warning", 20),
    "gradient_spikes": (lambda step: {"learner/grad_norm": 50.0} if step % 4 == 0 else {}, "warning", 20),
    "gradient_vanishes": (constant(learner__grad_norm=1e-4), "notice", 20),
    "gradient_zero": (constant(updates_skipped=1.0), "warning", 20),
    "critic_explains_nothing": (constant(learner__explained_variance=-1.0), "warning", 20),
    "engine_differs": (constant(learner__mismatch_on_policy=0.8), "critical", 20),
    "updates_refused": (lambda step: {"ledger/failed/refused_by_learner": float(step - 38)}, "warning", 20),
    "groups_stale": (constant(learner__effective_sample_size=0.3, staleness_mean=4.0), "warning", 20),
}
"""The fault, the severity that it reaches, and within how many steps."""


def follow(findings: Findings, steps: range, fault: Fault = lambda _: {}) -> list[Change]:
    """The changes of healthy steps with a fault."""
    return [change for step in steps for change in findings.step(StepView(step, {**healthy(step), **fault(step)}))[1]]
