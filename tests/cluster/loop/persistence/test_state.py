import json
from dataclasses import asdict

import pytest

from squelch.actors.process.disk import partial_path
from squelch.actors.records import Task, Ticket
from squelch.cluster.config import load
from squelch.cluster.errors import UserError
from squelch.cluster.loop.persistence.state import (
    LoopState,
    amend,
    checkpoint_dir,
    checkpoints,
    pack_ticket,
    prune,
    read_state,
)
from squelch.envs.config import EnvironmentConfig
from tests.disk import files_of_at_most


def save(run_dir, step, **state):
    folder = checkpoint_dir(run_dir, step)
    folder.mkdir(parents=True)
    (folder / "loop.json").write_text(json.dumps(asdict(LoopState(clock=step, **state))))


OWN = EnvironmentConfig(name="FrozenLake", options={"size": 4})


def test_open_tickets_survive_json_unchanged(tmp_path):
    ticket = Ticket("000003-001", 3, Task("FrozenLake", 17, "train", (("size", 4),)), 16, 0, 1.0, "rollout-0")
    save(tmp_path, 2, open_tickets=[pack_ticket(ticket)])
    assert read_state(checkpoint_dir(tmp_path, 2)).tickets(OWN) == [ticket]


MEASURED = {
    "first_validation": {"step": 0, "solved": [1] * load("frozenlake").validation.tasks},
    "gaming": {"steps": [1]},
    "early_stop": {"baseline": [0.3], "low_steps": 2, "low_validations": 3},
    "scorer": {
        **{"ema": 1.0, "probe": {"mi": 1.0}, "followed": {"follows": 1.0}, "before": [3, {}]},
        "regime": {"first_turn": {"true": [0.5]}},
    },
    "alarm": {"cusum": 1.0, "probe": {"mi": {}, "dependence": {}}},
    "best_success": 0.5,
    "best_step": 3,
    "scorer_figures": [{"scorer/step": 3.0}, {"probe/step": 3.0}],
}


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
def test_what_is_paired_by_task_begins_anew_with_other_tasks(words, other):
    state = LoopState(**MEASURED)
    assert state.with_tasks(load("frozenlake")) == [] and asdict(state).items() >= MEASURED.items()
    state = LoopState(**json.loads(json.dumps(asdict(state))))
    assert state.with_tasks(load("frozenlake", words)) == other
    kept = {name: vars(state)[name] for name in ("first_validation", "gaming", "early_stop", "best_step")}
    spread = MEASURED["early_stop"] | {"low_validations": 0}  # its baseline is of training, not of fixed tasks
    anew = {"first_validation": None, "gaming": None, "early_stop": spread, "best_step": -1}
    assert kept == (anew if "validation" in other else {name: MEASURED[name] for name in anew})
    assert (state.scorer["probe"] is None, "probe" in state.alarm) == ("probe" in other, "probe" not in other)
    judged, level, before = state.scorer["regime"]["first_turn"], state.alarm.get("cusum"), state.scorer["before"]
    assert (judged, level, before) == (({}, None, None) if "scorings" in other else ({"true": [0.5]}, 1.0, [3, {}]))
    read = state.alarm.get("probe", {})
    answers = "probe" in other or "answers" in other
    assert (state.scorer["followed"] is None, "dependence" in read) == (answers, not answers)
    assert state.scorer["ema"] == 1.0 and ("mi" in read) == ("probe" not in other), "D begins anew without MI"
    assert ({"probe/step": 3.0} in state.scorer_figures) == ("probe" not in other), "nor is one that waits its level"
    assert {"scorer/step": 3.0} in state.scorer_figures


def test_a_checkpoint_that_does_not_say_how_the_probe_was_sampled_goes_on_with_its_readings():
    state = LoopState(**MEASURED)
    state.with_tasks(load("frozenlake"))
    del state.fixed_tasks["probe_sampling"]
    assert state.with_tasks(load("frozenlake", ["sampling.temperature=0.7"])) == [] and state.scorer["probe"]


def test_a_checkpoint_of_an_older_release_is_known_by_the_number_of_its_tasks():
    """Found by a reviewer: it names no tasks, and a validation of another number of them ended the run."""
    old = LoopState(**json.loads(json.dumps(MEASURED)))
    assert old.with_tasks(load("frozenlake", ["validation.tasks=9"])) == ["validation"]
    assert old.first_validation is None and LoopState(**MEASURED).with_tasks(load("frozenlake")) == []


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
    replaced = partial_path(checkpoint_dir(tmp_path, 7).with_name("step-7.replaced"))
    for half in (partial_path(checkpoint_dir(tmp_path, 5)), gathering, partial_path(gathering), replaced):
        half.mkdir()
    prune(tmp_path, keep=2, best_step=4)
    assert [step for step, _ in checkpoints(tmp_path)] == [4, 10, 30]
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_what_became_known_late_is_added_and_nothing_else_changes(tmp_path):
    save(tmp_path, 3, cursor=7)
    amend(checkpoint_dir(tmp_path, 3), scorer={"ema": 0.5}, scorer_figures=[{"first_turn/mi_est": 1.0}])
    state = read_state(checkpoint_dir(tmp_path, 3))
    assert (state.clock, state.cursor, state.scorer) == (3, 7, {"ema": 0.5})
    assert state.scorer_figures == [{"first_turn/mi_est": 1.0}]
    assert [path.name for path in checkpoint_dir(tmp_path, 3).iterdir()] == ["loop.json"]


def test_a_full_disk_leaves_the_loop_state_as_it_was(tmp_path):
    save(tmp_path, 3, cursor=7)
    with files_of_at_most(64), pytest.raises(UserError, match=r"step-3.*The checkpoint is complete"):
        amend(checkpoint_dir(tmp_path, 3), scorer={"ema": 0.5})
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
