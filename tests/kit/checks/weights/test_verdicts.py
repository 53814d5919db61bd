"""Clean runs are sound or open, and weights that other steps left are found and named, from ids and recorded values."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from squelch.kit.checks.catalogue import checks
from squelch.kit.checks.result import Result
from squelch.kit.checks.weights.data import Draw, Sample, Scores, WeightClaims
from squelch.kit.checks.weights.verdicts import NAMES, check_weights, step_sets
from squelch.kit.checks.weights.weighing import Weighing
from squelch.kit.checks.words import as_json, fault_lines
from tests.kit.checks.weights.categorical import World, language_like, run_of, sample_of, trained

STEP = 0.15
PLAIN = WeightClaims(temperature=1.0, cuts_tail=False)


def path(numbers: list[int], size: float = STEP) -> dict[int, np.ndarray]:
    """Tables of a training: each checkpoint moves on from the one before."""
    tables = {numbers[0]: language_like()}
    for before, number in pairwise(numbers):
        tables[number] = trained(tables[before], size, number)
    return tables


WORLD = World(path([0, 10, 20, 30]))
FEW = {step: step for step in (10, 20, 30)}


def named(results: list[Result], name: str) -> Result:
    (found,) = [one for one in results if one.name == name]
    return found


def verdicts(scores: Scores, claims: WeightClaims = PLAIN) -> dict[str, str]:
    return {one.name: one.verdict for one in check_weights(scores, claims)}


def own(steps: list[int]) -> dict[int, tuple[int, int]]:
    return {step: (step, step) for step in steps}


def test_of_many_clean_runs_none_is_at_fault() -> None:
    """The check's own rate is 2 in 1,000; the evidence of a comparison is below it by what its mixture costs."""
    rng, found = np.random.default_rng(0), Counter[str]()
    world = World(path([0, 10, 20], 0.1))
    for _ in range(150):
        scores = run_of(world, rng, {10: 10, 20: 20}, rollouts=10, length=30)
        found.update(f"{one.name} {one.verdict}" for one in check_weights(scores, PLAIN))
    assert not found["stale_weights fault"] + found["temperature fault"]
    assert found["stale_weights unknown"] > 100  # too few tokens are no proof that all is well


@pytest.mark.parametrize("cuts_tail", [None, False, True])
def test_clean_runs_with_enough_tokens_are_sound_and_stale_ones_are_not(cuts_tail: bool | None) -> None:
    rng, claims = np.random.default_rng(1), WeightClaims(1.0, cuts_tail)
    long = {"rollouts": 150 if cuts_tail else 60, "length": 100}
    clean = named(check_weights(run_of(WORLD, rng, FEW, **long), claims), "stale_weights")
    assert clean.verdict == "sound", clean.says
    stale = run_of(WORLD, rng, {10: 0, 20: 10, 30: 20}, own([10, 20, 30]), **long)
    found = named(check_weights(stale, claims), "stale_weights")
    assert (found.verdict, found.count, found.of, found.step) == ("fault", 3, 3, 10)
    assert "the weights of 10 updates before" in found.says
    assert "not excluded: checkpoint-0;" in found.examples[0].text


@pytest.mark.parametrize(
    ("temperature", "of_text", "verdict"),
    [
        (1.0, {"fed": False}, "fault"),
        (1.4, {"fed": False}, "unknown"),
        (1.0, {"exact": False}, "fault"),
        (1.4, {"exact": False}, "unknown"),
        (1.4, {}, "fault"),
    ],
)
def test_rows_that_were_encoded_from_text_and_look_hotter_are_blamed_on_no_weights(
    temperature: float, of_text: dict[str, bool], verdict: str
) -> None:
    """Other prompts than those that were fed, and text of tools, are less likely under all weights."""
    late = {10: 0, 20: 10, 30: 20}
    scores = run_of(
        WORLD, np.random.default_rng(1), late, own([10, 20, 30]), temperature=temperature, rollouts=60, length=100
    )
    scores = replace(scores, samples=[replace(one, **of_text) for one in scores.samples])
    assert named(check_weights(scores, PLAIN), "stale_weights").verdict == verdict


