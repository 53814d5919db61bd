import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.control.admission import Admission, TicketSource
from squelch.envs.config import EnvironmentConfig, EnvironmentEntry
from squelch.envs.mixture import Mixture


@given(
    max_staleness=st.integers(0, 4),
    published=st.lists(st.booleans(), min_size=1, max_size=30),
    waits=st.randoms(use_true_random=False),
)
def test_staleness_never_exceeds_the_bound_whatever_the_schedule(max_staleness, published, waits):
    admission = Admission(max_staleness, len(published))
    sampled_from = {}
    for step, publish in enumerate(published, start=1):
        while admission.open() and (step not in sampled_from or waits.random() < 0.5):
            sampled_from[admission.issue()] = admission.version
        staleness = admission.check_staleness(sampled_from[step])
        assert 0 <= staleness <= max_staleness
        admission.complete(step, admission.version + publish)
    assert sorted(sampled_from) == list(range(1, len(published) + 1))


def test_synchronous_admission_issues_one_step_at_a_time():
    admission = Admission(0, 3)
    assert admission.issue() == 1 and not admission.open()
    with pytest.raises(RuntimeError, match="not open"):
        admission.issue()
    admission.complete(1, version=0)
    assert admission.version == 0 and admission.issue() == 2
    for version in (-1, 2):
        with pytest.raises(RuntimeError, match="after version 0"):
            admission.complete(2, version)


def test_weights_made_again_take_a_higher_version_and_what_is_retried_under_it_keeps_the_bound():
    admission = Admission(1, 9, clock=4, version=4)
    assert (admission.issue(), admission.issue()) == (5, 6) and not admission.open()
    admission.renumber(5)
    assert admission.check_staleness(5) == 0 and admission.clock == 4
    admission.complete(5, 6)
    assert admission.check_staleness(5) == 1
    with pytest.raises(RuntimeError, match="as version 5, below 6"):
        admission.renumber(5)


def test_a_group_older_than_the_bound_is_a_broken_invariant():
    admission = Admission(1, 9, clock=5, version=5)
    assert admission.check_staleness(4) == 1
    with pytest.raises(RuntimeError, match="staleness 2"):
        admission.check_staleness(3)


def test_tickets_walk_through_the_tasks_without_repeating_one():
    lake = EnvironmentConfig(options={"size": 4}, train_seed=100)
    source = TicketSource(Mixture.of(lake), 16, 0, 1.0)
    first, refill, second = source.take(1, 8), source.take(1, 2, first_index=8), source.take(2, 8)
    seeds = [t.task.seed for t in first + refill + second]
    ids = [t.ticket_id for t in first + refill + second]
    assert seeds == list(range(100, 118)) and len(set(ids)) == 18


def test_tickets_of_several_environments_walk_through_the_tasks_of_each():
    lake = EnvironmentEntry(name="FrozenLake", weight=3, train_seed=100, options={"size": 5})
    mixture = Mixture.several([lake, EnvironmentEntry(name="Sokoban", label="boxes", train_seed=7)])
    whole, source = TicketSource(mixture, 4, 0, 1.0), TicketSource(mixture, 4, 0, 1.0, cursor=5)
    tasks = [ticket.task for ticket in whole.take(1, 12)]
    assert [t.seed for t in tasks if t.label == "FrozenLake"] == list(range(100, 109))
    assert [t.seed for t in tasks if t.label == "boxes"] == [7, 8, 9]
    assert {(t.label, t.environment, t.options) for t in tasks} == {
        ("FrozenLake", "FrozenLake", (("size", 5),)),
        ("boxes", "Sokoban", ()),
    }
    assert [ticket.task for ticket in source.take(2, 7)] == tasks[5:], "a cursor is all that a resumed run needs"
