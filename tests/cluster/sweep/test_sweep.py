"""Sweeps on made-up cells: what is run, what is kept, what is marked failed, and what the table says."""

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.cli import main
from squelch.cluster.config import dump
from squelch.cluster.sweep import cells as sweep_cells
from squelch.cluster.sweep.cells import Ended, ProcessRunner, Sweep, last_words
from squelch.cluster.sweep.plan import (
    Arm,
    Cell,
    Plan,
    check_folders,
    grid_arms,
    is_finished,
    make_plan,
    read_grid,
    read_seeds,
    started,
)
from squelch.cluster.sweep.table import arm_metrics, t_interval, table_lines
from squelch.kit.base.errors import UserError
from squelch.kit.diagnosis.uncertainty import t_quantile
from squelch.kit.process.signals import listening

GRID = ["filter.rule=none,top_p", "learner.objective.entropy_coefficient=0.001,0.1"]


def plan_in(folder: Path, grid: list[str] = GRID[:1], seeds: tuple[int, ...] = (0, 1), **more: Any) -> Plan:
    arms = grid_arms(read_grid(grid))
    return make_plan("frozenlake", [f"runs_dir={folder}"], arms, seeds, name="study", **more)


def finish(cell: Cell, success: float = 0.5, **changes: Any) -> None:
    """Writes what a run that came to its end leaves behind."""
    content = {
        "finished": True,
        "stopped": None,
        "steps": cell.config.loop.steps,
        "success": {"after": {"success": success}, "gain": {"mean": success - 0.3}, "best": success},
        "reasoning": {"mi_est": 0.1},
        "kept_mass_mean": 0.9,
        "seconds_per_step_median": 2.0,
        "ledger": {"balanced": True},
    }
    cell.folder.mkdir(parents=True, exist_ok=True)
    (cell.folder / "summary.json").write_text(json.dumps(content | changes))
    (cell.folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "time": 1.0, "alarm/raised": 0.0}) + "\n")


def checkpoint(cell: Cell, step: int) -> None:
    path = cell.folder / "checkpoints" / f"step-{step}"
    path.mkdir(parents=True)
    (path / "loop.json").write_text("{}")


class FakeRunner:
    """Cells that do what they are told, or finish."""

    def __init__(self, **deeds: Callable[[Cell], Ended]) -> None:
        self.deeds, self.started, self.under_way, self.most, self.interrupts = deeds, [], 0, 0, 0

    async def run(self, cell: Cell) -> Ended:
        self.started.append(cell.name)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.001)
        self.under_way -= 1
        if cell.name.replace("-", "_") in self.deeds:
            return self.deeds[cell.name.replace("-", "_")](cell)
        finish(cell)
        return Ended(0, "done")

    def interrupt(self) -> None:
        self.interrupts += 1


def swept(plan: Plan, runner: Any, parallel: int = 1) -> Sweep:
    sweep = Sweep(plan, runner, parallel, lambda line: None)
    asyncio.run(sweep.run())
    return sweep


def statuses(sweep: Sweep) -> dict[str, str]:
    return {name: outcome.status for name, outcome in sweep.outcomes.items()}


def test_a_grid_is_a_product_and_a_value_may_be_a_list():
    arms = grid_arms(read_grid([*GRID, "filter.band=[0,0.5],[0.5,1]"]))
    assert len(arms) == len({arm.label for arm in arms}) == 8
    assert arms[0].settings["filter.band"] == [0, 0.5] and arms[-1].settings["filter.rule"] == "top_p"


def test_cells_of_one_seed_share_their_tasks_and_seeds_differ(tmp_path):
    plan = plan_in(tmp_path, GRID, (0, 3))
    tasks = {cell.seed: set() for cell in plan.cells}
    for cell in plan.cells:
        environment = cell.config.environment
        tasks[cell.seed].add((cell.config.seed, environment.train_seed, environment.validation_seed))
    assert all(len(found) == 1 for found in tasks.values()) and len(plan.cells) == 8
    used = [value for found in tasks.values() for value in next(iter(found))[1:]]
    assert min(abs(a - b) for i, a in enumerate(used) for b in used[:i]) > 100_000


