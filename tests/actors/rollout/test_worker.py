"""One real engine, a random policy: what a rollout worker promises about tokens, log-probabilities and weights."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from squelch.actors.gpus.watch import watch_gpu
from squelch.actors.messages import Completion, GroupMember, OnGpu, SharedWeights, UpdateReport, WeightBundle
from squelch.actors.rollout.early_process import EarlyProcess
from squelch.actors.rollout.engine import VllmEngine
from squelch.actors.rollout.engine_args import engine_arguments
from squelch.actors.rollout.worker import Engine, RolloutWorker
from squelch.actors.weight_group import WeightGroup
from squelch.actors.weights_file import WeightsFile
from squelch.learner import process_group
from squelch.learner.trainer import Trainer
from tests.actors.rollout import vllm_support as support
from tests.learner.models import make_config, make_groups

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def loop() -> Iterator[support.Loop]:
    loop = support.Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def policies() -> dict[int, support.Qwen2ForCausalLM]:
    return {seed: support.make_policy(seed) for seed in (0, 1)}


@pytest.fixture(scope="module")
def served(loop, policies, tmp_path_factory) -> Iterator[Engine]:
    folder = support.save(policies[0], tmp_path_factory.mktemp("policy"))
    engine = Engine("rollout-test", folder, support.CONFIG, [support.STOP_ID], lambda index: chr(32 + index).encode())
    loop.run(engine.start())
    yield engine
    loop.run(engine.stop())


@pytest.fixture
def engine(loop, served, policies) -> Engine:
    """The engine, serving policy 0."""
    loop.run(served.update_weights(support.bundle_of(policies[0], 0), support.arrays_of(policies[0])))
    return served


def assert_matches(policy, prompt: np.ndarray, completion: Completion, temperature: float) -> None:
    ids = np.concatenate([prompt, completion.token_ids])
    expected = support.log_probs(policy, ids, temperature)[len(prompt) - 1 :]
    np.testing.assert_allclose(completion.log_probs, expected, atol=1e-4)


def test_same_seeds_give_the_same_tokens_however_they_are_batched(loop, engine):
    requests = [support.request(f"r{i}", seed=100 + i) for i in range(12)]
    together = loop.run(support.sample(engine, requests))

    async def one_by_one() -> dict[str, Completion]:
        found: dict[str, Completion] = {}
        for some in (requests[7:], requests[:1], requests[1:7]):
            found |= await support.sample(engine, some, client="other")
        return found

    apart = loop.run(one_by_one())
    for name, completion in together.items():
        np.testing.assert_array_equal(completion.token_ids, apart[name].token_ids)
        np.testing.assert_allclose(completion.log_probs, apart[name].log_probs, atol=1e-5)
    assert len({tuple(c.token_ids) for c in together.values()}) == len(requests)


def test_log_probs_are_those_of_the_distribution_sampled_from(loop, engine, policies):
    for temperature in (1.0, 0.5):
        one = support.request("t", seed=5, temperature=temperature)
        completion = loop.run(support.sample(engine, [one]))["t"]
        assert_matches(policies[0], one.prompt_ids, completion, temperature)


def test_sampled_frequencies_follow_the_log_probs(loop, engine, policies):
    prompt = np.arange(5, 15, dtype=np.int32)
    requests = [support.request(f"f{i}", seed=i, max_tokens=1, prompt=prompt, temperature=1.0) for i in range(600)]
    first = np.array([c.token_ids[0] for c in loop.run(support.sample(engine, requests)).values()])
    counts = np.bincount(first, minlength=support.VOCABULARY) / len(first)
    expected = np.exp([support.log_probs(policies[0], np.append(prompt, t))[-1] for t in range(support.VOCABULARY)])
    assert 0.5 * np.abs(counts - expected).sum() < 0.15  # total variation; 600 draws of 64 outcomes


def test_a_turn_ends_at_the_stop_token_which_is_kept_or_at_its_limit(loop, engine):
    requests = [support.request(f"s{i}", seed=i, max_tokens=150, temperature=1.5) for i in range(32)]
    found = loop.run(support.sample(engine, requests)).values()
    stopped = [c for c in found if c.finish_reason == "stop"]
    cut = [c for c in found if c.finish_reason == "length"]
    assert stopped and len(stopped) + len(cut) == 32
    assert all(c.token_ids[-1] == support.STOP_ID and support.STOP_ID not in c.token_ids[:-1] for c in stopped)
    assert all(len(c.token_ids) == 150 and support.STOP_ID not in c.token_ids for c in cut)
    assert all(len(c.token_ids) == len(c.log_probs) for c in found)
    limited = loop.run(support.sample(engine, [support.request("cut", seed=1, max_tokens=1)]))["cut"]
    assert len(limited.token_ids) == 1


def test_a_stop_string_ends_a_turn_whose_ids_and_log_probs_are_those_of_the_turn_without_it(loop, engine):
    plain = [support.request(f"p{i}", seed=i, max_tokens=60) for i in range(8)]
    whole = loop.run(support.sample(engine, plain))
    stops = ["".join(chr(32 + i) for i in whole[one.request_id].token_ids[10:13]) for one in plain]
    watched = [replace(one, stop=("nowhere", stop)) for one, stop in zip(plain, stops, strict=True)]
    found = loop.run(support.sample(engine, [*watched, *(support.request(f"q{i}", seed=i) for i in range(8))]))
    for one, stop in zip(plain, stops, strict=True):
        stopped, full = found[one.request_id], whole[one.request_id]
        text = "".join(chr(32 + i) for i in stopped.token_ids)
        assert len(full.token_ids) > 13 and stopped.finish_reason == "stop"
        assert text.endswith(stop) and text.count(stop) == 1 and len(text) <= 13
        np.testing.assert_array_equal(stopped.token_ids, full.token_ids[: len(text)])
        np.testing.assert_array_equal(stopped.log_probs, full.log_probs[: len(text)])
        assert [(span.start, span.end) for span in stopped.version_spans] == [(0, len(text))]
    thinking = loop.run(support.sample(engine, [replace(one, inside=True) for one in watched]))
    for one in plain:  # none of them ends its reasoning, which may hold a stop string
        np.testing.assert_array_equal(thinking[one.request_id].token_ids, whole[one.request_id].token_ids)
    assert engine.stats()["in_flight"] == 0


def test_a_request_the_engine_refuses_costs_only_itself(loop, engine):
    bad = {"long": np.full(300, 5), "outside": np.array([5, support.VOCABULARY]), "empty": np.zeros(0)}
    requests = [support.request(name, seed=1, prompt=prompt) for name, prompt in bad.items()]
    found = loop.run(support.sample(engine, [*requests, support.request("fine", seed=2)]))
    assert {found[name].finish_reason for name in bad} == {"error"}
    assert "256" in found["long"].error and "[0, 64)" in found["outside"].error and "0 ids" in found["empty"].error
    assert found["fine"].finish_reason in ("stop", "length")


def test_more_prompt_tokens_than_one_batch_holds_do_not_end_the_engine(loop, engine):
    """A prompt cut into chunks would rewind a seeded CPU generator, which raises inside vLLM."""
    long = [support.request(f"l{i}", i, 2, np.random.default_rng(i).integers(3, 64, 250)) for i in range(64)]
    assert sum(len(one.prompt_ids) for one in long) > 8192
    assert {c.error for c in loop.run(support.sample(engine, long)).values()} == {None}


def test_an_update_changes_the_outputs_to_the_new_policys(loop, engine, policies):
    one = support.request("u", seed=9)
    before = loop.run(support.sample(engine, [one]))["u"]
    report = loop.run(engine.update_weights(support.bundle_of(policies[1], 7), support.arrays_of(policies[1])))
    after = loop.run(support.sample(engine, [one]))["u"]
    assert_matches(policies[1], one.prompt_ids, after, one.temperature)
    assert list(before.token_ids) != list(after.token_ids)
    assert (after.version_min, after.version_max) == (7, 7) and (before.version_min, before.version_max) == (0, 0)
    assert report.version == engine.version == 7 and report.worker == "rollout-test"
    assert report.parity <= report.parity_max < 1e-4


def test_prefix_cache_does_not_outlive_the_weights(loop, engine, policies):
    prompt = np.random.default_rng(3).integers(3, support.VOCABULARY, 128)
    one = support.request("p", seed=4, prompt=prompt)
    for policy, version in ((policies[0], 0), (policies[1], 1), (policies[0], 2)):
        loop.run(engine.update_weights(support.bundle_of(policy, version), support.arrays_of(policy)))
        for _ in range(2):  # the second time out of the cache
            assert_matches(policy, prompt, loop.run(support.sample(engine, [one]))["p"], one.temperature)


def test_sequences_in_flight_go_on_under_the_new_weights_and_carry_both_versions(loop, engine, policies):
    requests = [support.request(f"k{i}", seed=i, max_tokens=200, temperature=0.3) for i in range(32)]

    async def update_midway() -> dict[str, Completion]:
        engine.submit("test", requests)
        while engine.stats()["in_flight"] < 32:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        await engine.update_weights(support.bundle_of(policies[1], 1), support.arrays_of(policies[1]))
        found: list[Completion] = []
        while len(found) < 32:
            found += await engine.collect("test", 2.0)
        return {c.request_id: c for c in found}

    found = loop.run(update_midway()).values()
    straddling = [c for c in found if (c.version_min, c.version_max) == (0, 1)]
    assert straddling, [(c.version_min, c.version_max, len(c.token_ids)) for c in found]
    assert all(len(c.token_ids) == len(c.log_probs) for c in found)
    prompts = {one.request_id: one.prompt_ids for one in requests}
    for completion in straddling:
        ids = np.concatenate([prompts[completion.request_id], completion.token_ids])
        before, after = completion.version_spans
        assert (before.start, after.end) == (0, len(completion.token_ids)) and before.end == after.start
        for span in (before, after):
            policy = policies[span.version]
            truth = support.log_probs(policy, ids, 0.3)[-len(completion.token_ids) :][span.start : span.end]
            found_there = completion.log_probs[span.start : span.end]
            assert np.abs(truth - found_there).max() < 1e-3, "each token under the whole weights of its version"


def test_weights_that_a_group_broadcasts_are_served_and_a_failed_broadcast_heals(loop, engine, policies):
    def group_of_two(number: int) -> WeightGroup:
        listener = socket.create_server(("127.0.0.1", 0))
        member = GroupMember(number, "127.0.0.1", listener.getsockname()[1], 0, 2, "gloo", 5.0)
        joined = loop.begin(engine.vllm.join_group(replace(member, rank=1)))
        group = WeightGroup(member, "cpu", listener)
        joined.result(support.CALL_TIMEOUT_S)
        return group

    def broadcast(group: WeightGroup, version: int) -> None:
        policy = policies[version % 2]
        update = loop.begin(engine.update_weights(support.bundle_of(policy, version)))
        group.send([(n, p.detach()) for n, p in policy.named_parameters()], support.table_of(policy))
        assert update.result(support.CALL_TIMEOUT_S).parity < 1e-4

    one = support.request("g", seed=9)
    first = group_of_two(1)
    broadcast(first, 1)
    broadcast(first, 2)
    second = group_of_two(2)  # the engine leaves the first
    broadcast(second, 3)
    completion = loop.run(support.sample(engine, [one]))["g"]
    assert_matches(policies[1], one.prompt_ids, completion, one.temperature)
    assert (completion.version_min, completion.version_max) == (3, 3)
    second.close()
    with pytest.raises(RuntimeError, match="rollout-test: weights of version 4 refused"):
        loop.run(engine.update_weights(support.bundle_of(policies[0], 4)))
    with pytest.raises(RuntimeError, match="in no weight group; nothing was loaded"):
        loop.run(engine.update_weights(support.bundle_of(policies[0], 4)))
    loop.run(engine.update_weights(support.bundle_of(policies[0], 4), support.arrays_of(policies[0])))
    completion = loop.run(support.sample(engine, [one]))["g"]
    assert_matches(policies[0], one.prompt_ids, completion, one.temperature)
    first.close()


def test_weights_in_the_learners_memory_are_served_and_what_cannot_be_mapped_comes_from_the_store(
    loop, engine, policies
):
    one = support.request("m", seed=5)
    worker = object.__new__(RolloutWorker)  # without Ray: the chunks are futures of this loop
    worker._engine, worker._update_timeout_s, worker._gpu = engine, 60.0, watch_gpu("worker", 0, "float32")

    def update(version: int, policy: int, shared: SharedWeights) -> UpdateReport:
        async def updated() -> UpdateReport:
            chunk = asyncio.get_running_loop().create_future()
            chunk.set_result(dict(support.arrays_of(policies[policy])))
            bundle = support.bundle_of(policies[policy], version)
            return await worker.update_weights(replace(bundle, chunks=(chunk,), shared=shared))

        report = loop.run(updated())
        completion = loop.run(support.sample(engine, [one]))["m"]
        assert_matches(policies[policy], one.prompt_ids, completion, one.temperature)
        assert completion.version_min == version == report.version
        return report

    file = WeightsFile()
    for name, array in support.arrays_of(policies[1]):
        file.add(name, array, False)
    shared = replace(file.seal(), way="shared_memory")
    report = update(1, 1, shared)
    assert (report.way, report.why_not_shared, report.seconds_copied) == ("shared_memory", "", 0.0)
    (first, *others) = shared.arrays
    report = update(2, 0, replace(shared, arrays=({**first, "offset": 2**40}, *others)))
    assert report.way == "object_store" and "nothing was loaded" in report.why_not_shared
    on_gpu = replace(shared, gpu=OnGpu("GPU-0", bytes(range(64)), 8, 1))
    report = update(3, 1, on_gpu)
    assert report.way == "object_store" and "no CUDA device; nothing was loaded" in report.why_not_shared
    file.close()
    report = update(4, 0, shared)
    assert report.way == "object_store" and "no process here has it" in report.why_not_shared


def test_a_transfer_with_another_checksum_is_refused_and_the_old_weights_serve_on(loop, engine, policies):
    one = support.request("c", seed=11)
    arrays = support.arrays_of(policies[1])
    bundle = support.bundle_of(policies[1], 3)
    arrays[2][1].reshape(-1)[0] += 1.0
    with pytest.raises(RuntimeError, match=rf"rollout-test: weights of version 3 refused.*checksum.*{bundle.checksum}"):
        loop.run(engine.update_weights(bundle, arrays))
    completion = loop.run(support.sample(engine, [one]))["c"]
    assert_matches(policies[0], one.prompt_ids, completion, one.temperature)
    assert completion.version_max == engine.version == 0


def test_a_bundle_that_lacks_a_parameter_is_refused_and_what_it_left_is_not_served(loop, engine, policies):
    arrays = support.arrays_of(policies[1])
    del arrays[-1]
    with pytest.raises(RuntimeError, match=r"rollout-test.*do not hold 1 parameters, such as .*norm"):
        loop.run(engine.update_weights(support.bundle_of(policies[1], 3, arrays), arrays))
    with pytest.raises(RuntimeError, match=r"rollout-test.*do not hold 1 parameters"):
        engine.submit("test", [support.request("x", seed=1)])  # half of one policy, half of another


def test_weights_that_fail_the_probe_are_not_served(loop, engine, policies):
    bundle = replace(
        support.bundle_of(policies[1], 4), probe_log_probs=support.bundle_of(policies[0], 4).probe_log_probs
    )
    with pytest.raises(RuntimeError, match=r"rollout-test: weights of version 4 failed the parity probe.*bound 0.001"):
        loop.run(engine.update_weights(bundle, support.arrays_of(policies[1])))
    with pytest.raises(RuntimeError, match=r"version 4 failed the parity probe"):
        engine.submit("test", [support.request("x", seed=1)])
    loop.run(engine.update_weights(support.bundle_of(policies[1], 5), support.arrays_of(policies[1])))
    assert loop.run(engine.health())["version"] == 5


def test_a_late_update_names_worker_and_version_and_a_later_one_heals(loop, engine, policies, monkeypatch):
    async def never(*_: object) -> None:
        await asyncio.sleep(60)

    with monkeypatch.context() as patch:
        patch.setattr(engine.vllm, "load", never)
        patch.setattr(engine, "_config", engine._config.model_copy(update={"update_timeout_s": 2.0}))
        with pytest.raises(RuntimeError, match=r"rollout-test: weight update to version 6 not finished after 2 s"):
            loop.run(engine.update_weights(support.bundle_of(policies[1], 6), support.arrays_of(policies[1])))
    with pytest.raises(RuntimeError, match=r"version 6 not finished"):
        loop.run(engine.collect("test", 1.0))
    loop.run(engine.update_weights(support.bundle_of(policies[1], 7), support.arrays_of(policies[1])))
    assert loop.run(support.sample(engine, [support.request("h", seed=1)]))["h"].version_min == 7


def test_a_cancelled_update_leaves_nothing_served_and_reports_what_it_discarded(loop, engine, policies, monkeypatch):
    """Found by a reviewer: the weights could be loaded in part, and clients of discarded requests waited in vain."""
    entered = asyncio.Event()

    async def never(*_: object) -> None:
        entered.set()
        await asyncio.sleep(60)

    async def cancelled() -> None:
        update = asyncio.create_task(
            engine.update_weights(support.bundle_of(policies[1], 8), support.arrays_of(policies[1]))
        )
        await entered.wait()
        engine.submit("lost", [support.request("late", seed=1)])
        update.cancel()
        with pytest.raises(asyncio.CancelledError):
            await update

    with monkeypatch.context() as patch:
        patch.setattr(engine.vllm, "load", never)
        loop.run(cancelled())
    with pytest.raises(RuntimeError, match=r"version 8 ended by CancelledError"):
        loop.run(engine.collect("test", 1.0))
    loop.run(engine.update_weights(support.bundle_of(policies[1], 9), support.arrays_of(policies[1])))
    (lost,) = loop.run(engine.collect("lost", 5.0))
    assert lost.request_id == "late" and lost.finish_reason == "error" and "version 8" in (lost.error or "")


def test_pause_wait_lets_sequences_end_under_the_weights_they_began_with(loop, policies, engine):
    config = engine.vllm._config
    requests = [support.request(f"w{i}", seed=i, max_tokens=100, temperature=0.3) for i in range(16)]

    async def update_midway() -> list[Completion]:
        engine.submit("test", requests)
        while engine.stats()["in_flight"] < 16:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        await engine.update_weights(support.bundle_of(policies[1], 1), support.arrays_of(policies[1]))
        found: list[Completion] = []
        while len(found) < 16:
            found += await engine.collect("test", 2.0)
        return found

    engine.vllm._config = config.model_copy(update={"pause": "wait"})
    try:
        found = loop.run(update_midway())
    finally:
        engine.vllm._config = config
    assert {(c.version_min, c.version_max) for c in found} == {(0, 0)}


def test_aborted_requests_are_not_delivered_and_leave_the_engine(loop, engine):
    async def abort_half() -> list[str]:
        engine.submit("test", [support.request(f"a{i}", seed=i, max_tokens=60, temperature=0.3) for i in range(8)])
        await asyncio.sleep(0.05)
        engine.abort("test", [f"a{i}" for i in range(4)])
        found: list[Completion] = []
        for _ in range(20):
            found += await engine.collect("test", 0.5)
            if len(found) >= 4:
                break
        return sorted(c.request_id for c in found)

    assert loop.run(abort_half()) == ["a4", "a5", "a6", "a7"]
    assert engine.stats()["in_flight"] == 0


def test_collect_comes_back_empty_when_nothing_has_finished(loop, engine):
    assert loop.run(engine.collect("nobody", 0.05)) == []


def test_vllms_metrics_can_be_reported_to_ray_where_ray_serve_is_not_installed():
    config = support.CONFIG.model_copy(update={"engine_metrics": True})
    (reporter,) = VllmEngine("rollout-0", "no-folder", config, [])._reporters()
    reporter._counter_cls("vllm:seen", "help", ["model_name"]).labels("rollout-0").inc(1)
    reporter._gauge_cls("vllm:now", "help", ["model_name"]).labels("rollout-0").set(1)


def test_an_engine_on_several_gpus_starts_processes_of_its_own_in_the_bundle_of_its_worker():
    split = support.CONFIG.model_copy(update={"num_gpus": 2, "tensor_parallel_size": 2})
    assert engine_arguments("no-folder", split)["distributed_executor_backend"] == "mp"


def test_vllm_measures_the_room_for_its_cache_on_a_gpu_unless_its_size_is_given():
    unset = support.CONFIG.model_copy(update={"kv_cache_gib": None})
    assert engine_arguments("no-folder", unset)["kv_cache_memory_bytes"] == 2**30
    shared = unset.model_copy(update={"num_gpus": 0.5})
    assert "kv_cache_memory_bytes" not in (measured := engine_arguments("no-folder", shared))
    assert measured["gpu_memory_utilization"] == 0.5
    given = shared.model_copy(update={"kv_cache_gib": 2.0})
    assert engine_arguments("no-folder", given)["kv_cache_memory_bytes"] == 2 * 2**30


def test_parity_bound_follows_the_type_of_the_weights_unless_given():
    assert support.CONFIG.parity_limit == 1e-3
    assert support.CONFIG.model_copy(update={"dtype": "bfloat16"}).parity_limit == 0.5
    assert support.CONFIG.model_copy(update={"parity_bound": 0.2}).parity_limit == 0.2


def test_the_engine_runs_in_the_process_that_imported_vllm_beside_its_worker(engine):
    assert [type(process) for process in engine.vllm._processes] == [EarlyProcess]


def published_with_adapters(folder: str) -> WeightBundle:
    """What a learner publishes of the folder's model after a step with adapters."""
    process_group.start(0, 1, "127.0.0.1", 0, 60, "cpu")
    trainer = Trainer(folder, make_config(lora={"rank": 3}, optimizer={"learning_rate": 0.01}))
    assert trainer.train_step(1, make_groups()).updated
    bundle = trainer.publish(1, lambda chunk: chunk)
    process_group.stop()
    return bundle


