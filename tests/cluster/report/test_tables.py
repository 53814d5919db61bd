"""Tables 4 and 5 of the paper from runs: peak, gain, what was measured where success peaks, and the paper's numbers."""

from typing import Any

import pytest

from squelch.cluster.config import load
from squelch.cluster.report.runs import Run, study_of
from squelch.cluster.report.tables import (
    TABLE_4,
    TABLE_4_MODALITY,
    TABLE_5,
    TASKS,
    lines,
    table_4,
    table_5,
    table_of_savings,
)
from squelch.cluster.runs.peak import peak_of

FILTER = {f"filter.{name}": value for name, value in load("sokoban", ["preset=paper"]).filter}
PUBLISHED = {f"filter__{name}": value for name, value in load("sokoban", ["preset=published"]).filter}
PICTURES = ["preset=published", "environment.options.observation_format=picture"]
SCRIPT_OF_PICTURES = {f"filter__{name}": value for name, value in load("sokoban", PICTURES).filter}
VISION = {"model__path": "models/Qwen2.5-VL-3B-Instruct"}


def a_run(success: dict[int, float], seed: int = 0, **settings: Any) -> Run:
    """A run that validates at these steps; at steps 5, 15, ... retrieval is 0.1, 0.2, ... and the entropy 1, 2, ..."""
    known = {"environment.name": "Sokoban", "learner.algorithm": "ppo", "model.path": "tiny", "seed": seed, **FILTER}
    known |= {key.replace("__", "."): value for key, value in settings.items()}
    rows: list[dict[str, Any]] = [
        {"step": s, "validation/step": s, "validation/success": v} for s, v in success.items()
    ]
    rows += [
        {"step": s, "scorer/step": s, "first_turn/retrieval_accuracy": n / 10, "first_turn/conditional_entropy": n}
        for n, s in enumerate(range(5, 100, 10), 1)
    ]
    return Run(f"runs/{seed}-{known['filter.rule']}", known, sorted(rows, key=lambda row: row["step"]))


def test_the_peak_is_after_step_0_and_is_read_with_the_last_scoring_before_it() -> None:
    cell = peak_of(a_run({0: 0.9, 10: 0.2, 20: 0.5, 30: 0.5, 40: 0.1}).lines)
    assert (cell.success, cell.step, cell.retrieval, cell.entropy, cell.stable) == (0.5, 20, 0.2, 2, True)


@pytest.mark.parametrize(("success", "stable"), [({0: 0.0, 10: 0.5}, False), ({0: 0.01, 10: 0.5}, True)])
def test_a_run_is_stable_whose_success_was_never_below_a_hundredth(success: dict[int, float], stable: bool) -> None:
    assert peak_of(a_run(success).lines).stable is stable


def test_a_run_without_a_validation_has_no_numbers() -> None:
    assert peak_of(a_run({0: 0.5}).lines).success is None
    assert "n/a" in "\n".join(lines(study_of([a_run({0: 0.5})])))


def test_the_gain_is_over_the_arm_without_filter_seed_by_seed_with_the_papers_number() -> None:
    plain = [a_run({10: 0.1 * (1 + seed)}, seed, filter__rule="none") for seed in range(3)]
    kept = [a_run({10: 0.1 * (1 + seed) + 0.2}, seed) for seed in range(3)]
    _, base, filtered = table_4(study_of([*plain, *kept]))
    assert base[:4] == ["Sokoban", "ppo, tiny", "no filter", "3"] and base[6:] == ["", "12.9"]
    assert filtered[4].startswith("40.0 [") and filtered[6].startswith("+20.0 [+20.0, ")
    assert filtered[7] == "28.9 (+16.0)"


def test_a_seed_without_its_pair_is_in_no_gain() -> None:
    runs = [a_run({10: 0.1}, 0, filter__rule="none"), a_run({10: 0.4}, 0), a_run({10: 0.9}, 1)]
    assert table_4(study_of(runs))[2][6] == "+30.0"


def test_table_5_has_the_papers_row_of_the_same_filter() -> None:
    runs = [a_run({10: 0.1}, filter__rule="none"), a_run({10: 0.1}, filter__rule="top_k", filter__rho=0.5)]
    runs += [a_run({10: 0.1}, filter__statistic="length"), a_run({10: 0.1}, filter__rho=0.7)]
    found = [row[-1] for row in table_5(study_of(runs))[1:]]
    assert sorted(found) == ["", "0.16, 0.91, 1.65, no", "0.17, 0.54, 2.76, no", "0.44, 0.89, 1.47, yes"]


