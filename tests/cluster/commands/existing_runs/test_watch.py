"""Status and live view read a run's folder and tell its state: starting, running, stopped, finished, ended, or late."""

import io
import itertools
import json
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from squelch.cluster.cli import main
from squelch.cluster.commands.existing_runs.status import status
from squelch.cluster.commands.existing_runs.watch import watch
from squelch.cluster.inspector.run_metrics import RunMetrics
from squelch.cluster.runs import listing, status_text
from squelch.cluster.runs import status as statuses
from squelch.cluster.runs.driver import FILE, Driver, named
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.status import seconds_per_step
from squelch.cluster.runs.status_text import SPARKS, sparkline, step_text
from squelch.kit.archive.store import LocalStore
from squelch.kit.archive.writer import Archive
from squelch.kit.base.errors import UserError
from squelch.kit.findings.finder import Finding
from squelch.kit.findings.words import plain
from squelch.kit.process.terminal import duration

NOW = 1_000_000.0


def step_metrics(step: int) -> dict[str, Any]:
    flat = {
        "total_steps": 10,
        "success": 0.3 + step / 100,
        "kept_mass": 0.9,
        "kept_groups": 5,
        "num_groups": 8,
        "reward_variance_mean": 0.05,
        "format_validity": 0.95,
        "no_signal_streak": 0,
        "seconds/step": 2.0,
        "seconds/rollout": 1.25,
        "tokens/per_second": 800.0,
        "staleness_max": 0.0,
        "ledger/issued": 8 * step,
        "ledger/trained": 5 * step,
        "ledger/dropped/zero": 3 * step,
        "ledger/dropped": 3 * step,
    }
    if step % 2:
        flat |= {"first_turn/retrieval_accuracy": 0.5, "first_turn/retrieval_chance": 0.125, "first_turn/mi_est": 0.3}
        flat["scorer/step"] = float(step)
    return flat


VALIDATION = {"validation/success": 0.35, "validation/success_low": 0.31, "validation/success_high": 0.39}


def some_run(folder: Path, steps: int) -> Archive:
    archive = Archive(folder)
    archive.metrics(0, VALIDATION | {"total_steps": 10}, at=NOW - 100)
    for step in range(1, steps + 1):
        archive.metrics(step, step_metrics(step), at=NOW - 100 + 3 * step)
    return archive


def finish(folder: Path, **facts: Any) -> None:
    (folder / "summary.json").write_text(json.dumps({"finished": True, "stopped": None} | facts))


def test_a_run_that_is_being_scaled_shows_who_is_up_and_how_many_are_wanted(tmp_path: Path) -> None:
    up = {"up/rollout-0": 1.0, "up/rollout-1": 0.0, "up/env-0": 1.0, "up/filter": 1.0}
    some_run(tmp_path, 1).metrics(2, step_metrics(2) | up | {"wanted/rollout": 2.0, "wanted/environment": 1.0}, at=NOW)
    now = statuses.read_status(RunFolder(tmp_path), NOW)
    assert now.members == {"rollout workers": (1, 2), "environment actors": (1, 1)}
    assert "rollout workers 1 (2 wanted)  environment actors 1\n" in status(tmp_path)


def test_a_probe_in_which_nothing_could_be_scored_is_not_hidden_behind_the_reading_before(tmp_path: Path) -> None:
    """Found by a reviewer: after reasoning had fallen silent, `status` showed the last healthy evaluation for good."""
    archive = some_run(tmp_path, 1)
    names = ("mi_low", "mi_high", "mi_upper", "ceiling", "saturated", "link/dependence", "link/follows")
    read = dict.fromkeys((f"probe/{name}" for name in names), 1.0) | {"probe/mi": 2.0, "probe/step": 25.0}
    archive.metrics(2, step_metrics(2) | read, at=NOW - 5)
    assert "D 1.00" in (text := status(tmp_path)) and "surprise" not in text, "an older run has no share of D"
    archive.metrics(3, step_metrics(3) | dict.fromkeys(read, math.nan) | {"probe/step": 50.0}, at=NOW)
    text = status(tmp_path)
    assert "n/a, nothing to score  step 50" in text and "D 1.00" not in text


