"""Squelch's worker of the peer benchmark: python -m benchmarks.peer.squelch_worker FOLDER

The parts are those of a run. `actors.rollout.worker.Engine` (vLLM in its own process) samples. The groups go as Arrow
tables through Ray's object store to the learner (`cluster.control.rank_client`), which makes one optimizer step on
as many FSDP2 ranks as there are threads, with one thread each, as in the demo on two cores. The new weights are
published into the engine, with checksum and parity probe, before the step counts as done. There is no filter: all
groups are trained on, as by the other trainer, unless the work says that a part of them is kept.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import transformers
import vllm

from benchmarks.peer import work as peer_work
from benchmarks.peer.work import Channel, Work
from squelch.actors.config import RolloutConfig
from squelch.actors.messages import Completion, GenerationRequest, StepTerms, UpdateReport
from squelch.actors.rollout.worker import Engine
from squelch.cluster.config import load
from squelch.cluster.control.calls import PUBLISH, TRAIN_STEP
from squelch.cluster.fleet.ray_actors import RayActors
from squelch.kit.archive.rows import packed, to_table
from squelch.kit.records.records import Group, Task, Ticket, Trajectory, Turn, summarise
from squelch.learner.config import LearnerConfig, ObjectiveConfig, OptimizerConfig

COLLECT_S = 300.0
TIMEOUT_S = 120.0


def rollout_config(work: Work) -> RolloutConfig:
    """The engine's settings for the lengths of the work."""
    length = work.prompt_tokens + work.new_tokens
    return RolloutConfig(max_model_len=length, kv_cache_gib=0.5, num_threads=work.num_threads, dtype=work.dtype)


def learner_config(work: Work) -> LearnerConfig:
    """Plain GRPO in one optimizer step; the other settings are a run's defaults."""
    return LearnerConfig(
        ranks=work.ranks,
        num_threads=work.num_threads // work.ranks,
        dtype=work.dtype,
        activation_checkpointing=work.checkpointing,
        start_timeout_s=TIMEOUT_S,
        step_timeout_s=TIMEOUT_S,
        minibatches=1,
        objective=ObjectiveConfig(clip_low=work.clip_low, clip_high=work.clip_high, entropy_coefficient=0.0),
        optimizer=OptimizerConfig(learning_rate=work.learning_rate),
    )


def requests(work: Work, step: int) -> list[GenerationRequest]:
    """The requests for all sequences of a step: prompts in order, the samples of a prompt together."""
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
    """The completions in the order of the requests. RuntimeError if some are late or failed."""
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
    """A completion as a trajectory of one turn, with its reward."""
    start = len(request.prompt_ids)
    ids = np.concatenate([request.prompt_ids, completion.token_ids])
    end, version = len(ids), completion.version_min
    reward = peer_work.reward(completion.token_ids.tolist())
    turn = Turn(start, end, start, end, reward, 0.0, True, False, 1, version, completion.version_max)
    log_probs = np.concatenate([np.zeros(start, dtype=np.float32), completion.log_probs])
    return Trajectory(index, ids, np.arange(end) >= start, log_probs, [turn], success=False, truncated=False)


def put_groups(
    work: Work, step: int, asked: list[GenerationRequest], completions: list[Completion]
) -> dict[str, ray.ObjectRef]:
    """Puts the step's groups, with their summaries, into the object store; returns the references by group id."""
    groups = {}
    for prompt in range(work.num_prompts):
        rows = slice(prompt * work.num_samples, (prompt + 1) * work.num_samples)
        ticket = Ticket(f"{step:06d}-{prompt:03d}", step, Task("Peer", prompt), work.num_samples, seed=prompt)
        members = [trajectory(i, *pair) for i, pair in enumerate(zip(asked[rows], completions[rows], strict=True))]
        group = Group(ticket, str(prompt), members)
        summarise(group)
        groups[ticket.ticket_id] = ray.put(packed(to_table(group)))
    return groups


class Peer:
    """The engine and the learner of one run."""

    def __init__(self, work: Work, folder: Path) -> None:
        self.work, self.step = work, 0
        config = learner_config(work)
        ray.init("local", num_cpus=config.ranks, include_dashboard=False, object_store_memory=work.store_mib << 20)
        sampling = [f"sampling.temperature={work.temperature}", "seed=0"]
        run = load("frozenlake", sampling).model_copy(update={"learner": config})
        self.learner = RayActors(run, folder, folder).learner(config.ranks)
        self.engine = Engine("peer", folder, rollout_config(work), stop_ids=[])

    async def start(self) -> None:
        """Starts learner and engine."""
        await self.learner.start()
        await self.engine.start()

    async def stop(self) -> None:
        """Stops engine, learner and Ray, also after a failed start."""
        try:
            await self.engine.stop()
            await self.learner.stop()
        finally:
            ray.shutdown()

    async def play(self) -> dict[str, Any]:
        """Makes one step; returns its seconds by part."""
        marks = [time.perf_counter()]
        asked = requests(self.work, self.step)
        completions = await generate(self.engine, asked)
        marks.append(time.perf_counter())
        groups = put_groups(self.work, self.step, asked, completions)
        kept = dict(list(groups.items())[: self.work.kept_groups(self.step)])
        report = await self.learner.call(TRAIN_STEP, self.step + 1, list(kept.values()), list(kept), StepTerms())
        marks.append(time.perf_counter())
        published = await self.publish()
        marks.append(time.perf_counter())
        self.work.check([r.prompt_ids.tolist() for r in asked], [c.token_ids.tolist() for c in completions], self.step)
        wanted = len(kept) * self.work.num_samples
        if report.optimizer_steps != 1 or report.num_trajectories != wanted:
            raise RuntimeError(
                f"step {self.step}: {report.optimizer_steps} optimizer steps on {report.num_trajectories} trajectories "
                f"({report.refused}), wanted 1 on {wanted}"
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
            "paused": published.seconds_paused,
            "kept": len(kept),
        }

    async def publish(self) -> UpdateReport:
        """Publishes the learner's weights into the engine."""
        bundle = await self.learner.call(PUBLISH, self.step + 1, "float32")
        chunks = ray.get(list(bundle.chunks), timeout=TIMEOUT_S)
        arrays = [(name, array) for chunk in chunks for name, array in chunk.items()]
        return await self.engine.update_weights(bundle, arrays)


async def serve(channel: Channel, folder: Path) -> None:
    """Makes a step for each request of the channel, and stops at its end."""
    peer = Peer(peer_work.load(folder), folder)
    try:
        await peer.start()
        versions = {"vllm": vllm.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
        channel.answer({"ready": True, "versions": versions, "threads": peer.work.num_threads})
        while await asyncio.to_thread(channel.next_step):
            channel.answer(await peer.play())
    finally:
        await peer.stop()


def main() -> None:
    """Runs the worker for the folder on the command line."""
    asyncio.run(serve(Channel(), Path(sys.argv[1])))


if __name__ == "__main__":
    main()
