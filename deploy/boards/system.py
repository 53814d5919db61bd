"""The board of the system: who waits for whom, and are all actors well. Pure: imports only the registry."""

from __future__ import annotations

from deploy.boards.panel import INSTANCE, Board, Panel, Query, Row, mean_of, series
from deploy.boards.panel import panel_query as _q
from deploy.boards.panel import rate_query as _rate

_P90 = f"sum by (le) (rate({series('squelch_step_duration_seconds_bucket')}[$__rate_interval]))"
NO_RAY = "Prometheus does not scrape Ray"

TIME = Row(
    "Where time goes",
    "architecture.md",
    (
        Panel(
            "Seconds by part",
            "Seconds of the last step by part; parts may overlap if staleness is allowed.",
            (_q("squelch_step_part_seconds", "{{part}}"),),
            unit="s",
            low=0,
        ),
        Panel(
            "Share of wall time",
            "Seconds of each part per second of wall time.",
            (_rate("squelch_part_seconds_total", "{{part}}"),),
            unit="percentunit",
            low=0,
        ),
        Panel(
            "Waiting times",
            "Seconds per second that one party waited for another.",
            (_rate("squelch_wait_seconds_total", "{{waiter}} for {{waited_for}}"),),
            unit="percentunit",
            low=0,
        ),
        Panel(
            "Step duration",
            "Seconds of the last step, mean, and 90th percentile.",
            (
                _q("squelch_step_part_seconds", "last", part="step"),
                Query(mean_of("squelch_step_duration_seconds"), "mean"),
                Query(f"histogram_quantile(0.9, {_P90})", "90%", "no step ended recently"),
            ),
            unit="s",
            low=0,
        ),
        Panel(
            "Learner's step",
            "Seconds of the learner's last step by part.",
            (_q("squelch_learner_part_seconds", "{{part}}"),),
            unit="s",
            stack=True,
            low=0,
        ),
        Panel(
            "Weight update",
            "Seconds of the last update: gathering and sending by the learner, then loading by rollout worker.",
            (
                _q("squelch_publish_seconds", "learner {{part}}"),
                _q("squelch_weight_update_seconds", "{{worker}} {{part}}"),
            ),
            unit="s",
            low=0,
        ),
    ),
)

TICKETS = Row(
    "Tickets and versions",
    "architecture.md",
    (
        Panel(
            "Tickets by state",
            "Number of issued tickets, which equals the sum of the other states. Open states are 0 at the end.",
            (_q("squelch_tickets", "{{state}}"),),
            low=0,
        ),
        Panel(
            "Tickets that ended untrained",
            "Dropped and failed tickets by reason.",
            (_q("squelch_ended_tickets", "{{state}}: {{reason}}", "every group was kept"),),
            low=0,
        ),
        Panel(
            "Failed trajectories",
            "Number of failed trajectories by reason.",
            (_q("squelch_trajectory_failures_total", "{{reason}}"),),
            low=0,
        ),
        Panel(
            "Staleness",
            "Learner's version minus the oldest version that sampled a token, largest and mean over the step's groups.",
            (_q("squelch_staleness_max_versions", "largest"), _q("squelch_staleness_mean_versions", "mean")),
            low=0,
        ),
        Panel(
            "Policy versions",
            "The published version, and the version from which each rollout worker samples.",
            (_q("squelch_policy_version", "published"), _q("squelch_worker_policy_version", "{{worker}}")),
        ),
        Panel(
            "Weight parity",
            "Difference of log-probabilities between rollout worker and learner on the parity probe after an update.",
            (
                _q("squelch_weight_parity_nats", "{{worker}}, mean"),
                _q("squelch_weight_parity_max_nats", "{{worker}}, largest"),
            ),
            unit="suffix: nats",
            low=0,
        ),
    ),
)

ACTORS = Row(
    "Actors",
    "architecture.md",
    (
        Panel(
            "Actors up",
            "1 while an actor answers its health check, and while its weights equal the published weights.",
            (
                _q("squelch_actor_up", "{{actor}}"),
                _q("squelch_weight_checksum_ok", "checksum, {{worker}}"),
            ),
            low=0,
            high=1,
        ),
        Panel(
            "Restarts",
            "Restarts of an actor, and training steps that were trained on again after learner ranks were lost.",
            (
                _q("squelch_actor_restarts_total", "{{actor}}", "nothing died"),
                _q("squelch_recovered_steps_total", "steps trained again"),
            ),
            low=0,
        ),
        Panel(
            "Memory of the coordinator's process",
            "Resident memory in bytes.",
            (Query(f"process_resident_memory_bytes{{{INSTANCE}}}", "resident"),),
            unit="bytes",
            low=0,
        ),
    ),
)

RAY = Row(
    "Ray",
    "cluster.md",
    (
        Panel(
            "Ray's actors",
            "Actors of the whole Ray cluster by state.",
            (Query('sum by (State) (ray_actors{Source="gcs"})', "{{State}}", NO_RAY),),
            low=0,
        ),
        Panel(
            "Memory and CPU of nodes",
            "Share of each node's memory and CPU that is in use.",
            (
                Query("ray_node_mem_used / ray_node_mem_total", "memory, {{instance}}", NO_RAY),
                Query("ray_node_cpu_utilization / 100", "CPU, {{instance}}", NO_RAY),
            ),
            unit="percentunit",
            low=0,
            high=1,
        ),
        Panel(
            "Object store",
            "Bytes in Ray's object store by where they are; spilled ones are on disk and slow.",
            (Query("sum by (Location) (ray_object_store_memory)", "{{Location}}", NO_RAY),),
            unit="bytes",
            low=0,
        ),
    ),
)

BOARD = Board("squelch-system", "System", "Who waits for whom, and is everybody well?", (TIME, TICKETS, ACTORS, RAY))
