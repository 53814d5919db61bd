"""A run of a made-up policy, written into each trainer's form, clean or with a fault that is planted in the rollouts.

The forms are those of `tests.kit.readers.trainer_files`, which names each trainer's own writing function; Squelch's are
written by its archive.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from squelch.kit.archive.rows import to_table
from squelch.kit.archive.writer import Archive
from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import Group, Task, Ticket, Trajectory, Turn
from tests.kit.archive.small_groups import decided
from tests.kit.readers.trainer_files import jsonl

END = 7
TOOL = [7000, 7001, 7002, 7003, 7004, 7005, 7006, 7007]
WORDS = ("the", "sum", "is", "found", "by", "counting", "up", "from", "one", "until", "it", "fits", "so", "I", "say")


@dataclass
class Rollout:
    """One rollout: a call of a tool, what the tool says, and an answer."""

    step: int
    task: int
    member: int
    group: str
    prompt: str
    prompt_ids: list[int]
    parts: list[tuple[list[int], bool]]
    """Ids after the prompt, and whether the policy sampled them."""
    text: str
    reward: float
    advantage: float = 0.0
    learned: list[bool] | None = None
    """Under the loss, of the ids after the prompt; None: those that were sampled."""
    drawn: list[float] = field(default_factory=list)
    """Log-probabilities of the ids after the prompt; 0 of fed ones."""
    failed: bool = False
    validation: bool = False
    trained: list[float] | None = None
    """The trainer's own log-probabilities; None: near the engine's, and low for fed ids."""
    is_cut: bool = False
    """Whether the token limit ended it."""
    end: str = "<|end|>"
    """The end token of its text."""
    rendered: str = ""
    """The prompt as the policy read it; empty: made from `prompt`."""

    @property
    def shown(self) -> str:
        return self.rendered or f"<|user|>{self.prompt}<|assistant|>"

    @property
    def after(self) -> list[int]:
        return [one for ids, _ in self.parts for one in ids]

    @property
    def sampled(self) -> list[bool]:
        return [own for ids, own in self.parts for _ in ids]

    @property
    def mask(self) -> list[bool]:
        return self.sampled if self.learned is None else self.learned


def run(steps: int = 3, tasks: int = 6, size: int = 4, seed: int = 0, validation: int = 0) -> list[Rollout]:
    """A healthy run: every group has its prompt, GRPO's advantages, and completions of its own."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(steps * tasks + validation):
        step, task = 1 + number // tasks, number % tasks
        is_validation = number >= steps * tasks
        step = steps if is_validation else step
        rewards = rng.permutation([1.0, 0.0, *rng.integers(0, 2, size - 2)])
        for member in range(size):
            found.append(rollout(rng, step, task, member, number, float(rewards[member])))
            found[-1].validation = is_validation
    return with_advantages(found)


def rollout(rng: np.random.Generator, step: int, task: int, member: int, number: int, reward: float) -> Rollout:
    prompt = f"Problem {number}: what is {number} and {number + 3}?"
    first, last = ([*rng.integers(100, 6000, size).tolist(), END] for size in (5, 9))
    tool = rng.permutation(TOOL).tolist()
    parts = [(first, True), (tool, False), (last, True)]
    drawn = np.concatenate([-rng.exponential(1.2, len(ids)) * own for ids, own in parts])
    text = " ".join(rng.permutation(WORDS)) + f" {number}"
    ids = [1, 5000 + number, 40, 41]
    return Rollout(step, task, member, f"g{number}", prompt, ids, parts, text, reward, drawn=drawn.tolist())


def with_advantages(rollouts: list[Rollout], rule: Callable[[np.ndarray], np.ndarray] | None = None) -> list[Rollout]:
    """GRPO's, or of another rule."""
    rule = rule or (lambda rewards: (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4))
    for own in by_group(rollouts).values():
        for one, value in zip(own, rule(np.array([each.reward for each in own])).tolist(), strict=True):
            one.advantage = float(np.float32(value))
    return rollouts