def test_enough_tokens_are_those_that_the_check_asks_for() -> None:
    """With the tokens that it calls needed, four of five stale steps are found, and with a tenth almost none."""
    rng = np.random.default_rng(2)
    world = World(path([0, 10]))
    weighing = Weighing(run_of(world, rng, {10: 10}, rollouts=200), PLAIN)
    (one,) = step_sets(weighing, range(200))
    length = int(one.needed / 40)
    found = Counter[tuple[int, str]]()
    for share in (1, 10):
        for _ in range(60):
            stale = run_of(world, rng, {10: 0}, own([10]), rollouts=40, length=max(1, length // share))
            found[share, named(check_weights(stale, PLAIN), "stale_weights").verdict] += 1
    assert found[1, "fault"] >= 40
    assert found[10, "fault"] <= 6
    assert not found[10, "sound"] + found[1, "sound"]


def test_a_fault_in_one_step_is_that_steps() -> None:
    rng = np.random.default_rng(3)
    scores = run_of(WORLD, rng, {10: 10, 20: 10, 30: 30}, own([10, 20, 30]), rollouts=60, length=100)
    found = named(check_weights(scores, PLAIN), "stale_weights")
    assert (found.verdict, found.count, found.of, found.step) == ("fault", 1, 3, 20)
    assert found.examples[0].row == "step 20"


def test_all_steps_are_told_and_in_the_text_as_many_as_differ() -> None:
    rng, steps = np.random.default_rng(3), list(range(10, 70, 10))
    world = World(path([0, *steps]))
    stale = {step: 10 if 10 < step < 60 else step for step in steps}
    found = named(check_weights(run_of(world, rng, stale, own(steps), rollouts=60, length=100), PLAIN), "stale_weights")
    assert found.verdict == "fault" and [one.step for one in found.steps] == steps
    assert [one.step for one in found.steps if one.differs] == [20, 30, 40, 50]
    lines = [line for line in fault_lines(found) if line.startswith("  step ")]
    assert [line.split(":")[0] for line in lines] == [f"  step {step}" for step in (20, 30, 40, 50)]
    assert "not excluded: checkpoint-10" in lines[0] and not any("example:" in line for line in fault_lines(found))
    told = json.loads(json.dumps(as_json(found), allow_nan=False))["steps"]
    assert len(told) == 6 and told[1]["fits"] == ["checkpoint-10"] and told[1]["claimed"] == ["checkpoint-20"]


def test_steps_whose_checkpoint_was_not_saved_fit_what_encloses_them() -> None:
    tables = path([0, 10, 20, 30])
    between = tables.pop(20)
    rng, world = np.random.default_rng(4), World(tables)
    clean = run_of(world, rng, {20: between}, own([20]), rollouts=60, length=100)
    found = named(check_weights(clean, PLAIN), "stale_weights")
    assert found.verdict == "sound", found.says
    assert "saved before and after" in found.says
    assert "claimed: checkpoint-10, checkpoint-30, which stand for what was not saved" in found.examples[0].text
    stale = run_of(world, rng, {20: 0}, own([20]), rollouts=60, length=100)
    assert named(check_weights(stale, PLAIN), "stale_weights").verdict == "fault"


def test_steps_between_checkpoints_with_recorded_values_are_no_fault() -> None:
    tables = path([0, 10, 20, 30])
    between = tables.pop(20)
    rng, world = np.random.default_rng(5), World(tables)
    clean = run_of(world, rng, {20: between}, own([20]), engine=1e-6)
    assert named(check_weights(clean, PLAIN), "stale_weights").verdict != "fault"
    stale = run_of(world, rng, {20: 0}, own([20]), engine=1e-6)
    assert named(check_weights(stale, PLAIN), "stale_weights").verdict == "fault"


def test_allowed_staleness_is_no_fault_even_if_it_differs_from_row_to_row() -> None:
    rng, results = np.random.default_rng(6), []
    world = World(path([0, 10, 20, 30], 0.2))
    for allowed in ((10, 30), (20, 30)):
        a, b = (run_of(world, rng, {30: n}, {30: allowed}, rollouts=80, length=100) for n in (20, 30))
        tokens = [[*x, *y] for x, y in zip(a.tokens, b.tokens, strict=True)]
        both = Scores([*a.samples, *b.samples], a.candidates, a.temperatures, tokens)
        results.append(named(check_weights(both, PLAIN), "stale_weights"))
    assert [one.verdict for one in results] == ["sound", "sound"], results
    beyond = run_of(world, rng, {30: 10}, {30: (20, 30)}, rollouts=80, length=100)
    assert named(check_weights(beyond, PLAIN), "stale_weights").verdict == "fault"


def test_a_range_of_claims_whose_ends_were_not_saved_has_the_nearest_that_were() -> None:
    """Allowed are 15 to 25, saved are 10, 20 and 30: rows of 15 or 25 may be nearer to 10 or 30 than to 20."""
    tables = path([0, 10, 15, 20, 25, 30])
    ends = tables.pop(15), tables.pop(25)
    world = World(tables)
    for seed, sampled in enumerate(ends):
        scores = run_of(world, np.random.default_rng(seed), {20: sampled}, {20: (15, 25)}, rollouts=60, length=100)
        found = named(check_weights(scores, PLAIN), "stale_weights")
        assert found.verdict != "fault", found.says
        assert "claimed: checkpoint-10, checkpoint-20, checkpoint-30" in found.examples[0].text


def test_a_lag_that_no_run_was_asked_about_names_the_claim_that_allows_it() -> None:
    stale = run_of(WORLD, np.random.default_rng(0), {20: 10}, own([20]), rollouts=60, length=100)
    asked, claimed = PLAIN, WeightClaims(1.0, False, max_staleness=0)
    says = [named(check_weights(stale, one), "stale_weights").says for one in (asked, claimed)]
    assert ["max_staleness=N" in one for one in says] == [True, False]


def test_recorded_values_of_a_float32_engine_tell_a_step_that_ids_never_would() -> None:
    rng, world = np.random.default_rng(7), World(path([0, 1, 2, 3], 5e-4))
    how = {"rollouts": 10, "length": 30, "engine": 7e-7}
    clean = named(check_weights(run_of(world, rng, {1: 1, 2: 2, 3: 3}, **how), PLAIN), "stale_weights")
    assert clean.verdict == "sound", clean.says
    stale = run_of(world, rng, {1: 0, 2: 1, 3: 2}, own([1, 2, 3]), **how)
    assert named(check_weights(stale, PLAIN), "stale_weights").verdict == "fault"


@pytest.mark.parametrize("sampled_by", [{1: 1, 2: 2}, {1: 0, 2: 1}])
def test_a_bfloat16_engine_leaves_such_a_step_open_and_says_how_exact_it_is(sampled_by: dict[int, int]) -> None:
    rng, world = np.random.default_rng(8), World(path([0, 1, 2], 5e-4))
    found = named(check_weights(run_of(world, rng, sampled_by, own([1, 2]), engine=0.01), PLAIN), "stale_weights")
    assert found.verdict == "unknown"
    assert "those recorded err by 0.0098" in found.needs


def test_recorded_values_at_another_temperature_hide_no_stale_weights() -> None:
    rng, world = np.random.default_rng(9), World(path([0, 10, 20], 0.1), temperature=0.8)
    claims = WeightClaims(0.8, False)
    for recorded_at in (0.8, 1.0):
        how = {"engine": 1e-6, "recorded_at": recorded_at}
        assert verdicts(run_of(world, rng, {10: 10, 20: 20}, **how), claims)["stale_weights"] == "sound"
        stale = run_of(world, rng, {10: 0, 20: 10}, own([10, 20]), **how)
        assert verdicts(stale, claims)["stale_weights"] == "fault"


def test_an_adapter_that_was_not_applied_is_named_so_and_is_no_stale_checkpoint() -> None:
    numbers = [0, 10, 20]
    world = World(path(numbers), adapter={10: True, 20: True}, initial={0: True})
    rng, long = np.random.default_rng(10), {"rollouts": 60, "length": 100}
    clean = verdicts(run_of(world, rng, {10: 10, 20: 20}, **long))
    assert (clean["adapter_not_applied"], clean["stale_weights"]) == ("sound", "sound")
    without = verdicts(run_of(world, rng, {10: 0, 20: 0}, own([10, 20]), **long))
    assert (without["adapter_not_applied"], without["stale_weights"]) == ("fault", "unknown")
    stale = verdicts(run_of(world, rng, {20: 10}, own([20]), **long))
    assert (stale["adapter_not_applied"], stale["stale_weights"]) == ("unknown", "fault")
    plain = World(path(numbers), initial={0: True})
    assert "adapter_not_applied" not in verdicts(run_of(plain, rng, {10: 10}))


@pytest.mark.parametrize("error", [1e-6, 1e-2])
def test_recorded_values_name_the_base_model_though_ids_alone_like_an_older_adapter_better_too(error: float) -> None:
    world = World(path([0, 10, 20]), adapter={10: True, 20: True}, initial={0: True})
    how = {"rollouts": 60, "length": 100, "engine": error}
    found = verdicts(run_of(world, np.random.default_rng(1), {10: 0, 20: 0}, own([10, 20]), **how))
    assert (found["adapter_not_applied"], found["stale_weights"]) == ("fault", "unknown")


def test_what_fits_a_stale_step_is_compared_with_all_others() -> None:
    stale = run_of(WORLD, np.random.default_rng(1), {30: 20}, own([30]), rollouts=60, length=100)
    found = named(check_weights(stale, PLAIN), "stale_weights")
    assert "not excluded: checkpoint-20;" in found.examples[0].text


def test_adapters_that_change_nothing_are_open() -> None:
    table = language_like()
    world = World({0: table, 10: table.copy()}, adapter={10: True}, initial={0: True})
    found = verdicts(run_of(world, np.random.default_rng(0), {10: 10}))
    assert (found["adapter_not_applied"], found["stale_weights"]) == ("unknown", "unknown")


def test_recorded_versions_are_compared_under_their_own_name() -> None:
    rng, long = np.random.default_rng(11), {"rollouts": 60, "length": 100, "recorded": True}
    assert verdicts(run_of(WORLD, rng, {20: 20}, **long))["recorded_versions"] == "sound"
    wrong = verdicts(run_of(WORLD, rng, {20: 10}, own([20]), **long))
    assert wrong["recorded_versions"] == "fault"
    assert "stale_weights" not in wrong


def test_few_rollouts_are_no_fault_however_much_they_say() -> None:
    rng = np.random.default_rng(12)
    odd = run_of(WORLD, rng, {20: 10}, own([20]), rollouts=3, length=2000)
    assert verdicts(odd)["stale_weights"] == "unknown"


def test_rows_without_a_step_say_what_would_decide() -> None:
    scores = run_of(WORLD, np.random.default_rng(0), {1: 10}, {1: None})
    found = named(check_weights(scores, PLAIN), "stale_weights")
    assert found.verdict == "unknown"
    assert "step" in found.needs


def test_without_scores_every_check_says_what_is_missing() -> None:
    for one in check_weights(None, PLAIN):
        assert (one.verdict, one.needs) == ("unknown", "the trainer's checkpoints (--checkpoints DIR)")
        assert one.name in NAMES


def test_one_checkpoint_alone_decides_nothing() -> None:
    found = verdicts(run_of(World({10: language_like()}), np.random.default_rng(0), {10: 10}))
    assert found["stale_weights"] == "unknown"


def test_a_draw_is_the_same_whatever_the_order_of_rows_and_prefers_steps_with_a_checkpoint() -> None:
    rng = np.random.default_rng(0)
    rows = [
        sample_of(k, np.zeros(int(rng.integers(1, 60)), dtype=int), step, (step, step))
        for step in range(40)
        for k in range(50)
    ]

    def drawn(order: np.ndarray, seed: int = 0) -> list[Sample]:
        draw = Draw({7, 23}, most_tokens=16_000, seed=seed)
        for place in order:
            draw.add(rows[place])
        return draw.samples()

    first = drawn(np.arange(len(rows)))
    for _ in range(5):
        assert [one.row for one in drawn(rng.permutation(len(rows)))] == [one.row for one in first]
    assert {7, 23} <= {one.step for one in first}
    assert len({one.step for one in first}) == 16
    by_step = Counter[int | None]()
    for one in first:
        by_step[one.step] += one.cost
    assert max(by_step.values()) <= 1000
    assert min(by_step.values()) > 800
    assert [one.row for one in drawn(np.arange(len(rows)), seed=1)] != [one.row for one in first]


def test_the_temperature_of_recorded_values_is_that_of_every_step_though_each_has_its_own_weights() -> None:
    world = World(path([0, 10, 20, 30], 0.5), temperature=0.8)
    for recorded_at in (0.8, 1.0, 0.9):
        scores = run_of(world, np.random.default_rng(0), FEW, engine=1e-5, recorded_at=recorded_at, rollouts=5)
        assert Weighing(scores, WeightClaims(0.8)).recording_temperature == pytest.approx(recorded_at, rel=1e-3)


def test_every_check_of_weights_has_its_words() -> None:
    assert set(NAMES) <= checks().keys()
