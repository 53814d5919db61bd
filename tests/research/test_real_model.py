"""The study on a real model: what its table keeps of a run is what it reports."""

import pytest

from research import real_model, tables
from research.kept import changes_learning
from research.real_model import RESULTS, compared, early_ends, markdown, of_content, report_rows


def kept(rule: str = "top_p", seed: int = 0, after: float = 0.2, judge: float = 0.3) -> dict:
    scored = {"entropy": 0.5, "judge_names": 0.6, "scored_step": 1}
    return {
        "name": f"countdown-{rule}_s{seed}",
        "set": [],
        "environment": "Countdown",
        "seed": seed,
        "filter": rule,
        "entropy": 0.001,
        "steps": 60,
        "success": {
            "before": {"success": 0.1},
            "after": {"success": after},
            "gain": {"mean": 0.1, "low": 0.05, "high": 0.15},
        },
        "rows": [
            {"step": 0, "probe_mi": 1.0},
            {"step": 2, "judge": 0.6, **scored},
            {"step": 60, "probe_mi": 2.0, "judge": judge, **scored, "entropy": 0.25},
        ],
        "reasonings": {
            1: [{"prompt": "...<|im_end|>\n<|im_start|>user\nNumbers: 1, 2\n<think>", "reasoning": " 1 | 2 <b> "}],
            60: [{"prompt": "cut", "reasoning": "last"}],
        },
    }


def content(run: dict) -> dict:
    """The content of a run, as the table keeps it."""
    rows = [row for row in run["rows"] if len(row) > 1]
    keys = dict.fromkeys(key for row in rows for key in row)
    reasonings = {"step": [*run["reasonings"]]}
    for word in ("prompt", "reasoning"):
        reasonings[f"0.{word}"] = [each[0][word] for each in run["reasonings"].values()]
    own = {"rows": {key: [row.get(key) for row in rows] for key in keys}, "reasonings": reasonings}
    labels = {"part": "countdown", "recipe": "smollm2-countdown", "arm": "base", "tables": own}
    return {key: value for key, value in run.items() if key not in ("rows", "reasonings")} | labels


def test_a_run_comes_back_from_the_table_as_it_was(tmp_path) -> None:
    tables.add(tmp_path / "t.parquet", [content(kept())])
    (run,) = tables.read_as(tmp_path / "t.parquet", of_content)
    assert run == kept() | {"part": "countdown", "recipe": "smollm2-countdown", "arm": "base", "groups": {}}


def test_the_report_has_a_row_for_each_kept_run(capsys, monkeypatch, tmp_path) -> None:
    tables.add(tmp_path / "t.parquet", [content(kept())])
    monkeypatch.setattr(real_model, "RESULTS", tmp_path / "t.parquet")
    assert real_model.main(["--quick"]) == 0
    printed = capsys.readouterr().out
    assert "+0.100 [+0.050, +0.150]" in printed and "countdown-top_p_s0" in printed
    states, true = ["0.60", "0.60"], ["1.00", "0.50"]  # the true ones among those that state anything
    assert report_rows([kept()])[0][-8:] == ["0.50", "0.25", *states, *true, "1.00", "2.00"]
    assert report_rows([{**kept(), "rows": []}])[0][-8:] == ["-"] * 8


def test_the_filter_is_compared_with_none_at_the_same_entropy_bonus_and_paired_by_seed() -> None:
    found = [kept("none", seed, 0.1 * seed, 0.3) for seed in (0, 1, 2)]
    found += [kept("top_p", seed, 0.1 * seed + 0.05, 0.45) for seed in (0, 1)]
    found += [{**kept("top_p", 0, 0.9), "entropy": 0.03}, {**kept("top_p", 2, 0.9), "set": ["learner.dtype=bfloat16"]}]
    lines = compared(found)
    assert len(lines) == 5 and all("seeds [0, 1]" in line for line in lines)
    assert lines[0].endswith("success, top_p minus none +0.050 [+0.050, +0.050]")
    assert any("true, top_p minus none +0.250" in line for line in lines)
    assert compared([kept()]) == []


