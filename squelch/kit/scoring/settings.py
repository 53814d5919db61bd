"""Settings of the fixed probe, and the sizes of what is scored beside a score matrix. Pure."""

from pydantic import Field

from squelch.kit.base.settings import Settings

PROBE_TASKS, PROBE_SAMPLES = 32, 4
"""Tasks of the fixed probe, and trajectories of each, if they are not set."""
PROBE_TWINS = 7
"""Other prompts of a task's cluster of hard negatives, at most (`kit.diagnosis.hard_negatives`)."""
OTHERS = 7
"""Other prompts under which the probe is scored under a budget."""
REFERENCES = 2
"""Reasonings of each other task under which an answer is scored under a budget, the fewest that correct D for their
number."""
PROBE_OTHERS, TRAJECTORY_OTHERS = 8, 4
"""Other tasks, or contexts, whose pictures a reasoning is scored under, and as many whose text."""


class ProbeConfig(Settings):
    """The fixed probe: the same validation tasks, sampled and scored again and again (docs/guide/probe.md)."""

    every: int = Field(25, ge=0)
    """Steps between two probe evaluations; 0 turns the probe off. The first is before step 1, the last after the last
    step."""
    tasks: int | None = Field(None, ge=2)
    """Number of tasks (N), the first of the fixed validation tasks; unset: 32, or all of them if there are fewer. The
    estimate cannot exceed log N nats."""
    samples: int | None = Field(None, ge=2)
    """Trajectories of each task (K); the spread between them gives the standard error. Unset: 4, or 2 if `scorer.share`
    has no room for the links from 4."""
    max_others: int | None = Field(None, ge=2)
    """Other prompts under which each reasoning is scored, drawn at random; unset: all of them."""
    hard: bool | None = None
    """Whether each reasoning is also scored under the prompts of seven near variations of its task (hard negatives,
    `kit.diagnosis.hard_negatives`). Unset: if the environment has such variations and `scorer.share` has room.
    `true`: whatever it costs, and where the environment has none under the nearest of 1,000 further tasks, which are
    started once when the run starts; refused where they are pictures."""
    links: bool | None = None
    """Whether the answers are scored too, to measure whether they follow from the reasoning
    (`kit.diagnosis.links`). Unset: yes, unless even the fewest would cost more than `scorer.share` allows."""
    answer_tasks: int | None = Field(None, ge=4)
    """Tasks whose answers are scored, the first of the probe's, each after reasonings of the others among them; unset:
    all. From 8 on the intervals were tested (docs/research/known-truth.md)."""
    answer_references: int | None = Field(None, ge=1)
    """Reasonings of each other task under which the answers of a prompt are scored, drawn at random; unset: all. At
    least 2 are needed to correct the estimate for their number."""
    answer_prompts: int | None = Field(None, ge=2)
    """Other prompts under which each answer is scored after its own reasoning, drawn at random; unset: all of them."""

    @property
    def scores_answers(self) -> bool:
        """Whether the answers are scored too; `links` is unset only if they fit into `scorer.share`."""
        return self.links is not False

    def scores_twins(self, available: bool) -> bool:
        """Whether hard negatives are scored in an environment that has twins, or has none."""
        return available if self.hard is None else self.hard

    @property
    def num_samples(self) -> int:
        """K."""
        return self.samples or PROBE_SAMPLES

    def num_tasks(self, available: int) -> int:
        """N, out of `available` fixed validation tasks."""
        return self.tasks or min(PROBE_TASKS, available)
