"""The names of a run's settings in TRL, verl and prime-rl, from which docs/guide/coming-from.md is generated.

    python -m docs.writers.other_names    writes the page

The rows are in `squelch.cluster.other_names`, which also answers who gives such a name to a run.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from squelch.cluster.other_names import Row, rows

PAGE = Path(__file__).resolve().parents[1] / "guide" / "coming-from.md"


HEAD = """\
# Coming from TRL, verl or prime-rl

`python -m docs.writers.other_names` generates this page; do not edit it. It says which setting of Squelch does what
you set elsewhere ([settings.md](../reference/settings.md) explains each). An empty cell means that the trainer has no
such key. In verl's column `actor.` and `rollout.` are short for `actor_rollout_ref.actor.` and
`actor_rollout_ref.rollout.`. The keys are those of TRL's `GRPOConfig`, verl's `ppo_trainer.yaml` and prime-rl's `rl`
configuration as read in 2026; their defaults differ from Squelch's, so set what you rely on.

Three things work differently:

- **A task is an environment.** Data set and reward functions are the environment `Prompts`
  ([bring-your-own.md](bring-your-own.md)); others answer actions over several turns and pay rewards, and
  [your own](adding-an-environment.md) is one file.
- **The filter is on.** A step learns from the groups that hold 90% of the step's reward variance
  ([filter.md](filter.md)). `filter.rule=none` trains on all groups, as the others do by default.
- **Actors are counted, not colocated.** Rollout workers, learner ranks and environment actors have counts and
  resources of their own (`rollout.count`, `learner.ranks`, `environment_actor.count`); fractions of `num_gpus` put
  several on one GPU ([real-models.md](real-models.md#on-one-gpu)).

With the same prompts, reward function and settings TRL and Squelch learned the same: in three seeds the mean reward of
the last ten of 60 steps differs by 0.002 [-0.009, +0.013] (`python -m benchmarks.peer.learning`).

![mean reward by step and by seconds, in Squelch and in TRL](../research/learns-like-trl.svg)

You can also keep your trainer and take only the diagnosis: `squelch filter`, `squelch mi` and `squelch score` read its
files ([use-with-other-trainers.md](use-with-other-trainers.md)).
"""


def page() -> str:
    """The text of docs/guide/coming-from.md."""
    lines = [HEAD]
    for title, table in groupby(rows(), key=lambda row: row.table):
        lines += [f"## {title}", "", "| | Squelch | TRL | verl | prime-rl | |", "|---|---|---|---|---|---|"]
        lines += [_line(row) for row in table] + [""]
    return "\n".join(lines).rstrip() + "\n"


def _line(row: Row) -> str:
    names = (", ".join(f"`{name}`" for name in own) for own in (row.here, row.trl, row.verl, row.prime_rl))
    return "| " + " | ".join((row.thing, *names, row.note)) + " |"


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
