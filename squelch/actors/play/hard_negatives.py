"""The clusters of the fixed probe's hard negatives: each task's first prompt, and those of near variations of the task.

An environment actor makes them, because it has the environment and the format. The variations are the environment's own
(`envs.contract.Twinned`); where it has none, those of `DRAWN` further tasks of the split whose prompts are nearest
(`kit.diagnosis.edit_distance`), by their ids, which tell no pictures apart. Both follow from the seeds of the tasks, so
that a resumed run has the same clusters.

| waits for | unblocked by | on time-out |
|---|---|---|
| an environment call | a step thread | TimeoutError after `step_timeout_s`; there are no clusters |
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from squelch.actors.formats.protocol import Format
from squelch.actors.play.seeds import noise_seed
from squelch.actors.play.step_pool import StepPool
from squelch.actors.play.turn_format import turn_format_of
from squelch.envs.contract import Environment, Twinned, lacking
from squelch.envs.episode import Episode, Message
from squelch.envs.mixture import Mixture
from squelch.kit.diagnosis.edit_distance import nearest
from squelch.kit.records.content import Picture, Prompt, content_key
from squelch.kit.records.records import Cluster, Task, Ticket
from squelch.kit.scoring.settings import PROBE_TWINS

DRAWN = 1_000
"""Tasks among which the nearest are sought; they have the seeds after the probe's."""


async def clusters_of(
    tickets: Sequence[Ticket], codec: Format, mixture: Mixture, steps: StepPool, make_env: Callable[[Task], Environment]
) -> dict[str, Cluster]:
    """The cluster of each ticket by its id; all are of one environment and split. Raises TimeoutError or CallFailed for
    a call of the environment, and ValueError for a prompt that the format cannot show, and for pictures of an
    environment without twins."""
    env = await steps.run(lambda: make_env(tickets[0].task))
    if env.shows_pictures and lacking(env, Twinned):
        raise ValueError(
            f"environment {tickets[0].task.environment} shows pictures and has no near variations of its tasks "
            "(envs.contract.Twinned); the nearest of other tasks are found by text alone"
        )

    async def prompts(ticket: Ticket, openings: Callable[[Episode], list[list[Message]]]) -> list[Prompt]:
        chosen = mixture.labelled(ticket.task.label).environment
        noise = noise_seed(ticket, 0, env.shared_noise)
        episode = Episode(env, ticket.task.seed, noise, chosen.format, chosen.reward_noise)
        shown = await steps.run(partial(openings, episode))
        name = ticket.task.environment
        fed = await asyncio.to_thread(lambda: [turn_format_of(codec, env, name, episode).first(one) for one in shown])
        return [(one.ids, tuple(Picture.of(*placed) for placed in one.pictures)) for one in fed]

    async def first(seed: int) -> Prompt:
        task = replace(tickets[0].task, seed=seed)
        return (await prompts(replace(tickets[0], task=task), lambda episode: [episode.start()]))[0]

    found: dict[str, Cluster] = {}
    if not lacking(env, Twinned):
        for ticket in tickets:
            family = _Family(cast("Twinned", env), ticket.task.seed)
            own, *twins = await prompts(ticket, family.openings)
            found[ticket.ticket_id] = _cluster(own, _others(own, twins), family.answers_changed)
        return found
    drawn = [await first(max(ticket.task.seed for ticket in tickets) + 1 + k) for k in range(DRAWN)]
    for ticket in tickets:
        own = await first(ticket.task.seed)
        others = _others(own, drawn)
        near = await asyncio.to_thread(nearest, own[0], [ids for ids, _ in others], PROBE_TWINS)
        found[ticket.ticket_id] = _cluster(own, [others[place] for place in near])
    return found


class _Family:
    """A task and its twins, which are started one after another in a step thread."""

    def __init__(self, env: Twinned, seed: int) -> None:
        self._env, self._rng = env, random.Random(f"twins {seed}")
        self.answers_changed: float | None = None
        """Share of the twins with another best answer; None without a solver or a twin."""

    def openings(self, episode: Episode) -> list[list[Message]]:
        """The first messages of the task and of its twins."""
        openings, answers = [episode.start()], [self._env.best_answer(episode.max_actions)]
        for content in self._env.twins(self._rng, PROBE_TWINS):
            openings.append(episode.start_twin(self._env, content))
            answers.append(self._env.best_answer(episode.max_actions))
        own, *others = answers
        known = [answer for answer in others if answer is not None]
        if own is not None and known:
            self.answers_changed = sum(answer != own for answer in known) / len(known)
        return openings


def _others(own: Prompt, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The distinct prompts but `own`, in their order."""
    distinct = {content_key(*prompt): prompt for prompt in reversed(prompts)}
    distinct.pop(content_key(*own), None)
    return list(reversed(distinct.values()))


def _cluster(own: Prompt, twins: Sequence[Prompt], answers_changed: float | None = None) -> Cluster:
    (ids, *others), pictures = zip(own, *twins, strict=True)
    return Cluster(ids, tuple(others), answers_changed, pictures if any(pictures) else ())
