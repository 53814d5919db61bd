"""What a filter saved and cost, from the lines of metrics.jsonl."""

import pytest

from squelch.cluster.runs.savings import filter_savings, savings_line

STEP = {"num_groups": 8.0, "tokens/sampled": 1000.0, "seconds/train": 4.0, "seconds/rollout": 6.0, "refill_rounds": 1.0}


def a_step(kept: float, trained: float) -> dict[str, float | None]:
    updates = 4.0 if kept else None
    return STEP | {"kept_groups": kept, "tokens/trained": trained, "optimizer_steps": updates}


def test_what_was_not_trained_on_is_counted_and_its_time_is_that_of_the_tokens_that_were() -> None:
    found = filter_savings([{"step": 0}, a_step(2, 200), a_step(0, 0)], gain=0.2)
    assert (found["groups_played"], found["groups_trained"], found["updates_skipped"]) == (16, 2, 1)
    assert found["tokens_not_trained"] == 1800 and found["seconds_not_trained"] == pytest.approx(8 / 200 * 1800)
    assert found["seconds_thrown_away"] == pytest.approx(12 * 14 / 16) and found["refill_rounds"] == 2
    assert (found["gain_per_100_groups"], found["gain_per_100_updates"]) == (pytest.approx(10), pytest.approx(5))
    assert savings_line(found).startswith("learned from 2 of 16 groups: 1800 tokens not trained on, about 72 s")


@pytest.mark.parametrize(("target", "trained"), [("groups", 2), ("regulariser", 8), ("task", 8)])
def test_groups_count_as_learned_from_if_they_were_trained_on_though_the_filter_dropped_them(
    target: str, trained: int
) -> None:
    steps = [a_step(2, 125 * trained) | {"groups/trained": float(trained)}, a_step(0, 0) | {"groups/trained": 0.0}]
    found = filter_savings(steps, gain=0.2)
    assert (found["groups_played"], found["groups_trained"], found["updates_skipped"]) == (16, trained, 1), target
    assert found["seconds_thrown_away"] == pytest.approx(12 * (1 - trained / 16))
    assert found["gain_per_100_groups"] == pytest.approx(20 / trained)
    assert savings_line(filter_savings(steps[:1], gain=0.2)) == "" or target == "groups"


def test_a_run_that_learned_from_every_group_saved_nothing_and_says_nothing() -> None:
    found = filter_savings([a_step(8, 1000)], gain=None)
    assert (found["tokens_not_trained"], found["seconds_thrown_away"], found["gain_per_100_groups"]) == (0, 0, None)
    assert savings_line(found) == "" and savings_line({}) == ""


def test_a_run_that_never_learned_has_no_estimate_of_seconds() -> None:
    assert filter_savings([a_step(0, 0)], gain=0.0)["seconds_not_trained"] is None
    assert filter_savings([{"step": 0}], gain=None) == {}


def test_trajectories_that_were_not_trained_on_are_counted_where_the_run_recorded_them() -> None:
    steps = [
        a_step(2, 200) | {"trajectories": 128.0, "trajectories/trained": 32.0},
        a_step(0, 0) | {"trajectories": 127.0},
    ]
    assert filter_savings(steps, gain=None)["rows_not_trained"] == 128 + 127 - 32
    assert filter_savings([a_step(2, 200) | {"trajectories": 128.0}], gain=None)["rows_not_trained"] is None
