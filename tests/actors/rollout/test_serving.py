"""What a rollout worker promises beside its engine, which a stand-in replaces: no vLLM is started."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squelch.actors.config import RolloutConfig
from squelch.actors.messages import Completion, GenerationRequest, TransferRefused, WeightBundle
from squelch.actors.rollout.engine import LoadTimes, VllmEngine
from squelch.actors.rollout.engine_args import engine_environment, require_build
from squelch.actors.rollout.mailboxes import CLIENT_GONE_S
from squelch.actors.rollout.worker import Engine
from squelch.kit.process.progress_marks import Marks
from squelch.kit.records.content import PlacedPictures
from tests.fakes.clock import run

PROBE = np.arange(3, dtype=np.int32)


class StandIn:
    """An engine's process: it samples, and loads weights, as soon as the test lets it."""

    def __init__(self) -> None:
        self.version = 0
        self.marks = Marks()
        self.samples, self.loads = asyncio.Event(), asyncio.Event()
        self.refusal: Exception | None = None

    def require_alive(self) -> None:
        """It never dies."""

    async def start(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def token(self) -> None:
        await self.samples.wait()

    async def complete(self, request: GenerationRequest) -> Completion:
        await self.samples.wait()
        return Completion(request.request_id, PROBE, np.zeros(3, np.float32), "stop", 0, 0)

    @asynccontextmanager
    async def copied(self, bundle: WeightBundle, arrays: Any) -> AsyncIterator[dict[str, Any]]:
        yield {}

    async def load(self, bundle: WeightBundle, copied: dict[str, Any]) -> LoadTimes:
        await self.loads.wait()
        if self.refusal is not None:
            raise self.refusal
        return LoadTimes(0.0, 0.0)

    async def prompt_log_probs(self, ids: np.ndarray, pictures: PlacedPictures = ()) -> np.ndarray:
        return np.zeros(len(ids) - 1)


def serving() -> tuple[Engine, StandIn]:
    engine, stand_in = Engine("rollout-0", "no-folder", RolloutConfig(), []), StandIn()
    engine.vllm = stand_in  # pyrefly: ignore[bad-assignment]
    engine._serve()
    return engine, stand_in


def bundle(version: int) -> WeightBundle:
    return WeightBundle(version, (), "", PROBE, np.zeros(2, np.float32))


def request(name: str) -> GenerationRequest:
    return GenerationRequest(name, PROBE, 4, 1.0, 1)


@pytest.mark.parametrize("asked", ["before the update", "in the update"])
def test_a_worker_that_loads_weights_for_longer_than_a_token_may_take_is_healthy(asked: str) -> None:
    async def ask() -> dict[str, Any]:
        engine, stand_in = serving()
        health = asyncio.ensure_future(engine.health(0.1)) if asked == "before the update" else None
        await asyncio.sleep(0)
        update = asyncio.ensure_future(engine.update_weights(bundle(1), []))
        await asyncio.sleep(0)
        answer = await (health or engine.health(0.1))
        stand_in.loads.set()
        await update
        return answer

    assert asyncio.run(ask()).items() >= {"worker": "rollout-0", "version": 0}.items()


def test_a_worker_whose_token_an_update_held_up_is_healthy() -> None:
    async def ask() -> dict[str, Any]:
        engine, stand_in = serving()
        health = asyncio.ensure_future(engine.health(0.1))
        await asyncio.sleep(0)
        stand_in.loads.set()
        await engine.update_weights(bundle(1), [])
        return await health

    assert asyncio.run(ask())["version"] == 1


@pytest.mark.parametrize("refusal", [None, TransferRefused("checksum; nothing was loaded"), RuntimeError("damaged")])
def test_a_worker_without_a_token_or_an_update_that_passed_is_not_healthy(refusal: Exception | None) -> None:
    async def ask() -> None:
        engine, stand_in = serving()
        health = asyncio.ensure_future(engine.health(0.1))
        await asyncio.sleep(0)
        if refusal is not None:
            stand_in.refusal = refusal
            stand_in.loads.set()
            with pytest.raises(RuntimeError):
                await engine.update_weights(bundle(1), [])
        with pytest.raises(RuntimeError, match=r"rollout-0: (no token within 0\.1 s|damaged)"):
            await health

    asyncio.run(ask())


def test_a_request_whose_sampling_has_not_begun_when_weights_are_refused_leaves_nothing_behind() -> None:
    async def refuse() -> tuple[list[Completion], int]:
        engine, _ = serving()
        engine.submit("c", [request("a")])
        engine._refuse("damaged")
        await asyncio.sleep(0)
        engine._unproven = None
        engine._serve()
        return await engine.collect("c", 1.0), len(engine._mailboxes["c"].tasks)

    (refused,), left = asyncio.run(refuse())
    assert refused.request_id == "a" and "damaged" in (refused.error or "") and left == 0


def test_a_client_gets_no_completion_of_a_request_that_it_gave_up_after_its_end() -> None:
    async def give_up() -> list[str]:
        engine, stand_in = serving()
        stand_in.samples.set()
        engine.submit("c", [request("a"), request("b")])
        await asyncio.sleep(0.01)
        engine.abort("c", ["a"])
        return [completion.request_id for completion in await engine.collect("c", 1.0)]

    assert asyncio.run(give_up()) == ["b"]


def test_giving_up_a_request_loses_no_completion_of_one_that_still_samples() -> None:
    async def give_up() -> list[str]:
        engine, stand_in = serving()
        engine.submit("c", [request("a"), request("b")])
        await asyncio.sleep(0)
        engine.abort("c", ["a"])
        stand_in.samples.set()
        return [completion.request_id for completion in await engine.collect("c", 1.0)]

    assert asyncio.run(give_up()) == ["b"]


def test_the_requests_of_clients_that_died_are_aborted_and_nothing_of_them_is_kept() -> None:
    async def die() -> tuple[int, float, int]:
        engine, stand_in = serving()
        for client in range(50):
            engine.submit(f"c{client}", [request(f"{k}") for k in range(16)])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.collect("c0", 100.0), 5.0)  # its process dies while it polls
        await asyncio.sleep(CLIENT_GONE_S + 1.0)
        left, in_flight = len(engine._mailboxes), engine.stats()["in_flight"]
        stand_in.samples.set()
        await asyncio.sleep(1.0)
        return left, in_flight, int(engine.stats()["requests"])

    assert run(die()) == (0, 0, 0)


