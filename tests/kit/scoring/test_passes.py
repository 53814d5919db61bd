"""Prompts that share a pass are scored as alone, in few passes, and where that takes less time."""

import copy
import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.actors.config import ScorerConfig
from squelch.actors.model_counts import model_size
from squelch.actors.scorer import memory
from squelch.kit.diagnosis.pair_budget import draw_pairs
from squelch.kit.packed.block_attention import BATCH_PAIRS
from squelch.kit.packed.packing import pack
from squelch.kit.records.records import Cluster
from squelch.kit.scoring import cross_scoring, prefix_attention
from squelch.kit.scoring.cross_scoring import CrossScorer, Ways
from squelch.kit.scoring.passes import Columns, OneAPass, PassCosts, Work, packed_passes
from squelch.kit.scoring.probe_scoring import FixedProbe
from squelch.kit.scoring.settings import ProbeConfig
from squelch.kit.scoring.token_trees import Path
from tests.kit.scoring.test_cross_scoring import branching, one_by_one, per_token_error, qwen2, rows
from tests.kit.scoring.test_linking import answer_end, played

ADD = PassCosts.add
WAYS: tuple[Ways, ...] = ("one", "packed", "measured")
IDS = st.lists(st.integers(0, 2), min_size=1, max_size=40).map(lambda ids: np.array(ids, dtype=np.int64))


def ragged(rng: np.random.Generator) -> list[np.ndarray]:
    """Prompts that share nothing, an opening, all turns before the last, and all but one token in the middle."""
    opening = rng.integers(0, 61, 20).tolist()
    first = rows(rng, [14, 3, 22], opening)
    later = [np.concatenate([first[0], turn]) for turn in rows(rng, [9, 17])]
    twins = [first[2].copy() for _ in range(3)]
    for place, twin in enumerate(twins):
        twin[25 + place] = (twin[25 + place] + 1) % 61
    return [*first, *later, *twins, *rows(rng, [1, 30]), first[0][:5]]


@pytest.mark.parametrize("kernels", ["fast", "plain"])
@pytest.mark.parametrize("budget", [1, 90, 4096])
def test_packed_prompts_score_as_plain_forwards_and_as_alone(budget: int, kernels: str) -> None:
    model, rng = qwen2(), np.random.default_rng(1)
    prompts, reasonings = ragged(rng), [*rows(rng, [1, 2, 11, 5, 8]), *rows(rng, [4, 9], [7] * 19)]
    expected = one_by_one(copy.deepcopy(model), prompts, reasonings, 0.7)
    wanted = rng.random(expected.shape) < 0.5
    found = CrossScorer(copy.deepcopy(model), budget, 0.7, kernels, "packed").matrix(prompts, reasonings, wanted)
    alone = CrossScorer(model, budget, 0.7, kernels).matrix(prompts, reasonings, wanted)
    assert np.array_equal(np.isnan(found), ~wanted) and expected.std(axis=1).min() > 0.1
    assert per_token_error(np.where(wanted, found, expected), expected, reasonings) < 1e-4
    assert np.nanmax(np.abs(found - alone)) < 2e-5


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_whatever_prompts_and_reasonings_share_they_score_as_alone(data: st.DataObject) -> None:
    prompts = data.draw(st.lists(IDS, min_size=1, max_size=5))
    reasonings = data.draw(st.lists(IDS, min_size=1, max_size=5))
    budget = data.draw(st.integers(1, 300))
    alone, packed = (CrossScorer(qwen2(), budget, columns=way).matrix(prompts, reasonings) for way in WAYS[:2])
    assert np.abs(alone - packed).max() < 5e-5


@pytest.mark.parametrize("budget", [40, 4096])
def test_answers_after_reasonings_score_alike_in_packed_passes(budget: int) -> None:
    rng = np.random.default_rng(4)
    prompts, reasonings = rows(rng, [9, 3, 12], [5] * 18), rows(rng, [1, 6, 25])
    answers = [*rows(rng, [4, 2, 5, 1], [8, 9]), np.array([8])]
    wanted = [branching(rng, reasonings, answers), branching(rng, reasonings[::-1], answers), []]
    alone, packed = (CrossScorer(qwen2(), budget, 0.7, columns=way).path_sums(prompts, wanted) for way in WAYS[:2])
    assert [len(own) for own in packed] == [len(own) for own in alone] == [5, 5, 0]
    for own, others in zip(alone, packed, strict=True):
        for one, other in zip(own, others, strict=True):
            assert one == pytest.approx(other, abs=2e-5)


