"""A figure is drawn exactly if the runs can fill it, and its numbers are right."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.cluster.report import by_kind_and_turn, mechanism, outcomes
from squelch.cluster.report.figures import FIGURES
from squelch.cluster.report.page import make_report
from squelch.cluster.report.runs import Study, study_of
from squelch.cluster.runs.by_kind_and_turn import MOST_PARTS
from tests.cluster.report.synthetic import Made
from tests.cluster.report.test_runs import a_run


def study(*made: Made) -> Study:
    return study_of([a_run(one) for one in made])


def made_runs() -> st.SearchStrategy[list[Made]]:
    one = st.builds(
        Made,
        name=st.uuids().map(str),
        seed=st.integers(0, 2),
        rule=st.sampled_from(("none", "top_p")),
        slip=st.sampled_from((0.02, 0.5)),
        steps=st.just(6),
        scored_every=st.sampled_from((0, 3)),
        validated_every=st.sampled_from((0, 3)),
        gradients_every=st.sampled_from((0, 3)),
        bands=st.booleans(),
        turns=st.sampled_from((1, 3)),
        kinds=st.sampled_from(((), ("2 moves",), ("2 moves", "10 moves"))),
    )
    return st.lists(one, min_size=1, max_size=4)


def fillable(runs: list[Made]) -> set[str]:
    """The figures that these runs can fill, worked out from what each records."""
    counted = {(m.rule, m.slip, m.seed): m for m in reversed(runs)}  # of two runs with one seed the first counts
    kept = list(counted.values())
    scored, validated = [m for m in kept if m.scored_every], [m for m in kept if m.validated_every]
    found = {"length"}
    found |= {"dynamics", "format"} if scored else set()
    found |= {"selection"} if any(m.rule != "none" for m in kept) else set()
    found |= {"phases"} if any(m.bands for m in kept) else set()
    found |= {"where"} if any(m.turns > 1 or len(m.kinds) > 1 for m in kept) else set()
    found |= {"gradients"} if any(m.gradients_every for m in kept) else set()
    arms = {(m.rule, m.slip) for m in kept}
    by_filter = {slip for _, slip in arms if {("none", slip), ("top_p", slip)} <= arms}
    found |= {"filtering"} if any(m.slip in by_filter for m in validated) else set()
    by_noise = {rule for rule, _ in arms if {(rule, 0.02), (rule, 0.5)} <= arms}
    found |= {"noise"} if any(m.rule in by_noise for m in validated) else set()
    both = {(m.rule, m.slip) for m in scored} & {(m.rule, m.slip) for m in validated}
    found |= {"plane"} if any(slip in by_filter for _, slip in both) else set()
    return found


@settings(max_examples=60, deadline=None)
@given(made_runs())
def test_a_figure_has_rows_exactly_if_the_runs_can_fill_it(runs: list[Made]) -> None:
    own = study(*runs)
    assert {figure.name for figure in FIGURES if figure.rows(own)} == fillable(runs)


@settings(max_examples=15, deadline=None)
@given(made_runs())
def test_a_report_shows_each_figure_or_says_what_it_needs(runs: list[Made]) -> None:
    undrawn = [dataclasses.replace(figure, draw=lambda rows, study: None) for figure in FIGURES]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("squelch.cluster.report.page.FIGURES", undrawn)
        patch.setattr("squelch.cluster.report.figures.render", lambda name, *_: f'<svg class="{name}"></svg>')
        report = make_report(study(*runs), "report-data")
    assert {figure.name for figure in report.drawn} == fillable(runs)
    for figure in FIGURES:
        shown = f'<svg class="{figure.name}">' in report.html
        assert shown == (f"{figure.name}.csv" in report.data) == (f"It needs {figure.needs}" not in report.html)


def test_a_collapse_of_late_turns_and_of_hard_kinds_shows_where_it_is() -> None:
    rows = by_kind_and_turn.where(study(Made("a", rule="none"), Made("b", 1, rule="none")))
    ends = {(row["by"], row["figure"], row["part"]): row["mean"] for row in rows}
    assert ends["turn", "success", "3"] < 0.1 * ends["turn", "success", "1"] < 0.1
    assert ends["kind", "success", "10 moves"] < 0.3 * ends["kind", "success", "2 moves"]
    assert list(dict.fromkeys(row["part"] for row in rows if row["by"] == "kind")) == ["2 moves", "10 moves"]
    assert {row["figure"] for row in rows} == {"MI", "kept", "success"} and {row["runs"] for row in rows} == {2}


def test_of_many_parts_those_from_the_first_to_the_last_are_drawn_and_a_runs_file_has_no_say_in_how_many() -> None:
    kinds = tuple(f"{moves} moves" for moves in range(40))
    own = study(Made("a", steps=6, turns=1, kinds=kinds))
    rows = by_kind_and_turn.where(own)
    assert len({row["part"] for row in rows}) == MOST_PARTS
    (svg,) = (figure.svg(rows, own) for figure in FIGURES if figure.name == "where")
    assert [f">{moves} moves<" in svg for moves in (0, 6, 11, 12, 17, 23)].count(True) == by_kind_and_turn.MOST_LINES
    assert ">0 moves<" in svg and ">23 moves<" in svg and "by kind" in svg and "by turn" not in svg


def test_a_run_of_one_turn_and_one_kind_has_a_report_without_parts() -> None:
    """One run, and several of which one has a second turn."""
    one, two = Made("a", turns=1, kinds=("words",)), Made("b", 1, turns=2, kinds=("words",))
    assert by_kind_and_turn.where(study(one)) == []
    own = study(one, two)
    rows = by_kind_and_turn.where(own)
    assert {row["by"] for row in rows} == {"turn"} and {row["part"] for row in rows} == {"1", "2"}
    assert "by turn" in next(figure.svg(rows, own) for figure in FIGURES if figure.name == "where")


def many(count: int, **others: object) -> list[Made]:
    return [Made(f"r{i}", i, steps=30, **others) for i in range(count)]


def test_correlations_need_eight_runs_of_one_environment() -> None:
    assert outcomes.correlations(study(*many(7), Made("other", 9, environment="Sokoban", steps=30))) == []
    rows = outcomes.correlations(study(*many(8)))
    assert rows and {row["runs"] for row in rows} == {8}
    assert all(-1 <= row["low"] <= row["high"] <= 1 for row in rows)


def test_a_correlation_takes_one_pair_a_run_at_the_last_validation() -> None:
    own = study(*many(9, validated_every=10, scored_every=4))
    for run in own.runs:
        value, success = outcomes.at_last_evaluation(run, "first_turn/mi_est")
        assert success == run.series("validation/success")[30]
        assert value == run.series("first_turn/mi_est")[28]


def test_an_interval_of_resampled_runs_holds_the_correlation_and_narrows_with_runs() -> None:
    rng = np.random.default_rng(1)
    widths = []
    for count in (10, 40):
        x = rng.normal(size=count)
        pairs = np.stack([x, x + rng.normal(size=count)], axis=1)
        low, high = outcomes.resampled(pairs)
        assert low < outcomes.spearman(pairs[:, 0], pairs[:, 1]) < high
        widths.append(high - low)
    assert widths[1] < widths[0]
    line = np.arange(12.0)
    assert outcomes.resampled(np.stack([line, line**3], axis=1)) == (pytest.approx(1), pytest.approx(1))


def test_resampled_correlations_are_spearmans_of_the_drawn_runs() -> None:
    pairs = np.array([[0, 1.0], [1, 0.5], [1, 3.0], [2, 3.0], [5, 2.0]])
    counts = np.array([[1, 1, 1, 1, 1], [2, 0, 1, 2, 0]])
    a, b = (outcomes._ranks_in_draws(column, counts) for column in pairs.T)
    found = (counts * a * b).sum(1) / np.sqrt((counts * a * a).sum(1) * (counts * b * b).sum(1))
    drawn = [np.repeat(pairs, row, axis=0) for row in counts]
    assert found == pytest.approx([outcomes.spearman(own[:, 0], own[:, 1]) for own in drawn])


def test_phases_are_thirds_whose_shares_sum_to_one() -> None:
    rows = mechanism.phases(study(Made("a", steps=30), Made("b", 1, steps=30)))
    assert [row["phase"] for row in rows] == list(mechanism.PHASES)
    assert all(sum(row[band] for band in mechanism.BANDS) == pytest.approx(1) for row in rows)
    failing = [row["tasks_all_fail"] for row in rows]
    assert failing == sorted(failing, reverse=True)


def test_gradients_average_over_a_runs_decompositions() -> None:
    rows = mechanism.gradients(study(Made("a", steps=12, gradients_every=4)))
    run = a_run(Made("a", steps=12, gradients_every=4))
    values = run.series("gradients/q3/task").values()
    (row,) = [row for row in rows if (row["bucket"], row["part"]) == (3, "task")]
    assert len(values) == 3 and row["mean"] == pytest.approx(sum(values) / 3)


def test_the_plane_leads_from_the_beginning_to_the_end() -> None:
    rows = mechanism.plane(study(Made("a", rule="none", steps=60), Made("b", rule="top_p", steps=60)))
    mi = {(row["arm"], row["end"]): row[mechanism.MI] for row in rows}
    assert mi["no filter", "last"] < mi["top_p 0.9", "last"] < mi["no filter", "first"] + 0.02


def test_many_arms_are_compared_with_the_first_one_by_one() -> None:
    from squelch.cluster.report.compare import comparisons

    made = [Made(f"{e}-{k}", rule="top_p" if e else "none", entropy=e, kl=k) for e in (0, 1, 2) for k in (0, 1)]
    shown = comparisons(study(*made))
    assert len(shown) == 5 and {len(c.arms) for c in shown} == {2} and len({c.arms[0] for c in shown}) == 1
    assert [len(c.arms) for c in comparisons(study(*made[:3]))] == [3]


def test_every_figure_of_the_table_has_a_name_a_number_and_a_reason_of_its_own() -> None:
    numbers = [figure.number for figure in FIGURES if figure.number is not None]
    assert sorted(numbers) == [3, 5, 6, 7, 8, 9, 10, 11, 12, 13] and len(numbers) == len(FIGURES) - 1
    assert len({figure.name for figure in FIGURES}) == len({figure.needs for figure in FIGURES}) == len(FIGURES)
