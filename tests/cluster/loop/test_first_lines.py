"""The first screen of a run says in words what is trained, how, where it is written, and what to type elsewhere."""

from pathlib import Path

from squelch.cluster.config import load
from squelch.cluster.loop.first_lines import _count, opening_lines


def test_the_first_lines_say_what_a_newcomer_asks(tiny_policy: Path, monkeypatch) -> None:
    tiny_policy = tiny_policy.resolve()  # the folder of the process is, where the cache is a link
    monkeypatch.chdir(tiny_policy.parent)
    config = load("frozenlake", ["runs_dir=some where", "learner.objective.kl.coefficient=0.01"])
    lines = opening_lines(config, tiny_policy, "http://127.0.0.1:9464/metrics")
    said = dict(line.strip().split(maxsplit=1) for line in lines[1:])
    assert lines[0] == "frozenlake" and max(map(len, lines)) <= 120
    assert said["model"] == f"tiny, 805 k parameters ({tiny_policy.name})"
    assert said["environment"] == "FrozenLake, 60 steps of 8 tasks with 16 attempts each"
    assert said["algorithm"] == (
        "grpo, with kl coefficient 0.01 instead of 0.0, aggregation token_mean instead of sequence_mean"
    )
    assert said["filter"] == "top_p 0.9 by reward variance" and said["files"] == "some where/frozenlake"
    assert said["elsewhere"] == "squelch watch 'some where/frozenlake'    squelch inspect 'some where/frozenlake'"
    assert "learner." not in "".join(lines), "no keys: `squelch config` prints them"


def test_what_is_off_or_beside_the_folder_is_said(tiny_policy: Path) -> None:
    config = load("frozenlake-unfiltered", ["store=s3://bucket/runs", "learner.objective.aggregation=sequence_mean"])
    said = "\n".join(opening_lines(config, tiny_policy, ""))
    assert "none: a step learns from all groups" in said and "copied to s3://bucket/runs" in said


def test_a_filter_of_one_term_says_what_it_keeps_and_what_the_other_groups_are_spared(tiny_policy: Path) -> None:
    def said(*words: str) -> str:
        lines = opening_lines(load("frozenlake", list(words)), tiny_policy, "")
        return next(line for line in lines if line.strip().startswith("filter")).split(maxsplit=1)[1]

    whole, kept, term = "top_p 0.9 by reward variance", "keep smallest", "target regulariser: the other groups are"
    assert said("filter.keep=smallest") == f"{whole}, {kept}"
    assert said("filter.target=regulariser") == f"{whole}, keep largest, {term} spared the regularisers alone"
    assert said("filter.target=task", "filter.keep=smallest").endswith(
        f"{kept}, target task: the other groups are spared the policy term alone"
    )


def test_a_number_of_parameters_has_three_digits_and_the_largest_unit_that_it_reaches() -> None:
    said = {
        999: "999",
        1000: "1 k",
        999_499: "999 k",
        999_600: "1 M",
        10**6: "1 M",
        10**9: "1 B",
        7_615_616_512: "7.62 B",
    }
    assert {number: _count(number) for number in said} == said
