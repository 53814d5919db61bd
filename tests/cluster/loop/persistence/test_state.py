import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from squelch.cluster.config import RunConfig, load
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoint_dir, checkpoints, prune
from squelch.cluster.loop.persistence.state import LoopState, amend, pack_ticket, read_state
from squelch.cluster.loop.stopping import Stopping
from squelch.cluster.loop.watchers.alarms import Alarms
from squelch.cluster.loop.watchers.early_stopping import EarlyStopping
from squelch.cluster.loop.watchers.gaming_warning import GamingWarning
from squelch.cluster.loop.watchers.scoring import Scoring
from squelch.cluster.loop.watchers.validation import Validation
from squelch.cluster.loop.watchers.watcher import Watcher
from squelch.envs.config import EnvironmentConfig
from squelch.envs.mixture import Mixture
from squelch.kit.base.disk import partial_path
from squelch.kit.base.errors import UserError
from squelch.kit.records.records import Task, Ticket
from tests.disk import files_of_at_most


def save(run_dir, step, **state):
    folder = checkpoint_dir(run_dir, step)
    folder.mkdir(parents=True)
    (folder / "loop.json").write_text(json.dumps(asdict(LoopState(clock=step, **state))))


OWN = Mixture.of(EnvironmentConfig(name="FrozenLake", options={"size": 4}))


def test_open_tickets_survive_json_unchanged(tmp_path):
    ticket = Ticket("000003-001", 3, Task("FrozenLake", 17, "train", (("size", 4),)), 16, 0, 1.0, "rollout-0")
    save(tmp_path, 2, open_tickets=[pack_ticket(ticket)])
    assert read_state(checkpoint_dir(tmp_path, 2)).tickets(OWN) == [ticket]


def watchers(config: RunConfig, folder: Path) -> dict[str, Watcher]:
    """Those whose state is paired by task, or compared with a level."""
    run_log, fleet = SimpleNamespace(archive=None), SimpleNamespace(scorer=None)
    alarms = Alarms(config, run_log)
    scoring = Scoring(config, fleet, run_log, alarms, Stopping(9), None)
    found = [EarlyStopping(config), GamingWarning(config), Validation(config, None, run_log), scoring, alarms]
    return {watcher.name: watcher for watcher in found}


def measured(folder: Path) -> dict[str, Any]:
    """The states of watchers that have seen something."""
    seen = watchers(load("frozenlake", ["scorer.every=5"]), folder)
    seen["validation"].restore(
        {
            "best_success": 0.5,
            "best_step": 3,
            "first": {"step": 0, "solved": [1] * load("frozenlake").validation.tasks},
        },
        (),
    )
    seen["gaming"].gaming.step(1, 0.2, "top_p")
    rules = seen["early_stop"].rules
    rules.baseline, rules.low_steps, rules.low_validations = [0.3], 2, 3
    seen["alarms"].alarm.rewards = [[1, 0.5]]
    for metric in ("mi", "dependence"):
        seen["alarms"].probe_alarm.alarms[metric].since = 2.0
    states = {name: watcher.state() for name, watcher in seen.items()}
    states["scorer"] |= {
        "scorer": {
            **{"ema": 1.0, "probe": {"mi": 1.0}, "followed": {"follows": 1.0}, "before": [3, {}]},
            "regime": {"first_turn": {"true": [0.5]}},
        },
        "pending": [{"scorer/step": 3.0}, {"probe/step": 3.0}],
    }
    return json.loads(json.dumps(states))


@pytest.mark.parametrize(
    ("words", "other"),
    [
        (["validation.tasks=99"], ["validation"]),
        (["validation.tasks=9"], ["validation", "probe"]),
        (["scorer.probe.samples=2"], ["probe"]),
        (["sampling.temperature=0.7"], ["probe"]),
        (["environment.validation_seed=5"], ["validation", "probe"]),
        (["environment.options.size=6"], ["validation", "probe", "scorings"]),
        (["scorer.probe.links=false"], ["answers"]),
        (["scorer.probe.answer_tasks=8"], ["answers"]),
        (["scorer.probe.every=0"], ["probe"]),
        (["scorer.model=folder"], ["probe", "scorings"]),
        (["scorer.enabled=false"], ["probe", "scorings"]),
        (["scorer.probe.links=false", "scorer.probe.samples=2"], ["probe"]),
        (["loop.prompts=4"], []),
    ],
)
def test_what_is_paired_by_task_begins_anew_with_other_tasks(tmp_path, words, other):
    states, state = measured(tmp_path), LoopState()
    assert state.with_tasks(load("frozenlake")) == []
    config = load("frozenlake", words)
    state = LoopState(**json.loads(json.dumps(asdict(state))))
    assert state.with_tasks(config) == other
    after = watchers(load("frozenlake", [*words, "scorer.every=5"]), tmp_path)
    for name, watcher in after.items():
        watcher.restore(states[name], other)
    validation = "validation" in other
    assert (after["validation"].first is None, after["validation"].best_step) == (validation, -1 if validation else 3)
    assert after["gaming"].gaming.steps == ([] if validation else [1])
    rules = after["early_stop"].rules
    spread = (rules.baseline, rules.low_steps)
    assert (spread, rules.low_validations) == (([0.3], 2), 0 if validation else 3), "the baseline is of training"
    scorer, probe, scored = after["scorer"].scorer_state, "probe" in other, "scorings" in other
    assert (scorer["probe"] is None, scorer["ema"]) == (probe, 1.0)
    assert (scorer["regime"]["first_turn"], scorer["before"]) == (({}, None) if scored else ({"true": [0.5]}, [3, {}]))
    assert (scorer["followed"] is None) == (probe or "answers" in other)
    assert after["alarms"].alarm.rewards == ([] if scored else [[1, 0.5]])
    since = {name: alarm.since for name, alarm in after["alarms"].probe_alarm.alarms.items()}
    assert since["mi"] == (None if probe else 2.0), "D starts over without MI"
    assert since["dependence"] == (None if probe or "answers" in other else 2.0)
    waiting = [{"scorer/step": 3.0}] + [{"probe/step": 3.0}] * (not probe)
    assert after["scorer"].pending() == waiting, "nor is one that waits its level"


