"""The study of the penalty: its runs are fixed beforehand, and a verdict asks for every seed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from research.cells import run_of
from research.kept import ACTIONS, SUCCESS, Kept
from research.penalty import study as room
from research.penalty.judged import (
    BONUS_WEIGHT,
    MI,
    NOISE,
    VALIDITY,
    by_arm,
    changed_start,
    difference,
    does_one_divisor_do_it,
    is_it_the_penalty,
    judged,
    kind,
    shown,
)
from research.penalty.plan import FIRST, LONG_SEEDS, PARTS, SEEDS, every_cell
from research.penalty.study import bonus_weights, main, report, study, table_of, warmed_up
from squelch.actors.process.folders import file_digest
from squelch.cluster.setting_keys import flat
from squelch.envs.mixture import Mixture
from squelch.kit.base.errors import UserError
from squelch.learner.warmup.tiny_recipe import TinyRecipe

CELLS = [*every_cell()]
NOISES = (0.011, -0.007, 0.004, -0.012, 0.004)


def run_with(arm: str, seed: int, success: float, actions: tuple[float, float] = (7.4, 7.3), began: str = "w") -> Kept:
    steps = {"step": [1, 10, 81, 90], ACTIONS: [actions[0]] * 2 + [actions[1]] * 2, VALIDITY: [1.0] * 4}
    probe = {"step": [0, 30, 60, 90], MI: [2.0, 2.1, 2.2, 2.3], NOISE: [1.0, 1.0, 1.0, 1.0]}
    tables = {"validated": {"step": [0, 90], SUCCESS: [0.36, success]}, "steps": steps, "probe": probe}
    return Kept("n", "first", "sokoban", arm, seed, 90, tables, {}, began=f"{began}{seed}")


def runs_of(success: Mapping[str, float], seeds: tuple[int, ...] = SEEDS) -> list[Kept]:
    """Runs whose level differs between seeds, and an arm's distance from it hardly. In std_none actions fall."""
    noise = dict(zip(SEEDS, NOISES, strict=True))
    return [
        run_with(
            arm, seed, at + 0.05 * (seed - 22) + noise[seed] * (1 + n), (7.4, 4.6) if arm == "std_none" else (7.4, 7.3)
        )
        for n, (arm, at) in enumerate(success.items())
        for seed in seeds
    ]


EXPECTED = {"std_none": 0.30, "std_top_p": 0.46, "free_none": 0.45, "free_top_p": 0.45, "window_none": 0.46}


def test_the_runs_are_those_of_the_questions_in_their_order() -> None:
    assert len(CELLS) == 46 and len({cell.name for cell in CELLS}) == 46
    assert [cell.arm for cell in CELLS[:5]] == [*FIRST] and {cell.seed for cell in CELLS[:5]} == {20}
    assert [*dict.fromkeys(cell.part for cell in CELLS)] == [*PARTS]
    assert sum(cell.part == "first" for cell in CELLS) == 25
    assert {(cell.steps, cell.room) for cell in CELLS} == {(90, 35.0), (300, 75.0)}
    assert all(len({c.settings["model.path"] for c in CELLS if c.seed == seed}) == 1 for seed in SEEDS), "one warm-up"


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.seed == 20], ids=lambda cell: cell.arm)
def test_every_arm_is_a_run_that_can_be_started_and_has_its_settings(cell) -> None:
    config = run_of(study(), cell, "runs").config
    assert (config.seed, config.loop.steps, config.validation.tasks, config.validation.early_stop) == (
        cell.seed,
        cell.steps,
        512,
        "off",
    )
    optimizer, objective = config.learner.optimizer, config.learner.objective
    assert (optimizer.learning_rate, optimizer.decay_steps, objective.kl.coefficient) == (1e-4, 0, 0)
    assert objective.aggregation == ("sequence_mean" if cell.part == "regularisers" else "token_mean")
    assert (config.loop.on_alarm, config.filter.on_no_signal) == ("none", "warn")
    present = flat(config.model_dump(mode="json"))
    for key, value in cell.settings.items():
        if key not in ("model.path", "environment.options.action_reward"):
            assert present[key] == value, key
    expected = 0.0 if cell.arm.startswith("free") else None
    assert config.environment.options.get("action_reward") == expected
    assert Path(config.model.path).parts[-3:] == Path(str(cell.settings["model.path"])).parts


