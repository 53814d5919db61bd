"""Measures the endpoint at which agents call the policy: what a call costs its process, beside many others.

    python -m benchmarks.endpoint [--trajectories N] [--rounds N] [--quick] [--json]

One client process plays 256 trajectories at a time over HTTP, eight calls each, 20 rounds of them: a conversation with
a system message, whose replies are sent back as the client got them. The endpoint's process samples nothing: after 50
ms a call has 40 tokens that were drawn before. Prints

    CPU ms a call   processor milliseconds of the endpoint's process per call
    calls/s         calls per second of both processes, which share the cores
    p50, p99, max   seconds from request to answer
    lost            calls without an answer within 30 s
    MiB, growth     resident memory of the endpoint's process at the end, and MiB more since a quarter of the calls
    callback ms     processor milliseconds of the costliest callback of the endpoint's event loop, in one round more
                    and in the next
    shapes s        processor seconds, the template's process included, for finding the ids of 200 requests, each with a
                    tool of its own

The model's tokenizer has 320 pieces, so that texts have more tokens than a real model's would.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil

from benchmarks.common import parser_of, print_metrics
from squelch.actors.endpoint.canonical import Message, Request, function_tool
from squelch.actors.endpoint.config import EndpointConfig
from squelch.actors.endpoint.server import Endpoint
from squelch.actors.endpoint.session import Call, Session
from squelch.actors.messages import Completion
from squelch.actors.play.codec import ChatCodec
from squelch.actors.play.seeds import derive_seed

CALLS, DELAY_S, BOUND_S, SHAPES = 8, 0.05, 30.0, 200
ANSWER = "go up to the goal, then say what stands there: a passage said so."
SYSTEM = "Reach the goal. Say where you go, one step at a time, and what you see. " * 4
SAW = "x < y > z | 1 2 3, and a wall to the left of it. What do you do? "


class Callbacks:
    """Inside of it, `longest` is the processor seconds of the costliest callback of an event loop."""

    def __init__(self) -> None:
        self.longest, self._run = 0.0, asyncio.Handle._run

    def __enter__(self) -> Callbacks:
        def measured(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            self._run(handle)
            self.longest = max(self.longest, time.thread_time() - began)

        asyncio.Handle._run = measured  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]


class Policy:
    """Answers each call after a moment with the same ids."""

    def __init__(self, codec: ChatCodec) -> None:
        self._ids = np.append(codec.encode(ANSWER), codec.stop_ids[0]).astype(np.int32)
        self._log_probs = np.full(len(self._ids), -0.5, np.float32)
        self.num_calls = 0

    async def __call__(self, call: Call) -> Completion:
        """A sampled turn."""
        self.num_calls += 1
        await asyncio.sleep(DELAY_S)
        return Completion("", self._ids, self._log_probs, "stop", 1, 1)


async def served(trajectories: int, rounds: int) -> dict[str, Any]:
    """The metrics of the module's head."""
    from tests.actors.formats.test_own import SHOWS_TOOLS
    from tests.kit.text.made import chatml_bpe, save_folder

    with tempfile.TemporaryDirectory() as folder:
        codec = ChatCodec(save_folder(Path(folder), chatml_bpe(), SHOWS_TOOLS))
        policy = Policy(codec)
        endpoint = Endpoint(codec, EndpointConfig(), 32_768)
        await endpoint.start()
        gc.freeze()  # as an environment actor does once it is ready
        seconds, cpu, wall, early = await played(endpoint, policy, trajectories, rounds)
        end, calls = resident_mib(), policy.num_calls
        with Callbacks() as callbacks:
            await played(endpoint, policy, trajectories, 1)
            shapes = await seconds_of_shapes(endpoint.open(policy, derive_seed, len(ANSWER) * 2))
        await endpoint.close()
    return {
        "calls": len(seconds),
        "cpu_ms_per_call": 1e3 * cpu / calls,
        "calls_per_second": len(seconds) / wall,
        "p50_s": float(np.percentile(seconds, 50)),
        "p99_s": float(np.percentile(seconds, 99)),
        "max_s": float(seconds.max()),
        "lost": CALLS * trajectories * rounds - len(seconds),
        "mib_end": end,
        "mib_growth": end - early,
        "callback_ms": 1e3 * callbacks.longest,
        "shapes_s": shapes,
    }


