"""The test of the mechanism: its cells are runs that can be made, and contrasts are judged as the head says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from research import constant_rate, mechanism
from research.cells import StudyCell, run_of
from research.kept import Kept
from research.mechanism import ARMS, CONTRASTS, OPTIONAL, SEEDS, STEPS, by_arm, judged, long_claims, markdown, study
from squelch.cluster.config import RunConfig

INTERACTION, SPARED = (one for one in CONTRASTS if one.power)


@pytest.fixture(scope="module")
def configs() -> dict[str, RunConfig]:
    own = study()
    return {cell.arm: run_of(own, cell, "runs").config for cell in own.cells[:6] + own.cells[30:33] + own.cells[45:47]}


def ended(arm: str, seed: int, success: float, before: float = 0.4) -> Kept:
    validated = {"step": [0, 90], "validation/success": [before, success]}
    blocks = {"step": [10, 20], "kept_fraction": [0.5, 1.0], "dropped_with_variance": [0.25, None]}
    (part,) = (part for part, name in (*ARMS, *OPTIONAL) if name == arm)
    return Kept("n", part, "sokoban", arm, seed, STEPS, {"validated": validated, "blocks": blocks}, {})


def runs_of(success: dict[str, float], seeds: tuple[int, ...] = SEEDS) -> list[Kept]:
    """Runs whose level differs between seeds, and an arm's distance from the level hardly."""
    return [ended(arm, s, at + 0.1 * (s - 10) + 0.01 * (s % 2)) for arm, at in success.items() for s in seeds]


def of(contrast: mechanism.Contrast, runs: list[Kept]) -> dict[str, Any]:
    return judged(contrast, by_arm(runs))


def test_every_arm_has_five_seeds_those_of_the_primary_contrasts_come_first_and_no_cell_is_long() -> None:
    cells = study().cells
    assert len(ARMS) * len(SEEDS) == 45 and len(cells) == len({cell.name for cell in cells}) == 55
    assert {cell.arm for cell in cells[45:]} == {arm for _, arm in OPTIONAL}
    needed = {arm for contrast in (INTERACTION, SPARED) for arm in contrast.weights}
    assert {cell.arm for cell in cells[:30]} == needed and not needed & {cell.arm for cell in cells[30:]}
    assert all(cell.minutes <= 70 for cell in cells)
    assert {arm for contrast in CONTRASTS for arm in contrast.weights} == {arm for _, arm in (*ARMS, *OPTIONAL)}


def test_arms_differ_in_filter_target_divisor_bonus_and_groups_alone(configs: dict[str, RunConfig]) -> None:
    assert configs.keys() == {arm for _, arm in (*ARMS, *OPTIONAL)}
    for arm, config in configs.items():
        learner, objective = config.learner, config.learner.objective
        assert (learner.algorithm, objective.aggregation, objective.kl.coefficient) == ("grpo", "token_mean", 0.0)
        assert (learner.optimizer.learning_rate, learner.optimizer.decay_steps, config.loop.steps) == (1e-4, 0, STEPS)
        assert objective.divisor == ("group" if arm.startswith(("std", "free")) else "window")
        assert config.environment.options.get("action_reward") == (0.0 if arm.startswith("free") else None)
        assert objective.entropy_coefficient == (0.1 if arm.startswith("bonus") else 0.001)
        assert config.filter.rule == ("none" if arm.endswith(("none", "random")) else "top_p")
        assert config.filter.target == (arm[6:] if arm in ("bonus_task", "bonus_regulariser") else "groups")
        assert config.loop.prompts == (5 if arm == "std_random" else 8)
        assert config.validation.early_stop == "off"
        if config.filter.rule == "top_p":
            assert (config.filter.epsilon, config.filter.epsilon_unit) == (0.01, "absolute")


def test_rate_and_warm_ups_are_those_of_the_runs_at_a_constant_rate(configs: dict[str, RunConfig]) -> None:
    assert constant_rate.rate_of("sokoban") == mechanism.LEARNING_RATE
    assert SEEDS[:3] == constant_rate.SEEDS
    cell = next(constant_rate.arms("sokoban", 1e-4))
    long = run_of(constant_rate.Study("long", constant_rate.COMMON, (cell,), mechanism.RESULTS), cell, "runs").config
    own = [one for arm, one in configs.items() if not arm.startswith("free")]
    assert all((one.model, one.environment, one.seed) == (long.model, long.environment, 10) for one in own)