@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe", "qwen3_moe"])
def test_updates_of_a_mixture_of_experts_with_and_without_adapters_are_served(loop, tmp_path, kind, monkeypatch):
    """Where vLLM has seen none before, too: no process is begun to look at its class."""
    from vllm.model_executor.models import registry

    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
    monkeypatch.setattr(registry, "_SUBPROCESS_COMMAND", ["false"])
    first, second = (support.make_mixture(kind, seed) for seed in (0, 1))
    folder, one = support.save(first, tmp_path), support.request("e", seed=9)
    bundle = published_with_adapters(folder)
    arrays = [(name, array) for chunk in bundle.chunks for name, array in chunk.items()]
    engine = Engine("rollout-test", folder, support.CONFIG, [support.STOP_ID], lambda index: chr(32 + index).encode())
    try:
        loop.run(engine.start(), timeout_s=600)
        assert loop.run(engine.update_weights(bundle, arrays)).parity_max < 1e-4
        loop.run(engine.update_weights(support.bundle_of(second, 2), support.arrays_of(second)))
        completion = loop.run(support.sample(engine, [one]))["e"]
        assert_matches(second, one.prompt_ids, completion, one.temperature)
    finally:
        loop.run(engine.stop())


def test_a_killed_engine_is_reported_by_name_within_a_bound(loop, engine):
    """Last in the module: the engine does not come back."""

    async def kill_midway() -> None:
        engine.submit("test", [support.request(f"d{i}", seed=i, max_tokens=200) for i in range(8)])
        await asyncio.sleep(0.02)
        for process_id in engine.vllm.process_ids:
            os.kill(process_id, signal.SIGKILL)
        for _ in range(20):
            await engine.collect("test", 1.0)

    with pytest.raises(RuntimeError, match=r"rollout worker rollout-test: its vLLM engine has died"):
        loop.run(kill_midway(), timeout_s=180)
    with pytest.raises(RuntimeError, match=r"rollout-test"):
        engine.submit("test", [support.request("late", seed=0)])
    with pytest.raises(RuntimeError, match=r"rollout-test"):
        loop.run(engine.health())
    loop.run(engine.stop(), timeout_s=180)
    assert not [pid for pid in engine.vllm.process_ids if os.path.exists(f"/proc/{pid}")]