def by_group(rollouts: Iterable[Rollout]) -> dict[str, list[Rollout]]:
    found: dict[str, list[Rollout]] = {}
    for one in rollouts:
        found.setdefault(one.group, []).append(one)
    return found


def by_step(rollouts: Iterable[Rollout]) -> dict[int, list[Rollout]]:
    found: dict[int, list[Rollout]] = {}
    for one in rollouts:
        found.setdefault(one.step, []).append(one)
    return found


def trl(folder: Path, rollouts: list[Rollout]) -> Path:
    for step, own in by_step(one for one in rollouts if not one.validation).items():
        table = {
            "step": [step] * len(own),
            "prompt": [[{"role": "user", "content": one.prompt}] for one in own],
            "completion": [[{"role": "assistant", "content": one.text}] for one in own],
            "right": [one.reward for one in own],
            "advantage": [one.advantage for one in own],
        }
        path = folder / "completions" / f"completions_{step:05d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(table), path)
    return folder / "completions"


def verl(folder: Path, rollouts: list[Rollout]) -> Path:
    for step, own in by_step(one for one in rollouts if not one.validation).items():
        rows = [
            {
                "input": one.prompt and f"user\n{one.prompt}\nassistant\n",
                "output": one.text,
                "gts": "4",
                "score": one.reward,
                "step": step,
                "uid": f"{one.group}_{one.member}_0",
            }
            for one in own
        ]
        jsonl(folder / "verl" / f"{step}.jsonl", rows)
    return folder / "verl"


def nemo_rl(folder: Path, rollouts: list[Rollout]) -> Path:
    for step, own in by_step(rollouts).items():
        for is_validation in {one.validation for one in own}:
            write = _nemo_validation if is_validation else _nemo
            rows = [write(place, one) for place, one in enumerate(own) if one.validation == is_validation]
            jsonl(folder / "nemo" / f"{'val' if is_validation else 'train'}_data_step{step}.jsonl", rows)
    return folder / "nemo"


def _nemo(place: int, one: Rollout) -> dict[str, Any]:
    ids, before = [*one.prompt_ids, *one.after], len(one.prompt_ids)
    near = [value - 0.003 if own else -4.0 for value, own in zip(one.drawn, one.sampled, strict=True)]
    trained = near if one.trained is None else one.trained
    return {
        "content": [[one.shown, one.text]],
        "rewards": [one.reward],
        "input_lengths": [len(ids)],
        "token_ids": [[*ids, 0, 0]],
        "token_loss_mask": [[*[0] * before, *map(int, one.mask), 0, 0]],
        "sample_loss_mask": [1.0],
        "advantages": [[one.advantage] * (len(ids) + 2)],
        "generation_logprobs": [[*[0.0] * before, *one.drawn, 0.0, 0.0]],
        "prev_logprobs": [[*[0.0] * before, *trained, 0.0, 0.0]],
        "idx": place,
    }


def _nemo_validation(place: int, one: Rollout) -> dict[str, Any]:
    user = {"role": "user", "content": one.shown}
    return {"content": [[user, {"role": "assistant", "content": one.text}]], "rewards": [one.reward], "idx": place}


def areal(folder: Path, rollouts: list[Rollout]) -> Path:
    """A file of each task and step, as each is one call of its workflow."""
    steps = by_step(one for one in rollouts if not one.validation).values()
    for own in (group for each in steps for group in by_group(each).values()):
        rows = [
            {
                "task_id": one.group,
                "sample_idx": one.member,
                "seqlen": len(one.prompt_ids) + len(one.after),
                "prompt_len": len(one.prompt_ids),
                "head_version": one.step,
                "tail_version": one.step,
                "reward": one.reward,
                "prompt": one.shown,
                "completion": one.text and one.text + one.end,
            }
            for one in own
        ]
        jsonl(folder / "rollout" / str(own[0].step) / f"{own[0].group}.jsonl", rows)
    return folder / "rollout"