def test_a_wider_sweep_finds_the_cells_of_the_one_before(tmp_path):
    narrow, wide = plan_in(tmp_path), plan_in(tmp_path, ["filter.rule=none,top_p,top_k"], (0, 1, 2))
    assert {cell.name: cell.config for cell in narrow.cells}.items() <= {c.name: c.config for c in wide.cells}.items()


LISTS = (
    "environments=[{name: FrozenLake}, {name: Sokoban, weight: 2}],[{name: Sokoban, label: boxes}],[{name: Countdown}]"
)


def test_a_grid_may_vary_the_whole_list_of_environments(tmp_path):
    plan = plan_in(tmp_path, [LISTS, "filter.rule=none,top_p"], (0, 3))
    assert len({cell.name for cell in plan.cells}) == 12 and all(len(cell.name) <= 120 for cell in plan.cells)
    assert plan.cells[0].config.mixture.name == "FrozenLake + Sokoban" and not set("[]{}:, ") & set(plan.cells[0].name)
    played = {cell.seed: set() for cell in plan.cells}
    for cell in plan.cells:
        played[cell.seed] |= {entry.environment.train_seed for entry in cell.config.mixture.entries}
    assert all(len(seeds) == 1 for seeds in played.values()) and played[0] != played[3]
    assert {c.name for c in plan_in(tmp_path, [LISTS], (0,)).cells} == {
        c.name for c in plan_in(tmp_path, [LISTS], (0, 1)).cells if c.seed == 0
    }
    for cell in plan.cells[:1]:
        cell.folder.mkdir(parents=True)
        (cell.folder / "config.yaml").write_text(dump(cell.config))
    check_folders(plan)
    for words, grid, says in (
        (["environment.prompt=natural"], LISTS, "environment and environments are both set"),
        (
            [],
            LISTS.replace("weight: 2", "train_seed: 9"),
            "sets train_seed itself; leave it out of the lists",
        ),
        ([], LISTS.replace("Countdown", "Cuontdown"), "cells environments-.*'Cuontdown'"),
    ):
        with pytest.raises(UserError, match=says):
            make_plan("frozenlake", [f"runs_dir={tmp_path}", *words], grid_arms(read_grid([grid])), [0], name="study")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--grid", "filter.rul=none,top_p"], ["filter.rul", "'rule'", "cell"]),
        (["--grid", "filter.rule=none,top_q"], ["top_q", "top_k"]),
        (["--grid", "filter.rule=none,none"], ["twice"]),
        (["--grid", "filter.rule=none", "--grid", "filter.rule=top_p"], ["filter.rule", "twice"]),
        (["--grid", "filter.rule="], ["missing"]),
        (["--grid", "filter.rule"], ["key=a,b"]),
        (["--grid", "filter.band=[0,1"], ["YAML"]),
        (["--grid", "seed=0,1"], ["seed"]),
        (["--grid", "environment.train_seed=0,1"], ["train_seed"]),
        (["--grid", "cluster.num_cpus=1,2"], ["cluster"]),
        (["seed=1"], ["--seeds"]),
        (["name=x"], ["--name"]),
        (["--seeds", "0,0"], ["twice"]),
        (["--seeds", "0,-1"], ["0,-1"]),
        (["--name", "a/b"], ["a/b"]),
        (["--parallel", "0"], ["--parallel"]),
        (["--grid", "sampling.group_size=1,8"], ["group_size"]),
        (["model.path=nowhere"], ["nowhere"]),
    ],
)
def test_what_is_wrong_with_any_cell_is_said_before_one_starts(words, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "frozenlake", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("squelch: ") and "\n\n" not in error.strip() and all(part in error for part in says)
    assert list(tmp_path.iterdir()) == []


def test_a_finished_cell_is_not_run_again(tmp_path):
    plan = plan_in(tmp_path)
    finish(plan.cells[1])
    finish(plan.cells[2], finished=False, stopped="early stop: reward variance below 10%")
    finish(plan.cells[3], finished=False, stopped="stopped by SIGINT")
    finish(plan.cells[0], finished=False, stopped="no signal: filter.no_signal_limit was reached")
    runner = FakeRunner()
    sweep = swept(plan, runner)
    assert sweep.finished and sweep.outcomes[plan.cells[0].name].reason.startswith("no signal: ")
    assert runner.started == [plan.cells[3].name]


def test_the_metrics_of_a_finished_cell_are_read_once(tmp_path, monkeypatch):
    read, metrics = list[Path](), sweep_cells.cell_metrics
    monkeypatch.setattr(sweep_cells, "cell_metrics", lambda folder: read.append(folder) or metrics(folder))
    plan = plan_in(tmp_path, seeds=tuple(range(4)))
    finish(plan.cells[0])
    sweep = swept(plan, FakeRunner())
    report = json.loads((plan.folder / "sweep.json").read_text())
    assert sorted(read) == sorted(cell.folder for cell in plan.cells) and report == sweep.report()
    assert [cell["figures"]["success"] for cell in report["cells"]] == [0.5] * 8


def test_an_unbalanced_ledger_is_no_finish(tmp_path):
    cell = plan_in(tmp_path).cells[0]
    finish(cell, ledger={"balanced": False})
    assert not is_finished(cell.folder)


def test_a_cell_that_began_with_other_settings_is_refused_and_may_move(tmp_path):
    plan = plan_in(tmp_path)
    cell = plan.cells[0]
    cell.folder.mkdir(parents=True)
    (cell.folder / "config.yaml").write_text(dump(cell.config))
    check_folders(plan_in(tmp_path, address="10.0.0.1:6379", parallel=2))
    other = make_plan(
        "frozenlake", [f"runs_dir={tmp_path}", "loop.steps=7"], grid_arms(read_grid(GRID[:1])), [0], name="study"
    )
    with pytest.raises(UserError, match=r"loop\.steps: 60 -> 7"):
        check_folders(other)


def test_a_cell_whose_scorings_were_chosen_at_its_start_is_continued_with_them(tmp_path):
    plan = plan_in(tmp_path)
    cell = plan.cells[0]
    cell.folder.mkdir(parents=True)
    chosen = cell.config.scorer.model_copy(update={"every": 7, "max_pairs": 99})
    dated = cell.config.model.model_copy(update={"date": date(2026, 11, 27)})
    (cell.folder / "config.yaml").write_text(dump(cell.config.model_copy(update={"scorer": chosen, "model": dated})))
    check_folders(plan)
    assert (started(cell).scorer.every, started(cell).scorer.max_pairs) == (7, 99)
    learner = cell.config.learner.model_copy(update={"token_budget": "auto"})
    assert (
        started(replace(cell, config=cell.config.model_copy(update={"learner": learner}))).learner.token_budget == 8192
    )
    assert started(cell).model.date == date(2026, 11, 27), "the day in its prompts"
    assert started(plan.cells[1]) == plan.cells[1].config
    fixed = make_plan(
        "frozenlake", [f"runs_dir={tmp_path}", "scorer.every=9"], grid_arms(read_grid(GRID[:1])), [0], name="study"
    )
    with pytest.raises(UserError, match=r"scorer\.every: 7 -> 9"):
        check_folders(fixed)


def test_a_run_is_not_taken_for_a_sweep(tmp_path):
    plan = plan_in(tmp_path)
    plan.folder.mkdir()
    (plan.folder / "config.yaml").write_text("")
    with pytest.raises(UserError, match="holds a run"):
        check_folders(plan)


def test_one_cells_failure_stops_no_other_and_is_reported_with_its_reason(tmp_path):
    plan = plan_in(tmp_path)
    sweep = swept(plan, FakeRunner(rule_none_s0=lambda cell: Ended(1, "failed: learner rank 1 died")))
    assert list(statuses(sweep).values()) == ["failed", "finished", "finished", "finished"]
    report = json.loads((plan.folder / "sweep.json").read_text())
    assert report["finished"] is False and "learner rank 1 died" in report["cells"][0]["reason"]
    assert [arm["finished"] for arm in report["arms"]] == [1, 2]


def test_a_crashed_cell_is_resumed_once_if_it_has_a_checkpoint(tmp_path):
    plan = plan_in(tmp_path, seeds=(0,))

    def crash(cell: Cell) -> Ended:
        if not (cell.folder / "checkpoints").exists():
            checkpoint(cell, 3)
        return Ended(-signal.SIGKILL, "step 3/60")

    runner = FakeRunner(rule_none_s0=crash, rule_top_p_s0=lambda cell: Ended(-signal.SIGKILL, ""))
    sweep = swept(plan, runner)
    assert runner.started == ["rule-none_s0", "rule-none_s0", "rule-top_p_s0"]
    assert statuses(sweep) == {"rule-none_s0": "failed", "rule-top_p_s0": "failed"}
    assert sweep.outcomes["rule-none_s0"].reason == "killed by SIGKILL: step 3/60"


@pytest.mark.parametrize("decided", ["bad input", "refused updates"])
def test_a_run_that_decided_to_end_is_not_tried_again(tmp_path, decided):
    plan = plan_in(tmp_path, seeds=(0,))

    def end(cell: Cell) -> Ended:
        checkpoint(cell, 3)
        if decided == "bad input":
            return Ended(2, "squelch: no room on the disk")
        finish(cell, finished=False, stopped="3 steps in a row refused (learner.max_bad_steps)")
        return Ended(1, "ended after step 3: 3 steps in a row refused")

    runner = FakeRunner(rule_none_s0=end)
    sweep = swept(plan, runner)
    assert runner.started.count("rule-none_s0") == 1 and statuses(sweep)["rule-none_s0"] == "failed"


def test_a_run_that_an_error_ended_is_tried_again(tmp_path):
    def fail(cell: Cell) -> Ended:
        checkpoint(cell, 3)
        finish(cell, finished=False, stopped="failed: Ray's head: its gcs has ended", end_cause="failed")
        return Ended(1, "failed: Ray's head: its gcs has ended")

    runner = FakeRunner(rule_none_s0=fail)
    swept(plan_in(tmp_path, seeds=(0,)), runner)
    assert runner.started.count("rule-none_s0") == 2


def test_a_cell_under_way_elsewhere_is_left_alone(tmp_path):
    def busy(cell: Cell) -> Ended:
        raise BlockingIOError

    sweep = swept(plan_in(tmp_path), FakeRunner(rule_none_s0=busy))
    assert statuses(sweep)["rule-none_s0"] == "elsewhere" and not sweep.finished


def test_a_cell_that_cannot_be_started_is_failed(tmp_path):
    def full(cell: Cell) -> Ended:
        raise OSError(28, "No space left on device")

    sweep = swept(plan_in(tmp_path), FakeRunner(rule_none_s0=full))
    assert "No space left" in sweep.outcomes["rule-none_s0"].reason
    assert list(statuses(sweep).values()).count("finished") == 3


def test_a_stop_ends_the_cell_under_way_and_starts_no_other(tmp_path):
    plan, sweeps = plan_in(tmp_path), []

    def stopped(cell: Cell) -> Ended:
        sweeps[0].stop(signal.SIGINT)
        return Ended(130, "stopped by SIGINT after step 4; continue with --resume")

    runner = FakeRunner(rule_top_p_s0=stopped)
    sweeps.append(Sweep(plan, runner, 1, lambda line: None))
    asyncio.run(sweeps[0].run())
    assert list(statuses(sweeps[0]).values()) == ["finished", "interrupted", "pending", "pending"]
    assert runner.interrupts == 1 and sweep_cells._close(sweeps[0], lambda line: None) == 130
    again = FakeRunner()
    assert swept(plan, again).finished and again.started == [cell.name for cell in plan.cells[1:]]


@pytest.mark.parametrize("parallel", [1, 3])
def test_as_many_cells_run_side_by_side_as_were_asked_for(tmp_path, parallel):
    runner = FakeRunner()
    assert swept(plan_in(tmp_path, seeds=(0, 1, 2)), runner, parallel).finished and runner.most == parallel


def test_cells_side_by_side_take_free_ports(tmp_path):
    assert all(cell.config.recorder.port == 0 for cell in plan_in(tmp_path, parallel=2).cells)
    assert all(cell.config.recorder.port is None for cell in plan_in(tmp_path).cells)


def scripted(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Cells run `python -c code` instead of the training command."""
    start = asyncio.create_subprocess_exec

    async def instead(python: str, *words: str, **options: Any) -> asyncio.subprocess.Process:
        return await start(python, "-c", code, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", instead)


def test_a_process_is_reported_with_its_own_last_words(tmp_path, monkeypatch):
    cell = plan_in(tmp_path).cells[0]
    scripted(monkeypatch, "print('failed: rank 0 died'); print('bye'); raise SystemExit(1)")
    cell.folder.mkdir(parents=True)
    (cell.folder / "train.log").write_text("failed: of the time before\n")
    assert asyncio.run(ProcessRunner().run(cell)) == Ended(1, "failed: rank 0 died")
    assert (cell.folder / "train.log").read_text().endswith("bye\n") and (cell.folder / "config.yaml").is_file()


def test_no_id_of_a_wandb_run_in_the_shell_becomes_that_of_every_cell(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "of-the-shell")
    cell = plan_in(tmp_path).cells[0]
    scripted(monkeypatch, "import os; print('failed:', os.environ.get('WANDB_RUN_ID'))")
    assert asyncio.run(ProcessRunner().run(cell)).last_words == "failed: None"


def test_a_process_that_does_not_heed_a_stop_is_killed_in_the_end(tmp_path, monkeypatch):
    cell = plan_in(tmp_path).cells[0]
    scripted(
        monkeypatch, "import signal, time; signal.signal(2, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
    )
    monkeypatch.setattr(sweep_cells, "STOP_TIMEOUT_S", 0.2)
    monkeypatch.setattr(sweep_cells, "POLL_S", 0.05)
    asked = []  # of `Popen.send_signal`, which polls before and, once in many runs, took the exit code from the loop
    monkeypatch.setattr(subprocess.Popen, "send_signal", lambda process, number: asked.append(number))

    async def run() -> Ended:
        runner = ProcessRunner()
        under_way = asyncio.ensure_future(runner.run(cell))
        deadline = time.monotonic() + 180
        while "on" not in ((cell.folder / "train.log").read_text() if (cell.folder / "train.log").exists() else ""):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        runner.interrupt()
        return await under_way

    assert asyncio.run(run()).code == -signal.SIGKILL and asked == []


def test_two_sweeps_never_run_one_cell(tmp_path, monkeypatch):
    cell = plan_in(tmp_path).cells[0]
    scripted(monkeypatch, "pass")
    cell.folder.mkdir(parents=True)
    with (cell.folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            asyncio.run(ProcessRunner().run(cell))
    assert asyncio.run(ProcessRunner().run(cell)).code == 0


def test_last_words_are_the_reason_before_the_last_line():
    assert last_words("a\nsquelch: no such model\n\nlater\n") == "squelch: no such model"
    assert last_words("Traceback\n  boom\n") == "boom" and last_words("") == ""


@pytest.mark.parametrize(("degrees", "point"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262)])
def test_t_is_students(degrees, point):
    assert t_quantile(0.975, degrees) == pytest.approx(point, rel=0.01)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8), st.floats(-10, 10))
def test_an_interval_holds_its_mean_and_moves_with_the_values(values, shift):
    found, moved = t_interval(values), t_interval([value + shift for value in values])
    assert found["low"] <= found["mean"] + 1e-9 and found["mean"] <= found["high"] + 1e-9
    assert moved["high"] - moved["low"] == pytest.approx(found["high"] - found["low"], abs=1e-6)


def test_the_table_pairs_seeds_and_says_what_its_intervals_are(tmp_path):
    plan = plan_in(tmp_path, seeds=(0, 1, 2))
    levels = {0: 0.2, 1: 0.5, 2: 0.8}
    for cell in plan.cells:
        gain = 0.1 + 0.001 * cell.seed if cell.arm.label == "rule-top_p" else 0.0
        finish(cell, levels[cell.seed] + gain)
    report = Sweep(plan, FakeRunner(), 1, lambda line: None).report()
    first, second = report["arms"]
    assert first["figures"]["success"]["mean"] == pytest.approx(0.5) and first["minus_first_arm"] == {}
    assert second["minus_first_arm"]["success"]["low"] > 0.09  # paired: narrow, though seeds lie far apart
    assert first["figures"]["success"]["high"] - first["figures"]["success"]["low"] > 1
    lines = table_lines(report["arms"])
    assert "t-interval over seeds" in lines[3] and lines[1].startswith("rule-none") and "3/3" in lines[1]
    assert json.dumps(report, allow_nan=False)


def test_one_seed_has_no_interval_and_an_unknown_figure_no_value(tmp_path):
    plan = plan_in(tmp_path, seeds=(0,))
    metrics = arm_metrics(plan, {plan.cells[0].name: {"success": 0.25}})
    assert metrics[0]["figures"]["success"] == {"mean": 0.25, "low": None, "high": None, "n": 1}
    assert metrics[0]["figures"]["mi_est"]["mean"] is None and metrics[1]["finished"] == 0
    assert "n/a" in table_lines(metrics)[1].split()


def test_arms_may_have_seeds_of_their_own(tmp_path):
    arms = [Arm("a", {"filter.rule": "none"}), Arm("b", {"filter.rule": "top_p"})]
    plan = make_plan("frozenlake", [f"runs_dir={tmp_path}"], arms, {"a": [0, 1], "b": [1]})
    assert [cell.name for cell in plan.cells] == ["a_s0", "a_s1", "b_s1"]


def test_the_command_runs_reports_and_counts_what_is_left(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sweep_cells, "prepare", lambda configs, parallel, say: None)
    monkeypatch.setattr(sweep_cells, "ProcessRunner", lambda: FakeRunner(rule_none_s0=lambda cell: Ended(1, "no")))
    words = ["sweep", "frozenlake", f"runs_dir={tmp_path}", "--grid", GRID[0], "--json"]
    assert main(words) == 1
    out = capsys.readouterr()
    assert json.loads(out.out)["cells"][0]["status"] == "failed" and "1 of 2 cells are not finished" in out.err
    monkeypatch.setattr(sweep_cells, "ProcessRunner", FakeRunner)
    assert main(words[:-1]) == 0
    assert "all 2 cells finished" in capsys.readouterr().out


def test_a_sweep_that_cannot_write_its_report_asks_its_cells_to_end(tmp_path, monkeypatch, capsys):
    runners, writes = [FakeRunner()], []

    def write(folder: Path, report: dict[str, Any]) -> None:
        writes.append(folder)
        if len(writes) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sweep_cells, "prepare", lambda configs, parallel, say: None)
    monkeypatch.setattr(sweep_cells, "ProcessRunner", lambda: runners[0])
    monkeypatch.setattr(sweep_cells, "write_report", write)
    words = ["sweep", "frozenlake", f"runs_dir={tmp_path}", "--grid", GRID[0], "--parallel", "2"]
    assert main(words) == 1 and "No space left" in capsys.readouterr().err
    assert runners[0].interrupts == 1


def test_each_of_two_signals_reaches_the_cells_of_a_sweep_and_a_third_ends_it_alone() -> None:
    asked: list[int] = []

    async def run() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
            while not asked or asked[-1] != number:
                await asyncio.sleep(0.01)

    with listening() as signals:
        asyncio.run(sweep_cells._stoppable(SimpleNamespace(run=run, stop=asked.append), signals))
        assert asked == [signal.SIGINT, signal.SIGTERM] and signals.next is None


@pytest.mark.parametrize("grows", [False, True])
def test_parallel_cells_on_a_small_cluster_are_refused_unless_an_autoscaler_can_enlarge_it(
    tmp_path, monkeypatch, grows: bool
) -> None:
    """Found by a reviewer: they were refused on a cluster that shows one pod and would have got more."""
    monkeypatch.setattr("squelch.cluster.fleet.bootstrap.connect", lambda config, say: None)
    monkeypatch.setattr("squelch.cluster.fleet.bootstrap.disconnect", lambda: None)
    monkeypatch.setattr("squelch.cluster.fleet.placement.may_grow", lambda config: grows)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 3.0})
    configs = [cell.config for cell in plan_in(tmp_path, seeds=(0, 1, 2), address="10.0.0.1:6379", parallel=3).cells]
    if grows:
        sweep_cells._check_cluster(configs, 3, print)
    else:
        with pytest.raises(UserError, match=r"--parallel 3: the cells need .* CPUs at once and the cluster has 3"):
            sweep_cells._check_cluster(configs, 3, print)


def test_seeds_and_values_of_a_grid_are_decimal_and_words_stay_words() -> None:
    assert read_seeds("010,008") == [10, 8]
    grid = read_grid(["validation.early_stop=off,paper", "loop.steps=010"])
    assert grid == {"validation.early_stop": ["off", "paper"], "loop.steps": [10]}
    plan = make_plan("frozenlake", [], grid_arms(grid), read_seeds("010"))
    assert [cell.config.validation.early_stop for cell in plan.cells] == ["off", "paper"]
    assert {(cell.config.seed, cell.config.loop.steps) for cell in plan.cells} == {(10, 10)}


# --- where success peaks ---


def trained(cell: Cell, success: dict[int, float]) -> None:
    """A finished cell that validated at these steps and was scored at step 5, 15, ...: retrieval 0.1, 0.2, ..."""
    finish(cell)
    rows = [{"step": s, "validation/step": s, "validation/success": v} for s, v in success.items()]
    rows += [
        {"step": s, "scorer/step": s, "first_turn/retrieval_accuracy": n / 10, "first_turn/conditional_entropy": n}
        for n, s in enumerate(range(5, 40, 10), 1)
    ]
    text = "\n".join(json.dumps(row | {"time": 1.0}) for row in sorted(rows, key=lambda row: row["step"]))
    (cell.folder / "metrics.jsonl").write_text(f"{text}\n")


def test_a_sweep_has_the_columns_of_the_papers_tables(tmp_path: Path) -> None:
    plan = plan_in(tmp_path, GRID, seeds=(0, 1))
    for cell in plan.cells:
        gain = 0.1 + 0.01 * cell.seed if cell.config.filter.rule == "top_p" else 0.0
        trained(cell, {0: 0.9, 10: 0.2 + 0.3 * cell.seed + gain, 20: 0.005})
    report = Sweep(plan, FakeRunner(), 1, lambda line: None).report()
    plain, _, kept, _ = report["arms"]
    assert [plain["figures"][name]["mean"] for name in ("peak_step", "peak_retrieval", "peak_entropy", "stable")] == [
        10,
        pytest.approx(0.1),
        1,
        0,
    ]
    assert plain["minus_no_filter"] == {}
    assert kept["minus_no_filter"]["peak"]["mean"] == pytest.approx(0.105), "seed by seed, with the same entropy bonus"
    lines = table_lines(report["arms"])
    head = next(line for line in lines if "stable" in line.split())
    assert head.split() == ["arm", "peak", "step", "gain", "MI", "entropy", "stable"]
    assert "+0.105" in next(line for line in lines[lines.index(head) :] if line.startswith(kept["arm"]))
    assert json.dumps(report, allow_nan=False)