def test_a_checkpoint_of_an_older_squelch_is_refused_with_the_commit_that_reads_it(tmp_path):
    save(tmp_path, 3)
    file = checkpoint_dir(tmp_path, 3) / "loop.json"
    older = {"scorer_figures": [], "early_stop": None, "kept_share": None}
    facts = {key: value for key, value in json.loads(file.read_text()).items() if key != "watchers"}
    file.write_text(json.dumps(facts | older))
    with pytest.raises(UserError, match=r"step-3/loop\.json is of an older Squelch.*commit 03d7dc21.*model\.path="):
        read_state(checkpoint_dir(tmp_path, 3))


def test_a_checkpoint_does_not_choose_what_its_tickets_play(tmp_path):
    options = (("sandbox", {"allow_unsafe": True}),)
    ticket = Ticket("000003-001", 3, Task("os:Class", 17, "validation", options), 16, 0)
    save(tmp_path, 2, open_tickets=[pack_ticket(ticket)])
    (found,) = read_state(checkpoint_dir(tmp_path, 2)).tickets(OWN)
    assert found.task == Task("FrozenLake", 17, "train", (("size", 4),))


@pytest.mark.parametrize(
    "fault", [{"clock": "three"}, {"open_tickets": [{}]}, {"open_tickets": 3}, {"totals": {"x": "y"}}, {"ledger": []}]
)
def test_a_loop_state_of_other_types_is_named_as_damaged(tmp_path, fault):
    save(tmp_path, 3)
    file = checkpoint_dir(tmp_path, 3) / "loop.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fault))
    with pytest.raises(UserError, match=r"step-3/loop\.json cannot be read.*damaged"):
        read_state(checkpoint_dir(tmp_path, 3))


def test_pruning_keeps_the_newest_and_the_best_and_clears_half_written_ones(tmp_path):
    for step in (2, 4, 10, 30):
        save(tmp_path, step)
    gathering = tmp_path / "checkpoints" / ".step-6.1234abcd.gathering.partial"
    replaced = partial_path(checkpoint_dir(tmp_path, 4).with_name("step-4.replaced"))
    for half in (partial_path(checkpoint_dir(tmp_path, 5)), gathering, partial_path(gathering), replaced):
        half.mkdir()
    prune(tmp_path, keep=2, needed={4})
    assert [step for step, _ in checkpoints(tmp_path)] == [4, 10, 30]
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_a_checkpoint_that_a_killed_process_was_about_to_replace_is_kept_and_continued_from(tmp_path):
    save(tmp_path, 3)
    checkpoint_dir(tmp_path, 3).rename(partial_path(checkpoint_dir(tmp_path, 3).with_name("step-3.replaced")))
    prune(tmp_path, keep=2, needed=())
    assert checkpoints(tmp_path) == [(3, checkpoint_dir(tmp_path, 3))]


def test_what_became_known_late_is_added_and_nothing_else_changes(tmp_path):
    save(tmp_path, 3, cursor=7)
    amend(checkpoint_dir(tmp_path, 3), watchers={"scorer": {"ema": 0.5}}, carried={"seconds/probe": 1.0})
    state = read_state(checkpoint_dir(tmp_path, 3))
    assert (state.clock, state.cursor, state.watchers) == (3, 7, {"scorer": {"ema": 0.5}})
    assert state.carried == {"seconds/probe": 1.0}
    assert [path.name for path in checkpoint_dir(tmp_path, 3).iterdir()] == ["loop.json"]


def test_a_full_disk_leaves_the_loop_state_as_it_was(tmp_path):
    save(tmp_path, 3, cursor=7)
    with files_of_at_most(64), pytest.raises(UserError, match=r"step-3.*The checkpoint is complete"):
        amend(checkpoint_dir(tmp_path, 3), watchers={"scorer": {"ema": 0.5}})
    assert read_state(checkpoint_dir(tmp_path, 3)).cursor == 7
    assert [path.name for path in checkpoint_dir(tmp_path, 3).iterdir()] == ["loop.json"]


def test_a_folder_without_its_loop_state_is_no_checkpoint(tmp_path):
    save(tmp_path, 3)
    checkpoint_dir(tmp_path, 9).mkdir()
    assert [step for step, _ in checkpoints(tmp_path)] == [3]


@pytest.mark.parametrize("text", ["{", "{}x", '{"unknown": 1}', "[]", "[" * 100_000, '{"clock": ' + "9" * 5000 + "}"])
def test_a_damaged_loop_state_is_named_with_the_way_out(tmp_path, text):
    save(tmp_path, 3)
    (checkpoint_dir(tmp_path, 3) / "loop.json").write_text(text)
    with pytest.raises(UserError, match=r"step-3.*damaged"):
        read_state(checkpoint_dir(tmp_path, 3))
