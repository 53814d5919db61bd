"""The collapse study's tool: its arms are runs that can be made, and its report says what the folders hold."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from research import collapse
from research.collapse_figure import csv_of, figures, read_rows, rows
from research.collapse_runs import arm_rows, by_arm, find_runs, missing
from squelch.cluster.sweep.plan import make_plan

DOCS = Path(__file__).parents[2] / "docs" / "research"


def write_run(folder: Path, seed: int, rule: str, mi: list[float], steps: int, **extra: float) -> None:
    folder.mkdir(parents=True)
    objective = {"entropy_coefficient": 0.1, "kl": {"coefficient": 0.001}}
    config = {
        "seed": seed,
        "environment": {"name": "Sokoban", "train_seed": seed},
        "loop": {"steps": 10},
        "filter": {"rule": rule, "rho": 0.9},
        "learner": {"objective": objective},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    lines = [{"step": i + 1, "scorer/step": i, "first_turn/mi_est": value, **extra} for i, value in enumerate(mi)]
    text = "".join(json.dumps(line) + "\n" for line in [*lines, {"step": steps}])
    (folder / "metrics.jsonl").write_text(text)


@pytest.mark.parametrize("environment", ["sokoban", "frozenlake"])
def test_every_arm_is_a_run_that_can_be_made(tmp_path, environment):
    arms = collapse.study_arms()
    seeds = {arm.label: [0, 1, 2] if arm.label in collapse.MAIN else [0] for arm in arms}
    plan = make_plan(environment, [f"runs_dir={tmp_path}", *collapse.COMMON], arms, seeds, name="c")
    found = {
        (c.config.filter.rule, c.config.learner.objective.entropy_coefficient, c.config.learner.objective.kl_in_loss)
        for c in plan.cells
    }
    assert {rule for rule, *_ in found} == {"none", "top_p", "top_k"} and len(found) == len(arms) == 9
    assert {entropy for _, entropy, _ in found} == {0.001, 0.03, 0.1} and {kl for *_, kl in found} == {0.001, 0.1}
    assert set(collapse.MAIN) < set(seeds) and len(plan.cells) == 4 * 3 + 5


def test_a_figure_stands_at_the_step_scored_and_differences_are_paired_by_seed(tmp_path):
    for seed, level in enumerate((0.1, 0.5)):
        write_run(tmp_path / f"plain{seed}", seed, "none", [level] * 6, 10)
        write_run(tmp_path / f"kept{seed}", seed, "top_p", [level + 0.2] * 6, 10)
    runs = find_runs([tmp_path])
    assert sorted(runs[0].series["mi"]) == list(range(6))
    rows = {row["arm"]: row for row in arm_rows(by_arm(runs))}
    less = rows["top_p 0.9, entropy 0.1, KL 0.001"]["minus_no_filter"]["mi_last"]
    assert less["mean"] == pytest.approx(0.2) and less["high"] - less["low"] < 1e-9 and less["n"] == 2
    assert rows["no filter, entropy 0.1, KL 0.001"]["minus_no_filter"]["mi_last"]["mean"] is None


def test_what_an_older_run_lacks_is_said_and_breaks_nothing(tmp_path):
    write_run(tmp_path / "old", 0, "none", [0.1] * 6, 10)
    write_run(tmp_path / "cut", 1, "none", [0.1] * 6, 7, **{"judge/right": 0.5, "alarm/raised": 0.0})
    runs = find_runs([tmp_path])
    found = collapse.report(runs, unfinished=False)
    assert found["runs"] == 1 and found["arms"][0]["figures"]["judge_last"]["mean"] is None
    assert any("old" in note and "coordinates" in note for note in found["notes"])
    assert any("cut (step 7 of 10)" in note for note in found["notes"])
    assert collapse.report(runs, unfinished=True)["runs"] == 2


def test_a_figure_that_one_run_of_an_arm_lacks_is_left_out_and_the_run_named(tmp_path):
    """Found by a reviewer: a mean over two seeds stood beside "seeds 0, 1, 2" without a note."""
    for seed, scorings in ((0, 6), (1, 6), (2, 5)):
        write_run(tmp_path / f"s{seed}", seed, "none", [0.1] * scorings, 10)
    found = collapse.report(find_runs([tmp_path]), unfinished=False)
    (arm,) = found["arms"]
    assert arm["seeds"] == [0, 1, 2] and arm["figures"]["mi_last"]["n"] == 0
    assert any("MI-Est" in note and "6 needed" in note and "s2 (5)" in note for note in found["notes"])


def test_settings_that_differ_besides_the_arms_are_named(tmp_path):
    write_run(tmp_path / "a", 0, "none", [0.1], 10)
    write_run(tmp_path / "b", 1, "none", [0.1], 10)
    assert not any("differ" in note for note in missing(find_runs([tmp_path])))
    tree = yaml.safe_load((tmp_path / "b" / "config.yaml").read_text())
    tree["learner"]["ranks"], tree["environment"]["options"] = 2, {"size": 6}
    (tmp_path / "b" / "config.yaml").write_text(yaml.safe_dump(tree))
    tree["learner"]["ranks"] = 1
    (tmp_path / "a" / "config.yaml").write_text(yaml.safe_dump({**tree, "seed": 0}))
    assert any("learner.ranks: 1, 2" in note for note in missing(find_runs([tmp_path])))


def test_a_folder_without_runs_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=str(tmp_path)):
        find_runs([tmp_path])


def test_the_figure_is_well_formed_and_says_what_was_not_recorded(tmp_path):
    collapse.write_made_up(tmp_path)
    arms = by_arm(find_runs([tmp_path]))
    (drawn,) = figures(rows(arms)).values()
    assert ElementTree.fromstring(drawn) is not None and "not recorded" not in drawn
    assert all(f">{arm.filter}<" in drawn for arm in arms)
    write_run(tmp_path / "x", 0, "none", [0.1], 10)
    (alone,) = figures(rows(by_arm(find_runs([tmp_path / "x"])))).values()
    assert ElementTree.fromstring(alone) is not None and alone.count("not recorded") == 4


def test_the_committed_pictures_are_drawn_from_the_committed_data(tmp_path):
    found = read_rows((DOCS / collapse.DATA).read_text())
    assert csv_of(found) == (DOCS / collapse.DATA).read_text()
    assert {row["environment"] for row in found} == {"FrozenLake", "Sokoban"}
    (tmp_path / collapse.DATA).write_text(csv_of(found))
    collapse.redraw(tmp_path)
    for name in ("collapse-frozenlake.svg", "collapse-sokoban.svg"):
        assert (tmp_path / name).read_text() == (DOCS / name).read_text(), "run: collapse --redraw docs/research"


def test_the_committed_page_has_the_words_of_the_code_and_the_success_of_the_committed_data():
    page = (DOCS / "collapse.md").read_text().splitlines()
    words = collapse.markdown({"arms": [], "notes": [], "made_up": False}).splitlines()
    assert set(words) <= set(page), "the page needs the code's words; its figures come from run folders"
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page if ", entropy " in line]
    shown = {(cells[0], cells[1]): float(cells[4].partition(" ")[0]) for cells in table}
    last = {}
    for row in read_rows((DOCS / collapse.DATA).read_text()):
        if row["figure"] == "success":
            arm = f"{row['filter']}, entropy {float(row['entropy']):g}, KL {float(row['kl']):g}"
            last[row["environment"], arm] = float(row["mean"])
    assert len(shown) == 18 and shown == pytest.approx(last, abs=0.0015)
