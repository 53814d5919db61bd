"""The study of another model as the scorer: its table and its verdict."""

from typing import Any

import numpy as np
import pytest

from research import other_scorer, tables
from research.other_scorer import Scored, judged, scored


def drawn(strength: float, family: str, seed: int) -> Scored:
    """A cell whose own prompts score `strength` nats above the others."""
    own = np.array([0, 1, 2, 3, 4, 5, 6, 7, 0, 1])
    matrix = np.random.default_rng(seed).normal(size=(10, 8)) - 40
    matrix[np.arange(10), own] += strength
    return Scored(f"{family}-{strength}", family, strength, matrix, own)


def content(name: str, one: Scored) -> dict[str, Any]:
    """A cell as the table keeps it."""
    scores = {"step": list(range(len(one.own))), "own": one.own.tolist()}
    scores |= {f"under.{j}": column for j, column in enumerate(one.matrix.T.tolist())}
    labels = {"part": "countdown", "recipe": "r", "arm": "a", "seed": 0}
    return {"name": name, **labels, "family": one.family, "mi": one.mi, "tables": {"scores": scores}}


def test_a_table_whose_scores_follow_the_mi_ranks_the_policies(tmp_path, monkeypatch) -> None:
    strengths = [*np.linspace(3.1, 6, 14), *np.linspace(1.1, 2.9, 3), *np.linspace(0, 0.5, 5)]
    made = [drawn(strength, f"f{k % 4}", k) for k, strength in enumerate(strengths)]
    monkeypatch.setattr(other_scorer, "RESULTS", tmp_path / "results.parquet")
    tables.add(tmp_path / "results.parquet", [content(f"cell-{k}", one) for k, one in enumerate(made)])
    again = sorted(tables.read_as(tmp_path / "results.parquet", scored), key=lambda one: one.mi)
    assert again[-1].matrix == pytest.approx(made[13].matrix) and again[-1].own.tolist() == made[13].own.tolist()
    found = other_scorer.report().metrics
    assert found["ranks"] and 0.7 < found["spearman_low"] < found["spearman"] <= 1 and found["pairs"] == 1
    assert found["significant_healthy"] > 0.9 and found["significant_ruined"] < 0.5
    assert "**The bound ranks these policies.**" in other_scorer.said(found)


def test_the_committed_cells_are_those_of_eight_families_ruined_and_healthy_ones() -> None:
    found = tables.read_as(other_scorer.RESULTS, scored)
    assert len({cell.name for cell in found}) == len(found) == 22 and len({cell.family for cell in found}) == 8
    assert {cell.matrix.shape for cell in found} == {(10, 8), (9, 8)}, "one reasoning is empty"
    assert sum(cell.mi < other_scorer.RUINED for cell in found) == 5
    assert sum(cell.mi > other_scorer.HEALTHY for cell in found) == 14


def test_a_cells_scale_is_fitted_on_other_families_alone() -> None:
    one, other = drawn(3.0, "a", 0), drawn(3.0, "b", 1)
    wild = Scored("b", "b", 3.0, -other.matrix, other.own)
    (_, first, _), (_, second, _) = judged([one, other])
    (_, changed, _), (_, kept, _) = judged([one, wild])
    assert changed.scale != first.scale and kept.scale == second.scale


def test_the_page_is_what_the_command_writes(tmp_path, monkeypatch) -> None:
    page = other_scorer.PAGES / "other-scorer.md"
    monkeypatch.setattr(other_scorer, "PAGES", tmp_path)
    other_scorer.report().write()
    assert (tmp_path / "other-scorer.md").read_text() == page.read_text()