def test_pairs_of_several_devices_are_averaged_and_no_pair_is_of_two_devices() -> None:
    devices: list[list[str]] = [[], [], ["learner.num_gpus=0.3"]]
    found = [kept("none", seed, 0.1) | {"set": devices[seed]} for seed in (0, 1, 2)]
    found += [kept("top_p", seed, 0.1 * seed) | {"set": devices[seed]} for seed in (0, 1, 2)]
    mixed = "seeds [0, 1, 2], pairs with other settings among them: success, top_p minus none +0.000 ["
    assert mixed in compared(found)[0]
    found[-1]["set"] = []
    assert "seeds [0, 1]: success" in compared(found)[0]


def committed() -> list[real_model.Kept]:
    return tables.read_as(RESULTS, of_content)


def test_a_measurement_is_kept_with_the_step_that_it_describes() -> None:
    late = 0
    for one in committed():
        rows = one["rows"]
        assert all("scored_step" in row for row in rows if "judge" in row), one["name"]
        assert all("probe_step" in row for row in rows if "probe_mi" in row), one["name"]
        late += sum(row["scored_step"] < row["step"] for row in rows if "scored_step" in row)
    assert late, "some are recorded later"


def test_the_page_shows_the_first_and_the_last_reasonings_side_by_side_and_is_fresh(tmp_path, monkeypatch) -> None:
    assert "| Numbers: 1, 2 | 1 &#124; 2 &lt;b&gt; | cut | last |" in markdown([kept()])
    found = committed()
    assert real_model.PAGE.read_text() == markdown(found), "python -m research.real_model --write"
    monkeypatch.setattr(real_model, "PAGE", tmp_path / "page.md")
    assert real_model.main(["--write"]) == 0 and (tmp_path / "page.md").read_text() == markdown(found)


def test_a_damaged_run_is_named(capsys, monkeypatch, tmp_path) -> None:
    tables.add(tmp_path / "t.parquet", [content(kept()) | {"tables": {}}])
    monkeypatch.setattr(real_model, "RESULTS", tmp_path / "t.parquet")
    with pytest.raises(SystemExit) as ended:
        real_model.main([])
    assert ended.value.code == 2 and "countdown-top_p_s0 is no condensed run" in capsys.readouterr().err


def test_a_run_without_signal_is_compared_by_its_last_validation_and_reported() -> None:
    early = kept("top_p") | {"ended": "no_signal", "steps": 36, "planned": 60}
    early["success"] = {"before": {"success": 0.1, "step": 0.0}}
    lines = compared([kept("none", after=0.25), early])
    assert lines[0].endswith("success, top_p minus none -0.150")
    early["rows"] = early["rows"][:2]
    lines = compared([kept("none"), early])
    assert not any("probe MI" in line or "H(Z|X)" in line for line in lines), "measured once: before training"
    (told,) = early_ends([early])
    assert "after step 36 of 60" in told and "of step 0, counts" in told


def test_a_run_whose_validation_tasks_failed_says_so_under_the_table() -> None:
    assert "- countdown-top_p_s0: 9 tasks failed" in markdown([kept() | {"note": "9 tasks failed"}])
    assert "countdown-top_p_s0: " not in markdown([kept() | {"note": ""}])


DEVICES = {
    *("learner.num_gpus", "rollout.num_gpus", "scorer.num_gpus", "rollout.gpu_memory_utilization"),
    *("rollout.kv_cache_gib", "rollout.enforce_eager", "learner.activation_checkpointing"),
}


def test_the_committed_runs_were_made_with_other_types_of_numbers_and_devices_at_most() -> None:
    for one in committed():
        keys = {word.partition("=")[0] for word in one["set"] if changes_learning(word)}
        types = {"learner.dtype", "rollout.dtype", "scorer.dtype", "rollout.parity_bound"}
        assert keys <= types | DEVICES, one["name"]
