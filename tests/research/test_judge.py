"""The labelled reasonings are what the benchmark says, and the judges stay as good on them as they were."""

from collections import Counter

from research.judge.measure import Labelled, counts_of, labelled, metrics_of, written
from squelch.envs.registry import judge_of

LAKE = "State:\nRow 0: _ O _ _\nRow 1: G _ O O\nRow 2: O _ _ P\nRow 3: _ _ _ _\nActions left: 10"


def test_a_hundred_reasonings_are_labelled_each_with_a_state_that_its_judge_reads() -> None:
    reasonings = labelled()
    assert len(reasonings) == 100 and len(Counter(one.environment for one in reasonings)) == 3
    for one in reasonings:
        judge = judge_of(one.environment)
        assert judge is not None and judge.facts(one.state) is not None


def test_precision_and_recall_of_the_judges_hold() -> None:
    metrics = metrics_of(labelled())
    assert metrics["claims"] > 100
    assert metrics["precision"] >= 0.88 and metrics["recall"] >= 0.84 and metrics["same_verdict"] >= 0.97


def test_claims_are_counted_by_what_they_say_and_verdicts_by_their_truth() -> None:
    said = "I am at row 2, column 3. The goal is at row 1, column 1. There is a hole to my left."
    one = Labelled("FrozenLake", LAKE, said, (("player 2 3", True), ("goal 1 1", False), ("hole 0 1", True)))
    counts = counts_of(one)
    assert [counts[name] for name in ("read", "found", "both", "agreed")] == [3, 3, 2, 2]
    assert (counts["right"], counts["judged_right"]) == (0, 0)
    assert counts_of(Labelled("FrozenLake", LAKE, said, (("goal 1 1", True),)))["agreed"] == 0
    texts = [written(claim) for claim in judge_of("FrozenLake").claims(said)]
    assert texts == ["player 2 3", "goal 1 1", "hole ? - from player"]
    sums = [written(claim) for claim in judge_of("Countdown").claims("from 6 9 12: 12 / 6 is not 3. the target is 7")]
    assert sums == ["given 6 9 12", "2 != 3", "uses 6 12", "target 7"]