def slime(folder: Path, rollouts: list[Rollout]) -> Path:
    for step, own in by_step(rollouts).items():
        for is_validation in {one.validation for one in own}:
            rows = [_slime(place, one) for place, one in enumerate(own) if one.validation == is_validation]
            jsonl(folder / "slime" / f"{'eval_' if is_validation else ''}rollout_{step}.jsonl", rows)
    return folder / "slime"


def _slime(place: int, one: Rollout) -> dict[str, Any]:
    return {
        "group_index": int(one.group[1:]),
        "index": 100 * one.step + place,
        "prompt": one.shown,
        "tokens": [*one.prompt_ids, *one.after],
        "response": one.text,
        "response_length": len(one.after),
        "label": "4",
        "reward": one.reward,
        "loss_mask": [int(own) for own in one.mask],
        "weight_versions": [str(one.step)],
        "rollout_log_probs": one.drawn,
        "remove_sample": False,
        "status": "aborted" if one.failed else "truncated" if one.is_cut else "completed",
        "metadata": {},
        "rollout_id": one.step,
    }


def skyrl(folder: Path, rollouts: list[Rollout]) -> Path:
    place = folder / "dumped_evals" / "global_step_1_evals"
    rows = [
        {
            "input_prompt": one.shown,
            "output_response": one.text and one.text + one.end,
            "score": one.reward,
            "stop_reason": _reason(one),
            "env_class": "sums",
        }
        for one in rollouts
    ]
    jsonl(place / "sums.jsonl", rows)
    return place


def _reason(one: Rollout) -> str:
    return "length" if one.is_cut else "stop"


def verifiers(folder: Path, rollouts: list[Rollout]) -> Path:
    return jsonl(folder / "stream" / "00000.jsonl", [_episode(place, one) for place, one in enumerate(rollouts)])


def _episode(place: int, one: Rollout) -> dict[str, Any]:
    mask, at = one.mask, 0
    nodes: list[dict[str, Any]] = [
        {
            "message": {"role": "user", "content": one.prompt},
            "sampled": False,
            "token_ids": one.prompt_ids,
            "mask": [False] * len(one.prompt_ids),
        }
    ]
    for number, (ids, own) in enumerate(one.parts):
        role, content = ("assistant", one.text if number else None) if own else ("tool", "4")
        node: dict[str, Any] = {
            "parent": number,
            "message": {"role": role, "content": content},
            "sampled": own,
            "token_ids": ids,
            "mask": mask[at : at + len(ids)],
        }
        if own:
            node["logprobs"] = one.drawn[at : at + len(ids)]
            node["advantages"] = [one.advantage] * len(ids)
        nodes.append(node)
        at += len(ids)
    task = {"type": "Sum", "data": {"idx": one.group, "prompt": one.prompt}, "key": f"task {one.prompt}"}
    trace = {
        "version": 1,
        "id": f"{one.group}-{one.member}",
        "task": task,
        "agent": {"config": {}, "name": "agent", "trainable": True},
        "nodes": nodes,
        "rewards": {"right": {"score": one.reward, "weight": 1.0}},
        "ok": not one.failed,
        "calls": [
            {"node": number, "finish_reason": _reason(one) if number == len(one.parts) else "tool_calls"}
            for number, (_, own) in enumerate(one.parts, 1)
            if own
        ],
    }
    kind = "eval" if one.validation else "train"
    work = {"type": kind, "step": one.step, "policy": {"start": one.step, "end": one.step}}
    found = {"id": f"e{place}", "env": {"id": "sum"}, "task": task, "ok": not one.failed, "errors": []}
    return found | {"traces": [trace], "group": {"id": one.group}, "run": {"type": "train", "id": "r", "work": work}}