def test_a_client_that_polls_keeps_its_requests_however_long_they_take() -> None:
    async def poll() -> list[str]:
        engine, stand_in = serving()
        engine.submit("c", [request("a")])
        for _ in range(10):
            assert await engine.collect("c", 30.0) == []
            await asyncio.sleep(CLIENT_GONE_S - 1.0)
        stand_in.samples.set()
        return [completion.request_id for completion in await engine.collect("c", 1.0)]

    assert run(poll()) == ["a"]


def test_a_client_that_only_seemed_gone_is_told_so_once() -> None:
    async def come_back() -> list[str]:
        engine, stand_in = serving()
        engine.submit("c", [request("a")])
        await asyncio.sleep(CLIENT_GONE_S + 1.0)
        with pytest.raises(RuntimeError, match="rollout-0: requests aborted"):
            await engine.collect("c", 1.0)
        engine.submit("c", [request("b")])
        stand_in.samples.set()
        return [completion.request_id for completion in await engine.collect("c", 1.0)]

    assert run(come_back()) == ["b"]


def test_the_event_loop_goes_on_and_the_worker_serves_while_weights_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def slowly(arrays: Any, names: Any) -> Iterator[tuple[Path, list[Any]]]:
        copying.set()
        waited.append(served.wait(180))
        yield Path("/memory"), []
        released_in.append(threading.current_thread())

    released_in: list[threading.Thread] = []
    copying, served, waited = threading.Event(), threading.Event(), list[bool]()

    async def update() -> tuple[list[str], float]:
        engine, stand_in = serving()
        monkeypatch.setattr(stand_in, "copied", VllmEngine("rollout-0", "no-folder", RolloutConfig(), []).copied)
        stand_in.samples.set()
        stand_in.loads.set()
        updating = asyncio.ensure_future(engine.update_weights(bundle(1), []))
        assert await asyncio.to_thread(copying.wait, 60)
        engine.submit("c", [request("a")])
        found = [completion.request_id for completion in await engine.collect("c", 60.0)]
        served.set()
        return found, (await updating).seconds_copied

    monkeypatch.setattr("squelch.actors.rollout.engine.written_arrays", slowly)
    found, copied_s = asyncio.run(update())
    assert found == ["a"] and waited == [True] and copied_s > 0
    assert len(released_in) == 1 and released_in[0] is not threading.current_thread(), "1 GiB takes 0.1 s and more"


