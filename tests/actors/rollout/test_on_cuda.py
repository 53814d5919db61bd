"""An engine on a GPU, whose scheduler runs ahead of the model, keeps what an engine on CPU does."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

from squelch.actors.rollout.worker import Engine
from tests.actors.rollout import test_worker as on_cpu
from tests.actors.rollout import vllm_support as support

pytestmark = [
    pytest.mark.ray,
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available() or find_spec("vllm") is None, reason="no CUDA device, or no vLLM"),
]
CONFIG = support.CONFIG.model_copy(update={"num_gpus": 0.1, "start_timeout_s": 110.0})
loop, policies, engine = on_cpu.loop, on_cpu.policies, on_cpu.engine
test_log_probs = on_cpu.test_log_probs_are_those_of_the_distribution_sampled_from
test_ends = on_cpu.test_a_turn_ends_at_the_stop_token_which_is_kept_or_at_its_limit
test_versions = on_cpu.test_sequences_in_flight_go_on_under_the_new_weights_and_carry_both_versions
test_aborts = on_cpu.test_aborted_requests_are_not_delivered_and_leave_the_engine


@pytest.fixture(scope="module")
def served(loop, policies, tmp_path_factory) -> Iterator[Engine]:
    folder = support.save(policies[0], tmp_path_factory.mktemp("policy"))
    engine = Engine("rollout-test", folder, CONFIG, [support.STOP_ID])
    loop.run(engine.start())
    yield engine
    loop.run(engine.stop())


def test_the_scheduler_runs_ahead_of_the_model(engine) -> None:
    chosen = engine.vllm.require_alive().vllm_config.scheduler_config
    assert chosen.async_scheduling and chosen.scheduler_cls.endswith(".AsyncGatheringScheduler")
