"""Several environments in one run, in the real loop on fake actors: whose turn a ticket is, what is split by label, and
that a stop and a resume change nothing."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from squelch.actors.play.seeds import request_seed
from squelch.cluster.config import RunConfig, dump, load, settings_of
from squelch.cluster.control.admission import TicketSource
from squelch.cluster.idle_settings import scale_notes
from squelch.cluster.loop.persistence.state import LoopState, pack_ticket, require_same_schedule
from squelch.cluster.loop.watchers.validation import fixed_tickets
from squelch.cluster.runs.ending import EndCause, Ending
from squelch.cluster.setting_keys import flat
from squelch.envs.config import EnvironmentConfig
from squelch.kit.base.errors import UserError
from squelch.kit.records.records import Ticket
from tests.fakes.actors import FakeArchive, World
from tests.fakes.run import Outcome, check, drive
from tests.fakes.run import settings as configured

LISTED = "environments=[{name: FrozenLake, weight: 3}, {name: Sokoban, label: boxes, train_seed: 500}]"
RATES = ("operations/", "tokens_per_second/", "mfu/", "gpu/")
SEVERAL = ("environment=null", LISTED, "loop.prompts=4", "scorer.probe.every=0")


def rewards(ticket: Ticket, index: int) -> float:
    """Every task of the boxes earns a hundred times as much, and some earn nothing."""
    return (100.0 if ticket.task.label else 1.0) * float(index % 2) * (ticket.task.seed % 3 > 0)


def run(world: World, archive: FakeArchive, **how: object) -> Outcome:
    outcome = drive(world, archive, **how)
    check(outcome, world, archive)
    return outcome


def test_each_step_plays_the_environments_by_weight_and_splits_its_metrics(tmp_path: Path) -> None:
    world, archive = World(configured(tmp_path, *SEVERAL), rewards=lambda t, i: float(i % 2)), FakeArchive()
    outcome = run(world, archive)
    tasks = [group.ticket.task for group in archive.rows.values()]
    assert Counter(task.label for task in tasks) == {"FrozenLake": 12, "boxes": 4}
    assert sorted(task.seed for task in tasks if task.label == "boxes") == [500, 501, 502, 503]
    last = archive.recorded[4]
    assert last["environment/groups/boxes"] == 1 and last["environment/groups/FrozenLake"] == 3
    assert last["environment/success/boxes"] == 0.5 and last["environment/kept/FrozenLake"] == 1.0
    assert {"FrozenLake", "boxes"} <= {key.rpartition("/")[2] for key in last if key.startswith("environment/reward/")}
    assert "FrozenLake" in "".join(outcome.said), "each validation names both"


def test_a_run_of_one_environment_has_no_series_by_environment_and_no_label_in_its_checkpoint(tmp_path: Path) -> None:
    world, archive = World(configured(tmp_path, "loop.max_staleness=2")), FakeArchive()
    outcome = run(world, archive)
    assert not [key for line in archive.recorded.values() for key in line if key.startswith("environment/")]
    ticket = pack_ticket(outcome.steps.source.take(9, 1)[0])
    assert ticket["task"].keys() == {"environment", "seed", "split", "options"}
    assert "label" not in str(outcome.steps.filter_state)
    tree = world.config.model_dump(mode="json")
    assert "environments" not in tree and tree["environment"]["name"] == "FrozenLake"


def test_the_tickets_of_one_environment_are_those_from_before_there_could_be_several() -> None:
    """Digests of what a commit made that knew one environment only."""
    config = RunConfig(environment=EnvironmentConfig(options={"size": 5}, train_seed=3), seed=4)
    source, state = TicketSource(config.mixture, config.sampling.group_size, config.seed, 1.0, cursor=5), LoopState()
    state.with_tasks(config)
    issued = [*source.take(1, 8), *source.take(1, 2, first_index=8), *source.take(2, 8), *fixed_tickets(config)[:9]]
    content = [[pack_ticket(t) for t in issued], [request_seed(t, 1, 2) for t in issued], state.fixed_tasks]
    assert hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16] == "6980fe9b5f1f0102"


@pytest.mark.parametrize("at", [3, 11, 25])
def test_a_stopped_run_of_several_environments_resumes_to_the_uninterrupted_one(tmp_path: Path, at: int) -> None:
    words = (*SEVERAL, "loop.max_staleness=1", "filter.scope=environment", "loop.checkpoint_every=1")
    wanted = FakeArchive()
    whole = run(World(configured(tmp_path / "whole", *words), rewards=rewards), wanted)
    world, archive = World(configured(tmp_path / "parts", *words), rewards=rewards), FakeArchive()

    def stop(coordinator) -> None:
        ending = Ending(EndCause.SIGNAL, "SIGTERM")
        world.on_call = lambda _, number: coordinator.stop(ending) if number >= 20 + at else None

    run(world, archive, prepare=stop)
    world.on_call = None
    resumed = run(world, archive, resume=True)
    assert archive.steps == wanted.steps and resumed.steps.source.cursor == whole.steps.source.cursor == 16
    played = {name: group.ticket.task for name, group in archive.rows.items()}
    assert played == {name: group.ticket.task for name, group in wanted.rows.items()}


def lines(archive: FakeArchive) -> dict[int, dict[str, str]]:
    """The metrics of each step as text, without times; NaN is equal to itself as text."""
    timed = ("seconds/", "tickets/in_flight", "tokens/per_second", "scaling/", "wait/", "time", *RATES)
    return {
        step: {key: repr(value) for key, value in row.items() if not key.startswith(timed)}
        for step, row in archive.recorded.items()
    }


@pytest.mark.parametrize("at", [(4, 2), (19, 9)])
def test_a_run_of_several_that_refills_and_is_stopped_twice_is_the_uninterrupted_one_to_the_bit(
    tmp_path: Path, at: tuple[int, int]
) -> None:
    words = (*SEVERAL[:2], "loop.prompts=4", "rollout.count=1", "filter.refill=true", "loop.checkpoint_every=1")
    wanted = FakeArchive()
    whole = run(World(configured(tmp_path / "whole", *words), rewards=rewards), wanted)
    world, archive = World(configured(tmp_path / "parts", *words), rewards=rewards), FakeArchive()
    for number, calls in enumerate(at):

        def stop(coordinator, calls: int = calls) -> None:
            first = world.calls["all"] + 20 + calls
            ending = Ending(EndCause.SIGNAL, "SIGTERM")
            world.on_call = lambda _, made: coordinator.stop(ending) if made >= first else None

        run(world, archive, prepare=stop, resume=number > 0)
        assert len(archive.steps) < 4, "it was stopped before its end"
    world.on_call = None
    resumed = run(world, archive, resume=True)
    assert len(archive.rows) > 16 and archive.steps == wanted.steps
    assert lines(archive) == lines(wanted)
    for name, group in wanted.rows.items():
        mine = archive.rows[name]
        assert (mine.ticket, mine.task_key) == (group.ticket, group.task_key)
        for one, other in zip(mine.trajectories, group.trajectories, strict=True):
            assert one.token_ids.tolist() == other.token_ids.tolist() and one.turns == other.turns
    after = [outcome.steps.source.take(9, 8) for outcome in (whole, resumed)]
    assert after[0] == after[1], "the schedule goes on where it was"


def test_groups_are_ranked_among_their_environment_if_the_scope_says_so(tmp_path: Path) -> None:
    words = (*SEVERAL, "filter.rule=top_p", "filter.rho=0.9", "loop.prompts=8", "loop.steps=2", "validation.every=0")
    kept = {}
    for scope in ("run", "environment"):
        archive = FakeArchive()
        settings = configured(tmp_path / scope, *words, f"filter.scope={scope}")
        run(World(settings, rewards=lambda t, i: (100.0 if t.task.label == "boxes" else 1.0) * (i % 2)), archive)
        labels = {name: group.ticket.task.label for name, group in archive.rows.items()}
        decided = [(labels[name], decision) for step in archive.steps.values() for name, decision in step.items()]
        kept[scope] = {label for label, decision in decided if decision == "kept"}
        assert bool(scale_notes(settings)) == (scope == "run")
    assert kept == {"run": {"boxes"}, "environment": {"FrozenLake", "boxes"}}


def test_validation_plays_as_many_tasks_of_each_and_its_figure_is_weighted(tmp_path: Path) -> None:
    config = configured(tmp_path, *SEVERAL, "validation.every=4", "validation.tasks=4")
    tickets = fixed_tickets(config)
    assert [t.ticket_id for t in tickets] == [f"v-{i:05d}" for i in range(8)]
    assert Counter(t.task.label for t in tickets) == {"FrozenLake": 4, "boxes": 4}
    archive = FakeArchive()
    world = World(config, rewards=lambda t, i: float(t.task.label == "boxes" or (t.task.split == "train" and i % 2)))
    outcome = run(world, archive)
    before = archive.recorded[0]
    assert before["validation/success"] == 0.25, "all of the boxes, which weigh a quarter, and none of the lake"
    assert before["environment/validation/boxes"] == 1.0 and before["environment/validation/FrozenLake"] == 0.0
    assert any("FrozenLake 0.000  boxes 1.000" in line for line in outcome.said)
    assert archive.recorded[4]["gain"] == 0.0


def test_only_one_environment_is_scored_so_that_a_matrix_mixes_none(tmp_path: Path) -> None:
    words = (*SEVERAL[:3], "scorer.environment=boxes", "loop.prompts=8")
    config = configured(tmp_path, *words)
    archive = FakeArchive()
    world = World(config, rewards=lambda t, i: float(i % 2))
    outcome = run(world, archive)
    assert outcome.scoring.scored == "boxes" and archive.scored
    assert configured(tmp_path / "b", *SEVERAL).scored.label == "FrozenLake", "the heaviest, unless one is chosen"


def test_a_run_goes_on_only_with_the_environments_and_weights_that_it_began_with(tmp_path: Path) -> None:
    config = configured(tmp_path, *SEVERAL)
    began = flat(config.model_dump(mode="json"))
    require_same_schedule(began, config.mixture, tmp_path)
    for other in (configured(tmp_path, *SEVERAL, "environments[1].weight=2"), configured(tmp_path)):
        with pytest.raises(UserError, match=r"the run began with FrozenLake 3, boxes 1, and has .* Restore these"):
            require_same_schedule(began, other.mixture, tmp_path)
    one = configured(tmp_path)
    require_same_schedule(flat(one.model_dump(mode="json")), one.mixture, tmp_path)
    state = LoopState(open_tickets=[pack_ticket(t) for t in fixed_tickets(config)[-1:]])
    assert state.tickets(config.mixture)[0].task.label == "boxes"


REFUSED = {
    "environments and environment both": (LISTED, "environment and environments are both set.*environment=null"),
    "a weight of zero": ("environments=[{name: FrozenLake, weight: 0}]", r"environments\[0\].weight: .*greater than 0"),
    "a weight below zero": (
        "environments=[{name: Sokoban, weight: -1}]",
        r"environments\[0\].weight: .*greater than 0",
    ),
    "two of one name": (
        "environments=[{name: Sokoban}, {name: Sokoban}]",
        r"environments\[1\] and environments\[0\] are both called 'Sokoban'; give each a label",
    ),
    "two of one label": (
        "environments=[{name: Sokoban, label: a}, {name: FrozenLake, label: a}]",
        r"environments\[1\] and environments\[0\] are both called 'a'",
    ),
    "an option that it lacks": (
        "environments=[{name: Sokoban}, {name: FrozenLake, options: {sise: 3}}]",
        r"environments\[1\].options.sise: FrozenLake has no such option; did you mean 'size'\?",
    ),
    "an unknown environment": ("environments=[{name: Sokobann}]", r"environments\[0\].name is 'Sokobann'.*'Sokoban'"),
    "an unknown key": ("environments=[{name: Sokoban, wieght: 2}]", r"environments\[0\].wieght: unknown key.*'weight'"),
    "a turn that is too long": (
        "environments=[{name: Sokoban, max_tokens_per_turn: 900}]",
        r"environments\[0\].format.max_turns x environments\[0\].max_tokens_per_turn = 4500",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_lists_of_environments_are_refused_with_key_and_remedy(what: str) -> None:
    override, said = REFUSED[what]
    null = [] if "both" in what else ["environment=null"]
    with pytest.raises(UserError, match=said):
        load("frozenlake", [*null, override])


def test_a_resolved_configuration_of_several_reads_back_equal_and_an_entry_is_overridden_by_place(
    tmp_path: Path,
) -> None:
    config = load("frozenlake", ["environment=null", LISTED, "environments[1].options.size=7"])
    assert config.mixture.entries[1].environment.options == {"size": 7}
    (tmp_path / "config.yaml").write_text(dump(config))
    assert load(str(tmp_path / "config.yaml")) == config
    assert settings_of(tmp_path / "config.yaml")["environments[1].label"] == "boxes"
    with pytest.raises(UserError, match="environments has 2 entries, counted from 0"):
        load("frozenlake", ["environment=null", LISTED, "environments[2].weight=1"])
    with pytest.raises(UserError, match=r"scorer.environment=maze: the run has no environment labelled 'maze'"):
        load("frozenlake", ["environment=null", LISTED, "scorer.environment=maze"])