@pytest.mark.parametrize("fault", [OSError(12, "Cannot allocate memory"), MemoryError(), None])
@pytest.mark.parametrize("sound", [True, False])
def test_a_copy_that_fails_or_is_late_leaves_the_worker_as_it_was(
    monkeypatch: pytest.MonkeyPatch, fault: Exception | None, sound: bool
) -> None:
    @asynccontextmanager
    async def copied(bundle: WeightBundle, arrays: Any) -> AsyncIterator[dict[str, Any]]:
        await asyncio.sleep(0.0 if fault else 1e6)
        raise fault or AssertionError("it was cut off")
        yield {}

    async def update() -> list[str]:
        engine, stand_in = serving()
        if not sound:
            engine._serving.clear()
            engine._refuse("failed the parity probe")
        monkeypatch.setattr(stand_in, "copied", copied)
        stand_in.samples.set()
        with pytest.raises(TransferRefused, match=r"rollout-0: weights of version 7 .* \(.+\), which serves version 0"):
            await engine.update_weights(bundle(7), [])
        engine.submit("c", [request("a")])
        return [completion.request_id for completion in await engine.collect("c", 5.0)]

    if sound:
        assert run(update()) == ["a"]
    else:
        with pytest.raises(RuntimeError, match="failed the parity probe"):
            run(update())


def test_an_engine_that_does_not_start_leads_to_the_log_in_which_its_process_says_why() -> None:
    engine, stand_in = serving()
    stand_in.refusal = RuntimeError("Engine core initialization failed. See root cause above.")
    with pytest.raises(RuntimeError, match=r"^rollout worker rollout-0: .*initialization failed.*log/rollout-0\.log"):
        asyncio.run(engine.start())


@pytest.mark.parametrize(("length", "moved"), [(70, False), (71, True)])
def test_the_engines_sockets_have_short_paths_below_a_long_temporary_folder(monkeypatch, length, moved) -> None:
    monkeypatch.delenv("VLLM_RPC_BASE_PATH", raising=False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/" + "x" * (length - 1))
    chosen = engine_environment(RolloutConfig()).get("VLLM_RPC_BASE_PATH", tempfile.gettempdir())
    assert (chosen == "/tmp") == moved and len(f"{chosen}/{uuid.uuid4()}") <= 107


def test_a_gpus_engine_multiplies_float32_in_float32() -> None:
    """Triton's default, TF32, leaves 11 bits of a factor; the parity bound of float32 is narrower."""
    on_cpu, on_gpu = (engine_environment(RolloutConfig(num_gpus=share)) for share in (0, 0.5))
    assert on_gpu["TRITON_F32_DEFAULT"] == "ieee"
    assert on_cpu.keys().isdisjoint({"TRITON_F32_DEFAULT", "VLLM_WORKER_MULTIPROC_METHOD"})


def test_the_machine_code_that_an_engine_on_a_cpu_collects_is_bounded(monkeypatch) -> None:
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.delenv(name, raising=False)
    assert engine_environment(RolloutConfig())[name] == "1024"
    monkeypatch.setenv(name, "64")
    assert engine_environment(RolloutConfig())[name] == "64"


@pytest.mark.parametrize(
    ("is_cpu_build", "num_gpus", "says"),
    [
        (True, 0.0, ""),
        (False, 1.0, ""),
        (False, 0.3, ""),
        (False, 0.0, r"rollout\.num_gpus=0 needs vLLM's CPU build.*set rollout\.num_gpus to 1"),
        (True, 0.3, r"rollout\.num_gpus=0\.3 needs vLLM's CUDA build.*KIND=gpu"),
    ],
)
def test_a_worker_whose_build_of_vllm_cannot_serve_its_devices_says_so(
    is_cpu_build: bool, num_gpus: float, says: str
) -> None:
    config = RolloutConfig(num_gpus=num_gpus)
    if not says:
        require_build(is_cpu_build, config)
        return
    with pytest.raises(ValueError, match=says):
        require_build(is_cpu_build, config)
