"""Metrics of the learner: metrics of a training step, and seconds and size of the weight sync. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squelch.kit.metrics.specification import Section, Table, counter, gauge, product
from squelch.kit.metrics.training import learner

if TYPE_CHECKING:
    from squelch.actors.messages import WeightBundle

PARTS = ("fetch", "prepare", "forward_backward", "optimizer", "recompute", "reference", "critic")


METRICS: Table = {
    Section.PROGRESS: (
        counter("squelch_trained_trajectories_total", "trajectories/trained", "Trajectories that were learned from"),
        counter("squelch_trained_groups_total", "groups/trained", "Groups that were learned from"),
        counter(
            "squelch_skipped_updates_total",
            "updates_skipped",
            "Steps without an update, because the filter kept nothing",
        ),
    ),
    Section.TIME: (
        gauge(
            "squelch_learner_part_seconds",
            "learner_seconds/{part}",
            "Seconds of each part of the learner's last step",
            product(PARTS),
            open=True,
        ),
    ),
    Section.LEARNER: (
        learner("ratio_mean", "ratio_mean", "Mean probability ratio to the anchor"),
        learner("ratio_max", "ratio_max", "Largest probability ratio to the anchor"),
        learner("mismatch_nats", "mismatch_abs", "Mean |log p(learner) - log p(rollout)| at step start"),
        learner(
            "mismatch_on_policy_nats",
            "mismatch_on_policy",
            "The same of tokens that the learner's present version sampled; NaN without any",
        ),
        learner("mismatch_k3_nats", "mismatch_k3", "KL(sampler || learner) at step start, k3 estimator"),
        learner(
            "mismatch_outside_ratio",
            "mismatch_outside",
            "Share of tokens whose probability ratio of learner to rollout is outside 0.9 to 1.1",
        ),
        learner(
            "effective_sample_size_ratio",
            "effective_sample_size",
            "Effective sample size of the learner-to-rollout weights, as a share of the tokens",
        ),
        learner("masked_ratio", "masked_share", "Share of tokens in sequences that the mismatch mask excludes"),
        learner(
            "clamped_ratio",
            "clamped_share",
            "Share of tokens whose log-ratio to the anchor, sampler or reference is clamped at 20 nats, which takes "
            "their gradient",
        ),
        learner("advantage_std", "advantage_std", "Standard deviation of the advantages"),
        learner(
            "zero_advantage_ratio", "zero_advantage_share", "Share of the step's sampled tokens whose advantage is 0"
        ),
        learner("value_loss", "value_loss", "Loss of the critic; NaN without a critic"),
        learner("value_mean", "value_mean", "Mean of the critic's values at step start; NaN without a critic"),
        learner(
            "explained_variance",
            "explained_variance",
            "Share of the returns' variance that the critic's values explain; NaN without a critic",
        ),
        learner(
            "critic_grad_norm",
            "critic_grad_norm",
            "Norm of the critic's gradient before clipping; NaN without a critic",
        ),
    ),
    Section.HEALTH: (
        gauge(
            "squelch_publish_seconds",
            "publish/seconds_{part}",
            "Seconds that the learner took at the last weight sync to gather the weights from the shards (gathered) "
            "and to store them in the object store (sent)",
            product(("gathered", "sent")),
        ),
        gauge("squelch_weight_bundle_bytes", "weights/bytes", "Bytes of one version of the weights"),
    ),
}


def publication_metrics(bundle: WeightBundle) -> dict[str, float]:
    """Size of a published version, and the seconds that its weight sync took in the learner."""
    return {
        "weights/bytes": float(bundle.num_bytes),
        "publish/seconds_gathered": bundle.seconds_gathered,
        "publish/seconds_sent": bundle.seconds_sent,
    }
