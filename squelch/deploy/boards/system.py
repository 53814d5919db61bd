"""The board of the system: who waits for whom, and are all actors well. Pure: imports only the registry."""

from __future__ import annotations

from squelch.cluster.control.membership import MemberState
from squelch.deploy.boards.panel import (
    INSTANCE,
    Board,
    Query,
    amount,
    mean_of,
    nats,
    one_of,
    panel,
    row,
    seconds,
    series,
    share,
    size,
)
from squelch.deploy.boards.panel import panel_query as _q
from squelch.deploy.boards.panel import per_second as _per_second
from squelch.deploy.boards.ray_and_vllm import RAY, VLLM

STATES = tuple(state.value for state in MemberState)

TIME = row(
    "Where time goes",
    "architecture.md",
    seconds(
        "Seconds by part",
        "Seconds of each part of a step when it last happened; parts may overlap if staleness is allowed.",
        _q("squelch_step_part_seconds", "{{part}}"),
    ),
    panel(
        "Share of wall time",
        "Seconds of each part per second of the run's time, over the steps that ended last. A part that goes on "
        "beside several steps (score) counts where it ends, with all of the time shown at most.",
        _per_second("squelch_part_seconds_total", "{{part}}", most=1),
        unit="percentunit",
        low=0,
    ),
    panel(
        "Waiting times",
        "Seconds that one component waited for another, per second of the run's time, over the last steps.",
        _per_second("squelch_wait_seconds_total", "{{waiter}} for {{waited_for}}"),
        unit="percentunit",
        low=0,
    ),
    seconds(
        "Step duration",
        "Seconds of the last step, and mean and 90th percentile of the steps so far.",
        _q("squelch_step_part_seconds", "last", part="step"),
        Query(mean_of("squelch_step_duration_seconds"), "mean"),
        Query(f"histogram_quantile(0.9, {series('squelch_step_duration_seconds_bucket')})", "90%"),
    ),
    seconds(
        "Learner's step",
        "Seconds of the learner's last step by part.",
        _q("squelch_learner_part_seconds", "{{part}}"),
        stack=True,
    ),
    seconds(
        "Weight update",
        "Seconds of the last update: gathering and sending by the learner, then loading by rollout worker.",
        _q("squelch_publish_seconds", "learner {{part}}"),
        _q("squelch_weight_update_seconds", "{{worker}} {{part}}"),
    ),
)

NO_CARD = "the run is on CPUs"
NO_PEAK = "the run is on CPUs, or on a card without a row in squelch/actors/gpus/peaks.py"
NO_NVML = "the run is on CPUs, or nvidia-ml-py is not installed"

WORK = row(
    "Work and GPUs",
    "guide/dashboards.md",
    panel(
        "MFU",
        "Matrix products of the model as a share of what the cards could do: in the learner's passes, in its call "
        "(train), while the engines sample (rollout), and over the step's wall time; attention's products apart.",
        _q("squelch_mfu_ratio", "{{part}}, {{kind}}", NO_PEAK),
        unit="percentunit",
        low=0,
    ),
    panel(
        "Products",
        "The same in floating-point operations per second, which is known of CPUs too.",
        _q("squelch_operations_per_second", "{{part}}, {{kind}}"),
        unit="flops",
        low=0,
    ),
    amount(
        "Tokens of engines and learner",
        "Tokens of the last step per second of work: sampled ones while an engine samples, learned ones while the "
        "learner trains.",
        _q("squelch_actor_tokens_per_second", "{{part}}"),
    ),
    share(
        "GPUs busy",
        "Share of the time in which any process used the card of a learner rank or rollout worker. On a shared "
        "card all actors show the same.",
        _q("squelch_gpu_busy_ratio", "{{actor}}", NO_NVML),
    ),
    size(
        "GPU memory",
        "Bytes of that card: used by all processes, in total, and what the actor holds.",
        _q("squelch_gpu_memory_bytes", "{{actor}} {{what}}", NO_CARD),
    ),
)

