"""Which weights sampled the rows, at which temperature, and in which arithmetic.

    rows ──rows.offer──▶ data.Draw ──▶ data.Sample ──scored.score──▶ data.Scores ──▶ weighing ──▶ verdicts,
    checkpoints, base model ───────────────────────────┘                              temperature, engine_values

Recorded log-probabilities decide where they are exact enough (`recorded`), otherwise the likelihood of the ids
(`likelihood`). All is pure but `scored`, which loads torch and transformers.
"""
