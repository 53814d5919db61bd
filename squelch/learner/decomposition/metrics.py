"""Metrics of the gradient decomposition (paper, section 3.1 and Figure 3). Pure."""

from __future__ import annotations

from squelch.kit.metrics.specification import Section, Table, gauge, product

BUCKETS = ("1", "2", "3", "4", "5", "6")

METRICS: Table = {
    Section.GRADIENTS: (
        gauge(
            "squelch_gradient_norm",
            "gradients/q{bucket}/{part}",
            "Mean norm of a prompt's gradient in a bucket of reward variance; bucket 1 has the lowest (Figure 3). "
            "mean_: norm of the bucket's mean gradient; _std: with advantages divided by the group's std",
            product(
                BUCKETS,
                ("task", "task_std", "kl", "entropy", "regulariser", "mean_task", "mean_task_std", "mean_regulariser"),
            ),
        ),
        gauge(
            "squelch_gradient_ratio",
            "gradients/q{bucket}/{ratio}",
            "By bucket of reward variance: the regulariser's share of the gradient norm (dominance, appendix K), "
            "signal divided by noise plus regulariser (snr, section 3.2), share of Theorem H.2's bound "
            "that the task gradient reaches (tightness)",
            product(BUCKETS, ("dominance", "dominance_std", "snr", "tightness")),
        ),
        gauge(
            "squelch_gradient_reward_variance",
            "gradients/q{bucket}/reward_variance",
            "Mean reward variance of a bucket",
            product(BUCKETS),
        ),
        gauge("squelch_gradient_groups", "gradients/groups", "Number of groups in the last gradient decomposition"),
    ),
}
