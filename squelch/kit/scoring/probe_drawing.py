"""The reasonings and answers of the fixed probe's tasks that can be scored. Imports neither torch nor Ray.

Invariants:

- All tokens of an evaluation were sampled by the version whose weights score them; others are excluded as stale.
- The prompt of a task without a usable reasoning stays a column, so that the mixture is the same at every evaluation.
- A reasoning is scored under its own prompt: one that was sampled under another prompt than most of its task's is
  excluded, as an agent's may be whose prompts depend on more than the task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from squelch.kit.records.content import Picture, content_key, pictures_within
from squelch.kit.records.records import Trajectory
from squelch.kit.scoring.drawing import Groups, unusable_turn

AnswerEnd = Callable[[np.ndarray], int | None]
"""Number of ids of the answer among the ids sampled from the reasoning's end on (`ChatCodec.answer_end`)."""


@dataclass(frozen=True)
class ProbeDraw:
    """The reasonings to score. `tasks`: names of the tasks; `prompts`, `pictures`: ids and pictures of the distinct
    first prompts; `weights`: (num_prompts,) number of tasks with each prompt; `reasonings`: usable first-turn
    reasonings, n of them; `after`: the ids sampled from each one's end on; `task`, `source`: (n,) index of each one's
    task and prompt; `slot`: (n,) index among all trajectories of the tasks, usable or not; `slots`: the prompt of each
    of those; `excluded`: number of unusable trajectories by reason."""

    tasks: tuple[str, ...]
    prompts: list[np.ndarray]
    weights: np.ndarray
    reasonings: list[np.ndarray]
    after: list[np.ndarray]
    task: np.ndarray
    source: np.ndarray
    slot: np.ndarray
    slots: np.ndarray
    excluded: Counter[str]
    pictures: list[tuple[Picture, ...]]


def draw_probe(groups: Groups, version: int, context_length: int) -> ProbeDraw:
    """The first turns of all tasks that showed a prompt, also of trajectories that failed later; `version`: the version
    that must have sampled every token."""
    ordered = {name: sorted(groups[name], key=lambda t: t.index) for name in sorted(groups)}
    prompts = _prompts(ordered)
    column: dict[str, int] = {}
    index_of = {name: column.setdefault(content_key(*prompt), len(column)) for name, prompt in prompts.items()}
    distinct = {index_of[name]: prompt for name, prompt in prompts.items()}
    room = context_length - max((len(ids) for ids, _ in distinct.values()), default=0)
    excluded: Counter[str] = Counter({"no_turn": sum(len(groups[name]) for name in groups if name not in prompts)})
    size = 1 + max((trajectory.index for name in prompts for trajectory in groups[name]), default=0)
    reasonings, after, task, source, slot = [], [], [], [], []
    for index, name in enumerate(prompts):
        for trajectory in ordered[name]:
            found = _reasoning(trajectory, prompts[name], version, room)
            if isinstance(found, str):
                excluded[found] += 1
                continue
            reasonings.append(found)
            turn = trajectory.turns[0]
            after.append(np.asarray(trajectory.token_ids[turn.reasoning_end : turn.sample_end], dtype=np.int64))
            task.append(index)
            source.append(index_of[name])
            slot.append(index * size + trajectory.index)
    weights = np.bincount(list(index_of.values()), minlength=len(column)).astype(np.float64)
    shown, pictures = [distinct[i][0] for i in range(len(column))], [distinct[i][1] for i in range(len(column))]
    whose, under, at = (np.array(each, dtype=np.int64) for each in (task, source, slot))
    slots = np.repeat(np.array(list(index_of.values()), dtype=np.int64), size)
    return ProbeDraw(tuple(prompts), shown, weights, reasonings, after, whose, under, at, slots, excluded, pictures)


def answers_of(
    draw: ProbeDraw, answer_end: AnswerEnd, context_length: int, tasks: int | None = None
) -> tuple[list[np.ndarray | None], Counter[str]]:
    """The answer of each reasoning of the first `tasks` tasks (None: of all), None if it cannot be scored; and the
    number of those by reason. A reasoning must fit with every answer under every prompt."""
    asked = draw.task < (len(draw.tasks) if tasks is None else tasks)
    ends = [answer_end(ids) if wanted else None for ids, wanted in zip(draw.after, asked, strict=True)]
    answers = [None if end is None else ids[:end] for ids, end in zip(draw.after, ends, strict=True)]
    excluded = Counter({"no_answer": ends.count(None) - int((~asked).sum())})
    room = context_length - max(map(len, draw.prompts)) - max((len(a) for a in answers if a is not None), default=0)
    for s, z in enumerate(draw.reasonings):
        if answers[s] is not None and len(z) > room:
            answers[s] = None
            excluded["too_long"] += 1
    return answers, excluded


_Prompt = tuple[np.ndarray, tuple[Picture, ...]]
"""Ids and pictures."""


def _prompts(groups: Groups) -> dict[str, _Prompt]:
    """The ids and pictures that each task's first reasonings are scored under, of the tasks with a turn: what most of
    its trajectories were fed, and the opening that most reasonings of all tasks were given by the policy itself. An
    agent's first prompts may differ between its trajectories, and a policy may open its reasoning in several ways."""
    fed: dict[str, list[_Prompt]] = {}
    openings = list[_Prompt]()
    for name, found in groups.items():
        for t, turn in ((t, t.turns[0]) for t in found if t.turns):
            shown = pictures_within(t.pictures, 0, turn.sample_start)
            fed.setdefault(name, []).append((t.token_ids[: turn.sample_start], shown))
            if turn.reasoning_start < turn.reasoning_end:
                openings.append((t.token_ids[turn.sample_start : turn.reasoning_start], ()))
    opening = _most_common(openings)[0] if openings else np.zeros(0, np.int64)
    most = {name: _most_common(prompts) for name, prompts in fed.items()}
    return {name: (np.concatenate([ids, opening]).astype(np.int64), shown) for name, (ids, shown) in most.items()}


def _most_common(prompts: Sequence[_Prompt]) -> _Prompt:
    """The prompt that most of the prompts equal; the first such."""
    keys = [content_key(*prompt) for prompt in prompts]
    (most, _), *_ = Counter(keys).most_common(1)  # of equally common ones the first
    return prompts[keys.index(most)]


def _reasoning(trajectory: Trajectory, prompt: _Prompt, version: int, room: int) -> np.ndarray | str:
    """The ids of the first turn's reasoning, or the reason why it cannot be scored under the task's `prompt`."""
    reason = unusable_turn(trajectory, 0, version)
    if reason is not None:
        return reason
    if content_key(trajectory.prompt_ids(0), trajectory.prompt_pictures(0)) != content_key(*prompt):
        return "other_prompt"
    found = np.asarray(trajectory.reasoning_ids(0), dtype=np.int64)
    return "too_long" if len(found) > room else found