def test_the_status_of_a_running_run_is_what_its_lines_say(tmp_path: Path) -> None:
    some_run(tmp_path, 4).event("learner", "train", NOW - 7, NOW - 5)
    now = statuses.read_status(RunFolder(tmp_path), NOW)
    assert (now.state, now.step, now.total_steps) == ("running", 4, 10)
    assert now.seconds_per_step == pytest.approx(3.0) and now.seconds_left == pytest.approx(18.0)
    assert now.seconds_since_step == pytest.approx(88.0)
    assert (now.validation_success, now.validation_step, now.first_validation_success) == (0.35, 0, 0.35)
    assert (now.retrieval_accuracy, now.retrieval_chance) == (0.5, 0.125), "of the step scored last, not the last step"
    assert now.ledger == {"issued": 32, "trained": 20, "dropped": 12}
    assert now.seconds == {"step": 2.0, "rollout": 1.25}
    assert now.last_event == "learner train took 2.0 s, 5 s ago"


def test_a_run_of_several_environments_has_a_line_of_each(tmp_path: Path) -> None:
    archive = some_run(tmp_path, 1)
    validated = {"environment/validation/lake": 0.4, "environment/validation/boxes": 0.1}
    archive.metrics(2, step_metrics(2) | VALIDATION | validated, at=NOW - 5)
    split = {"environment/groups/boxes": 2.0, "environment/success/boxes": 0.25, "environment/kept/boxes": 0.5}
    archive.metrics(3, step_metrics(3) | split | {"environment/reward/boxes": -1.0}, at=NOW)
    assert "  boxes                validation 0.100  training 0.250  reward -1.000  kept 0.500\n" in status(tmp_path)
    assert "  lake                 validation 0.400  training n/a" in status(tmp_path)
    assert json.loads(status(tmp_path, as_json=True))["environments"]["boxes"]["success"] == 0.25


def test_the_first_validation_is_the_first_on_the_tasks_of_the_last(tmp_path: Path) -> None:
    """Found by a reviewer: after a resume with other fixed tasks the first of the old ones was shown."""
    archive = some_run(tmp_path, 1)
    for step, success, gain in ((2, 0.6, 0.25), (4, 0.1, None), (6, 0.3, 0.2)):
        archive.metrics(step, VALIDATION | {"validation/success": success, "gain": gain}, at=NOW)
        now = statuses.read_status(RunFolder(tmp_path), NOW)
        assert now.first_validation_success == (0.35 if step == 2 else 0.1)


def test_a_raised_alarm_is_a_line_of_its_own_while_it_lasts(tmp_path: Path) -> None:
    archive = some_run(tmp_path, 4)
    assert "ALARM" not in status(tmp_path)
    raised = {"alarm/raised": 1.0, "alarm/since": 2.0, "alarm/reward_trend": 1.0}
    archive.metrics(5, step_metrics(5) | raised, at=NOW)
    text = "input dependence falling since step 2, reward still rising"
    assert f"ALARM                {text}" in status(tmp_path)
    assert json.loads(status(tmp_path, as_json=True))["dependence"] == text
    assert step_text(step_metrics(5) | raised | {"step": 5}).endswith(text)
    archive.metrics(6, step_metrics(6) | {"alarm/raised": 0.0, "alarm/since": None}, at=NOW)
    assert "ALARM" not in status(tmp_path)


def test_a_run_without_a_line_is_starting(tmp_path: Path) -> None:
    now = statuses.read_status(RunFolder(tmp_path), NOW)
    assert (now.state, now.step, now.success, now.seconds_left) == ("starting", 0, None, None)
    assert status(tmp_path) == f"{tmp_path.name}: starting", "not rows without a value"


def test_a_summary_ends_a_run_and_says_why_it_stopped(tmp_path: Path) -> None:
    some_run(tmp_path, 4)
    finish(tmp_path, finished=False, stopped="SIGTERM")
    now = statuses.read_status(RunFolder(tmp_path), NOW)
    assert (now.state, now.stopped, now.seconds_left) == ("stopped", "SIGTERM", None)
    assert "stopped (SIGTERM)" in status(tmp_path)


def test_a_finished_run_is_finished_whatever_the_times_of_its_files(tmp_path: Path) -> None:
    some_run(tmp_path, 4)
    finish(tmp_path)
    assert statuses.read_status(RunFolder(tmp_path), NOW).state == "finished"
    os.utime(tmp_path / "summary.json", (1, 1))
    assert statuses.read_status(RunFolder(tmp_path), NOW).state == "finished"