@pytest.mark.parametrize(
    "changed",
    [
        {"filter__statistic": "reward_std"},
        {"filter__keep": "smallest"},
        {"filter__target": "regulariser"},
        {"filter__include_zero": True},
        {"filter__epsilon_unit": "relative"},
        {"filter__compat": "ragen"},
        {"filter__window": "sliding"},
        {"filter__refill": True},
        {"filter__min_groups": 2},
        {"filter__on_no_signal": "passthrough"},
        {**PUBLISHED, "filter__include_zero": False},
        {"filter__made_up": 1},
    ],
)
def test_a_filter_that_is_not_the_papers_has_no_number_of_the_paper(changed: dict[str, Any]) -> None:
    study = study_of([a_run({10: 0.1}), a_run({10: 0.1}, **changed)])
    for table, paper in ((table_4, "28.9 (+16.0)"), (table_5, "0.38, 0.84, 1.64, yes")):
        assert sorted(row[-1] for row in table(study)[1:]) == ["", paper]


def test_the_filter_of_the_published_scripts_has_the_papers_numbers() -> None:
    study = study_of([a_run({10: 0.1}, **PUBLISHED)])
    assert table_4(study)[1][-1] == "28.9 (+16.0)" and table_5(study)[1][-1] == "0.38, 0.84, 1.64, yes"


def test_the_filter_column_tells_arms_apart() -> None:
    changes = [{}, {"filter__target": "task"}, {"filter__statistic": "entropy"}, {"filter__rule": "none"}]
    changes += [{"learner__objective__loss_scale": "none"}, {"filter__rho": 0.5, "filter__keep": "smallest"}]
    runs = [a_run({10: 0.1}, **{"learner__objective__loss_scale": "rho"} | change) for change in changes]
    found = {row[2] for row in table_4(study_of(runs))[1:]}
    assert len(found) == len(changes) and "no filter" in found
    assert "top_p 0.9, statistic entropy, keep largest, target groups, loss_scale rho" in found


@pytest.mark.parametrize(
    ("shown", "plain", "filtered"),
    [("grid_coord", "53.0", "59.0 (+6.0)"), ("picture", "65.0", "77.0 (+12.0)"), ("both", "", "")],
)
def test_a_vision_language_model_has_the_papers_row_of_what_it_is_shown(shown: str, plain: str, filtered: str) -> None:
    runs = [a_run({10: 0.1}, environment__options__observation_format=shown, **VISION, filter__rule="none")]
    runs += [a_run({10: 0.1}, environment__options__observation_format=shown, **VISION)]
    assert [row[-1] for row in table_4(study_of(runs))[1:]] == [plain, filtered]


def test_the_published_filter_of_pictures_has_the_papers_number_beside_pictures_alone() -> None:
    for shown, paper in (("picture", "77.0 (+12.0)"), ("grid", "")):
        run = a_run({10: 0.1}, environment__options__observation_format=shown, **VISION, **SCRIPT_OF_PICTURES)
        assert table_4(study_of([run]))[1][-1] == paper


def test_pictures_have_no_number_of_a_text_model_nor_of_table_5() -> None:
    for model in ({}, VISION):
        study = study_of([a_run({10: 0.1}, environment__options__observation_format="picture", **model)])
        assert table_5(study)[1][-1] == ""
        assert (table_4(study)[1][-1] == "") == (not model)
    math = study_of([a_run({10: 0.1}, environment__name="MetaMathQA", **VISION)])
    assert table_4(math)[1][-1] == ""


def test_the_papers_tables_are_complete() -> None:
    assert len(TABLE_4) == 9 and all(len(row) == len(TASKS) for row in TABLE_4.values()) and len(TABLE_5) == 12
    averages = [sum(peak for peak, _ in row) / 4 for row in TABLE_4.values()]
    assert averages == pytest.approx([67.6, 67.4, 67.5, 55.8, 14.0, 47.6, 77.3, 73.4, 73.6], abs=0.06)
    modality = [sum(peak for peak, _ in row.values()) / 2 for row in TABLE_4_MODALITY.values()]
    assert modality == pytest.approx([34.5, 42.3], abs=0.06)


def test_the_last_table_has_what_the_filter_saved_and_the_gain_for_what_was_learned_from() -> None:
    run = a_run({0: 0.1, 10: 0.3})
    line = {
        "num_groups": 8.0,
        "kept_groups": 2.0,
        "tokens/sampled": 100.0,
        "tokens/trained": 25.0,
        "optimizer_steps": 4.0,
    }
    learned = Run(run.folder, run.settings, [*run.lines, {"step": 11} | line])
    head, row = table_of_savings(study_of([learned]))
    found = dict(zip(head, row, strict=True))
    assert found["groups played"] == "8" and found["learned from"] == "2" and found["tokens not trained on"] == "75"
    assert found["gain, 100 groups"] == "+10.000" and found["gain, 100 updates"] == "+5.000"
