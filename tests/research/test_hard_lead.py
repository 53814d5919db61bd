"""Which falls first: falls and leads of series whose course is known."""

from __future__ import annotations

import pytest

from research import hard_lead, tables
from research.hard_lead import HARD, MI, SEEDS, fall
from research.judging import PAGES
from squelch.cluster.sweep.table import text


@pytest.mark.parametrize(
    ("series", "at"),
    [
        ({0: 2.0, 4: 2.0, 8: 1.0, 12: 0.5}, 6.0),
        ({0: 2.0, 4: 1.0, 8: 2.0, 12: 1.0}, 10.0),
        ({0: 2.0, 4: 1.0, 8: 1.6}, None),
        ({0: 2.0, 4: 2.4}, None),
        ({0: -0.1, 4: -1.0}, None),
        ({}, None),
    ],
)
def test_a_series_falls_where_it_comes_down_for_good(series: dict[int, float], at: float | None) -> None:
    assert fall(series) == at


def content(arm: str, seed: int, mi: list[float], hard: list[float]) -> dict:
    probe = {"step": [0, 20, 40], MI: mi, HARD: hard}
    labels = {"name": f"{arm}_s{seed}", "part": arm, "recipe": "frozenlake", "arm": arm, "seed": seed}
    found = {"probe": probe, "validated": {"step": [40], "validation/success": [0.5]}}
    return {**labels, "set": [], "steps": 40, "tables": found, "groups": {}}


def test_the_lead_is_judged_over_the_seeds_in_which_both_fall(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(hard_lead, "RESULTS", tmp_path / "t.parquet")
    early = [content("collapse", seed, [2.0, 1.6, 1.0], [0.8, 0.4 + seed / 100, 0.2]) for seed in SEEDS[:-1]]
    tables.add(tmp_path / "t.parquet", [*early, content("collapse", SEEDS[-1], [2.0, 1.8, 1.9], [0.8, 0.4, 0.2])])
    ahead, rises = hard_lead.report().metrics["claims"]
    assert ahead["verdict"] == "4 of 5 seeds" and ahead["difference"]["mean"] > 10 and rises["runs"] == 0
    tables.add(tmp_path / "t.parquet", [content("collapse", SEEDS[-1], [2.0, 1.6, 1.0], [0.8, 0.4, 0.2])])
    tables.add(tmp_path / "t.parquet", [content("healthy", seed, [2.0, 2.5, 2.8], [0.8, 0.8, 0.7]) for seed in SEEDS])
    ahead, rises = hard_lead.report().metrics["claims"]
    assert ahead["verdict"] == "holds, 5 of 5 seeds" and rises["verdict"] == "fails, 5 of 5 seeds"


def test_the_page_has_every_run_and_both_verdicts() -> None:
    found, page = hard_lead.report(), " ".join((PAGES / "alarms.md").read_text(encoding="utf-8").split())
    told = [text(claim["difference"], "+") for claim in found.metrics["claims"]]
    told += [claim["verdict"] for claim in found.metrics["claims"]]
    told += [f"| {' | '.join(row)} |" for row in found.rows]
    assert found.rows and not [part for part in told if part not in page], "python -m research.hard_lead"