def drive(folder: Path) -> Driver:
    """A driver that holds the folder."""
    driver = Driver(folder)
    driver.hold(lambda _: None)
    return driver


def test_a_run_that_was_killed_has_ended_and_no_time_is_left(tmp_path: Path) -> None:
    """Found by a reviewer: a dead run was shown as "running, 15 s left" for ever."""
    driver = drive(tmp_path)
    some_run(tmp_path, 4)
    now = statuses.read_status(RunFolder(tmp_path), NOW)
    assert (now.state, now.seconds_left) == ("running", pytest.approx(18.0))
    driver.close()
    now = statuses.read_status(RunFolder(tmp_path), NOW)
    assert (now.state, now.stopped, now.seconds_left) == ("ended", None, None)
    assert status_text.headline(now) == f"{tmp_path.name}: ended, step 4/10, last step 1 min 28 s ago"
    assert "ended, step 4/10" in follow(tmp_path, False, lambda _: pytest.fail("the run is over"))
    shown = RunMetrics(RunFolder(tmp_path))
    shown.refresh()
    assert shown.status(NOW).state == "ended"


def test_a_run_that_failed_before_its_first_line_has_ended(tmp_path: Path) -> None:
    driver = drive(tmp_path)
    assert statuses.read_status(RunFolder(tmp_path), NOW).state == "starting"
    driver.close()
    assert "ended, before its first step" in status(tmp_path)


def test_a_run_that_is_late_shows_the_age_of_its_last_step(tmp_path: Path) -> None:
    some_run(tmp_path, 4)  # a step takes 3 s, and the last was at NOW - 88
    ages = {NOW - 80: "left", NOW - 60: "left, last step 28 s ago"}
    for now, end in ages.items():
        assert status_text.headline(statuses.read_status(RunFolder(tmp_path), now)).endswith(end)
    lines = follow(tmp_path, False, playing(tmp_path, Archive(tmp_path), 4)).splitlines()
    assert sum("last step" in line for line in lines) == 1


def test_a_run_whose_steps_are_not_timed_yet_shows_the_age_of_its_first_line_after_a_minute(tmp_path: Path) -> None:
    some_run(tmp_path, 0)
    assert status_text.headline(statuses.read_status(RunFolder(tmp_path), NOW - 50)).endswith("step 0/10")
    assert status_text.headline(statuses.read_status(RunFolder(tmp_path), NOW)).endswith("last step 1 min 40 s ago")


def test_no_time_shown_is_negative(tmp_path: Path) -> None:
    some_run(tmp_path, 4).metrics(12, step_metrics(12), at=NOW)
    now = statuses.read_status(RunFolder(tmp_path), NOW - 5)
    assert (now.seconds_left, now.seconds_since_step) == (0.0, 0.0), "loop.steps was lowered, a clock was set back"


def test_a_resume_that_fails_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    """Found by a reviewer: a failed resume turned "stopped" into "running"."""
    archive = some_run(tmp_path, 4)
    finish(tmp_path, finished=False, stopped="SIGTERM")
    time.sleep(0.02)  # coarser than the clock of the file system
    driver = drive(tmp_path)
    archive.truncate_after(4)
    assert statuses.read_status(RunFolder(tmp_path), NOW).state == "running", "the summary is of the process before"
    driver.close()
    assert statuses.read_status(RunFolder(tmp_path), NOW).state == "stopped"


def test_a_summary_counts_while_its_process_still_uploads(tmp_path: Path) -> None:
    driver = drive(tmp_path)
    some_run(tmp_path, 4)
    finish(tmp_path, driver=named(tmp_path))
    assert statuses.read_status(RunFolder(tmp_path), NOW).state == "finished"
    driver.close()


