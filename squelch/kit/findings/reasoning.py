"""Levels of the reasoning: does it exist, depend on its prompt, lead to the answer, and say something new? Pure.

Most are of scorer steps, which have MI; the fixed probe has D (docs/guide/reasoning.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from squelch.kit.diagnosis.regime import REASONED_SHARE, UNMARKED, RegimeInputs
from squelch.kit.findings.history import History
from squelch.kit.findings.level import Level, Levels, of_key, smoothed

SIGNIFICANT, MUTE, UNSCORED = "reasoning/significant", "reasoning/mute", "reasoning/unscored"
FEWEST_ANSWERS = 8
LEAST_SURPRISE = 0.05
"""Nats of an answer below which there is nothing that its reasoning could explain."""
RISEN = 0.02
"""How far success must be above that at the start to have risen."""


def derived(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """Of a scorer step: whether the reasoning exists, can be scored, and depends on its prompt."""
    scope = {
        key.removeprefix("first_turn/"): math.nan if value is None else value
        for key, value in metrics.items()
        if key.startswith("first_turn/")
    }
    if not scope or "completion/dependence" in metrics:  # of whole completions no reasoning is known
        return {}
    inputs = RegimeInputs.of(scope)
    scored, failed = scope.get("num_samples", math.nan), scope.get("excluded/failed", 0.0)
    left = max(0.0, scope.get("num_excluded", 0.0) - failed)
    total = left + (0.0 if math.isnan(scored) else scored)
    mute = inputs.reasoned < REASONED_SHARE and not scope.get("excluded/unclosed", 0.0) >= REASONED_SHARE * max(
        total, 1
    )
    unscored: float | None = left / total if total else 0.0
    if math.isnan(inputs.mi_seq_est):
        unscored = None if failed and not total else 1.0  # that trajectories failed is another finding
    return {
        MUTE: float(mute),
        UNSCORED: None if mute else unscored,
        SIGNIFICANT: float(inputs.significant) if inputs.known and not mute else None,
    }


def _ignores_prompt(history: History) -> Level | None:
    significant = history.now(SIGNIFICANT)
    if significant is None:
        return None
    before = history.last(SIGNIFICANT)
    number = int(history.now("first_turn/num_prompts") or 0)
    mi, accuracy, chance = (
        history.now(f"first_turn/{key}") for key in ("mi_seq_est", "retrieval_accuracy", "retrieval_chance")
    )
    facts = {"mi": mi, "accuracy": accuracy, "chance": chance, "prompts": number}
    # 2: it depended on the prompt once, in three scorings of the window, so that too few prompts are not the reason
    return Level(0.0 if significant else 2.0 if sum(before) >= 3 else 1.0, facts)


def _answer_ignores(history: History) -> Level | None:
    """By the upper end of D's share where its interval is known."""
    dependence, follows, answers, surprise, share, high = (
        history.now(f"probe/link/{key}")
        for key in ("dependence", "follows", "answers", "surprise", "dependence_share", "dependence_share_high")
    )
    few = answers is not None and answers < FEWEST_ANSWERS
    if dependence is None or few or (surprise is not None and surprise < LEAST_SURPRISE):
        return None
    facts = {"share": max(0.0, share or 0.0), "dependence": dependence}
    if share is None:
        return None if follows is None else Level(1 - follows, facts)
    return Level(1 - (share if high is None else high), facts)


def _mute(history: History) -> Level | None:
    mute = history.now(MUTE)
    if mute is None:
        return None
    had = 0.0 in history.last(MUTE)
    reasoned = history.now("first_turn/reasoned") or 0.0
    said, regime = "The reasoning has fallen silent" if had else "The policy writes no reasoning", "mute"
    if history.now(f"first_turn/regime/{UNMARKED}") == 1.0:
        said, regime = "No turn marks a reasoning", UNMARKED
    return Level(mute * (1.0 if had else 0.5), {"said": said, "reasoned": reasoned, "regime": regime})


def _unscored(history: History) -> Level | None:
    share = history.now(UNSCORED)
    if share is None:
        return None
    reasons = {
        "have no end, such as </think>": history.now("first_turn/excluded/unclosed"),
        "are empty": history.now("first_turn/excluded/empty"),
        "are longer than the scorer takes": history.now("first_turn/excluded/too_long"),
        "are of one prompt alone": history.now("first_turn/excluded/one_prompt"),
        "have no finite likelihood": history.now("first_turn/excluded/non_finite"),
        "are samples of other weights": history.now("first_turn/excluded/stale"),
        "are of trajectories without a turn": history.now("first_turn/excluded/no_turn"),
    }
    known = {reason: count for reason, count in reasons.items() if count}
    most = max(known, key=lambda reason: known[reason], default=None)
    return Level(share, {"why": "no prompt has two" if most is None else f"{known[most]:.0f} {most}"})


def _true_share(history: History) -> Level | None:
    untrue, share = history.now("judge/untrue"), history.now("judge/true_share")
    return None if untrue is None else Level(untrue, {"share": share or 0.0})


def _probe_falls(history: History) -> Level | None:
    raised = {name: history.now(f"probe/alarm/{name}") for name in ("mi", "dependence")}
    if all(value is None for value in raised.values()):
        return None
    words = {
        "mi": "the reasoning tells less about its task",
        "dependence": "the answer follows less from the reasoning",
    }
    said = [words[name] for name, value in raised.items() if value]
    return Level(float(bool(said)), {"said": " and ".join(said)})


def _dependence_falls(history: History) -> Level | None:
    raised = history.now("alarm/raised")
    trend = history.now("alarm/reward_trend") or 0.0
    return None if raised is None else Level(raised, {"reward": {1.0: "rises", -1.0: "falls"}.get(trend, "is flat")})


def _length(history: History) -> tuple[float, dict[str, float]] | None:
    ratio = history.change("reasoning_length")
    if ratio is None:
        return None
    return ratio, {"before": history.early("reasoning_length") or 0.0, "now": history.recent("reasoning_length") or 0.0}


def _shrinks(history: History) -> Level | None:
    found = _length(history)
    return None if found is None else Level(1 - found[0], found[1])


def _grows(history: History) -> Level | None:
    found = _length(history)
    return None if found is None else Level(found[0], found[1])


def _actions_fall(history: History) -> Level | None:
    ratio, success = history.change("actions_per_turn"), history.recent("success", 10)
    before = history.early("success")
    if ratio is None or success is None or before is None:
        return None
    facts = {"before": history.early("actions_per_turn"), "now": history.recent("actions_per_turn")}
    return Level(
        1 - ratio if success < before + RISEN else 0.0, {**facts, "success_before": before, "success": success}
    )


LEVELS: Levels = {
    "reasoning_ignores_prompt": _ignores_prompt,
    "answer_ignores_reasoning": _answer_ignores,
    "one_text": of_key("texts/one_text"),
    "dependence_falls": _dependence_falls,
    "probe_falls": _probe_falls,
    "reasoning_mute": _mute,
    "reasoning_untrue": _true_share,
    "reasoning_blind": of_key("alarm/blind"),
    "nothing_scorable": _unscored,
    "probe_at_ceiling": of_key("probe/saturated"),
    "texts_shrink": _shrinks,
    "texts_grow": _grows,
    "repetition": smoothed("texts/repetition", 3),
    "actions_fall": _actions_fall,
}
