"""The table of bias and coverage: what counts as held, and what the page says of it."""

import pytest

from research import known_links
from research.known_links import coverage, judged
from research.known_page import LINKS, links_table, missed, pooled, read_rows


def test_a_share_is_outside_only_if_its_wilson_interval_is():
    assert judged(380, 400) == "in" and judged(400, 400) == "above" and judged(300, 400) == "below"
    assert judged(39, 40) == "in", "40 readings cannot tell 0.975 from the band"


def test_bias_is_from_the_truth_and_a_form_without_one_is_compared_with_its_own_mean():
    draws = [(1.0, 0.5, 1.5), (2.0, 1.5, 2.5)]
    row = coverage("MI", "weak", (8, 2), draws, 1.25)
    assert row["bias"] == 0.25 and row["covers"] == 0.5 and row["half_width"] == 0.5
    assert coverage("MI", "weak", (8, 2), draws, None)["bias"] == 0.0
    assert coverage("MI", "weak", (8, 2), [(0.0, 0.0, 0.0)] * 2, 0.0)["verdict"] == "exact"


def test_exact_rows_do_not_count_in_the_pooled_share():
    rows = [coverage("D", "both", (8, 2), [(1.0, 0.5, 1.5)] * 3 + [(3.0, 2.5, 3.5)], 1.0)]
    rows.append(coverage("D", "decorative", (8, 2), [(0.0, 0.0, 0.0)] * 4, 0.0))
    (found,) = pooled(rows)
    assert found["covers"] == 0.75 and found["draws"] == 4 and found["verdict"] == "below"


def test_the_page_names_the_rows_outside_the_band_and_marks_shares_outside():
    assert (
        missed(read_rows(LINKS)).startswith("D, `compressed`, N = 8, K = 2 or 4: 0.8")
        and missed([]) == "none is outside"
    )
    low = coverage("D", "both", (8, 2), [(1.0, 0.5, 1.5)] * 3 + [(3.0, 2.5, 3.5)], 1.0)
    assert links_table([low]).splitlines()[-1] == "| D | **0.750** |" and "**" not in links_table(read_rows(LINKS))


def test_the_committed_intervals_hold_where_they_must():
    rows = read_rows(LINKS)
    assert {row["estimate"] for row in pooled(rows)} >= {"MI", "I_hard", "D", "X past Z", "I(A;Z|X)", "both forms"}
    assert min(row["tasks"] for row in rows) >= 8
    assert {row["samples"] for row in rows} == {2, 4, 8, "2 or 4"}
    assert {row["verdict"] for row in pooled(rows)} == {"in"}
    missed = [row for row in rows if row["verdict"] not in ("in", "exact")]
    known = [(row["estimate"], row["channel"], row["tasks"], row["samples"]) for row in missed]
    assert known == [("D", "compressed", 8, "2 or 4")] and missed[0]["covers"] > 0.85, "docs/guide/probe.md says so"


@pytest.mark.slow
def test_a_small_measurement_has_a_row_for_each_estimate(monkeypatch):
    monkeypatch.setattr(known_links, "SIZES", ((8, 2),))
    rows = known_links.measure(4)
    assert len(rows) == 3 * 2 + 3 + 4 * 5 * 2 and all(row["draws"] == 4 for row in rows)
