"""The claims: every cell is a run that can be made, the verdicts follow their rules, and the page is fresh."""

import itertools
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import pytest

from research.claims import statistics as of
from research.claims.page import DATA, PAGE, data, markdown
from research.claims.statistics import Estimate, Pool
from research.claims.study import RESULTS, judged, main
from research.claims.table import (
    ENTROPY_BEST,
    KEPT,
    NOT_COVERED,
    RETRIEVAL_BEST,
    VARIANCE,
    WITH_SUCCESS,
    WORST,
    every_claim,
)
from research.claims.verdict import Claim, Region, above, below, verdict, within
from research.kept import Kept, alike, read_all
from research.tables import FOLDER, read
from squelch.kit.diagnosis.grounding import spearman

SUCCESS = "validation/success"


def kept(arm: str, seed: int, steps: int, success: list[float], **others: list[float]) -> Kept:
    every = [steps * i // (len(success) - 1) for i in range(len(success))]
    metrics = {SUCCESS: success, **{name.replace("__", "/"): values for name, values in others.items()}}
    return Kept(f"{arm}_s{seed}", "lead", "sokoban", arm, seed, steps, {"validated": {"step": every, **metrics}}, {})


def claim(region: Region, least: int = 3) -> Claim:
    return Claim("Figure 0", "says", "where", "statistic", lambda pool: Estimate(0, 0, 0, 3), region, least)


def test_every_claim_is_about_runs_that_were_made():
    runs = read_all(RESULTS)
    keys_of = {name: {key for run in runs for key in run.tables.get(name, ())} for run in runs for name in run.tables}
    pool = Pool([made_up(run, place, keys_of) for place, run in enumerate(runs)])
    for claim in every_claim():
        found = claim.of(pool)
        if "MI is low" in claim.says:  # no made-up run is so
            assert "has the metric" in found.note
            continue
        assert found.runs >= claim.least and found.mean is not None, claim


def made_up(run: Kept, place: int, keys_of: Mapping[str, Collection[str]]) -> Kept:
    """A run with every metric of the study at every fifth step, all different."""
    steps = list(range(0, run.steps + 1, 5))
    level = 1 + 0.1 * run.seed + 0.001 * place
    falling = [level * (1 - 0.5 * step / run.steps) for step in steps]
    made = {
        name: {key: [value + 0.1 * n for value in falling] for n, key in enumerate(sorted(keys))} | {"step": steps}
        for name, keys in keys_of.items()
    }
    groups = {"reward": 0.5 + 0.01 * level, "entropy": 0.01 * level, "length": -0.01 * level}
    return replace(run, tables=made, groups=groups)


def test_a_claim_holds_or_fails_by_its_whole_interval_and_is_open_otherwise():
    up = claim(above(0, tolerance=0.03))
    assert verdict(Estimate(0.1, 0.01, 0.2, 3), up) == "holds"
    assert verdict(Estimate(0.1, -0.01, 0.2, 3), up) == "not significant"
    assert verdict(Estimate(0.01, -0.01, 0.029, 3), up) == "fails", "no effect that would matter"
    assert verdict(Estimate(0.1, 0.01, 0.2, 2), up) == "not significant"
    assert verdict(Estimate(0.0, 0.0, 0.0, 3), claim(above(0))) == "fails", "a point on the bound lies outside"
    assert verdict(Estimate(0.0, 0.0, 0.0, 3), claim(below(0))) == "fails"
    assert verdict(Estimate(0.1, None, None, 3), up) == "not significant"
    assert verdict(Estimate(None, None, None, 0), up) == "not run"
    assert verdict(Estimate(None, None, None, 0, note="left out: 3"), up) == "not significant"
    assert verdict(Estimate(-0.1, -0.2, -0.01, 3), claim(below(0))) == "holds"
    assert verdict(Estimate(0.1, 0.01, 0.2, 3), claim(below(0))) == "fails"
    assert verdict(Estimate(0.0, -0.1, 0.1, 3), claim(within(0.2))) == "holds"
    assert verdict(Estimate(0.3, 0.21, 0.4, 3), claim(within(0.2))) == "fails"


def test_differences_are_paired_by_seed_and_a_longer_run_serves_a_shorter_horizon():
    runs = [kept("none", s, 180, [0.3, 0.3 + s / 10, 0.9, 0.9]) for s in range(3)]
    runs += [kept("top_p", s, 60, [0.3, 0.35 + s / 10]) for s in (0, 1)]
    pool = Pool(runs)
    found = pool.paired("sokoban", "top_p", "none", of.at_end(SUCCESS), 60)
    assert found.runs == 2 and found.mean == pytest.approx(0.05) and found.low == pytest.approx(0.05)
    assert pool.paired("sokoban", "top_p", "none", of.at_end(SUCCESS), 180).runs == 0
    assert pool.mean("sokoban", "none", of.peak(SUCCESS), 180).mean == pytest.approx(0.9)


def test_a_pair_that_did_not_start_from_the_same_weights_is_counted():
    runs = [kept("none", 0, 60, [0.1, 0.2]), kept("top_p", 0, 60, [0.1, 0.4])]
    runs += [kept("none", 1, 60, [0.1, 0.2]), kept("top_p", 1, 60, [0.11, 0.4])]
    assert Pool(runs).paired("sokoban", "top_p", "none", of.at_end(SUCCESS), 60).note.endswith("same weights: 1")
    assert not Pool(runs[:2]).paired("sokoban", "top_p", "none", of.at_end(SUCCESS), 60).note


def test_equal_success_before_training_does_not_hide_other_weights_from_the_probe():
    """Found by a reviewer: two warm-ups with the same success on 512 tasks counted as one."""
    one, other = kept("none", 0, 60, [0.1, 0.2]), kept("top_p", 0, 60, [0.1, 0.4])

    def probed(run: Kept, mi: float) -> Kept:
        probe = {"step": [0], "probe/mi": [mi], "probe/conditional_entropy": [0.8]}
        return replace(run, tables={**run.tables, "probe": probe})

    assert not alike(probed(one, 1.68), probed(other, 1.73)) and alike(probed(one, 1.68), probed(other, 1.68))
    noisy = kept("top_p", 0, 60, [0.2, 0.4])
    assert alike(probed(one, 1.68), probed(noisy, 1.68)), "the noise of validation differs, the weights do not"
    assert alike(probed(one, 1.68), other) and not alike(probed(one, 1.68), noisy), "one file lacks the probe"
    runs = [probed(one, 1.68), probed(other, 1.73)]
    for found in (
        Pool(runs).ordered("sokoban", ("none", "top_p"), of.at_end(SUCCESS), 60),
        of.shift(SUCCESS, SUCCESS, Pool(runs), "sokoban", "none", "top_p", 60),
    ):
        assert "seeds whose runs did not start from the same weights: 1" in found.note


def test_a_gap_that_closes_is_the_difference_of_differences_of_a_seed():
    ends = {"a0": 0.5, "b0": 0.3, "a1": 0.4, "b1": 0.4, "a2": 0.2, "b2": 0.1}
    runs = [kept(arm, seed, 60, [0.1, end + seed / 10]) for seed in (0, 1) for arm, end in ends.items()]
    near, far = [("a0", "b0")], [("a1", "b1"), ("a2", "b2")]
    found = of.narrowing(Pool(runs), "sokoban", near, far, of.at_end(SUCCESS), 60)
    assert (found.runs, found.note) == (2, "") and found.mean == pytest.approx(0.2 - (0.0 + 0.1) / 2)
    assert of.narrowing(Pool(runs[:-1]), "sokoban", near, far, of.at_end(SUCCESS), 60).runs == 1


def test_a_run_that_ended_early_does_not_tell_how_the_probe_was_at_the_end():
    """Found by a reviewer: the reading before training passed as the one at the end."""
    tables = {"probe": {"step": [0, 60], "probe/mi": [2.0, 1.0]}}
    early = Kept(
        "run", "noise", "frozenlake", "none", 0, 40, {"probe": {"step": [0], "probe/mi": [2.0]}}, {}, "no_signal"
    )
    early = replace(early, planned=60)
    whole = Kept("run", "noise", "frozenlake", "none", 0, 60, tables, {})
    assert (of.at_end("probe/mi")(early, 60), of.gained("probe/mi")(early, 60)) == (None, None)
    assert (of.at_end("probe/mi")(whole, 60), of.gained("probe/mi")(whole, 60)) == (1.0, -1.0)
    checked = replace(early, tables={"validated": {"step": [0, 30, 60], SUCCESS: [0.1, 0.2, 0.2]}})
    assert of.at_end(SUCCESS)(checked, 60) == 0.2, "a last validation counts for the planned last step"


def test_an_effect_as_small_as_the_papers_own_does_not_fail_for_being_small():
    for one in every_claim():
        if one.source in ("Figure 5a", "Figure 6", "Figure 9", "Table 4") and one.region.tolerance:
            assert one.where.startswith("Sokoban") or "ppo" in one.where, f"{one.where}: the paper's gain is 0.02"


def test_an_order_of_few_arms_is_told_only_where_chance_would_hardly_make_it():
    arms = ("a", "b", "c")

    def estimate(*ends: tuple[float, ...]) -> Estimate:
        runs = [
            kept(arm, s, 60, [0.0, end]) for s, each in enumerate(ends) for arm, end in zip(arms, each, strict=True)
        ]
        return Pool(runs).ordered("sokoban", arms, of.at_end(SUCCESS), 60)

    claimed = claim(above(0))
    assert verdict(estimate(*[(0.1, 0.2, 0.3)] * 3), claimed) == "holds", "1 of 216 outcomes"
    half = estimate(*[(0.1, 0.3, 0.2)] * 3)
    assert half.mean == pytest.approx(0.5) and verdict(half, claimed) == "not significant", "43 of 216 outcomes"
    assert estimate((0.1, 0.1, 0.1), (0.1, 0.2, 0.3), (0.1, 0.2, 0.3)).mean == pytest.approx(2 / 3), "no order counts"
    outcomes = list(itertools.product(itertools.permutations((0.1, 0.2, 0.3)), repeat=3))
    told = [verdict(estimate(*outcome), claimed) for outcome in outcomes]
    assert told.count("holds") <= 0.025 * len(outcomes) and told.count("fails") <= 0.025 * len(outcomes)


def test_of_two_runs_with_one_seed_the_longer_counts():
    pool = Pool([kept("none", 0, 300, [0.1, 0.2]), kept("none", 0, 180, [0.1, 0.7])])
    assert pool.arm("sokoban", "none", 60)[0].steps == 300


def test_the_true_share_is_among_the_reasonings_that_name_any():
    run = kept("none", 0, 100, [0.1] * 11, judge__right=[0.4] * 5 + [0.2] * 6, judge__names=[0.8] * 5 + [1.0] * 6)
    assert of.true_share(run, 100) == pytest.approx(0.2)
    assert of.true_share_change(run, 100) == pytest.approx(0.2 - 0.5)


def test_a_warning_counts_only_if_mi_fell_before_success():
    mi = "first_turn/mi_seq_est"
    early = kept("none", 0, 100, [0.5] * 8 + [0.4] * 3, **{mi.replace("/", "__"): [2.0, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1]})
    late = kept("none", 1, 100, [0.5] * 4 + [0.4] * 7, **{mi.replace("/", "__"): [2.0] * 8 + [1.0] * 3})
    healthy = kept("none", 2, 100, [0.5] * 11, **{mi.replace("/", "__"): [2.0] * 11})
    assert of.success_fell(early, 100) == 80 and of.success_fell(late, 100) == 40
    assert of.success_fell(healthy, 100) is None and of.mi_fell(healthy, mi, 100) is None
    found = of.warned([early, late, healthy], mi, 100)
    assert found.mean == 0.5 and found.runs == 2 and found.note == ""


def test_a_run_whose_success_fell_before_mi_could_warn_is_left_out_and_counted():
    name = "first_turn__mi_seq_est"
    falls = [2.0, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1]
    at_once = kept("none", 0, 100, [0.5] * 3 + [0.4] * 8, **{name: falls})
    later = kept("none", 1, 100, [0.5] * 4 + [0.4] * 7, **{name: falls})
    mi = "first_turn/mi_seq_est"
    assert of.first_warning(at_once, mi, 100) == of.mi_fell(at_once, mi, 100) == 30
    assert of.success_fell(at_once, 100) == 30 and of.success_fell(later, 100) == 40
    found = of.warned([at_once, later], mi, 100)
    assert (found.mean, found.runs) == (1.0, 1) and found.note.endswith(": 1")
    nothing = of.warned([at_once], mi, 100)
    assert nothing.mean is None and nothing.runs == 0 and nothing.note.endswith(": 1")


def test_mi_that_was_never_above_0_cannot_fall_and_gives_no_warning():
    """A constant MI below 0 is below 85% of itself; reasoning that never depended on its input counted as a warning."""
    mi = "first_turn/mi_seq_est"
    for values in ([-0.2] * 11, [-0.2] * 5 + [-0.19] * 6, [0.0] * 5 + [-0.1] * 6):
        run = kept("none", 0, 100, [0.5] * 8 + [0.4] * 3, **{mi.replace("/", "__"): values})
        assert of.mi_fell(run, mi, 100) is None
        assert of.warned([run], mi, 100).mean == 0.0


def test_metrics_of_the_gradient_ignore_what_a_run_did_after_the_horizon():
    parts = {f"gradients/q{q}/{part}": [float(q), 9.0] for q in range(1, 6) for part in ("task", "regulariser")}
    last = {f"gradients/q6/{part}": [6.0, 1.0] for part in ("task", "regulariser")}
    run = Kept("run", "gradients", "sokoban", "none", 0, 60, {"gradients": {"step": [30, 60], **parts, **last}}, {})
    assert of.bucket_ratio("task")(run, 30) == pytest.approx(math.log(6))
    assert of.part_ratio(1, "task", "regulariser")(run, 30) == 0.0
    assert of.bucket_trend("task")(run, 30) == pytest.approx(1.0)


def test_a_run_without_a_metric_is_left_out_and_gives_no_verdict():
    pool = Pool([replace(kept("none", s, 180, [0.1, 0.2]), groups={}) for s in range(3)])
    found = pool.mean("sokoban", "none", of.of_groups("reward"), 180)
    assert found.mean is None and found.runs == 0
    assert math.isfinite(pool.mean("sokoban", "none", of.at_end(SUCCESS), 180).mean or math.nan)


def test_the_page_is_fresh():
    runs = read_all(RESULTS)
    rows = judged(Pool(runs))
    assert PAGE.read_text() == markdown(rows, runs), "python -m research.claims --write"
    assert DATA.read_text() == data(rows), "python -m research.claims --write"


def test_a_row_about_the_end_and_the_beginning_says_no_more_than_that():
    """Found by a reviewer: "keeps less and less" and "collapses late" were claims about the course in between."""
    rows = [claim for claim in every_claim() if claim.source in ("Figure 10", "Figure 11")]
    compared = [claim for claim in rows if claim.statistic in (KEPT.words, VARIANCE.words)]
    assert len(compared) == 3 and all(" at the end than at the beginning" in claim.says for claim in compared)


def test_no_row_covers_what_is_listed_as_not_covered():
    rows = every_claim()
    ablation = [claim for claim in rows if claim.source == "Table 5"]
    metrics = [claim for claim in ablation if claim.statistic in (RETRIEVAL_BEST.words, ENTROPY_BEST.words)]
    assert {claim.where for claim in metrics} == {"Sokoban, top_k0.5 minus smallest, 60 steps"}
    assert [claim.where for claim in ablation if claim.statistic == WORST.words] == ["Sokoban, none, 300 steps"]
    assert not any("ema" in key for key in WITH_SUCCESS) and not any(claim.source == "Figure 3b" for claim in rows)
    for source in ("Figure 3b, ", "Figure 8, MI-ZScore-EMA", "Table 5, MI and entropy", "Table 5, which other arms"):
        assert any(name.startswith(source) for name in NOT_COVERED), source


@pytest.mark.parametrize("name", ["claims", "noise", "made_to_collapse", "kept_share"])
def test_no_committed_run_was_made_with_settings_besides_its_studys(name):
    runs = read(FOLDER / f"{name}.parquet")
    assert runs and not [run["name"] for run in runs if run["set"]]


def test_quick_judges_every_claim_without_a_run(capsys):
    assert main(["--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["claims"]) == len(every_claim())
    assert {row["verdict"] for row in found["claims"]} <= {"holds", "fails", "not significant", "not run"}


def test_runs_of_one_seed_are_no_independent_evidence_for_a_correlation():
    """Found by a reviewer: ten runs that differ in filter and seed alone made the correlation over six arms hold."""
    arms = ("a", "b", "c", "d")

    def found(arms_run: tuple[str, ...], seeds: int) -> Estimate:
        runs = [
            kept(arm, s, 60, [0.0, 0.1 * place], mi=[0.0, 0.2 * place])
            for place, arm in enumerate(arms_run)
            for s in range(seeds)
        ]
        return Pool(runs).across("sokoban", arms, of.at_end("mi"), of.at_end(SUCCESS), 60)

    assert verdict(found(arms[:2], 5), claim(above(0))) == "not run", "no seed has all four arms"
    whole = found(arms, 3)
    assert (whole.runs, whole.mean) == (3, pytest.approx(1.0)) and verdict(whole, claim(above(0))) == "holds"


def test_seeds_that_agree_on_an_order_leave_the_mean_an_interval():
    """Found by a reviewer: three equal correlations of -0.8 had the interval [-0.8, -0.8]."""
    found = of.over_orders([-0.8, -0.8, -0.8], 5)
    assert found.low is not None and found.high is not None and found.low < -1 and -0.5 < found.high < 0
    rng = np.random.default_rng(0)
    told = [of.over_orders([spearman(range(6), rng.normal(size=6)) for _ in range(3)], 6) for _ in range(400)]
    assert sum(one.low > 0 or one.high < 0 for one in told) <= 0.05 * 400 + 10


def test_noise_alone_does_not_move_one_metric_more_than_another():
    """Found by a reviewer: absolute differences of single seeds grew with the noise of the noisier metric."""
    rng, told = np.random.default_rng(1), 0
    for _ in range(300):
        runs = [
            kept(arm, s, 60, [0.1, 0.1], h=[0.0, rng.normal()], mi=[0.0, 0.1 * rng.normal()])
            for arm in ("none", "more")
            for s in range(3)
        ]
        found = of.shift("h", "mi", Pool(runs), "sokoban", "more", "none", 60)
        told += verdict(found, claim(above(0))) == "holds"
    assert told <= 0.05 * 300 + 9
    runs = [kept("none", s, 60, [0.1, 0.1], h=[0.0, 1.0], mi=[0.0, 1.0]) for s in range(3)]
    runs += [kept("more", s, 60, [0.1, 0.1], h=[0.0, 0.5 + 0.01 * s], mi=[0.0, 1.1]) for s in range(3)]
    found = of.shift("h", "mi", Pool(runs), "sokoban", "more", "none", 60)
    assert found.mean == pytest.approx(0.39) and verdict(found, claim(above(0))) == "holds"


def test_the_first_scoring_counts_with_the_mean_of_the_ten_steps_around_it():
    tables = {
        "scored": {"step": [1, 10, 20, 30], "mi": [0.1, 0.5, 0.6, 0.7]},
        "blocks": {"step": [10, 20, 30], "valid": [0.9, 0.8, 0.7]},
    }
    run = Kept("run", "long", "sokoban", "none", 0, 30, tables, {})
    assert of.where_least("valid", "mi", 0.2)(run, 30) == 0.9
    assert of.where_least("valid", "mi", 0.1)(run, 30) is None, "MI never was so low, so validity there is unknown"
    assert of.together("mi", "valid")(run, 30) == pytest.approx(spearman([0.1, 0.5, 0.6, 0.7], [0.9, 0.9, 0.8, 0.7]))


def test_what_is_read_when_success_is_best_is_the_last_scoring_up_to_it():
    tables = {
        "scored": {"step": [1, 20, 40, 60], "mi": [0.1, 0.2, 0.4, 0.6]},
        "validated": {"step": [0, 30, 60], SUCCESS: [0.9, 0.5, 0.4]},
    }
    assert of.at_best("mi")(Kept("run", "rules", "sokoban", "none", 0, 60, tables, {}), 60) == 0.2


def test_a_share_that_fell_before_the_end_of_the_first_fifth_has_fallen_since_the_first_scoring():
    steps = [1, 10, 20, 100]
    judge = {"step": steps, "judge/right": [0.4, 0.2, 0.2, 0.2], "judge/names": [1.0, 1.0, 1.0, 1.0]}
    run = Kept("run", "lead", "sokoban", "none", 0, 100, {"scored": judge}, {})
    assert of.true_share_since_first(run, 100) == pytest.approx(-0.2)
    assert of.true_share_change(run, 100) == pytest.approx(0.2 - 0.8 / 3)


def test_runs_that_lack_the_metric_say_nothing_and_are_not_called_open():
    pool = Pool([kept(arm, s, 60, [0.1, 0.2]) for arm in ("none", "top_p") for s in range(3)])
    missing = of.at_end("no/such")
    for found in (
        pool.mean("sokoban", "none", missing, 60),
        pool.paired("sokoban", "top_p", "none", missing, 60),
        pool.across("sokoban", ("none", "top_p"), missing, of.at_end(SUCCESS), 60),
        of.shift("no/such", "nor/this", pool, "sokoban", "top_p", "none", 60),
    ):
        assert found.note == "none of 3 runs has the metric" and verdict(found, claim(above(0))) == "not significant"
    assert verdict(pool.mean("sokoban", "other", missing, 60), claim(above(0))) == "not run"