async def played(
    endpoint: Endpoint, policy: Policy, trajectories: int, rounds: int
) -> tuple[np.ndarray, float, float, float]:
    """Serves one client process until it has played; the seconds of each call, processor seconds and seconds of all,
    and the memory at a quarter of them, MiB."""
    waiting = [endpoint.open(policy, derive_seed, len(ANSWER) * 2, CALLS) for _ in range(trajectories * rounds)]
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.endpoint", "--client", str(trajectories), stdin=-1, stdout=-1
    )
    given = {"url": waiting[0].base_url, "tokens": [session.token for session in waiting]}
    watch = asyncio.create_task(watched(waiting, policy, policy.num_calls + CALLS * len(waiting) // 4))
    before, began = time.process_time(), time.perf_counter()
    said, _ = await client.communicate(json.dumps(given).encode())
    wall, cpu = time.perf_counter() - began, time.process_time() - before
    return np.array(json.loads(said)["seconds"]), cpu, wall, await watch


async def seconds_of_shapes(session: Session) -> float:
    """Processor seconds of this process and its children for requests of which none has the tools of another."""
    before = cpu_seconds()
    for number in range(SHAPES):
        tool = function_tool(f"tool_{number}", SAW, {"type": "object", "properties": {}})
        await session.num_fed(Request((Message("system", SYSTEM), Message("user", SAW)), (tool,)))
    return cpu_seconds() - before


def cpu_seconds() -> float:
    """Processor seconds of this process and of its children."""
    times = [one.cpu_times() for one in (psutil.Process(), *psutil.Process().children(recursive=True))]
    return sum(one.user + one.system for one in times)


async def watched(sessions: list[Session], policy: Policy, quarter: int) -> float:
    """Ends each trajectory after its calls, as the player would; returns the memory at a quarter of the calls."""
    early = 0.0
    while sessions:
        await asyncio.sleep(0.1)
        for session in [one for one in sessions if one.counts["calls"] == CALLS and not one.in_progress]:
            await session.end()
            sessions.remove(session)
        early = early or (resident_mib() if policy.num_calls > quarter else 0.0)
    return early


def resident_mib() -> float:
    """Resident memory of this process, MiB."""
    return psutil.Process().memory_info().rss / 2**20


async def play(at_once: int) -> None:
    """The client process: plays the trajectories whose tokens stand on its standard input."""
    given = json.load(sys.stdin)
    seconds: list[float] = []
    tokens = iter(given["tokens"])
    limit = aiohttp.ClientTimeout(total=BOUND_S)
    async with aiohttp.ClientSession(timeout=limit, connector=aiohttp.TCPConnector(limit=0)) as http:

        async def lane() -> None:
            for token in tokens:
                await trajectory(http, given["url"], token, seconds)

        await asyncio.gather(*(lane() for _ in range(at_once)))
    json.dump({"seconds": seconds}, sys.stdout)


async def trajectory(http: aiohttp.ClientSession, url: str, token: str, seconds: list[float]) -> None:
    """One conversation; adds the seconds of each answered call."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": SAW}]
    for number in count(1):
        began = time.perf_counter()
        headers = {"authorization": f"Bearer {token}"}
        body = {"model": "policy", "messages": messages}
        try:
            async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
                response.raise_for_status()
                said = (await response.json())["choices"][0]["message"]
        except (aiohttp.ClientError, TimeoutError):
            return
        seconds.append(time.perf_counter() - began)
        messages += [said, {"role": "user", "content": f"{number}: {SAW}"}]
        if number == CALLS:
            return


def main() -> int:
    """Prints the table."""
    parser = parser_of(__doc__, "3 rounds")
    parser.add_argument("--trajectories", type=int, default=256, help="trajectories at a time")
    parser.add_argument("--rounds", type=int, default=20, help="trajectories of each lane, one after another")
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        asyncio.run(play(arguments.client))
        return 0
    metrics = asyncio.run(served(arguments.trajectories, 3 if arguments.quick else arguments.rounds))
    columns = ("calls", "CPU ms a call", "calls/s", "p50 s", "p99 s", "max s", "lost", "MiB", "growth")
    columns += ("callback ms", "shapes s")
    print_metrics(metrics, arguments.json, columns, [list(metrics.values())], [])
    return 0


if __name__ == "__main__":
    sys.exit(main())