def test_the_penalty_holds_where_only_the_undivided_penalty_needs_the_filter() -> None:
    found = is_it_the_penalty(by_arm(runs_of(EXPECTED)))
    assert (found.says, found.decided) == ("holds", True)
    assert found.differences[0].over_seeds()["mean"] == pytest.approx(0.16, abs=0.02)
    assert "as predicted" in found.notes[-1] and "not as" not in found.notes[-1]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"free_top_p": 0.60}, "falsified"),
        ({"free_top_p": 0.52}, "falsified"),
        ({"std_top_p": 0.30}, "undecided"),
        ({"free_top_p": 0.40}, "undecided"),
    ],
)
def test_a_filter_that_helps_without_the_penalty_falsifies_and_little_is_undecided(
    changed: Mapping[str, float], says: str
) -> None:
    assert is_it_the_penalty(by_arm(runs_of({**EXPECTED, **changed}))).says == says


def test_without_every_seed_there_is_a_count_and_no_verdict() -> None:
    found = judged(runs_of(EXPECTED, SEEDS[:3]))
    assert [one.says for one in found] == ["3 of 5 seeds", "3 of 5 seeds", "0 of 5 seeds", "exploratory, 0 of 6 runs"]
    assert not any(one.decided for one in found)


def test_runs_that_began_with_other_weights_are_in_no_comparison() -> None:
    runs = runs_of(EXPECTED)
    odd = [run_with("free_none", 20, 0.9, began="other"), *(r for r in runs if (r.arm, r.seed) != ("free_none", 20))]
    arms = by_arm(odd)
    assert changed_start(arms) == [20]
    assert is_it_the_penalty(arms).says == "4 of 5 seeds"
    assert "20" not in shown(difference("", arms, {"std_none": 1}))


def test_actions_that_stay_while_success_falls_refute_the_account() -> None:
    runs = [run_with(r.arm, r.seed, r.series(SUCCESS)[90], (7.4, 7.3)) for r in runs_of({**EXPECTED, "std_none": 0.15})]
    said = is_it_the_penalty(by_arm(runs)).notes[-1]
    assert "not as predicted: none" in said and said.endswith("the account is wrong")


def test_one_divisor_is_judged_against_both() -> None:
    found = does_one_divisor_do_it(by_arm(runs_of(EXPECTED)))
    assert (found.says, found.decided) == ("holds; as good as the filter", True)
    worse = does_one_divisor_do_it(by_arm(runs_of({**EXPECTED, "window_none": 0.41})))
    assert worse.says == "holds; undecided whether as good as the filter"
    assert (
        does_one_divisor_do_it(by_arm(runs_of({**EXPECTED, "window_none": 0.20}))).says
        == "fails; worse than the filter"
    )


def test_a_question_after_an_undecided_one_is_exploratory() -> None:
    first, second, *_ = judged(runs_of({**EXPECTED, "free_top_p": 0.40}))
    assert first.says == "undecided" and second.says.endswith("(exploratory)")


def dosed(arm: str, seed: int, success: float, dose: float, validity: float = 1.0) -> Kept:
    run = run_with(arm, seed, success)
    steps = {"step": [20, 30, 55, 60, 85, 90], VALIDITY: [1.0, 1.0, validity, validity, 0.5, 0.5]}
    bonus = {"step": [1, 2], BONUS_WEIGHT: [dose, dose]}
    return Kept(**{**run.__dict__, "tables": {**run.tables, "steps": steps, "bonus": bonus}})


def test_regularisers_are_judged_only_at_one_dose_and_mi_where_both_are_valid() -> None:
    noise = dict(zip(SEEDS, NOISES, strict=True))
    pairs = [(dosed("largest", s, 0.5 + noise[s], 0.5), dosed("smallest", s, 0.4, 0.5, 0.8)) for s in SEEDS]
    found = judged([run for pair in pairs for run in pair])[2]
    assert found.says == "holds (exploratory)", "the questions before it have no verdict"
    assert [*found.differences[1].values.values()] == [0.0] * 5, "at step 30, the last at which both are valid"
    other = [(large, dosed("smallest", large.seed, 0.4, 0.45)) for large, _ in pairs]
    assert judged([run for pair in other for run in pair])[2].says.startswith("not judged: the bonus weighs 0.500")
    near = [(dosed("largest", s, 0.4 + noise[s], 0.5), dosed("smallest", s, 0.4, 0.5)) for s in SEEDS]
    assert "only the dose matters" in judged([run for pair in near for run in pair])[2].says