def test_a_probe_with_links_and_hard_negatives_reads_alike_in_fewer_passes() -> None:
    groups, found, passes = played(), {}, {}
    own = {name: each[0].prompt_ids(0) for name, each in groups.items()}
    clusters = {
        name: Cluster(prompt, tuple(np.where(np.arange(len(prompt)) == 3, k, prompt) for k in (40, 41)))
        for name, prompt in own.items()
    }
    for way in WAYS[:2]:
        engine = CrossScorer(qwen2(), 4096, columns=way)
        engine.token_budget, before = 16384, engine.num_passes  # as on a GPU
        found[way] = FixedProbe(engine, ProbeConfig(tasks=5), 1, answer_end).read(0, 0, groups, clusters)
        passes[way] = engine.num_passes - before
    for key, value in found["one"].items():
        if "seconds" not in key:
            assert found["packed"][key] == pytest.approx(value, abs=1e-4, nan_ok=True), key
    assert found["one"]["probe/hard/tasks"] == 5.0 and found["one"]["probe/link/answers"] == 15
    assert passes["packed"] == 2 < passes["one"], "one pass for the probe, one for the variations"


@pytest.mark.parametrize("way", WAYS[:2])
def test_positions_are_those_that_are_given(way: Ways) -> None:
    """As of a prompt with pictures, whose tokens share positions: those after it count on from the largest."""
    model, rng = qwen2(), np.random.default_rng(3)
    prompts, reasonings = rows(rng, [9, 6], [4, 5, 6]), rows(rng, [5, 3])
    positions = [np.concatenate([[0, 1, 2], np.full(len(x) - 4, 3), [7 + j]]) for j, x in enumerate(prompts)]
    expected = np.empty((2, 2))
    with torch.inference_mode():
        for s, z in enumerate(reasonings):
            for j, x in enumerate(prompts):
                ids = torch.from_numpy(np.concatenate([x, z]).astype(np.int64))
                at = torch.from_numpy(np.concatenate([positions[j], 8 + j + np.arange(len(z))]))
                seen = torch.ones(1, 1, len(ids), len(ids)).tril().log()
                logits = model(input_ids=ids[None], position_ids=at[None], attention_mask=seen).logits[0]
                log_probs = logits.log_softmax(-1)[len(x) - 1 : -1]
                expected[s, j] = log_probs.gather(1, ids[len(x) :, None]).double().sum()
    counted = one_by_one(copy.deepcopy(model), prompts, reasonings, 1.0)
    found = CrossScorer(model, 4096, columns=way).matrix(prompts, reasonings, positions=positions)
    assert per_token_error(found, expected, reasonings) < 1e-4 < per_token_error(counted, expected, reasonings)


def test_positions_of_several_axes_stay_with_their_tokens() -> None:
    prompts = [np.arange(20), np.append(np.arange(18), [30, 31])]
    positions = [np.stack([np.arange(20), np.full(20, 2), np.arange(20)[::-1]]) for _ in prompts]
    paths = [Path(np.array([5, 6, 7])), Path(np.array([5, 9]))]
    columns = Columns(prompts, prompts, [[[path] for path in paths]] * 2, positions)
    ((places,), _) = packed_passes(columns, 100)
    forest = pack([np.concatenate([prompts[j], paths[k].ids[:-1]]) for j, k in places])
    found = columns.packed_positions(places, forest)
    assert found.shape == (3, forest.num_tokens)
    for (j, k), at in zip(places, forest.places, strict=True):
        after = np.arange(len(paths[k].ids) - 1) + 20
        assert np.array_equal(found[:, at], np.concatenate([positions[j], np.tile(after, (3, 1))], axis=1))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(IDS, st.lists(IDS, max_size=6)), min_size=1, max_size=6), st.integers(1, 200))
def test_passes_hold_every_continuation_once_within_the_budget(
    drawn: list[tuple[np.ndarray, list[np.ndarray]]], budget: int
) -> None:
    prompts = [prompt for prompt, _ in drawn]
    columns = Columns(prompts, prompts, [[[Path(z)] for z in own] for _, own in drawn])
    passes, work = packed_passes(columns, budget)
    wanted = [(j, k) for j, (_, own) in enumerate(drawn) for k in range(len(own))]
    assert sorted(place for places in passes for place in places) == wanted
    sizes = [
        pack([np.concatenate([prompts[j], columns.paths[j][k].ids[:-1]]) for j, k in places]).num_tokens
        for places in passes
    ]
    assert all(size <= budget or len(places) == 1 for size, places in zip(sizes, passes, strict=True))
    assert sum(sizes) <= work.tokens and len(passes) == work.passes


def test_52_prompts_take_one_pass_where_their_rows_fit_into_one() -> None:
    rng = np.random.default_rng(2)
    prompts, reasonings = rows(rng, [12] * 52, [3] * 30), rows(rng, [9] * 104)
    wanted = draw_pairs(np.repeat(np.arange(52), 2), 52, 2, (1,))
    taken = {}
    for way in WAYS[:2]:
        scorer = CrossScorer(qwen2(), 4096, columns=way)
        scorer.token_budget = 16384  # as on a GPU
        before = scorer.num_passes
        scorer.matrix(prompts, reasonings, wanted)
        taken[way] = scorer.num_passes - before
    assert taken == {"one": 2 + 52, "packed": 1}


