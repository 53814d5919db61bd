"""Lanes and bubbles of a run's spans, the lines of a live run, and the trace for Perfetto."""

import gzip
import io
import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.cluster.commands.existing_runs.trace import trace
from squelch.cluster.runs.following import LineFollower
from squelch.cluster.runs.timing.perfetto import trace_events, write_trace
from squelch.cluster.runs.timing.timeline import MOST_NAMES, Timeline
from squelch.kit.archive.store import LocalStore
from squelch.kit.archive.writer import Archive
from squelch.kit.base.errors import UserError


def timeline(folder: Path, *spans: tuple[str, str, float, float]) -> Timeline:
    archive = Archive(folder)
    for actor, name, start, end in spans:
        archive.event(actor, name, start, end, step=1)
    found = Timeline(LocalStore(folder))
    found.refresh()
    return found


def test_a_bubble_is_a_gap_in_the_learners_work_and_says_who_filled_it(tmp_path: Path) -> None:
    found = timeline(
        tmp_path,
        ("learner", "work", 0.0, 2.0),
        ("rollout-0", "work", 2.0, 5.0),
        ("env-0", "work", 4.0, 6.0),
        ("learner", "call", 0.0, 12.0),  # encloses the others, and is no work
        ("learner", "work", 10.0, 12.0),
    ).window(0.0, 12.0)
    assert [(bubble.start, bubble.end) for bubble in found.bubbles] == [(2.0, 10.0)]
    assert found.bubbles[0].filled == [("rollout-0", pytest.approx(3 / 8)), ("env-0", pytest.approx(2 / 8))]
    assert found.waiting == pytest.approx(8 / 12)
    assert [lane.actor for lane in found.lanes] == ["learner", "rollout-0", "env-0"]
    assert [lane.busy for lane in found.lanes] == pytest.approx([4 / 12, 3 / 12, 2 / 12])


def test_spans_that_would_overlap_on_the_screen_are_joined_and_others_are_not(tmp_path: Path) -> None:
    spans = [("env-0", "work", 0.01 * k, 0.01 * k + 0.005) for k in range(1000)]
    found = timeline(tmp_path, *spans)
    assert len(found.window(0.0, 1000.0).lanes[0].spans) == 1
    assert len(found.window(0.0, 0.5).lanes[0].spans) == 51


def test_a_damaged_line_is_named_each_time_and_costs_no_other_span(tmp_path: Path) -> None:
    """Found by a reviewer: the second refresh said nothing and showed only what came after the damaged line."""
    found, path = timeline(tmp_path, ("a", "work", 0.0, 1.0)), tmp_path / "events.jsonl"
    whole = [json.dumps({"actor": name, "name": "work", "start": 2.0, "end": 3.0}) + "\n" for name in ("b", "d")]
    for damaged in ('{"actor": 3, "name": "work", "start": 0, "end": 1}\n', "{]\n"):
        path.write_text(path.read_text() + whole[0] + damaged + whole[1])
        for _ in range(3):
            with pytest.raises(UserError, match=r"events\.jsonl"):
                found.refresh()
            assert [actor for actor, *_ in found.spans()] == ["a", "b"]
        path.write_text(path.read_text().split(whole[0])[0])
        found = Timeline(LocalStore(tmp_path))


def test_a_file_of_endless_names_is_refused(tmp_path: Path) -> None:
    spans = [{"actor": "a", "name": f"n{k}", "start": 0.0, "end": 1.0} for k in range(MOST_NAMES + 1)]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(span) + "\n" for span in spans))
    with pytest.raises(UserError, match=r"events\.jsonl: more than .* names"):
        Timeline(LocalStore(tmp_path)).refresh()


