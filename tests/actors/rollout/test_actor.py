"""Environment actor and rollout worker as real Ray actors: tickets played end to end, weights from the object store."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from squelch.actors.archive.rows import from_table, unpacked
from squelch.actors.config import EnvironmentActorConfig, RolloutConfig, SamplingConfig
from squelch.actors.messages import WeightBundle
from squelch.actors.process.shell import asynchronous
from squelch.actors.records import Task, Ticket
from squelch.cluster.control.calls import ENVIRONMENT_ACTOR, ROLLOUT_WORKER, Table
from squelch.envs.config import EnvironmentConfig, FormatConfig
from tests.actors.play.test_codec import byte_level_bpe, save_model
from tests.actors.rollout import vllm_support as support

pytestmark = pytest.mark.ray

ROOT = str(Path(__file__).parents[3])
CONFIG = RolloutConfig(max_model_len=2048, max_num_seqs=64, kv_cache_gib=0.2)
WAIT_S = 120.0


def policy(seed: int) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    shape = dict(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1
    )
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=384, tie_word_embeddings=True, max_position_embeddings=4096, initializer_range=0.3, **shape
        )
    ).eval()


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(
        "local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": ROOT}},
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    policy(0).save_pretrained(folder)
    config = (folder / "config.json").read_text()
    save_model(folder, byte_level_bpe())
    (folder / "config.json").write_text(config)
    return str(folder)


def shell_of(table: Table) -> Any:
    return asynchronous(table.title, table.target, table.methods)


@pytest.fixture(scope="module")
def worker(cluster, model_dir) -> Iterator[ray.actor.ActorHandle]:
    handle = shell_of(ROLLOUT_WORKER).options(num_cpus=0.5, max_concurrency=1000).remote("rollout-0", model_dir, CONFIG)
    ray.get(handle.ready.remote(), timeout=WAIT_S)
    yield handle
    ray.kill(handle)


@pytest.fixture(scope="module")
def player(cluster, model_dir, worker) -> ray.actor.ActorHandle:
    environment = EnvironmentConfig(format=FormatConfig(max_turns=3))
    handle = (
        shell_of(ENVIRONMENT_ACTOR)
        .options(num_cpus=0.25, max_concurrency=1000)
        .remote(
            "environment-0",
            model_dir,
            environment,
            SamplingConfig(max_tokens_per_turn=12),
            EnvironmentActorConfig(),
            2048,
        )
    )
    ray.get(handle.set_workers.remote({"rollout-0": worker}), timeout=WAIT_S)
    return handle


def ticket(name: str, size: int = 4, worker: str = "rollout-0") -> Ticket:
    return Ticket(name, 1, Task("FrozenLake", 7), size, 11, 1.0, worker)


def play(player, one: Ticket):
    summary, rows = player.play.remote(one)
    return ray.get(summary, timeout=WAIT_S), unpacked(ray.get(rows, timeout=WAIT_S))


def test_a_played_group_carries_the_policys_own_log_probs(player):
    summary, table = play(player, ticket("000001-000"))
    assert summary.failures == () and summary.group_id == "000001-000" and len(summary.returns) == 4
    network = policy(0)
    for trajectory in from_table(table):
        expected = support.log_probs(network, trajectory.token_ids)
        sampled = trajectory.loss_mask[1:]
        np.testing.assert_allclose(trajectory.log_probs[1:][sampled], expected[sampled], atol=1e-4)
        assert len(trajectory.turns) > 1


def test_the_same_ticket_gives_the_same_trajectories(player):
    one, two = (from_table(play(player, ticket("000001-001"))[1]) for _ in range(2))
    for first, second in zip(one, two, strict=True):
        np.testing.assert_array_equal(first.token_ids, second.token_ids)
        np.testing.assert_allclose(first.log_probs, second.log_probs, atol=1e-5)


def test_evaluation_plays_one_trajectory_a_ticket_into_one_table(player):
    tickets = [replace(ticket(f"v-{index}"), task=Task("FrozenLake", index, "validation")) for index in range(5)]
    summaries, table = ray.get(list(player.evaluate.remote(tickets)), timeout=WAIT_S)
    assert [one.group_id for one in summaries] == [f"v-{index}" for index in range(5)]
    assert table.num_rows == 5 and table.column("group_id").to_pylist() == [one.group_id for one in summaries]


def test_weights_come_out_of_the_object_store_in_chunks(player, worker):
    network = policy(1)
    arrays = support.arrays_of(network)
    probe = np.random.default_rng(0).integers(0, 384, 32).astype(np.int32)
    chunks = tuple(ray.put(dict(arrays[start : start + 5])) for start in range(0, len(arrays), 5))
    bundle = WeightBundle(
        4, chunks, support.bundle_of(network, 4).checksum, probe, support.log_probs(network, probe).astype(np.float32)
    )
    report = ray.get(worker.update_weights.remote(bundle), timeout=WAIT_S)
    assert (report.worker, report.version) == ("rollout-0", 4) and report.parity < 1e-4
    summary, table = play(player, ticket("000002-000"))
    assert (summary.version_min, summary.version_max) == (4, 4)
    for trajectory in from_table(table):
        sampled = trajectory.loss_mask[1:]
        expected = support.log_probs(network, trajectory.token_ids)[sampled]
        np.testing.assert_allclose(trajectory.log_probs[1:][sampled], expected, atol=1e-4)


def test_a_ticket_for_an_unknown_worker_fails_by_name(player):
    summary, _ = play(player, ticket("000003-000", worker="rollout-9"))
    assert len(summary.failures) == 4
    said = str(summary.failures[0])
    assert said.startswith("generation_error: rollout worker rollout-9") and "rollout-0" in said


def test_a_killed_worker_fails_its_group_by_name_and_takes_its_engine_along(player, worker):
    """Last in the module: the worker does not come back."""
    info = ray.get(worker.ready.remote(), timeout=WAIT_S)
    summary, _ = player.play.options(num_returns=2).remote(ticket("000004-000", size=8))
    os.kill(info["process_id"], signal.SIGKILL)
    failures = ray.get(summary, timeout=WAIT_S).failures
    assert failures and all(str(one).startswith("generation_error: rollout worker rollout-0") for one in failures)
    left = info["engine_process_ids"]
    assert left
    for _ in range(300):
        left = [pid for pid in left if os.path.exists(f"/proc/{pid}") and "Z" not in _state(pid)]
        if not left:
            return
        time.sleep(0.1)
    pytest.fail(f"engine processes {left} outlived their worker for 30 s")


def _state(process_id: int) -> str:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "Z"