def test_the_work_of_one_prompt_a_pass_is_what_is_forwarded() -> None:
    scorer, rng = CrossScorer(qwen2(), 64), np.random.default_rng(5)
    prompts, reasonings = rows(rng, [9, 3, 17], [1, 2]), rows(rng, [1, 6, 11])
    own = [np.asarray(prompt, dtype=np.int64) for prompt in prompts]
    wanted = [branching(rng, reasonings, rows(rng, [3, 4])), [[Path(z)] for z in reasonings], []]
    work = OneAPass(Columns(own, own, wanted), 64).total
    before = scorer.num_passes, scorer.num_forwarded
    scorer.path_sums(prompts, wanted)
    assert (scorer.num_passes - before[0], scorer.num_forwarded - before[1]) == (work.passes, work.tokens)


def test_costs_are_found_again_and_a_slow_measurement_is_forgotten() -> None:
    costs, rng = PassCosts(), np.random.default_rng(0)
    assert not costs.known and np.isnan(costs.seconds(Work(1, 1)))
    for _ in range(40):
        work = Work(int(rng.integers(1, 60)), int(rng.integers(100, 20_000)))
        costs.add(work, 0.1 * work.passes + 1e-5 * work.tokens)
    assert costs.each == pytest.approx((0.1, 1e-5)) and costs.seconds(Work(52, 7000)) == pytest.approx(5.27)
    costs.add(Work(1, 1000), 30.0)
    for tokens in range(1000, 41_000, 1000):
        costs.add(Work(1, tokens), 0.1 + 1e-5 * tokens)
    assert costs.each == pytest.approx((0.1, 1e-5), rel=1e-3)
    for passes, tokens in ((1, 100), (2, 100), (1, 300)):
        costs.add(Work(passes, tokens), 1e-3 * tokens / passes)
    assert min(costs.each) >= 0.0


def scored_with(seconds: Callable[[str, Work], float], monkeypatch: pytest.MonkeyPatch) -> CrossScorer:
    """A scorer on a device with these costs, after a matrix of 52 prompts."""
    scorer, rng = CrossScorer(qwen2(), 1024, columns="measured"), np.random.default_rng(6)
    monkeypatch.setattr(PassCosts, "add", lambda self, work, _: ADD(self, work, seconds(scorer.way, work)))
    prompts, reasonings = rows(rng, [12] * 20, [3] * 30), rows(rng, [9] * 40)
    scorer.matrix(prompts, reasonings, draw_pairs(np.repeat(np.arange(20), 2), 20, 2, (1,)))
    return scorer


def test_the_way_that_takes_less_time_on_the_device_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = scored_with(lambda _, work: 0.1 * work.passes + 1e-5 * work.tokens, monkeypatch)
    assert launches.way == "packed" and launches.costs["packed"].each == pytest.approx((0.1, 1e-5), rel=1e-3)
    slow = scored_with(lambda way, work: (1e-3 if way == "packed" else 1e-5) * work.tokens, monkeypatch)
    assert slow.way == "one"


def test_passes_of_the_measurement_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = scored_with(lambda _, work: 0.1 * work.passes + 1e-5 * work.tokens, monkeypatch)
    assert measured.num_passes <= 4 + 10, "four of the probe at construction"


def test_packing_that_scores_otherwise_is_not_used_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(CrossScorer, "_pass_sums", lambda self, columns, places: np.zeros(len(places)))
    with caplog.at_level(logging.WARNING, cross_scoring.__name__):
        scorer = scored_with(lambda _, work: 0.1 * work.passes, monkeypatch)
    assert scorer.way == "one" and scorer.columns == "one" and "nats a token" in caplog.text


def test_a_packed_pass_takes_no_more_memory_than_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rng = qwen2(), np.random.default_rng(7)
    heads = model.config.num_attention_heads
    monkeypatch.setitem(cross_scoring.MAX_LOGITS, "cpu", 1 << 14)
    monkeypatch.setitem(prefix_attention.MAX_SCORES, "cpu", heads * BATCH_PAIRS)  # what the blocks on CPU hold at most
    size = model_size(model)
    bound = memory.estimate(size, ScorerConfig()) - memory.RUNTIME - 4 * size.parameters
    scorer = CrossScorer(model, 4096, columns="packed")
    prompts, reasonings = rows(rng, [90] * 4), rows(rng, [30] * 24)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        scorer.matrix(prompts, reasonings)
    events = sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    held = np.cumsum([event.nbytes() for event in events if event.name() == "[memory]"])
    assert 0.1 * bound < held.max() < bound, "near enough for this test to be able to fail"
