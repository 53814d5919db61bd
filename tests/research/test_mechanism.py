"""The closed study of the mechanism: contrasts pair the seeds, and its page is that of the committed runs."""

from __future__ import annotations

import pytest

from research import mechanism
from research.kept import ACTIONS, DEPENDENCE, SHARE, Kept
from research.mechanism import ARMS, CONTRASTS, SEEDS, arm_cells, arm_row, by_arm, judged, markdown, pilot_rows

INTERACTION, OF_STD, *_ = CONTRASTS


def ended(arm: str, seed: int, success: float, before: float = 0.4) -> Kept:
    validated = {"step": [0, 90], "validation/success": [before, success]}
    blocks = {"step": [10, 20], "kept_fraction": [0.5, 1.0], "dropped_with_variance": [0.25, None]}
    steps = {"step": [1, 90], ACTIONS: [7.0, 10 * success]}
    probe = {"step": [0, 90], DEPENDENCE: [1.0, 5 * success], SHARE: [0.5, 0.6]}
    tables = {"validated": validated, "blocks": blocks, "steps": steps, "probe": probe}
    return Kept("n", "divisor", "sokoban", arm, seed, 90, tables, {})


def runs_of(success: dict[str, float]) -> list[Kept]:
    """Runs whose level differs between seeds, and an arm's distance from the level hardly."""
    return [ended(arm, s, at + 0.1 * (s - 10) + 0.01 * (s % 2)) for arm, at in success.items() for s in SEEDS]


def test_contrasts_pair_the_seeds_in_every_measure() -> None:
    runs = runs_of({"std_top_p": 0.4, "std_none": 0.2, "window_top_p": 0.45, "window_none": 0.4})
    found = judged(INTERACTION, by_arm(runs))
    assert found["seeds"] == 3 and found["differences"]["success"]["mean"] == pytest.approx(0.15)
    assert [one["mean"] for one in found["differences"].values()] == pytest.approx([0.15, 1.5, 0.75, 0])
    assert judged(OF_STD, by_arm(runs[:-7]))["seeds"] == 2, "the seeds that have both arms"


def test_the_page_counts_what_was_done_and_other_warm_ups() -> None:
    runs = [*runs_of({"std_none": 0.5}), *(ended("std_top_p", s, 0.3, 0.4 if s > 10 else 0.3) for s in SEEDS)]
    assert judged(OF_STD, by_arm(runs))["note"].endswith("same weights: 1")
    page = markdown(runs)
    assert "same weights: 1\n" in page and "closed with 6 of its 45 planned runs" in page
    assert arm_cells(arm_row("std_none", by_arm(runs)["std_none"]))[-2:] == [
        "0.750 [0.750, 0.750]",
        "0.250 [0.250, 0.250]",
    ]
    assert all(f"| `{arm}` |" in page for arm in ARMS)


def test_the_rate_is_the_largest_at_which_the_pilot_ends_near_its_best() -> None:
    (fast, *fast_success), (slow, *slow_success) = pilot_rows()
    assert (fast, slow) == ("0.0002", "0.0001")
    lost = [float(best) - float(last) for last, best in (fast_success, slow_success)]
    assert lost[0] > 0.05 >= lost[1]


def test_the_page_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(mechanism, "PAGE", tmp_path / "mechanism.md")
    assert mechanism.main(["--write"]) == 0 and (tmp_path / "mechanism.md").read_text() == mechanism.written()


def test_the_page_is_fresh() -> None:
    assert mechanism.PAGE.read_text() == mechanism.written(), "python -m research.mechanism --write"
