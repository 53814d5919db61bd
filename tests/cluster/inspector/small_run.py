"""A small run to inspect, with a tokenizer of single bytes, so that a trajectory can say anything."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models

from squelch.cluster.config import dump, load
from squelch.kit.archive.rows import to_table
from squelch.kit.archive.score_matrices import ScoreMatrix, TurnPlace, scores_table
from squelch.kit.archive.writer import Archive
from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import Group, Task, Ticket, Trajectory, Turn
from squelch.kit.text.tokenizer import byte_alphabet


@dataclass(frozen=True)
class Decided:
    decision: str
    reason: str
    score: float = 0.25


BOARD = "P _ _ _\n_ O _ _\n_ _ _ _\n_ _ _ G"
HOSTILE = '<script>window.hacked=1</script><img src=x onerror="window.hacked=1">\x1b[31m\u202eevil\u2066 {{ 7*7 }} \x00'


def ids(text: str) -> np.ndarray:
    """The bytes of a text: ids of `tokenizer`."""
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def tokenizer() -> str:
    """A byte-level tokenizer without merges, whose ids are the bytes."""
    found = Tokenizer(models.BPE(vocab=byte_alphabet(), merges=[]))
    found.decoder = decoders.ByteLevel()
    return found.to_str()


def trajectory(index: int, reward: float, reasoning: str, prompt: str = BOARD, failed: bool = False) -> Trajectory:
    """Two turns: the reasoning and an answer, then a move on the same board."""
    parts, turns, at = [], [], 0
    for number, (fed, thought, gain) in enumerate([(prompt, reasoning, 0.0), (f"reward 0\n{BOARD}", "go on", reward)]):
        sampled = f"{thought}</think><answer>Up</answer>"
        parts += [(fed, False), (sampled, True)]
        start = at + len(ids(fed))
        end, closed = start + len(ids(sampled)), start + len(ids(thought))
        turns.append(Turn(start, end, start, closed, gain, 0.0, number == 0, False, 1, 3, 3 + number))
        at = end
    tokens = np.concatenate([ids(text) for text, _ in parts])
    mask = np.concatenate([np.full(len(ids(text)), sampled) for text, sampled in parts])
    log_probs = np.where(mask, -np.linspace(0.0, 6.0, len(tokens)), 0.0).astype(np.float32)
    failure = Failure(FailureCause.STEP_TIMEOUT, HOSTILE) if failed else None
    return Trajectory(index, tokens, mask, log_probs, turns, reward > 0, False, failure)


def group(
    step: int, number: int, rewards: tuple[float, ...], reasoning: str = "goal at 3 3", failed: bool = False
) -> Group:
    """A group whose last trajectory failed if `failed`."""
    ticket = Ticket(f"{step:06d}-{number:03d}", step, Task("FrozenLake", seed=number), len(rewards), 0)
    members = [
        trajectory(index, reward, f"{reasoning} {index}", failed=failed and index == len(rewards) - 1)
        for index, reward in enumerate(rewards)
    ]
    return Group(ticket, f"task{number}", members, None)


def write_step(archive: Archive, step: int, groups: list[Group]) -> None:
    """Archives a step; groups whose rewards do not vary are dropped."""
    decided = {}
    for one in groups:
        varies = len({t.episode_return for t in one.trajectories}) > 1
        decided[one.ticket.ticket_id] = Decided(
            decision="kept" if varies else "dropped", reason="" if varies else "zero variance"
        )
    archive.write_groups(step, [to_table(one) for one in groups], decided, "top_p")


def matrix(step: int, num_prompts: int = 3, per_prompt: int = 2) -> ScoreMatrix:
    """A matrix in which each reasoning is likeliest under its own prompt."""
    source = np.repeat(np.arange(num_prompts), per_prompt)
    values = np.where(source[:, None] == np.arange(num_prompts), -10.0, -14.0)
    samples = [TurnPlace(f"{step:06d}-{n:03d}", k, 0) for n in range(num_prompts) for k in range(per_prompt)]
    return ScoreMatrix(values, source, np.full(len(source), 11), samples, samples[::per_prompt])


def small_run(folder: Path, num_steps: int = 3) -> Path:
    """Steps of four groups: two kept, one dropped, and one that says hostile things and has a failed trajectory."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(dump(load("frozenlake", ["name=small"])))
    (folder / "tokenizer.json").write_text(tokenizer())
    archive = Archive(folder)
    for step in range(1, num_steps + 1):
        add_step(archive, step)
    archive.write_scores(1, scores_table({"first_turn": matrix(1)}, 3))
    archive.close()
    return folder


def add_step(archive: Archive, step: int) -> None:
    """One more step with its metrics and spans."""
    rewards = [(0.0, 1.0, 1.0), (1.0, 0.0, 0.0), (0.0, 0.0, 0.0)]
    groups = [group(step, number, each) for number, each in enumerate(rewards)]
    write_step(archive, step, [*groups, group(step, 3, (0.0, 1.0, 0.0), HOSTILE, failed=True)])
    began = 1000.0 + 10 * step
    archive.event("rollout-0", "work", began, began + 4)
    archive.event("learner", "call", began + 4, began + 8, step=step)
    archive.event("learner", "work", began + 5, began + 8)
    metrics = {"success": 0.1 * step, "total_steps": 9.0, "kept_groups": 2.0, "num_groups": 4.0}
    parts = {"kind/4 x 4/mi_est": 0.4 - 0.1 * step, "kinds/kept/4 x 4": 0.5, "kinds/success/4 x 4": 0.1 * step}
    parts |= {"probe/link/dependence": 0.2, "probe/link/dependence/4 x 4": 0.3 if step == 1 else None}
    for turn in range(1, 12):
        parts |= {f"turn/{turn}/mi_est": 0.3, f"turns/kept/{turn}": 0.5, f"turns/success/{turn}": 1 / turn}
    archive.metrics(step, metrics | parts | {"first_turn/mi_est": 0.3, "seconds/rollout": 4.0}, at=began + 9)