def test_a_run_that_was_just_started_is_watched_once_it_has_a_folder(tmp_path: Path, monkeypatch, capsys) -> None:
    """Found on long-runs.md: `squelch watch` right after `nohup squelch train ... &` ended with exit code 2."""
    monkeypatch.chdir(tmp_path)
    folder, pauses = tmp_path / "runs" / "night", list[float]()

    def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 2:  # a driver makes the folder before it writes the settings
            folder.mkdir(parents=True)
            (folder / FILE).touch()
        if len(pauses) == 3:
            (folder / "config.yaml").write_text("name: night")
            some_run(folder, 1)
            finish(folder)

    monkeypatch.setattr(time, "sleep", sleep)
    assert main(["watch", "night"]) == 0
    said = capsys.readouterr().out
    assert said.count("night is no run yet; waiting up to 1 min 00 s for its start") == 1
    assert "step 1/10" in said and "night: finished" in said and len(pauses) == 3


def test_a_run_that_never_gets_a_folder_is_named_after_a_minute(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    pauses = list[float]()
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert main(["watch", "nowhere"]) == 2
    assert sum(pauses) == 60 and "nowhere holds no run" in capsys.readouterr().err
    (tmp_path / "somewhere").mkdir()
    assert main(["watch", "somewhere"]) == 2 and sum(pauses) == 60, "a folder of other things becomes no run"


@pytest.mark.parametrize("command", ["status", "watch"])
def test_a_configuration_that_is_broken_is_named(tmp_path: Path, capsys, command: str) -> None:
    """Found by a reviewer: `squelch status` showed such a run as "starting, step 0/?"."""
    (tmp_path / "config.yaml").write_text("name: [")
    assert main([command, str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and f"{tmp_path / 'config.yaml'} is not YAML" in shown.err


def test_a_summary_that_is_not_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(UserError, match=r"summary\.json"):
        statuses.read_status(RunFolder(tmp_path), NOW)


def test_metrics_that_no_run_has_are_shown_and_end_nothing(tmp_path: Path) -> None:
    lines = [{"step": step, "time": time} for step, time in ((1, 0.0), (2, 1e300))]
    lines[-1] |= {"total_steps": 1e300, "kinds/starved": 1, "kinds/kept/a": 0, "kinds/kept/b": 0, "kinds/age/b": 2}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "STARVED: 1, success n/a; b for 2 steps" in status(tmp_path)
    assert json.loads(status(tmp_path, as_json=True), parse_constant=pytest.fail)["seconds_left"] == 1e300


def test_a_damaged_line_is_the_users_to_mend(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("nonsense\n")
    for call in (status, watch):
        with pytest.raises(UserError, match=r"metrics\.jsonl line 1"):
            call(tmp_path)


def test_status_as_json_is_one_object_with_null_for_the_unknown(tmp_path: Path) -> None:
    some_run(tmp_path, 2)
    found = json.loads(status(tmp_path, as_json=True))
    assert found["kept_mass"] == 0.9 and found["conditional_entropy"] is None and found["run"] == tmp_path.name


def test_status_as_text_shows_interval_chance_and_throughput(tmp_path: Path) -> None:
    some_run(tmp_path, 3)
    text = status(tmp_path)
    for part in ("step 3/10", "0.350  [0.310, 0.390]", "chance 0.125  (4.0 x)", "800 tokens/s", "groups 5/8"):
        assert part in text


def test_the_use_of_gpus_is_shown_where_it_is_known(tmp_path: Path) -> None:
    archive = some_run(tmp_path, 1)
    assert "GPU" not in status(tmp_path) and "MFU" not in status(tmp_path)
    gpus = {"gpu/learner-0/busy": 0.25, "gpu/rollout-0/busy": 0.37, "gpu/rollout-0/memory_used": 9e9}
    archive.metrics(2, step_metrics(2) | gpus | {"mfu/step/products": 0.042})
    assert "s/step  GPUs 31% busy  MFU 4.2%" in status(tmp_path)


def test_a_step_without_signal_is_said_loudly(tmp_path: Path) -> None:
    archive = some_run(tmp_path, 1)
    archive.metrics(2, step_metrics(2) | {"kept_mass": None, "kept_groups": 0, "no_signal_streak": 2})
    assert "n/a  groups 0/8  NO SIGNAL for 2 steps" in status(tmp_path)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    for call in (status, watch):
        with pytest.raises(UserError, match="does not exist; give a run's folder"):
            call(tmp_path / "nowhere")


@given(st.lists(st.floats(0.1, 5), min_size=2, max_size=30))
def test_speed_lies_between_the_fastest_and_the_slowest_step(gaps: list[float]) -> None:
    times = [sum(gaps[:i]) for i in range(len(gaps) + 1)]
    pace = seconds_per_step(times)
    recent = gaps[-statuses.RECENT_STEPS :]
    assert pace is not None and min(recent) - 1e-9 <= pace <= max(recent) + 1e-9


def test_a_pause_between_two_processes_hardly_moves_the_speed() -> None:
    times = [float(i) for i in range(11)] + [100_000.0 + i for i in range(10)]
    assert seconds_per_step(times) == pytest.approx(1.45)


@given(st.lists(st.floats(-10, 10), max_size=50))
def test_a_sparkline_is_as_long_as_what_it_shows_and_rises_with_the_values(values: list[float]) -> None:
    text = sparkline(values)
    shown = values[-status_text.SPARK_WIDTH :]
    assert len(text) == len(shown)
    heights = [SPARKS.index(block) for block in text]
    for (a, low), (b, high) in itertools.pairwise(zip(shown, heights, strict=True)):
        assert a > b or low <= high


def test_values_outside_the_bounds_of_a_sparkline_are_clamped() -> None:
    assert sparkline([-1, 0, 0.5, 1, 2], 0, 1) == "▁▁▅██"


def test_durations_read_as_people_say_them() -> None:
    said = {0: "0 s", 59.4: "59 s", 59.6: "1 min 00 s", 200: "3 min 20 s", 7500: "2 h 05 min"}
    assert {seconds: duration(seconds) for seconds in said} == said


def test_a_line_of_text_leaves_out_what_the_step_lacks() -> None:
    assert step_text({"step": 3, "success": 0.5, "kept_mass": None}) == "step 3: success 0.500"


def follow(folder: Path, terminal: bool, sleep: Callable[[float], None]) -> str:
    out = io.StringIO()
    watch(folder, console=Console(file=out, force_terminal=terminal, width=140), sleep=sleep)
    return out.getvalue()


def playing(folder: Path, archive: Archive, until: int) -> Callable[[float], None]:
    """A sleep during which the run makes its next step, and at last its summary."""
    steps = iter(range(3, until + 1))

    def sleep(_: float) -> None:
        step = next(steps, None)
        if step is None:
            finish(folder)
        else:
            archive.metrics(step, step_metrics(step))

    return sleep


def test_without_a_terminal_each_step_is_one_line_and_the_end_is_said(tmp_path: Path) -> None:
    archive = some_run(tmp_path, 2)
    lines = follow(tmp_path, False, playing(tmp_path, archive, 5)).splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("step")] == [f"step {i}" for i in range(6)]
    assert "\x1b" not in "".join(lines)
    assert "finished, step 5/10" in lines[-1]


def test_a_scoring_that_is_recorded_alone_hides_no_step(tmp_path: Path) -> None:
    archive = some_run(tmp_path, 9)
    archive.metrics(10, {"scorer/step": 8.0, "first_turn/retrieval_accuracy": 0.25}, at=NOW - 71)
    before = status(tmp_path)
    assert "step 9/10" in before and "training success     0.390" in before
    archive.metrics(10, step_metrics(10) | {"scorer/step": 9.0}, at=NOW - 70)
    finish(tmp_path)
    text = follow(tmp_path, False, pytest.fail).splitlines()
    assert [line for line in text if line.startswith("step 10")] == ["step 10: success 0.400, kept mass 0.900, s 2.000"]
    assert "step 10/10" in status(tmp_path)


def test_each_line_is_read_once_and_a_resumed_run_is_shown_from_its_step(tmp_path: Path) -> None:
    archive, read = some_run(tmp_path, 200), list[int]()
    size = (tmp_path / "metrics.jsonl").stat().st_size
    deeds = iter([*range(201, 231), "resume", 151, None])

    def sleep(_: float) -> None:
        deed = next(deeds)
        if deed == "resume":
            archive.truncate_after(150)
        elif deed is None:
            finish(tmp_path)
        else:
            archive.metrics(deed, step_metrics(deed))

    get = LocalStore.get

    def counted(store: LocalStore, key: str) -> BinaryIO:
        return Counted(get(store, key), read) if key == "metrics.jsonl" else get(store, key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "get", counted)
        text = follow(tmp_path, False, sleep)
    assert "step 230: " in text and "finished, step 151/10" in text.splitlines()[-1]
    assert size < sum(read) < 5 * size


class Counted(io.BufferedReader):
    """A file that notes how many bytes of it are read."""

    def __init__(self, file: BinaryIO, read: list[int]) -> None:
        super().__init__(file.raw)  # type: ignore[attr-defined]
        self._opened, self._read = file, read

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self._read.append(len(data))
        return data

    def readline(self, size: int | None = -1, /) -> bytes:
        data = super().readline(size)
        self._read.append(len(data))
        return data


@pytest.mark.parametrize(
    ("damage", "said"), [("{", r"metrics\.jsonl line 5: not JSON"), ('{"step": -1}', "record 5: `step`")]
)
def test_a_damaged_line_is_named_by_its_number_however_late_it_comes(tmp_path: Path, damage: str, said: str) -> None:
    some_run(tmp_path, 3).close()

    def sleep(_: float) -> None:
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write(damage + "\n")

    with pytest.raises(UserError, match=said):
        follow(tmp_path, False, sleep)


def test_on_a_terminal_the_last_frame_shows_the_finished_run(tmp_path: Path) -> None:
    archive = some_run(tmp_path, 2)
    text = follow(tmp_path, True, playing(tmp_path, archive, 4))
    last = text[text.rindex(": finished, ") :]
    for part in ("step 4/10", "validation success", "kept mass", "retrieval accuracy", "tokens/s", "▃"):
        assert part in last


def test_a_run_that_falls_silent_is_named_with_what_it_did_last(tmp_path: Path) -> None:
    some_run(tmp_path, 2).event("learner", "train", NOW, NOW + 1)
    with pytest.raises(UserError, match=r"not finished the step after 2.*learner train"):
        watch(tmp_path, interval_s=1000.0, console=Console(file=io.StringIO()), sleep=lambda _: None)


def test_a_run_that_never_starts_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not finished its first step"):
        watch(tmp_path, interval_s=1000.0, console=Console(file=io.StringIO()), sleep=lambda _: None)


def test_ctrl_c_ends_the_watching_and_not_the_run(tmp_path: Path) -> None:
    some_run(tmp_path, 2)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    assert "the run continues" in follow(tmp_path, False, interrupt)


def test_the_fixed_probe_the_regime_and_whether_the_answer_follows_are_shown(tmp_path: Path) -> None:
    archive = some_run(tmp_path, 1)
    assert "regime               n/a\n  fixed probe          n/a\n" in status(tmp_path)
    probe = {
        "step": 1.0,
        "mi": 2.5,
        "mi_low": 2.25,
        "mi_high": 2.75,
        "ceiling": 3.47,
        "saturated": 0.0,
        "mi_change": -0.5,
    }
    link = {"dependence": 0.005, "dependence_low": -0.01, "dependence_high": 0.02, "follows": 0.0}
    link["dependence_share"] = 0.042
    flat = {f"probe/{key}": value for key, value in probe.items()}
    flat |= {f"probe/link/{key}": value for key, value in link.items()} | {"first_turn/regime/private_code": 1.0}
    archive.metrics(2, step_metrics(2) | flat)
    text = status(tmp_path)
    assert "2.50  [2.25, 2.75] of 3.47 nats  step 1  (-0.50 since the first)" in text
    assert "D 0.01  [-0.01, 0.02] nats, 4% of the surprise  DOES NOT FOLLOW" in text and "private code" in text
    assert json.loads(status(tmp_path, as_json=True))["probe"]["link_follows"] == 0.0
    archive.metrics(3, step_metrics(3) | flat | {"probe/link/follows": None, "probe/saturated": 1.0})
    assert "of the surprise\n" in status(tmp_path) and "SATURATED" in status(tmp_path)
    archive.metrics(4, step_metrics(4) | flat | {"probe/mi": 3.24, "probe/mi_high": 3.9})
    assert "3.24  [2.25, 3.47] of 3.47 nats" in status(tmp_path), "no MI exceeds its ceiling"
    assert json.loads(status(tmp_path, as_json=True))["probe"]["mi_high"] == 3.9
    shown = RunMetrics(RunFolder(tmp_path))
    shown.refresh()
    assert dict(shown.table(["step", "probe/mi_high"]))[1] == 3.47, "it stands at the step that was probed"
    figures = {"mi_seq_est": 1.5, "mi_seq_est_p_value": 0.001, "retrieval_accuracy": 0.7, "retrieval_chance": 0.125}
    ignored = {f"first_turn/{key}": value for key, value in figures.items()} | {"first_turn/regime/decorative": 1.0}
    archive.metrics(5, step_metrics(5) | ignored)
    assert re.search("regime +unused  .* D 0.01 .-0.01, 0.02. nats, not above 0", status(tmp_path)), "an earlier name"


def test_what_the_judge_finds_is_shown_where_there_is_one(tmp_path: Path) -> None:
    archive = some_run(tmp_path, 1)
    assert "true statements" not in status(tmp_path)
    found = {"scorer/step": 2.0, "judge/names": 0.96, "judge/right": 0.72, "judge/untrue": 0.0}
    archive.metrics(2, step_metrics(2) | found)
    archive.metrics(3, step_metrics(2))  # without a scorer step
    text = status(tmp_path)
    assert "true statements      0.750 of those that state anything, 0.960 of all" in text and "UNTRUE" not in text
    archive.metrics(4, step_metrics(4) | found | {"judge/right": 0.12, "judge/untrue": 1.0})
    assert "0.125 of those that state anything, 0.960 of all  UNTRUE" in status(tmp_path)
    archive.metrics(5, step_metrics(5) | found | {"judge/names": 0.0, "judge/right": 0.0, "judge/untrue": None})
    assert "no reasoning states anything" in status(tmp_path)
    archive.metrics(6, step_metrics(6) | dict.fromkeys(found, None) | {"scorer/step": 6.0})
    assert "true statements" not in status(tmp_path), "a later scorer step judged nothing"


def test_findings_are_shown_and_those_that_are_more_than_a_notice_in_the_list_of_runs(tmp_path: Path) -> None:
    some_run(tmp_path / "a", 1)
    found = [Finding("kl_high", "warning", 3, 5, "The policy is far"), Finding("step_bound", "notice", 2, 4, "A step")]
    told = [plain(one, "squelch train b") for one in found]
    (tmp_path / "a" / "findings.json").write_text(json.dumps({"findings": [*told, {"name": "of another release"}]}))
    text = status(tmp_path / "a")
    assert (
        "finding              warning: The policy is far  (kl_high, since step 3)" in text and "notice: A step" in text
    )
    shown = json.loads(status(tmp_path / "a", as_json=True))["findings"]
    assert (shown[0]["name"], shown[0]["since"], shown[0]["command"]) == ("kl_high", 3, "squelch train b")
    watched = io.StringIO()
    finish(tmp_path / "a")
    watch(tmp_path / "a", console=Console(file=watched, width=200))
    assert watched.getvalue().count("finding: warning: The policy is far  (kl_high, since step 3)") == 1
    assert listing.table(listing.statuses({"a": tmp_path / "a"}, NOW, lambda place: place))[1].endswith("kl_high")


def test_a_damaged_file_of_findings_is_refused_by_name(tmp_path: Path) -> None:
    some_run(tmp_path, 1)
    (tmp_path / "findings.json").write_text('{"findings": [{"name": "kl_high", "since": "x"}]}')
    with pytest.raises(UserError, match=r"findings\.json holds no findings"):
        status(tmp_path)


def test_kinds_are_shown_while_there_are_any(tmp_path: Path) -> None:
    archive = some_run(tmp_path, 1)
    assert "kinds kept" not in status(tmp_path) and "WARNING" not in status(tmp_path)
    flat = {
        "kinds/played": 4.0,
        "kinds/effective": 2.5,
        "kinds/effective_played": 3.9,
        "kinds/starved": 0.0,
        "kinds/starved_success": None,
    }
    archive.metrics(2, step_metrics(2) | flat, at=NOW)
    text = status(tmp_path)
    assert "2.5 effective of 4  (played: 3.9)" in text and "STARVED" not in text
    starved = {"kinds/starved": 2.0, "kinds/starved_success": 0.02}
    kinds = {"kinds/kept/distance 4": 0.0, "kinds/age/distance 4": 12.0, "kinds/kept/distance 3": 0.0}
    archive.metrics(3, step_metrics(3) | flat | starved | kinds | {"kinds/age/distance 3": 3.0}, at=NOW)
    assert "STARVED: 2, success 0.02; distance 4 for 12 steps" in status(tmp_path)
