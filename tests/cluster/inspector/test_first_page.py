"""The first page: the verdict, the course with its marks, the small matrices and the next step."""

import html
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from squelch.cluster.inspector import overview
from squelch.cluster.inspector.course import KEYS, MOST_POINTS, mark, marks, plot, plots
from squelch.cluster.inspector.matrices import judged
from squelch.cluster.inspector.overview import REGIME_WORDS
from squelch.cluster.inspector.run_metrics import RunMetrics
from squelch.cluster.inspector.small_matrices import LEVELS, MOST_CELLS, by_prompt, small, spaced
from squelch.cluster.runs.folder import RunFolder
from squelch.kit.archive.writer import Archive
from squelch.kit.diagnosis.metrics import REGIMES
from squelch.kit.findings.finder import Evidence, Finding
from squelch.kit.findings.view import Example
from squelch.kit.findings.words import plain
from tests.cluster.inspector.falling_run import FALLS, faded, falling_run, scored
from tests.cluster.inspector.small_run import HOSTILE, matrix, small_run

Opener = Callable[[Path], TestClient]


@pytest.fixture(scope="module")
def falling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return falling_run(tmp_path_factory.mktemp("falls") / "falling")


def verdict_of(text: str) -> str:
    return " ".join(re.findall(r'<h1 class="verdict[^>]*>(.*?)</h1>', text, re.DOTALL)[0].split())


def test_the_first_page_says_in_a_sentence_what_is_wrong_although_success_rises(
    falling: Path, open_run: Opener
) -> None:
    text = html.unescape(open_run(falling).get("/").text)
    assert verdict_of(text) == (
        "At step 40 of 40: training success went from 0.06 to 0.15, but the answer ignores the reasoning: the own "
        "reasoning removes 4% of the answer's surprise (D 0.04 nats) (found at step 20)."
    )
    assert "the answer does not follow from the reasoning: D 0.04" in text and 'class="verdict bad"' in text
    command = re.findall(r'<section class="next">.*?<pre>(.*?)</pre>', text, re.DOTALL)[0]
    assert (
        command.startswith("squelch train ")
        and command.split()[3] == "name=falling-again"
        and "=" in command.split()[4]
    )


def test_a_finding_about_success_says_it_alone(tmp_path: Path, open_run: Opener) -> None:
    folder = small_run(tmp_path / "told", 3)
    tell(folder, replace(FOUND, name="success_collapsed", says="Validation success has collapsed"))
    verdict = verdict_of(open_run(folder).get("/").text)
    assert verdict == "At step 3 of 9: validation success has collapsed (found at step 2)."


def test_an_alarm_is_the_verdict_where_no_finding_holds(falling: Path, open_run: Opener, tmp_path: Path) -> None:
    folder = shutil.copytree(falling, tmp_path / "falling")
    tell(folder)
    text = open_run(folder).get("/").text
    assert verdict_of(text).endswith(
        "but an alarm is raised: input dependence falling since step 15, reward still rising."
    )
    assert f"squelch watch {folder}" in text


def test_a_run_without_a_scorer_step_is_not_called_good(tmp_path: Path, open_run: Opener) -> None:
    folder = small_run(tmp_path / "new", 3)
    tell(folder)
    text = open_run(folder).get("/").text
    assert verdict_of(text).endswith("but no scorer step has judged its reasoning yet.")
    assert 'class="verdict "' in text and "nothing is wrong with it so far" in text


@pytest.mark.parametrize("regime", REGIMES)
def test_every_regime_is_said_in_words(regime: str, tmp_path: Path, open_run: Opener) -> None:
    folder = small_run(tmp_path / "new", 3)
    Archive(folder).metrics(3, {"scorer/step": 3.0, f"first_turn/regime/{regime}": 1.0})
    tell(folder)
    text = open_run(folder).get("/").text
    assert REGIME_WORDS[regime] in html.unescape(verdict_of(text))
    healthy = {"used": "good"} | dict.fromkeys(("unmarked", "unknown"), "")
    assert f'class="verdict {healthy.get(regime, "bad")}"' in text
    styled = (Path(overview.__file__).parent / "static" / "inspector.css").read_text()
    assert all(f".{one}" in re.findall(r"\.regime:is\((.*?)\)", styled)[0] for one in overview.BAD)