def test_a_run_without_a_learner_has_no_bubble(tmp_path: Path) -> None:
    assert timeline(tmp_path, ("env-0", "work", 0.0, 1.0)).window(0.0, 5.0).bubbles == []
    assert Timeline(LocalStore(tmp_path / "nothing")).extent is None


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 20)), min_size=2, max_size=20))
def test_work_and_bubbles_of_the_learner_fill_the_time_between_its_first_and_last_work(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[int, int]]
) -> None:
    spans = [("learner", "work", float(start), float(start + size)) for start, size in pieces]
    found = timeline(tmp_path_factory.mktemp("spans"), *spans)
    start, end = found.extent
    window = found.window(start, end)
    assert window.waiting + window.lanes[0].busy == pytest.approx(1.0)
    for before, after in itertools.pairwise(window.bubbles):
        assert before.end <= after.start


def test_of_a_long_run_the_newest_spans_are_held_and_times_count_from_its_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squelch.cluster.runs.timing.timeline.NEWEST_BYTES", 1000)
    found = timeline(tmp_path, *(("env-0", "work", 10.0 + k, 10.5 + k) for k in range(100)))
    held = [start for _, _, start, _, _ in found.spans()]
    assert found.extent == (10.0, 109.5) and held[-1] == 109.0 and 5 < len(held) < 20
    Archive(tmp_path).event("env-0", "work", 110.0, 111.0)
    found.refresh()
    assert [start for _, _, start, _, _ in found.spans()] == [*held, 110.0]


def test_a_follower_returns_each_line_once_and_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    path, follower = tmp_path / "metrics.jsonl", LineFollower(LocalStore(tmp_path), "metrics.jsonl")
    assert [list(part) if not isinstance(part, bool) else part for part in follower.news()] == [False, []]
    path.write_text('{"step": 1}\n{"st')
    assert list(follower.news()[1]) == [{"step": 1}]
    with path.open("a") as file:
        file.write('ep": 2}\n')
    assert list(follower.news()[1]) == [{"step": 2}] and list(follower.news()[1]) == []


def test_a_follower_starts_again_after_a_resume_has_replaced_lines(tmp_path: Path) -> None:
    path, follower = tmp_path / "metrics.jsonl", LineFollower(LocalStore(tmp_path), "metrics.jsonl")
    path.write_text('{"step": 1}\n{"step": 2}\n')
    list(follower.news()[1])
    path.write_text('{"step": 1}\n{"step": 8}\n{"step": 9}\n')
    void, lines = follower.news()
    assert void and list(lines) == [{"step": 1}, {"step": 8}, {"step": 9}]
    path.write_text("")
    assert follower.news()[0]


def test_a_trace_has_a_lane_an_actor_and_counters_in_microseconds() -> None:
    spans = [
        {"actor": "learner", "name": "work", "start": 100.0, "end": 101.5, "step": 3},
        {"actor": "rollout-0", "name": "work", "start": 99.0, "end": 100.0},
    ]
    events = list(trace_events("run", spans, [{"step": 3, "time": 102.0, "success": 0.5}]))
    lanes = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    work = [event for event in events if event["ph"] == "X"]
    assert [(event["tid"], event["ts"], event["dur"]) for event in work] == [
        (lanes["learner"], 1_000_000, 1_500_000),
        (lanes["rollout-0"], 0, 1_000_000),
    ]
    assert work[0]["args"] == {"step": 3}
    counters = [event for event in events if event["ph"] == "C"]
    assert [(event["name"], event["ts"], event["args"]) for event in counters] == [
        ("success", 3_000_000, {"value": 0.5})
    ]


@pytest.mark.parametrize("compressed", [True, False])
def test_a_written_trace_is_one_json_object(compressed: bool) -> None:
    file = io.BytesIO()
    assert write_trace([{"ph": "M"}, {"ph": "X"}], file, compressed) == 2
    data = gzip.decompress(file.getvalue()) if compressed else file.getvalue()
    assert json.loads(data)["traceEvents"] == [{"ph": "M"}, {"ph": "X"}]


def test_the_command_writes_the_trace_beside_the_run_and_refuses_a_run_without_spans(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    timeline(folder, ("learner", "work", 0.0, 2.0))
    path, count = trace(folder)
    assert path == folder / "trace.json.gz" and count == 4
    assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"][-1]["dur"] == 2_000_000
    (folder / "events.jsonl").write_text("")
    with pytest.raises(UserError, match=r"events\.jsonl holds no span yet"):
        trace(folder)
