"""A death is described in one sentence, which names memory as the cause if that is known. The texts are Ray's."""

from pathlib import Path

import pytest
from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayActorError

from squelch.actors.process.ray_errors import KernelKills, cause_of_death

KILLED = """The actor died unexpectedly before finishing this task.
\tclass_name: FilterService
\tactor_id: 46b0b0215716d3c024360d6701000000
\tpid: 17498
\tip: 192.0.2.2
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker \
unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was killed \
by the OOM killer due to high memory usage, (2) ray stop --force was called"""
MONITOR = """6 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 10.77.0.1, ID: \
96ead4) was 22.61GB used / 23.54GB limit (0.960414)
OOM kill reason: Memory usage 24026124288B exceeded threshold of 24012677120B (95.0% of 25276502016B limit)"""


ORPHANED = """The actor died unexpectedly before finishing this task.
\tclass_name: RolloutWorker
\tpid: 4257
\tip: 127.0.0.1
The actor is dead because its owner has died. Owner Id: 01000000ffff Owner worker exit type: \
SYSTEM_ERROR Worker exit detail: Owner's node has crashed."""


def test_an_actor_that_lost_its_driver_says_so_in_one_line() -> None:
    said = cause_of_death(RayActorError("ab", ORPHANED))
    assert said == (
        "Ray ended its process 4257 on 127.0.0.1, because it took the driver for gone: Owner's node has crashed."
    )


def kernel(folder: Path, kills: int) -> Path:
    counts = folder / "vmstat"
    counts.write_text(f"nr_free_pages 4\noom_kill {kills}\nballoon_inflate 0\n")
    return counts


@pytest.mark.parametrize("error", [OutOfMemoryError(MONITOR), RayActorError("ab", MONITOR)])
def test_rays_memory_monitor_is_named_with_the_memory_in_use(error: Exception, tmp_path: Path) -> None:
    said = cause_of_death(error, KernelKills(tmp_path / "absent"))
    assert said == (
        "out of memory: Ray's memory monitor ended its process, because the node ran low (22.61GB used / 23.54GB limit)"
    )


def test_a_killed_process_is_distinguished_from_one_that_the_kernel_killed_for_memory(tmp_path: Path) -> None:
    kills = KernelKills(kernel(tmp_path, 2))
    by_signal = cause_of_death(RayActorError("ab", KILLED), kills)
    assert by_signal == "its process 17498 on 192.0.2.2 was killed by a signal, or crashed (its own log may say more)"
    kernel(tmp_path, 3)
    assert "17498 on 192.0.2.2 was killed, probably out of memory" in cause_of_death(RayActorError("ab", KILLED), kills)
    assert cause_of_death(RayActorError("ab", KILLED), kills) == by_signal, "an earlier kill is not blamed again"


HEALTH_CHECK = """The actor died unexpectedly before finishing this task.
\tpid: 24524
\tip: 10.77.0.3
The actor died because its node has died. Node Id: 88c98a
\tthe actor's node was terminated unexpectedly: health check failed due to missing too many heartbeats"""
FAILED_CALL = """The actor is temporarily unavailable: RpcError: RPC Error message: failed to connect to all \
addresses; last error: UNKNOWN: ipv4:10.77.0.3:40213: Failed to connect to remote host: No route to host; RPC Error \
details:  rpc_code: 14"""
HEARTBEATS = "health check failed due to missing too many heartbeats"


@pytest.mark.parametrize(
    ("error", "place", "reason"),
    [
        (
            RayActorError("ab", HEALTH_CHECK),
            "24524 on 10.77.0.3",
            "health check failed due to missing too many heartbeats",
        ),
        (ActorUnavailableError(FAILED_CALL, None), "on 10.77.0.3", "a call to it failed"),
    ],
)
def test_a_lost_host_is_named_in_one_way_whoever_notices_it_first(
    error: Exception, place: str, reason: str, tmp_path: Path
) -> None:
    said = cause_of_death(error, KernelKills(tmp_path))
    assert said == f"the host of its process {place} was lost or cannot be reached: {reason}"


def test_other_deaths_keep_rays_words(tmp_path: Path) -> None:
    text = "The actor died because of an error raised in its creation task, ValueError: no such model"
    assert cause_of_death(RayActorError("ab", text), KernelKills(tmp_path)) == text