def tell(folder: Path, *found: Finding) -> None:
    """Writes the findings that hold."""
    told = [plain(one, f"squelch train c.yaml {HOSTILE}") for one in found]
    (folder / "findings.json").write_text(json.dumps({"findings": told}))


FOUND = Finding(
    "reasoning_ignores_prompt", "critical", 2, 3, f"The reasoning ignores its prompt {HOSTILE}",
    (Evidence("first_turn/mi_seq_est", 0.1, -0.1, 0.3),),
    (Example("000002-001 2", HOSTILE), Example("javascript:1", "x")),
)  # fmt: skip


def test_findings_that_hold_stand_with_evidence_example_and_command_and_one_that_ended_with_its_steps(
    tmp_path: Path, open_run: Opener
) -> None:
    folder = small_run(tmp_path / "told", 3)
    tell(folder, FOUND, replace(FOUND, name="entropy_falls", severity="notice", since=1, says="Entropy falls"))
    archive = Archive(folder)
    for kind, step in (("began", 1), ("ended", 2), ("ended", 2)):
        facts = {"finding": "kl_high", "severity": "<b>", "change": kind, "since": 1, "text": "KL is high"}
        archive.event("findings", "finding", 1.0, 1.0, step=step, **facts)
    archive.close()
    text = open_run(folder).get("/").text
    listed = text[text.index('id="found"') :]
    assert verdict_of(text).startswith(
        "At step 3 of 9: training success went from 0.10 to 0.30, but the reasoning ignores its"
    )
    assert re.findall(r'<li class="(\w+)"', listed) == ["critical", "notice", "notice"]
    assert "from step 1, ended at step 2" in listed and listed.count("KL is high") == 1
    assert "first_turn/mi_seq_est 0.1 [-0.1, 0.3]" in listed and "squelch train c.yaml &lt;script&gt;" in listed
    assert '<a href="group?step=2&amp;group=000002-001#t2">000002-001 2</a>' in listed and "javascript:1 x" in listed
    assert text.count('<line class="mark critical" x1="50.00%"') == 2 and "<script>window" not in text
    line = text[text.index('id="status-line"') : text.index("</section>")]
    assert re.search(
        r'<a class="alarm" hx-boost="false" href="\./#found" title="[^"]*">critical: The reasoning ignores its prompt',
        line,
    )


def test_a_damaged_file_of_findings_is_named(tmp_path: Path, open_run: Opener) -> None:
    folder = small_run(tmp_path / "bad", 2)
    (folder / "findings.json").write_text('{"findings": [{"name": "kl_high", "severity": 3}]}')
    answer = open_run(folder).get("/")
    assert answer.status_code == 422 and "findings.json" in answer.text


def test_an_alarm_stands_in_the_list_and_at_its_step_on_every_curve_and_its_sentence_leads_to_the_matrix(
    falling: Path, open_run: Opener
) -> None:
    text = open_run(falling).get("/").text
    at = 100 * (FALLS + 10 - 1) / 39
    assert text.count(f'<line class="mark alarm" x1="{at:.2f}%"') == 3, "success, MI and D"
    assert text.count('<line class="mark checkpoint"') == 3 * 3
    (sentence,) = re.findall(r'<a data-open href="scores\?step=25">(input dependence[^<]*)</a>', text)
    assert sentence.endswith(f"checkpoints/step-{FALLS} is kept")
    assert (
        'aria-label="MI: does the reasoning depend on its prompt?, nats per token: first turn from 0.3 to 0.02' in text
    )


def test_the_small_matrices_are_those_of_some_scored_steps_with_regime_and_chance(
    falling: Path, open_run: Opener
) -> None:
    text = " ".join(open_run(falling).get("/").text.split())
    assert re.findall(r'<a href="scores\?step=(\d+)"> <svg', text) == [str(step) for step in range(5, 41, 5)]
    assert "<b>step 15</b> used<br>" in text and "<b>step 40</b> unused<br>" in text
    assert "100% own, chance 8%" in text


