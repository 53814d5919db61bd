"""Answers that the engine scores after reasonings equal one plain forward each; what is drawn, and what is left out."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from squelch.cluster.metrics import REGISTRY
from squelch.kit.diagnosis.metrics import LINK_KEYS, SHARES
from squelch.kit.records.records import Trajectory, Turn
from squelch.kit.scoring.cross_scoring import CrossScorer
from squelch.kit.scoring.linking import LinkScores, Pairs, draw_references, read_scored, score_links
from squelch.kit.scoring.probe_drawing import answers_of, draw_probe
from squelch.kit.scoring.probe_scoring import FixedProbe
from squelch.kit.scoring.settings import ProbeConfig
from tests.actors.scorer.test_scorer import Oracle
from tests.kit.scoring.test_cross_scoring import one_by_one, qwen2, rows

CLOSE, END = 50, 51
"""Ids that close the reasoning and end the answer."""


def answer_end(ids: np.ndarray) -> int | None:
    found = np.flatnonzero(ids == END)
    return int(found[0]) + 1 if len(found) else None


def turn_of(index: int, prompt: np.ndarray, reasoning: np.ndarray, answer: list[int]) -> Trajectory:
    """A trajectory of one turn; the two ids after the answer are not part of it."""
    ids = np.concatenate([prompt, reasoning, [CLOSE], answer, [END, 2, 2]]).astype(np.int32)
    start, end = len(prompt), len(prompt) + len(reasoning)
    turn = Turn(start, len(ids), start, end, 0.0, 0.0, True, False, 1, 0, 0)
    return Trajectory(index, ids, np.arange(len(ids)) >= start, np.zeros(len(ids), np.float32), [turn], False, False)


def played(tasks: int = 5, samples: int = 3) -> dict[str, list[Trajectory]]:
    rng = np.random.default_rng(0)
    prompts = rows(rng, [5, 8, 6, 5, 9][:tasks], [1, 2])
    return {
        f"probe-{i:03d}": [
            turn_of(k, x, rng.integers(0, 40, rng.integers(1, 9)), rng.integers(0, 2, rng.integers(1, 3)).tolist())
            for k in range(samples)
        ]
        for i, x in enumerate(prompts)
    }


def test_the_likelihoods_of_answers_are_those_of_plain_forwards() -> None:
    model = qwen2()
    plain, draw = copy.deepcopy(model), draw_probe(played(4, 2), 0, 128)
    answers, excluded = answers_of(draw, answer_end, 128)
    assert not excluded.total() and all(a[0] == CLOSE and a[-1] == END for a in answers)
    pairs, num = Pairs(draw.reasonings, answers, draw.source, draw.task), len(draw.prompts)
    every, n = np.ones((len(answers), num), dtype=bool), len(answers)
    found = score_links(
        CrossScorer(model, 64, 0.9), draw.prompts, pairs, every, every, draw_references(pairs, num, None, (0,))
    )

    def plainly(prompt: int, reasoning: np.ndarray, answer: np.ndarray) -> float:
        return float(one_by_one(plain, [np.concatenate([draw.prompts[prompt], reasoning])], [answer], 0.9)[0, 0])

    z, own = draw.reasonings, draw.source
    assert found.reasonings == pytest.approx(one_by_one(plain, draw.prompts, z, 0.9), abs=1e-3)
    swapped = np.array([[plainly(own[s], z[r], answers[s]) for r in range(n)] for s in range(n)])
    assert found.swapped == pytest.approx(swapped, abs=1e-3) and swapped.std() > 0.5
    past = np.array([[plainly(j, z[s], answers[s]) for j in range(num)] for s in range(n)])
    assert found.prompts == pytest.approx(past, abs=1e-3)
    curve = [[plainly(own[s], z[s][: round(q * len(z[s]))], answers[s]) for q in SHARES] for s in range(n)]
    assert found.truncated == pytest.approx(np.array(curve), abs=1e-3)
    assert found.finite(pairs).all()


def probe(config: ProbeConfig, groups: dict[str, list[Trajectory]], end: Callable = answer_end) -> dict[str, float]:
    return FixedProbe(CrossScorer(qwen2(), 4096, 1.0), config, 1, end).read(0, 0, groups)


def test_an_evaluation_has_the_links_and_the_same_reasoning_metrics_as_without_them() -> None:
    groups = played()
    linked, alone = probe(ProbeConfig(tasks=5), groups), probe(ProbeConfig(tasks=5, links=False), groups)
    for key, value in alone.items():
        if "link" not in key and "seconds" not in key:
            assert linked[key] == pytest.approx(value, abs=1e-3, nan_ok=True), key
        assert "link" not in key or np.isnan(value)
    assert all(np.isfinite(linked[f"probe/link/{key}"]) for key in LINK_KEYS)
    assert linked["probe/link/answers"] == 15 and linked["probe/link/references_ratio"] == 1.0
    assert linked.keys() <= {key for spec in REGISTRY.specs.values() for key in spec.flat_keys()}
    json.dumps(linked)


def test_fewer_references_and_prompts_cost_fewer_tokens() -> None:
    whole, part = (CrossScorer(qwen2(), 4096, 1.0) for _ in range(2))
    before = whole.num_forwarded
    FixedProbe(whole, ProbeConfig(tasks=5), 1, answer_end).read(0, 0, played())
    few = ProbeConfig(tasks=5, answer_references=1, answer_prompts=2)
    found = FixedProbe(part, few, 1, answer_end).read(0, 0, played())
    assert part.num_forwarded - before < whole.num_forwarded - before
    assert found["probe/link/references_ratio"] == pytest.approx(1 / 3)
    assert np.isfinite(found["probe/link/past_reasoning"])


def test_the_answers_of_fewer_tasks_are_compared_among_themselves_and_leave_the_reasonings_metrics_alone() -> None:
    groups = played()
    whole, part = (CrossScorer(qwen2(), 4096, 1.0) for _ in range(2))
    every = FixedProbe(whole, ProbeConfig(tasks=5), 1, answer_end).read(0, 0, groups)
    found = FixedProbe(part, ProbeConfig(tasks=5, answer_tasks=4), 1, answer_end).read(0, 0, groups)
    assert found["probe/link/answers"] == 12 and found["probe/link/references_ratio"] == 1.0
    assert found["probe/link/excluded/no_answer"] == every["probe/link/excluded/no_answer"] == 0
    assert found["probe/mi"] == pytest.approx(every["probe/mi"], abs=1e-4) and part.num_forwarded < whole.num_forwarded
    four = {name: groups[name] for name in sorted(groups)[:4]}
    alone = FixedProbe(CrossScorer(qwen2(), 4096, 1.0), ProbeConfig(tasks=4), 1, answer_end).read(0, 0, four)
    for key in ("dependence", "information", "information_upper", "surprise"):
        assert found[f"probe/link/{key}"] == pytest.approx(alone[f"probe/link/{key}"], abs=1e-4), key


def test_the_dependence_of_each_kind_of_task_is_the_mean_over_its_tasks() -> None:
    kinds = dict.fromkeys(played(), "4 x 4") | {"probe-004": "6/6"}
    one = FixedProbe(CrossScorer(qwen2(), 4096, 1.0), ProbeConfig(tasks=5, answer_tasks=4), 1, answer_end)
    few = one.read(0, 0, played(), kinds=kinds)
    keys = {key for key in few if key.startswith("probe/link/dependence/")}
    assert few["probe/link/dependence/4 x 4"] == pytest.approx(few["probe/link/dependence"]) and len(keys) == 2
    assert np.isnan(few[next(key for key in keys if "6_6" in key)]), "its answers were not scored"
    whole = FixedProbe(CrossScorer(qwen2(), 4096, 1.0), ProbeConfig(tasks=5), 1, answer_end)
    found = whole.read(0, 0, played(), kinds=dict.fromkeys(played(), "rest") | {"probe-004": "last"})
    rest, last = found["probe/link/dependence/rest"], found["probe/link/dependence/last"]
    assert (4 * rest + last) / 5 == pytest.approx(found["probe/link/dependence"])
    patterns = [found for spec in REGISTRY.specs.values() if (found := spec.pattern()) is not None]
    assert all(any(pattern.fullmatch(key) for pattern in patterns) for key in keys)


def test_turns_without_an_answer_and_reasonings_without_room_are_counted_and_left_out_of_the_links_alone() -> None:
    groups = played()
    first, *others = groups["probe-000"]
    turn = replace(first.turns[0], sample_end=first.turns[0].reasoning_end + 1)
    groups["probe-000"] = [replace(first, turns=[turn]), *others]
    found = probe(ProbeConfig(tasks=5), groups)
    assert found["probe/link/excluded/no_answer"] == 1.0 and found["probe/link/answers"] == 14.0
    assert found["probe/samples"] == 15.0 and found["probe/num_excluded"] == 0.0
    draw = draw_probe(groups, 0, 128)
    longest = max(map(len, draw.prompts)) + max(map(len, draw.reasonings))
    answers, excluded = answers_of(draw, answer_end, longest)
    assert excluded["too_long"] > 0 and sum(a is None for a in answers) == excluded.total()


def test_without_any_answer_the_links_are_unknown_and_the_rest_is_read() -> None:
    found = probe(ProbeConfig(tasks=5), played(), lambda ids: None)
    assert np.isnan(found["probe/link/dependence"]) and np.isnan(found["probe/link/follows"])
    assert found["probe/link/answers"] == 0.0 and found["probe/link/excluded/no_answer"] == 15.0
    assert np.isfinite(found["probe/mi"])


def test_an_answer_with_an_infinite_likelihood_is_counted_and_left_out() -> None:
    class Broken(Oracle):
        def path_sums(self, prompts, rows, pictures=None):
            found = super().path_sums(prompts, rows)
            for row, values in zip(rows[0], found[0], strict=True):
                for i, path in enumerate(row):
                    values[i] = (
                        -np.inf if path.start and (path.ids[path.start :].sum() == CLOSE + END + 40) else values[i]
                    )
            return found

    groups = played()
    x = np.asarray(groups["probe-000"][0].token_ids[: groups["probe-000"][0].turns[0].sample_start])
    groups["probe-000"][0] = turn_of(0, x, np.array([3, 4, 5, 6]), [40])
    found = FixedProbe(Broken(1.0), ProbeConfig(tasks=5), 1, answer_end).read(0, 0, groups)
    assert found["probe/link/excluded/non_finite"] == 1.0 and found["probe/link/answers"] == 14.0


@pytest.mark.parametrize("lost", [1, 2])
def test_an_answer_that_compares_with_no_other_reasoning_is_counted_and_left_out(lost: int) -> None:
    """Found by a reviewer: one such answer cost the whole reading its links, and nothing was counted."""
    source = np.repeat(np.arange(4), 2)
    pairs = Pairs([np.array([1])] * 8, [np.array([1])] * 8, source, source)
    swapped = np.log(np.random.default_rng(1).uniform(0.1, 1, (8, 8)))
    swapped[:lost, 2:] = np.nan
    flat = np.full((8, 4), -1.0), np.full((8, len(SHARES)), -1.0)
    evaluation, broken = read_scored(pairs, LinkScores(flat[0], flat[0], swapped, flat[1]), np.ones(4), 4, (0,))
    assert evaluation is not None and (broken, evaluation.dependence.count.sum()) == (lost, 8 - lost)
    none, broken = read_scored(
        Pairs(pairs.reasonings, pairs.answers, np.zeros(8, int), source),
        LinkScores(flat[0], flat[0], np.zeros((8, 8)), flat[1]),
        np.ones(4),
        4,
        (0,),
    )
    assert (none, broken) == (None, 0), "no answer is broken where all are of one prompt"


def test_references_are_of_other_prompts_with_as_many_of_each_task() -> None:
    task, source = np.repeat(np.arange(4), 3), np.repeat([0, 0, 1, 2], 3)
    answers = [np.array([1])] * 11 + [None]
    pairs = Pairs([np.array([1])] * 12, answers, source, task)
    chosen = draw_references(pairs, 3, 2, (0,))
    assert not chosen[0, :6].any() and not chosen[:, 11].any()
    assert [chosen[0, task == t].sum() for t in range(4)] == [0, 0, 2, 2]
    assert np.array_equal(chosen, draw_references(pairs, 3, 2, (0,))), "the same at every evaluation"
    assert draw_references(pairs, 3, None, (0,))[1].sum() == 8
