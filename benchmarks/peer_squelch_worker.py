"""Squelch's side of the peer benchmark: python -m benchmarks.peer_squelch_worker FOLDER

The parts that a run has, without Ray between them: `actors.rollout.Engine` (vLLM in its own process) samples, the
groups go through Arrow as they do between actors, `learner.trainer.Trainer` (FSDP2, one rank) takes one optimizer step,
and the new weights are published into the engine, with checksum and parity probe, before the step counts as done. No
filter: all groups are learned from, as on the other side.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import vllm

from actors.config import RolloutConfig
from actors.messages import Completion, GenerationRequest, UpdateReport
from actors.records import Group, Task, Ticket, Trajectory, Turn, from_table, summarise, to_table
from actors.rollout import Engine
from benchmarks import peer_work
from benchmarks.peer_work import Channel, Work
from learner import process_group
from learner.actor import ENVIRONMENT
from learner.config import LearnerConfig, ObjectiveConfig, OptimizerConfig
from learner.trainer import Trainer

COLLECT_S = 300.0
GROUP_TIMEOUT_S = 120.0


def rollout_config(work: Work) -> RolloutConfig:
    length = work.prompt_tokens + work.new_tokens
    return RolloutConfig(max_model_len=length, kv_cache_gib=0.5, num_threads=work.num_threads)


def learner_config(work: Work) -> LearnerConfig:
    """Plain GRPO in one optimizer step; the rest is as in a run."""
    return LearnerConfig(
        num_threads=work.num_threads,
        minibatches=1,
        objective=ObjectiveConfig(clip_low=work.clip_low, clip_high=work.clip_high, entropy_coefficient=0.0),
        optimizer=OptimizerConfig(learning_rate=work.learning_rate),
    )


def requests(work: Work, step: int) -> list[GenerationRequest]:
    """All of a step's sequences: prompts in order, the samples of one together."""
    return [
        GenerationRequest(
            request_id=str(prompt * work.num_samples + sample),
            prompt_ids=np.array(ids, dtype=np.int32),
            max_tokens=work.new_tokens,
            temperature=work.temperature,
            seed=(step * work.num_prompts + prompt) * work.num_samples + sample,
        )
        for prompt, ids in enumerate(work.prompts(step))
        for sample in range(work.num_samples)
    ]


async def generate(engine: Engine, asked: list[GenerationRequest]) -> list[Completion]:
    """The completions in the order asked for. Raises RuntimeError when some are late or failed."""
    engine.submit("benchmark", asked)
    found: dict[str, Completion] = {}
    deadline = time.monotonic() + COLLECT_S
    while len(found) < len(asked):
        for completion in await engine.collect("benchmark", 1.0):
            found[completion.request_id] = completion
            if completion.error:
                raise RuntimeError(f"sequence {completion.request_id}: {completion.error}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"engine late: {len(found)} of {len(asked)} sequences after {COLLECT_S:g} s")
    return [found[request.request_id] for request in asked]


def trajectory(index: int, request: GenerationRequest, completion: Completion) -> Trajectory:
    start = len(request.prompt_ids)
    ids = np.concatenate([request.prompt_ids, completion.token_ids])
    end, version = len(ids), completion.version_min
    reward = peer_work.reward(completion.token_ids.tolist())
    turn = Turn(start, end, start, end, reward, 0.0, True, False, 1, version, completion.version_max)
    log_probs = np.concatenate([np.zeros(start, dtype=np.float32), completion.log_probs])
    return Trajectory(index, ids, np.arange(end) >= start, log_probs, [turn], success=False, truncated=False)


def groups_of(
    work: Work, step: int, asked: list[GenerationRequest], completions: list[Completion]
) -> list[tuple[str, list[Trajectory]]]:
    """The step's groups, each put into its Arrow table and taken out of it, summary included."""
    groups = []
    for prompt in range(work.num_prompts):
        rows = slice(prompt * work.num_samples, (prompt + 1) * work.num_samples)
        ticket = Ticket(f"{step:06d}-{prompt:03d}", step, Task("Peer", prompt), work.num_samples, seed=prompt)
        members = [trajectory(i, *pair) for i, pair in enumerate(zip(asked[rows], completions[rows], strict=True))]
        group = Group(ticket, str(prompt), members)
        summarise(group)
        groups.append((ticket.ticket_id, from_table(to_table(group))))
    return groups


class Peer:
    """Engine and trainer of one run."""

    def __init__(self, work: Work, folder: Path) -> None:
        process_group.start(0, 1, "127.0.0.1", 0, GROUP_TIMEOUT_S, "cpu")
        torch.set_num_threads(work.num_threads)
        self.work, self.step = work, 0
        self.trainer = Trainer(folder, learner_config(work), temperature=work.temperature)
        for name in ENVIRONMENT:  # the learner's, read when this process started; a rollout worker has none of them
            os.environ.pop(name, None)
        self.engine = Engine("peer", folder, rollout_config(work), stop_ids=[])

    async def play(self) -> dict[str, Any]:
        """One step; its seconds by part."""
        marks = [time.perf_counter()]
        asked = requests(self.work, self.step)
        completions = await generate(self.engine, asked)
        marks.append(time.perf_counter())
        groups = groups_of(self.work, self.step, asked, completions)
        report = self.trainer.train_step(self.step + 1, groups)
        marks.append(time.perf_counter())
        published = await self.publish()
        marks.append(time.perf_counter())
        self.work.check([r.prompt_ids.tolist() for r in asked], [c.token_ids for c in completions], self.step)
        if report.optimizer_steps != 1 or report.num_trajectories != self.work.num_sequences:
            raise RuntimeError(
                f"step {self.step}: {report.optimizer_steps} optimizer steps on {report.num_trajectories} trajectories "
                f"({report.refused}), wanted 1 on {self.work.num_sequences}"
            )
        self.step += 1
        return {
            "step": marks[3] - marks[0],
            "generation": marks[1] - marks[0],
            "update": marks[2] - marks[1],
            "publication": marks[3] - marks[2],
            "reward_std": statistics.stdev(peer_work.reward(c.token_ids.tolist()) for c in completions),
            "grad_norm": report.metrics["grad_norm"],
            "mismatch_abs": report.metrics["mismatch_abs"],
            "parity": published.parity,
        }

    async def publish(self) -> UpdateReport:
        bundle = self.trainer.publish(self.step + 1, put=lambda chunk: chunk)
        if bundle is None:
            raise RuntimeError("rank 0 published nothing")
        arrays = [(name, array) for chunk in bundle.chunks for name, array in chunk.items()]
        return await self.engine.update_weights(bundle, arrays)


async def serve(channel: Channel, folder: Path) -> None:
    peer = Peer(peer_work.load(folder), folder)
    await peer.engine.start()
    versions = {"vllm": vllm.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
    channel.answer({"ready": True, "versions": versions, "threads": torch.get_num_threads()})
    try:
        while await asyncio.to_thread(channel.next_step):
            channel.answer(await peer.play())
    finally:
        await peer.engine.stop()
        process_group.stop()


def main() -> None:
    asyncio.run(serve(Channel(), Path(sys.argv[1])))


if __name__ == "__main__":
    main()