def test_the_interaction_holds_if_the_filter_helps_more_where_the_groups_std_divides() -> None:
    runs = runs_of({"std_top_p": 0.4, "std_none": 0.2, "window_top_p": 0.45, "window_none": 0.4})
    found = of(INTERACTION, runs)
    assert found["verdict"] == "holds, 5 of 5 seeds" and found["difference"]["mean"] == pytest.approx(0.15)
    other = runs_of({"std_top_p": 0.4, "std_none": 0.35, "window_top_p": 0.6, "window_none": 0.4})
    assert of(INTERACTION, other)["verdict"] == "fails, 5 of 5 seeds"


def test_a_difference_within_its_noise_is_not_significant() -> None:
    runs = [ended("bonus_none", seed, 0.4) for seed in SEEDS]
    runs += [ended("bonus_regulariser", seed, 0.4 + 0.05 * (-1) ** seed) for seed in SEEDS]
    assert of(SPARED, runs)["verdict"] == "not significant, 5 of 5 seeds"


def test_a_contrast_counts_the_seeds_that_have_all_of_its_arms_and_is_judged_at_the_last() -> None:
    runs = runs_of({"bonus_regulariser": 0.5, "bonus_none": 0.3})
    assert of(SPARED, runs)["verdict"] == "holds, 5 of 5 seeds"
    fewer = of(SPARED, runs[:-2])
    assert fewer["verdict"] == "3 of 5 seeds" and fewer["difference"]["mean"] == pytest.approx(0.2)
    assert of(SPARED, [])["verdict"] == of(INTERACTION, runs)["verdict"] == "0 of 5 seeds"


def test_an_exploratory_contrast_has_no_verdict_and_other_warm_ups_are_counted() -> None:
    runs = [*runs_of({"bonus_groups": 0.5}), *(ended("bonus_none", s, 0.3, 0.4 if s > 10 else 0.3) for s in SEEDS)]
    (found,) = (of(one, runs) for one in CONTRASTS if one.says == "bonus 0.1: groups minus no filter")
    assert found["verdict"] == "exploratory" and found["note"].endswith("same weights: 1")
    page = markdown(runs, [])
    assert page.endswith("same weights: 1\n") and "10 of the 45 runs" in page
    assert "| `bonus_groups` | 5 of 5 |" in page and "| 0.750 [0.750, 0.750] | 0.250 [0.250, 0.250] |" in page


def test_claims_at_a_constant_rate_name_the_papers_gain_and_have_no_verdict_before_their_last_seed() -> None:
    def interval(seeds: int) -> dict[str, Any]:
        return {"mean": 0.2, "low": 0.1, "high": 0.3, "n": seeds}

    label = {"recipe": "sokoban", "algorithm": "ppo"}
    none = {**label, "filter": "none", "late_change": interval(3), "mi_change": interval(2)}
    late, mi, gain = long_claims([none, {**label, "filter": "top_p", "minus_none": interval(3)}])
    assert late[3] == "fails, 3 of 3 seeds", "it was claimed to fall"
    assert mi[3] == "2 of 3 seeds"
    assert gain[1:] == [
        "+0.160 in peak success (Table 4)",
        "+0.200 [+0.100, +0.300]",
        "holds, 3 of 3 seeds",
        "0.11 to 0.19",
    ]


def test_condensed_runs_are_imported_and_listed_as_done(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(mechanism, "RESULTS", tmp_path / "t.parquet")
    cell: StudyCell = study().cells[0]
    labels = {"name": cell.name, "part": cell.part, "recipe": cell.recipe, "arm": cell.arm, "seed": cell.seed}
    validated = {"step": [0, 90], "validation/success": [0.4, 0.5]}
    run = {**labels, "set": [], "steps": STEPS, "tables": {"validated": validated}, "groups": {}}
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert mechanism.main(["--import", str(tmp_path / "run.json")]) == 0
    capsys.readouterr()
    assert mechanism.main(["--list", "--json"]) == 0
    states = [one["state"] for one in json.loads(capsys.readouterr().out)["cells"]]
    assert states == ["done", *["open"] * 54]


def test_the_page_is_written_and_with_another_form_the_flag_is_refused(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(mechanism, "PAGE", tmp_path / "mechanism.md")
    assert mechanism.main(["--write"]) == 0 and (tmp_path / "mechanism.md").read_text() == mechanism.written()
    with pytest.raises(SystemExit):
        mechanism.main(["--list", "--write"])
    assert "--write has no effect" in capsys.readouterr().err


def test_the_page_is_fresh() -> None:
    assert mechanism.PAGE.read_text() == mechanism.written(), "python -m research.mechanism --write"