TICKETS = row(
    "Tickets and versions",
    "architecture.md",
    amount(
        "Tickets by state",
        "Number of issued tickets, which equals the sum of the other states. Open states are 0 at the end.",
        _q("squelch_tickets", "{{state}}"),
    ),
    seconds(
        "Queue ages",
        "How long the oldest ticket of each open state has been in it. The state whose age grows is the one that "
        "the step waits for: in_flight is played, buffered waits for the filter, the others for the learner.",
        Query(f"time() - {series('squelch_oldest_ticket_timestamp_seconds')}", "{{state}}", "no ticket is open"),
    ),
    amount(
        "Tickets that ended untrained",
        "Dropped and failed tickets by reason.",
        _q("squelch_ended_tickets", "{{state}}: {{reason}}", "every group was kept"),
    ),
    amount(
        "Failed trajectories",
        "Number of failed trajectories by reason.",
        _q("squelch_trajectory_failures_total", "{{reason}}"),
    ),
    amount(
        "Staleness",
        "Learner's version minus the oldest version that sampled a token, largest and mean over the step's groups, "
        "and the limit of the settings.",
        _q("squelch_staleness_max_versions", "largest"),
        _q("squelch_staleness_mean_versions", "mean"),
        _q("squelch_staleness_limit_versions", "limit"),
    ),
    panel(
        "Policy versions",
        "The published version, and the version from which each rollout worker samples.",
        _q("squelch_policy_version", "published"),
        _q("squelch_worker_policy_version", "{{worker}}"),
    ),
    nats(
        "Weight parity",
        "Difference of log-probabilities between rollout worker and learner on the parity probe after an update.",
        _q("squelch_weight_parity_nats", "{{worker}}, mean"),
        _q("squelch_weight_parity_max_nats", "{{worker}}, largest"),
        _q("squelch_weight_parity_limit_nats", "limit of the mean"),
        low=0,
    ),
)

ACTORS = row(
    "Actors",
    "architecture.md",
    panel(
        "Actors up", "1 while an actor answers its health check.", _q("squelch_actor_up", "{{actor}}"), low=0, high=1
    ),
    panel(
        "States of workers and environment actors",
        "Only a healthy member is given work. A new rollout worker is stale until it has loaded and proved the "
        "current weights.",
        Query(one_of("squelch_actor_state", "state", STATES), "{{actor}}"),
        kind="state-timeline",
        states=STATES,
    ),
    amount(
        "Restarts",
        "Restarts of an actor, and training steps that were trained on again after learner ranks were lost.",
        _q("squelch_actor_restarts_total", "{{actor}}", "nothing died"),
        _q("squelch_recovered_steps_total", "steps trained again"),
    ),
    seconds(
        "Without progress",
        "Seconds since an actor that has work last made progress: a progress mark, or an answer if it is idle. "
        "cluster.hung_after_s and learner.hung_after_s end it.",
        _q("squelch_without_progress_seconds", "{{actor}}", "no actor is up"),
    ),
    amount(
        "Store",
        "Seconds by which the run's copy in `store` is behind, and uploads that failed; empty without a store.",
        _q("squelch_store_lag_seconds", "seconds behind", "no store"),
        _q("squelch_store_failures_total", "failed uploads"),
    ),
    amount(
        "Rollout workers and environment actors",
        "How many the run should have, and changes of that number so far, by who made them.",
        _q("squelch_wanted_members", "{{kind}}"),
        _q("squelch_scalings_total", "{{kind}} {{direction}} by {{by}}"),
    ),
    share(
        "Does the learner need more rollout workers?",
        "Share of the step's time in which the learner waited for groups. rollout.count=auto adds workers above 20%.",
        _q("squelch_learner_wait_ratio", "learner waits for groups"),
    ),
    seconds(
        "Age of the queue",
        "Seconds that a step's groups, all of them, waited for the learner. With a long queue fewer workers do.",
        _q("squelch_queue_age_seconds", "groups wait for the learner"),
    ),
    size(
        "Memory of the coordinator's process",
        "Resident memory in bytes.",
        Query(f"process_resident_memory_bytes{{{INSTANCE}}}", "resident"),
    ),
    size(
        "Disk of the run's folder",
        "Free bytes and size of the disk to which groups, checkpoints and logs are written.",
        _q("squelch_disk_free_bytes", "free"),
        _q("squelch_disk_size_bytes", "size"),
    ),
)

BOARD = Board(
    "squelch-system", "System", "Who waits for whom, and is everybody well?", (TIME, WORK, TICKETS, ACTORS, RAY, VLLM)
)
