"""Arms are found from the configurations: runs that differ in the seed only, with labels that tell them apart."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.cluster.report.runs import Run, differing, find_runs, label_of, read_run, study_of
from squelch.kit.base.errors import UserError
from tests.cluster.report.synthetic import Made, config, lines, write_run


def a_run(made: Made) -> Run:
    """The run that `write_run` would write, without the files."""
    from squelch.cluster.setting_keys import flat

    return Run(f"runs/{made.name}", flat(config(made)), lines(made))


def test_runs_that_differ_in_the_seed_only_form_an_arm() -> None:
    made = [Made(f"{rule}-{seed}", seed, rule, steps=4) for seed in (2, 0, 1) for rule in ("top_p", "none")]
    study = study_of([a_run(m) for m in made])
    assert [(arm.label, [run.seed for run in arm.runs]) for arm in study.arms] == [
        ("no filter", [0, 1, 2]),
        ("top_p 0.9", [0, 1, 2]),
    ]


def test_of_two_runs_with_one_seed_the_longer_counts_and_a_note_names_the_other() -> None:
    study = study_of([a_run(Made("short", steps=4)), a_run(Made("long", steps=8))])
    assert len(study.arms) == 2, "steps are a setting"
    short = dataclasses.replace(a_run(Made("cut", steps=8)), lines=lines(Made("cut", steps=8))[:5])
    study = study_of([short, a_run(Made("long", steps=8))])
    assert [run.folder for run in study.runs] == ["runs/long"]
    assert "runs/cut is left out" in study.notes[0] and "runs/long" in study.notes[0]


def test_a_label_names_the_settings_in_which_arms_differ() -> None:
    made = [Made("a", rule="none", entropy=0.1), Made("b", entropy=0.1), Made("c", slip=0.5, environment="Other")]
    labels = [arm.label for arm in study_of([a_run(m) for m in made]).arms]
    assert labels == ["no filter", "top_p 0.9", "top_p 0.9"]
    made = [Made("a", entropy=0.1), Made("b", kl=0.1)]
    assert [arm.label for arm in study_of([a_run(m) for m in made]).arms] == [
        "entropy 0.001, KL 0.1",
        "entropy 0.1, KL 0.001",
    ]


SETTINGS = st.dictionaries(st.sampled_from([f"block.key{i}" for i in range(9)]), st.integers(0, 2), min_size=9)


@settings(max_examples=40)
@given(st.lists(SETTINGS, min_size=1, max_size=6, unique_by=lambda s: json.dumps(s, sort_keys=True)))
def test_no_two_arms_of_an_environment_share_a_label(chosen: list[dict[str, int]]) -> None:
    fixed = {"seed": 0, "environment.name": "E", "filter.rule": "none"}
    study = study_of([Run(f"runs/r{i}", fixed | own, []) for i, own in enumerate(chosen)])
    labels = [arm.label for arm in study.arms]
    assert len(set(labels)) == len(labels) == len(chosen)
    assert set(differing(study.arms)) == {k for k in chosen[0] if len({own[k] for own in chosen}) > 1}


def test_what_a_label_shows_of_a_file_is_printable_and_short() -> None:
    peers = [{"a.key": "x\x1b[31m\u202e" * 99, "filter.rule": "none"}, {"a.key": "y", "filter.rule": "none"}]
    label = label_of(peers[0], peers)
    assert label.isprintable() and len(label) < 80


def test_families_differ_in_nothing_but_the_given_settings() -> None:
    made = [Made(f"{r}-{e}", rule=r, entropy=e, steps=3) for r in ("none", "top_p") for e in (0.001, 0.1)]
    study = study_of([a_run(m) for m in [*made, Made("alone", slip=0.5, kl=0.5, steps=3)]])
    by_filter = study.families(("filter",))
    assert [[arm.settings["filter.rule"] for arm in family] for family in by_filter] == [["none", "top_p"]] * 2
    assert study.families(("environment.options.slip_rate",)) == []


def test_a_sweeps_folder_stands_for_the_runs_in_it(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / "sweep", Made(name, steps=3))
    (tmp_path / "sweep" / "sweep.json").write_text("{}")
    found = find_runs([tmp_path / "sweep", tmp_path / "sweep" / "a"])
    assert [Path(run.folder).name for run in found] == ["a", "b"]


def test_a_figure_belongs_to_the_step_that_it_describes(tmp_path: Path) -> None:
    folder = write_run(tmp_path, Made("late", steps=2, scored_every=0, validated_every=0))
    late = {"step": 2, "time": 1.0, "scorer/step": 1, "first_turn/mi_est": 0.5, "validation/step": 0, "success": 0.25}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(late | {"step": 3, "validation/success": 0.75}) + "\n")
    run = read_run(folder)
    assert run.series("first_turn/mi_est") == {1: 0.5} and run.series("validation/success") == {0: 0.75}
    assert run.series("success")[3] == 0.25 and run.steps == 3


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.yaml", None, "holds no run"),
        ("config.yaml", "seed: zero", "`seed` is missing"),
        ("config.yaml", "[", "config.yaml"),
        ("metrics.jsonl", '{"step": 1, "time": 1, "success": "high"}\n', "`success` is 'high'"),
    ],
)
def test_a_damaged_run_is_refused_by_name(tmp_path: Path, name: str, content: str | None, said: str) -> None:
    folder = write_run(tmp_path, Made("bad", steps=2))
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(UserError, match=said):
        find_runs([folder])


def test_a_half_written_last_line_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path, Made("live", steps=5))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "ti')
    assert read_run(folder).steps == 5
