"""Alert rules, as data, checked against the metric registry; `deploy.dashboards` writes them to `alerts.yml` beside it.

Each rule has a section in docs/guide/runbook.md, to which its annotation `runbook_url` leads. A rule names neither run
nor environment: those are labels of `squelch_run_info`, which the runbook's first section says how to join.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from squelch.deploy.boards.panel import selector as series

JOB = "squelch"
"""Name of the scrape job in `deploy/prometheus.yml`."""
RUNBOOK = "docs/guide/runbook.md"
"""Path in the repository; whoever serves the docs puts their address before it."""
STALLED_AFTER_S = 900
SILENT_AFTER_S = 30
STARVED = 0.2
"""Of the time; a step of Qwen2.5-0.5B that was measured on an H200 kept it busy for 0.31."""
_RETRIEVAL = series("squelch_retrieval_accuracy_ratio", scope="first_turn")
_CHANCE = series("squelch_retrieval_chance_ratio", scope="first_turn")
_RUN = "instance, job"
"""The labels by which series of one run are matched."""
_PRIVATE_CODE = series("squelch_reasoning_regime", scope="first_turn", regime="private_code")


def _late_actor() -> str:
    """The actor with work to do that has made no progress for longest, as the label `party`; if all make progress, the
    one for which the coordinator has waited longest over the run."""
    silent = f"{series('squelch_without_progress_seconds')} > {SILENT_AFTER_S}"
    hung = f'topk by ({_RUN}) (1, max by ({_RUN}, party) (label_replace({silent}, "party", "$1", "actor", "(.+)")))'
    waits = series("squelch_wait_seconds_total", waiter="coordinator")
    slow = f'topk by ({_RUN}) (1, sum by ({_RUN}, party) (label_replace({waits}, "party", "$1", "waited_for", "(.+)")))'
    return f"({hung} or ({slow} unless on ({_RUN}) {hung}))"


def _stalled() -> str:
    """The actor that a run without progress waits for. A run that has not finished its first step counts from the start
    of its process."""
    started = f"process_start_time_seconds and on ({_RUN}) {series('squelch_run_info')}"
    last = f"{series('squelch_last_step_timestamp_seconds')} >= 0 or {started}"
    late = f"time() - ({last}) > {STALLED_AFTER_S}"
    over = f"{series('squelch_step')} >= {series('squelch_planned_steps')}"
    return f"{_late_actor()} and on ({_RUN}) ({late} unless {over})"


def _weights_differ() -> str:
    half = f"0.5 * {series('squelch_weight_parity_limit_nats')}"
    return f"{series('squelch_weight_parity_nats')} > on ({_RUN}) group_left () {half}"


def _stale() -> str:
    limit = series("squelch_staleness_limit_versions")
    near = f"{series('squelch_staleness_mean_versions')} >= 0.9 * {limit} and {limit} > 0"
    return f"{near} and {series('squelch_learner_effective_sample_size_ratio')} < 0.9"


def _disk() -> str:
    free = series("squelch_disk_free_bytes")
    return f"{free} < 0.05 * {series('squelch_disk_size_bytes')} or predict_linear({free}[1h], 4 * 3600) < 0"


@dataclass(frozen=True)
class AlertRule:
    """One rule, which fires when `expr` has held for `hold`. `advice`: its meaning, and what to check; `blind_when`: in
    which healthy runs its metrics have no value."""

    name: str
    expr: str
    hold: str
    severity: str
    summary: str
    advice: str
    blind_when: str = ""


RULES = (
    AlertRule(
        "SquelchTemplateCollapseSuspected",
        f"{series('squelch_reasoning_regime', scope='first_turn', regime='template')} == 1",
        "2m",
        "critical",
        "Reasoning has become a template",
        "In the last scorer step the reasoning does not differ significantly from reasoning that ignores its input "
        "(section 2.2), while entropy may look healthy. Read a few reasonings of different tasks. The runbook says "
        "which checkpoint to go back to.",
    ),
    AlertRule(
        "SquelchReasoningBlind",
        f"{series('squelch_reasoning_blind')} == 1",
        "2m",
        "warning",
        "The reasoning does without the pictures that alone show the task",
        "Mutual information is significant and comes from the text: under other pictures the reasoning is as likely. "
        "It repeats what earlier turns say, or guesses. Check squelch_modality_nats; read a few reasonings beside "
        "their pictures.",
        blind_when="text shows the task too, or nothing shows it as a picture",
    ),
    AlertRule(
        "SquelchReasoningDecorative",
        f"{series('squelch_reasoning_regime', scope='first_turn', regime='decorative')} == 1",
        "2m",
        "warning",
        "The answer no longer follows from the reasoning",
        "The reasoning still depends on its input, and on the fixed probe's tasks the answer is as likely after the "
        "reasoning of another task. The reward trains the answer alone. Check squelch_answer_link_nats: a large "
        "past_reasoning says that the answer is read off the prompt.",
    ),
    AlertRule(
        "SquelchReasoningPrivateCode",
        f"{_PRIVATE_CODE} == 1",
        "2m",
        "warning",
        "Reasoning on which the answer depends is no longer true",
        "Input and answer depend on the reasoning, and the judge's share of true statements is below half of the run's "
        "baseline: its words mean something else than they say. Mutual information and entropy look healthy. Do not "
        "trust the reasoning as an explanation; compare with an earlier checkpoint.",
    ),
    AlertRule(
        "SquelchReasoningUntrue",
        f"{series('squelch_reasoning_untrue')} == 1 unless on ({_RUN}) {_PRIVATE_CODE} == 1",
        "2m",
        "warning",
        "The reasoning is no longer true",
        "Of the first-turn reasonings that state anything, the judge's share of true ones is below half of the run's "
        "baseline. Whether the answer depends on them is not known, or it does not. Mutual information and entropy may "
        "look healthy. Read a few reasonings; compare with an earlier checkpoint.",
    ),
    AlertRule(
        "SquelchReasoningMute",
        f"{series('squelch_reasoning_regime', scope='first_turn', regime='mute')} == 1",
        "2m",
        "warning",
        "Most turns have no reasoning any more",
        "Fewer than half of the first turns in the last scorer step have any reasoning. The other metrics describe the "
        "rest or are unknown, so that no other alert fires. Check what the reward pays for: a length or format reward "
        "may pay for silence.",
    ),
    AlertRule(
        "SquelchReasoningIgnoresInput",
        f"{_RETRIEVAL} < 1.5 * {_CHANCE}",
        "5m",
        "critical",
        "Reasoning no longer depends on its input",
        "First-turn retrieval accuracy is below 1.5 times chance: template collapse, whatever the entropy says. "
        "Check the filter's kept mass and the regularisers. The runbook says which checkpoint to go back to.",
    ),
    AlertRule(
        "SquelchDependenceFalling",
        f"{series('squelch_dependence_alarm')} == 1",
        "0m",
        "warning",
        "Input dependence of the reasoning is falling",
        "The change-point alarm on MI-Seq-Est: since step squelch_dependence_falling_since_step the estimate has left "
        "the run's best level by more than noise, whatever the reward does (squelch_dependence_reward_trend). Check "
        "the regime, the filter's kept mass and the regularisers before the reward falls.",
    ),
    AlertRule(
        "SquelchProbeFalling",
        f"{series('squelch_probe_alarm')} == 1",
        "0m",
        "warning",
        "On the fixed probe the reasoning depends less on its task, or the answer less on the reasoning",
        "The change-point alarm on the fixed probe, on the same tasks at every evaluation. figure=mi: the reasoning "
        "depends less on its task than at the run's best level. figure=dependence: the answer depends less on its "
        "reasoning. Check the regime, the judge and the reward's make-up before success falls.",
    ),
    AlertRule(
        "SquelchRewardVarianceCollapsed",
        f"{series('squelch_low_spread_streak')} >= 5",
        "0m",
        "critical",
        "The spread of rewards has been below 10% of its start for five steps",
        "The groups' rewards hardly differ, so that the gradient of the task is lost in that of the regularisers. "
        "The paper stops a run here (validation.early_stop). Check success: near 1 the tasks are too easy, near 0 too "
        "hard.",
    ),
    AlertRule(
        "SquelchNoSignal",
        f"{series('squelch_no_signal_streak')} >= 3",
        "0m",
        "warning",
        "The filter selected nothing for three steps in a row",
        "All trajectories of a task fail, or all succeed. Change the tasks' difficulty, or raise the group size.",
    ),
    AlertRule(
        "SquelchCriterionGamed",
        f"{series('squelch_gaming_suspected')} == 1",
        "0m",
        "warning",
        "Kept variance rises while validation success is flat",
        "Over three validations the rewards of kept groups differ more and more, and the policy solves no more tasks "
        "(squelch_kept_variance_rise_ratio, squelch_validations_gain_ratio): it may act at random to have its groups "
        "kept. Tasks that come within reach look alike at first; read archived groups.",
    ),
    AlertRule(
        "SquelchCollapsed",
        f"{series('squelch_collapsed')} == 1",
        "0m",
        "critical",
        "Validation success fell below the collapse threshold",
        "The policy no longer solves its tasks. The runbook says how to go back to the best checkpoint.",
    ),
    AlertRule(
        "SquelchValidationTasksFailed",
        f"{series('squelch_validation_failed_tasks')} > 0",
        "0m",
        "warning",
        "Validation tasks could not be played",
        "They count as no success, so that validation, its gain and the best checkpoint are too low or cannot be "
        "compared. The event tasks_failed of validation says why; after time-outs, raise those of environment_actor.",
    ),
    AlertRule(
        "SquelchEvaluationRegressed",
        f"{series('squelch_validation_success_high_ratio')} < {series('squelch_validation_best_ratio')}",
        "0m",
        "warning",
        "Validation success is below its best by more than noise",
        "The upper end of its 95% interval is below the best validation so far. Compare the curves of reward and "
        "reasoning since the best step, whose checkpoint is kept unless it is the start.",
    ),
    AlertRule(
        "SquelchFormatInvalid",
        f"{series('squelch_format_valid_ratio')} < 0.5",
        "5m",
        "warning",
        "Less than half of the turns are well formed",
        "Rewards then reflect mainly the format. Check the turn's token limit and a few archived groups.",
    ),
    AlertRule(
        "SquelchActorDown",
        f"{series('squelch_actor_up')} == 0",
        "1m",
        "critical",
        "{{ $labels.actor }} does not answer its health check",
        "The actor is replaced if restarts are left; see squelch_actor_restarts_total and the actor's log.",
    ),
    AlertRule(
        "SquelchWeightsDiffer",
        _weights_differ(),
        "0m",
        "critical",
        "{{ $labels.worker }} samples from other weights than those that were published",
        "Its log-probabilities on the probe differ from the learner's by more than half of rollout.parity_bound, above "
        "which an update is refused. (An update with a wrong checksum is refused at once, and the worker replaced.)",
    ),
    AlertRule(
        "SquelchStalenessNearLimit",
        _stale(),
        "5m",
        "warning",
        "Samples are as old as loop.max_staleness allows, and it costs",
        "The learner's weights of old samples have an effective sample size below 90%: the policy moves too far from "
        "sampling to learning. Lower loop.max_staleness or the learning rate, or add rollout workers.",
    ),
    AlertRule(
        "SquelchWorkersFlapping",
        f"increase({series('squelch_actor_restarts_total')}[1h]) > 1.5",
        "0m",
        "warning",
        "{{ $labels.actor }} was restarted more than once within an hour",
        "After cluster.max_restarts within cluster.restart_window_s the run ends. The causes are in events.jsonl "
        "(restart) and in the actor's log.",
    ),
    AlertRule(
        "SquelchStalled",
        _stalled(),
        "0m",
        "warning",
        "No training step finished in the last 15 minutes; waiting for {{ $labels.party }}",
        "The label party names the actor that has work and makes no progress; if all make progress, the one for which "
        "the coordinator has waited longest so far. The panel of queue ages shows where tickets are held up.",
    ),
    AlertRule(
        "SquelchCardStarved",
        f"avg by ({_RUN}) ({series('squelch_gpu_busy_ratio')}) < {STARVED}",
        "15m",
        "warning",
        "The GPUs of the run are idle for more than 80% of the time",
        "Learner and engines wait for something that is no GPU: environments, Python in the engines, weights on their "
        "way, one another. Look at the parts of a step and at the waiting times.",
        blind_when="the run is on CPUs, or nvidia-ml-py is not installed",
    ),
    AlertRule(
        "SquelchDiskFilling",
        _disk(),
        "10m",
        "warning",
        "The disk of the run's folder is full, or will be within four hours",
        "A run whose disk refuses a write ends; its checkpoints stay whole. Free space, or lower "
        "loop.keep_checkpoints.",
    ),
    AlertRule(
        "SquelchEndpointDown",
        f'up{{job="{JOB}"}} == 0 and max_over_time(up{{job="{JOB}"}}[6h]) == 1',  # most of the ten targets have no run
        "2m",
        "warning",
        "Prometheus cannot reach the run's metrics",
        "The run has ended, or its process has died.",
    ),
)


def rules_file() -> dict[str, Any]:
    """The rules in the structure of a Prometheus rules file."""
    return {"groups": [{"name": "squelch", "rules": [_rule(rule) for rule in RULES]}]}


def _rule(rule: AlertRule) -> dict[str, Any]:
    return {
        "alert": rule.name,
        "expr": rule.expr,
        "for": rule.hold,
        "labels": {"severity": rule.severity},
        "annotations": {
            "summary": rule.summary,
            "description": rule.advice,
            "runbook_url": f"{RUNBOOK}#{rule.name.lower()}",
        },
    }


def rules_text() -> str:
    """The text of `squelch/deploy/alerts.yml`."""
    head = "# Generated by `python -m squelch.deploy.dashboards` from squelch/deploy/alert_rules.py; do not edit.\n"
    return head + yaml.safe_dump(rules_file(), sort_keys=False, width=110)