def squelch(folder: Path, rollouts: list[Rollout]) -> Path:
    archive = Archive(folder)
    for step, own in by_step(rollouts).items():
        groups = [_group(members) for members in by_group(own).values()]
        archive.write_groups(step, [to_table(one) for one in groups], decided([one.ticket.ticket_id for one in groups]))
    archive.close()
    return folder / "groups"


def _group(members: list[Rollout]) -> Group:
    one = members[0]
    split = "validation" if one.validation else "train"
    number = int(one.group[1:])
    ticket = Ticket(f"{one.step:06d}-{number:03d}", one.step, Task("Sums", seed=number, split=split), len(members), 0)
    return Group(ticket, f"key {one.prompt}", [_trajectory(place, each) for place, each in enumerate(members)], "sum")


def _trajectory(index: int, one: Rollout) -> Trajectory:
    before, at, turns = len(one.prompt_ids), len(one.prompt_ids), []
    for ids, own in one.parts:
        if own:
            is_last = at + len(ids) == before + len(one.after)
            value = one.reward if is_last else 0.0
            is_cut = is_last and one.is_cut
            turns.append(Turn(at, at + len(ids), at, at, value, 0.0, True, is_cut, 1, one.step, one.step))
        at += len(ids)
    ids = np.array([*one.prompt_ids, *one.after], np.int32)
    mask = np.array([*[False] * before, *one.mask])
    drawn = np.array([*[0.0] * before, *one.drawn], np.float32)
    failure = Failure(FailureCause.STEP_TIMEOUT, "late") if one.failed else None
    return Trajectory(index, ids, mask, drawn, turns, bool(one.reward), False, failure)


def art(folder: Path, rollouts: list[Rollout]) -> Path:
    for step, own in by_step(one for one in rollouts if not one.validation).items():
        rows = [
            {
                "trajectories": [_art(one) for one in members],
                "exceptions": [],
                "metadata": {},
                "metrics": {},
                "logs": [],
            }
            for members in by_group(own).values()
        ]
        jsonl(folder / "trajectories" / "train" / f"{step:04d}.jsonl", rows)
    return folder / "trajectories" / "train"


def _art(one: Rollout) -> dict[str, Any]:
    ids, drawn = one.parts[0][0], one.drawn[: len(one.parts[0][0])]
    choice = {
        "finish_reason": _reason(one),
        "index": 0,
        "message": {"role": "assistant", "content": one.text},
        "logprobs": {"content": [{"token": "", "logprob": value} for value in drawn]},
        "token_ids": ids,
        "prompt_token_ids": one.prompt_ids,
    }
    return {
        "messages_and_choices": [{"role": "user", "content": one.prompt}, choice],
        "tools": None,
        "additional_histories": [],
        "reward": one.reward,
        "metrics": {},
        "metadata": {},
        "logs": [],
    }


def chat(folder: Path, rollouts: list[Rollout]) -> Path:
    rows = [
        {
            "messages": [{"role": "user", "content": one.prompt}, {"role": "assistant", "content": one.text}],
            "prompt_id": one.group,
            "step": one.step,
            "right": one.reward,
        }
        for one in rollouts
        if not one.validation
    ]
    return jsonl(folder / "conversations.jsonl", rows)


def columns(folder: Path, rollouts: list[Rollout]) -> Path:
    rows = [
        {
            "step": one.step,
            "group_id": one.group,
            "prompt": one.prompt,
            "prompt_ids": one.prompt_ids,
            "completion": one.text,
            "completion_ids": one.parts[0][0],
            "right": one.reward,
        }
        for one in rollouts
        if not one.validation
    ]
    return jsonl(folder / "rows.jsonl", rows)


WRITERS: dict[str, Callable[[Path, list[Rollout]], Path]] = {
    "trl": trl,
    "verl": verl,
    "nemo_rl": nemo_rl,
    "areal": areal,
    "slime": slime,
    "skyrl": skyrl,
    "verifiers": verifiers,
    "squelch": squelch,
    "art": art,
    "chat": chat,
    "columns": columns,
}