def test_a_bright_diagonal_fades_to_flat() -> None:
    bright, flat = small(1, faded(1, 9.0)), small(2, faded(2, 0.0))
    assert bright.paths[LEVELS - 1].count("M") == 12, "the diagonal alone"
    assert not any(flat.paths[LEVELS // 2 + 2 :]), "no cell is bright"
    assert bright.found == 1.0 and flat.found < 0.4 and bright.chance == pytest.approx(1 / 12)


def test_many_prompts_share_cells_and_flat_stays_flat() -> None:
    shares, source = np.full((300, 100), 0.01), np.repeat(np.arange(100), 3)
    np.testing.assert_allclose(by_prompt(shares, source).sum(axis=1), 1.0)
    assert np.ptp(by_prompt(shares, source)) < 0.011, "cells of four prompts, and of five"
    own = (source[:, None] == np.arange(100)).astype(float)
    assert np.diag(by_prompt(own, source)).min() == pytest.approx(1.0)
    own[0] = np.nan
    assert np.isfinite(by_prompt(own, source)).all()
    assert small(1, matrix(1, 100)).size == MOST_CELLS


def test_the_first_and_the_last_scored_step_are_among_those_shown() -> None:
    assert spaced([]) == [] and spaced([7]) == [7] and spaced([1, 2, 3]) == [1, 2, 3]
    assert spaced(list(range(10, 1001, 10)))[::7] == [10, 1000]


def columns_of(steps: np.ndarray, **own: np.ndarray) -> dict[str, np.ndarray]:
    """`own` under their keys, with `/` for `__`; no value of any other column."""
    unknown = dict.fromkeys(KEYS, np.full(len(steps), np.nan))
    return unknown | {"step": steps} | {key.replace("__", "/"): values for key, values in own.items()}


def test_a_long_course_is_thinned_and_a_constant_is_drawn() -> None:
    steps = np.arange(1.0, 5001.0)
    found = plot("Success", "share", columns_of(steps, success=steps / 5000), [("training", "line", "success")], True)
    assert found is not None and found.curves[0].points.count(" ") == 2 * MOST_POINTS - 1
    assert (found.curves[0].first, found.curves[0].last, found.high) == (1 / 5000, 1.0, 1.0)
    wanted = [("first turn", "line", "first_turn/mi_est"), ("null", "reference", "first_turn/mi_est_null_95")]
    still = plot("MI", "nats", columns_of(steps[:3], first_turn__mi_est=np.zeros(3)), wanted)
    assert still is not None and "nan" not in still.curves[0].points and len(still.curves) == 1
    assert plot("MI", "nats", columns_of(steps[:3], first_turn__mi_est_null_95=np.ones(3)), wanted) is None


def test_notes_of_one_step_are_one_mark_with_all_numbers_and_the_kind_of_the_first() -> None:
    found = marks([("critical", 20, 1), ("warning", 5, 2), ("warning", 40, 3), ("alarm", 40, 4)], (0, 40))
    assert [(one.kind, one.step, one.text) for one in found] == [
        ("critical", 20, "1"),
        ("warning", 5, "2"),
        ("warning", 40, "3, 4"),
    ]


def test_the_reward_is_drawn_where_a_finding_speaks_of_it() -> None:
    columns = columns_of(np.arange(3.0), success=np.array([0.5, 0.2, 0.1]), reward_mean=np.array([0.0, 0.4, 0.8]))
    assert [one.title for one in plots(columns)] == ["Success"]
    assert [(one.title, one.high) for one in plots(columns, reward=True)] == [("Success", 0.5), ("Reward", 0.8)]


def test_a_value_stands_at_the_step_that_it_describes(tmp_path: Path) -> None:
    """Step 1 was scored while step 2 was trained, and step 3 while it was recorded."""
    folder = small_run(tmp_path / "late", 0)
    archive = Archive(folder)
    for step, late in ((1, {}), (2, {"first_turn/mi_est": 0.5, "scorer/step": 1}), (3, {"first_turn/mi_est": 1.0})):
        archive.metrics(step, {"success": (step - 1) / 2, **late})
    archive.close()
    metrics = RunMetrics(RunFolder(folder))
    metrics.refresh()
    success, mi = plots(dict(zip(KEYS, metrics.table(KEYS).T, strict=True)))
    assert success.curves[0].points == "M0 1000 500 500 1000 0"
    assert mi.curves[0].points == "M0 500 1000 0" and mi.curves[0].now == 3


def test_marks_lie_within_the_axis() -> None:
    assert mark("alarm", 99, (1, 1)).at == 100.0 and mark("alarm", 0, (1, 9)).at == 0.0


def test_hostile_alarms_are_escaped_bounded_and_marked_nowhere_without_a_step(tmp_path: Path, open_run: Opener) -> None:
    folder = small_run(tmp_path / "hostile", 1)
    tell(folder)
    archive = Archive(folder)
    for step in (None, "1", True, 10**12):
        archive.event("scorer", "probe_falling", 1.0, 1.0, step=step, text="nowhere")
    for _ in range(100):
        archive.event("scorer", "probe_falling", 1.0, 1.0, step=1, text=HOSTILE)
    archive.close()
    text = open_run(folder).get("/").text
    assert "<script>window" not in text and "nowhere" not in text
    assert text.count('<li class="alarm"') == 40 == text.count("&lt;script&gt;")


def test_regime_success_and_chance_stand_on_every_page_and_the_alarm_is_a_link(falling: Path, open_run: Opener) -> None:
    browser = open_run(falling)
    for path in ("/", "/groups", "/scores", "/templates", "/figures", "/group?step=1&group=000001-000"):
        text = browser.get(path).text
        line = text[text.index('id="status-line"') : text.index("</section>")]
        assert "success <b>0.160</b>" in line and ">unused</a>" in line, path
        assert "retrieval <b>0.85</b> <small>chance 0.08</small>" in line
        assert (
            '<a class="alarm" hx-boost="false" href="./#found"' in line
            and "input dependence falling since step 15" in line
        )


def test_the_page_of_scores_judges_the_matrix_that_it_shows(falling: Path, open_run: Opener) -> None:
    browser = open_run(falling)
    early, late = (" ".join(browser.get(f"/scores?step={step}").text.split()) for step in (5, 40))
    assert "<b>These reasonings depend on their prompts:</b> MI 2.45 nats, p = 0.001; 100% of 48 find" in early
    assert "Regime of the step: <b>used</b>" in early
    assert '<p class="judged bad"><b>These reasonings do not depend on their prompts:</b>' in late
    assert "unrelated prompts give as much; 10% of 48 find their own prompt, chance 8%" in late
    assert "Regime of the step: <b>unused</b>" in late


def test_a_matrix_with_pairs_that_were_not_scored_is_judged_by_the_rest() -> None:
    whole = faded(1, 6.0)
    own = whole.source[:, None] == np.arange(12)
    some = replace(whole, values=np.where(own | (np.arange(12) % 2 == 0), whole.values, np.nan))
    found = judged(some)
    assert found.depends and found.num_samples == 48 and found.chance > judged(whole).chance
    none = judged(replace(whole, values=np.where(own, whole.values, np.nan)))
    assert none.depends is None and none.num_samples == 0


def test_the_regime_and_what_decided_it_stay_known_however_many_steps_follow(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "old", 0)
    archive = Archive(folder)
    archive.metrics(1, scored(1, 0.3, "used") | {"seconds/step": 1.0}, at=1.0)
    for step in range(2, 80):
        probe = {"probe/step": float(step), "probe/link/dependence": 9.0} if step == 40 else {}
        archive.metrics(step, {"success": 0.5, "seconds/step": 1.0} | probe, at=float(step))
    archive.metrics(80, scored(79, 0.4, "unused"), at=80.0)  # a scorer step alone, before the record of the last step
    archive.close()
    found = RunMetrics(RunFolder(folder))
    found.refresh()
    assert found.regimes == {1: "used", 79: "unused"}
    status = found.status(100.0)
    assert (status.regime, status.retrieval_accuracy) == ("unused", 0.85)
    assert status.regime_reason is not None and "D 9.00" in status.regime_reason
    archive = Archive(folder)
    archive.metrics(80, {"success": 0.5, "seconds/step": 1.0}, at=81.0)
    archive.close()
    found.refresh()
    assert (found.status(100.0).regime, found.status(100.0).retrieval_accuracy) == ("unused", 0.85)