@pytest.mark.parametrize(
    ("mi", "noise", "validity", "says"),
    [
        (0.3, 0.0, 1.0, "neither: MI did not fall"),
        (-0.5, 0.3, 1.0, "noise"),
        (-0.5, 0.0, 0.7, "noise"),
        (-0.5, 0.05, 1.0, "template"),
        (-0.5, -0.4, 1.0, "neither: MI and H(Z|X) fell"),
    ],
)
def test_a_fall_of_mi_is_noise_or_a_template(mi: float, noise: float, validity: float, says: str) -> None:
    probe = {"step": [0, 90], MI: [2.0, 2.0 + mi], NOISE: [1.0, 1.0 + noise]}
    steps = {"step": [85, 90], VALIDITY: [validity, validity]}
    assert (
        kind(Kept("n", "long", "sokoban", "bonus0.1", LONG_SEEDS[0], 90, {"probe": probe, "steps": steps}, {})) == says
    )


def test_a_long_run_that_lacks_a_metric_is_unknown_and_said() -> None:
    run = Kept("n", "long", "sokoban", "bonus0.1", LONG_SEEDS[0], 300, {"probe": {"step": [0], MI: [2.0]}}, {})
    (said,) = judged([run])[3].notes
    assert said == "bonus0.1, seed 20: unknown (MI n/a, H(Z|X) n/a nats, validity n/a)"


def test_a_table_has_each_evaluation_once_at_the_step_that_it_describes() -> None:
    lines = [
        {"step": 0, "probe/step": 0, MI: 2.0},
        {"step": 30, "probe/step": 30, MI: 2.123456789},
        {"step": 31, "probe/step": 30, MI: 9.0},
        {"step": 32},
    ]
    assert table_of(lines, (MI, NOISE), "probe/step") == {"step": [0, 30], MI: [2.0, 2.1235], NOISE: [None, None]}


def test_the_dose_is_the_share_of_counted_trajectories_whose_group_is_kept(monkeypatch) -> None:
    class Table:
        def to_pylist(self):
            rows = [("kept", None)] * 3 + [("dropped", None)] * 3 + [("kept", "timeout"), ("refused", None)]
            return [{"step": 1, "decision": decision, "failure_cause": cause} for decision, cause in rows]

    monkeypatch.setattr(room, "stream_groups", lambda folder, columns: [Table()])
    assert bonus_weights(Path("run")) == {"step": [1], BONUS_WEIGHT: [0.5]}


def test_a_seed_is_not_continued_from_other_weights(monkeypatch, tmp_path: Path) -> None:
    def build(folder: str, mixture: Mixture, seed: int, recipe: TinyRecipe) -> None:
        assert [one.environment.options.get("action_reward") for one in mixture.entries] == [None, 0.0]
        assert recipe.tokens == 3_400_000, "as many as of one environment"
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / room.WEIGHTS).write_bytes(b"weights")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("squelch.learner.warmup.tiny.build_tiny", build)
    monkeypatch.setattr(room.tables, "read", lambda file: [])
    warmed_up(CELLS[:2])
    own = file_digest(tmp_path / str(CELLS[0].settings["model.path"]) / room.WEIGHTS)
    monkeypatch.setattr(room.tables, "read", lambda file: [{"seed": 20, "warm_up": own}])
    warmed_up(CELLS[:2])
    monkeypatch.setattr(room.tables, "read", lambda file: [{"seed": 20, "warm_up": "others"}])
    with pytest.raises(UserError, match=r"runs of seed 20 .* began with other weights .*--only"):
        warmed_up(CELLS[:2])


def test_the_command_prints_the_questions_and_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert [one["question"] for one in found["questions"]] == ["P", "A", "B", "C"]
    assert found["runs"] == len({*study().done()}) and report().notes


def test_the_page_has_every_verdict_with_its_seeds_and_every_arm(monkeypatch, tmp_path: Path) -> None:
    runs = runs_of(EXPECTED)
    monkeypatch.setattr(room, "read_all", lambda file: runs)
    monkeypatch.setattr(room, "PAGE", tmp_path / "penalty.md")
    assert main(["--write"]) == 0
    page = (tmp_path / "penalty.md").read_text()
    assert "| P | holds |" in page and "| A | holds; as good as the filter |" in page and "| B | 0 of 5 seeds |" in page
    assert "secondary, -2.5 or lower in std_none alone: as predicted." in page and "- 25 of 46 runs\n" in page
    assert all(f"| `{arm}` | 5 |" in page for arm in FIRST) and all(f"{seed}: +0." in page for seed in SEEDS)
