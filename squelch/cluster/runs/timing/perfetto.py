"""A run's spans as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open. Pure.

The file has the Trace Event Format: one thread per actor, complete events (`ph: X`, microseconds since the run's first
span), and counters for `COUNTERS`. A name that ends in `.gz` is compressed; both viewers read that too.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

COUNTERS = {
    "success": "success",
    "kept mass": "kept_mass",
    "reward variance": "reward_variance_mean",
    "retrieval accuracy": "first_turn/retrieval_accuracy",
    "MI (nats per token)": "first_turn/mi_est",
    "tokens per second": "tokens/per_second",
}
"""Counter tracks: their name, and the metric of `metrics.jsonl` that they show."""
PROCESS = 1


def trace_events(
    run: str, spans: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]] = ()
) -> Iterator[dict[str, Any]]:
    """The events of a trace. `spans`: those of `events.jsonl`; `lines`: those of `metrics.jsonl`."""
    origin = min([*(span["start"] for span in spans), *(line["time"] for line in lines)], default=0.0)
    actors = {actor: number for number, actor in enumerate(dict.fromkeys(span["actor"] for span in spans), start=1)}
    yield {"ph": "M", "pid": PROCESS, "name": "process_name", "args": {"name": run}}
    for actor, thread in actors.items():
        yield {"ph": "M", "pid": PROCESS, "tid": thread, "name": "thread_name", "args": {"name": actor}}
        yield {"ph": "M", "pid": PROCESS, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}}
    for span in spans:
        yield _complete(span, actors[span["actor"]], origin)
    for line in lines:
        yield from _counters(line, origin)


def _complete(span: Mapping[str, Any], thread: int, origin: float) -> dict[str, Any]:
    facts = {key: value for key, value in span.items() if key not in ("actor", "name", "start", "end")}
    at, took = _micros(span["start"] - origin), _micros(span["end"] - span["start"])
    return {"ph": "X", "pid": PROCESS, "tid": thread, "name": span["name"], "ts": at, "dur": took, "args": facts}


def _counters(line: Mapping[str, Any], origin: float) -> Iterator[dict[str, Any]]:
    for name, key in COUNTERS.items():
        if line.get(key) is not None:
            at = _micros(line["time"] - origin)
            yield {"ph": "C", "pid": PROCESS, "name": name, "ts": at, "args": {"value": line[key]}}


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)


def write_trace(events: Iterable[Mapping[str, Any]], file: BinaryIO, compressed: bool = False) -> int:
    """Writes the events as one JSON object; returns their number."""
    count = 0
    target = gzip.GzipFile(fileobj=file, mode="wb", mtime=0) if compressed else file
    text = io.TextIOWrapper(target, encoding="utf-8", write_through=True)  # type: ignore[arg-type]
    text.write('{"displayTimeUnit":"ms","traceEvents":[\n')
    for event in events:
        text.write((",\n" if count else "") + json.dumps(event, separators=(",", ":")))
        count += 1
    text.write("\n]}\n")
    text.flush()
    text.detach()
    if compressed:
        target.close()
    return count
