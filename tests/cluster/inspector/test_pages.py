"""The pages, without a browser: what they say, and what they say about wrong addresses and damaged files."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from squelch.cluster.inspector.app import application
from squelch.cluster.inspector.by_kind_and_turn import MOST_POINTS, Parts
from squelch.cluster.inspector.guard import Access
from squelch.cluster.inspector.matrices import heatmap
from squelch.cluster.inspector.search import search
from squelch.cluster.inspector.texts import Pieces
from squelch.cluster.runs.by_kind_and_turn import MOST_PARTS
from squelch.cluster.runs.folder import RunFolder
from squelch.kit.archive.writer import Archive
from squelch.kit.records.records import Segment, Untrained
from tests.cluster.inspector.small_run import HOSTILE, add_step, group, matrix, small_run, tokenizer, write_step

Opener = Callable[[Path], TestClient]
PAGES = (
    *(
        "/",
        "/groups",
        "/groups?q=zero&sort=variance",
        "/group?step=1&group=000001-000",
        "/group?step=1&group=000001-003&whole=1",
    ),
    *(
        "/compare?a=1:000001-000&b=3:000003-000",
        "/scores",
        "/scores?step=1&row=1&column=2",
        "/scores/cell?row=0&column=0",
    ),
    *(
        "/templates",
        "/templates?prompt=1",
        "/timeline",
        "/timeline?step=2",
        "/figures",
        "/where",
        "/status-line",
        "/search?text=go",
    ),
)


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_shown_and_lets_no_text_of_a_model_through_unescaped(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    assert "<script>window" not in answer.text and "<img" not in answer.text
    for character in "\x1b\x00\u202e\u2066":
        assert character not in answer.text
    assert "style=" not in answer.text and "javascript:" not in answer.text


def test_the_list_says_what_was_kept_and_why_the_rest_was_not(client: TestClient) -> None:
    text = client.get("/groups").text
    assert text.count('class="badge kept"') == 9 and text.count("zero variance") >= 3
    assert "1–12</b> of <b>12</b>" in text


def test_a_group_shows_every_turn_with_board_versions_colours_and_failure(client: TestClient) -> None:
    text = client.get("/group?step=1&group=000001-003").text
    assert text.count('class="turn"') == 6 and text.count('class="board"') == 7
    assert "v3–4" in text or ("v3<" in text and "v3" in text)
    assert "step_timeout" in text and "bad format" in text
    assert 'class="b0"' in text and 'class="b7"' in text and "≥ 98%" in text
    assert "&lt;" in text and "\\u202e" in text and "\\x1b" in text


def test_a_group_shows_those_that_failed_first_and_then_those_that_did_not_solve_the_task(client: TestClient) -> None:
    text = client.get("/group?step=1&group=000001-003").text
    assert re.findall(r'<article class="trajectory([^"]*)" id="t(\d)"', text) == [
        (" failed", "2"),
        ("", "0"),
        (" won", "1"),
    ]
    assert "1 failed</span> · 1 not solved · 1 solved" in " ".join(text.split())


def test_a_group_links_to_its_neighbours_and_to_the_same_task_at_other_steps(client: TestClient) -> None:
    text = client.get("/group?step=2&group=000002-000&decision=kept&descending=0").text
    assert "4 of 9" in text and "group?step=1&amp;group=000001-003&amp;decision=kept" in text
    assert "group?step=2&amp;group=000002-001&amp;" in text
    assert "compare?a=1%3A000001-000&amp;b=2%3A000002-000" in text


def test_two_steps_of_one_task_stand_one_above_the_other(client: TestClient) -> None:
    text = client.get("/compare?a=1:000001-001&b=3:000003-001").text
    assert "The same task at two steps" in text and text.count('<section class="side">') == 2
    assert "Two groups" in client.get("/compare?a=1:000001-001&b=3:000003-002").text


def test_the_matrix_is_fetched_as_numbers_and_a_cell_opens_both_texts(client: TestClient) -> None:
    values = np.frombuffer(client.get("/scores/values?step=1").content, "<f4").reshape(6, 3)
    np.testing.assert_allclose(values.sum(axis=1), 1.0, rtol=1e-5)
    assert (values.argmax(axis=1) == np.repeat(np.arange(3), 2)).all()
    gaps = np.frombuffer(client.get("/scores/values?step=1&show=gap").content, "<f4").reshape(6, 3)
    np.testing.assert_allclose(gaps[0], [0.0, -4 / 11, -4 / 11], rtol=1e-5)
    other = client.get("/scores/cell?step=1&row=0&column=2").text
    assert "Another prompt" in other and "Its own prompt" in other and "2 of 3" in other
    assert "Its own prompt" in client.get("/scores/cell?step=1&row=0&column=0").text


def test_the_matrix_has_labels_on_both_axes_and_a_colour_scale(client: TestClient) -> None:
    text = client.get("/scores").text
    columns, rows = (
        re.findall(r'<text x="([\d.]+)%" y="12">(\d+)<', text),
        re.findall(r'<text x="100%" y="([\d.]+)%" dy="4">(\d+)<', text),
    )
    assert columns == rows == [("16.67", "0"), ("50.00", "1"), ("83.33", "2")]
    assert "<i>0</i><i>0.25</i>" in text and "not scored" not in text
    assert "<i>\u22122</i><i>\u22121</i><i>0</i><i>+1</i>" in client.get("/scores?show=gap").text


def test_a_large_matrix_labels_some_of_its_prompts() -> None:
    heat = heatmap(matrix(1, num_prompts=100))
    assert [prompt for _, prompt in heat.column_labels()] == list(range(0, 100, 7))
    assert [prompt for _, prompt in heat.row_labels()] == list(range(0, 100, 5))


def test_templates_are_listed_by_their_gap_with_links(client: TestClient) -> None:
    text = client.get("/templates?prompt=0").text
    assert "goal at 3 3 0" in text and "4.00" in text and "group?step=1&amp;group=000001-000#t0-1" in text


def test_spans_figures_and_trace_are_data(client: TestClient) -> None:
    found = client.get("/timeline/spans?from=0&to=40").json()
    assert [lane["actor"] for lane in found["lanes"]] == ["learner", "rollout-0"]
    assert [bubble[:2] for bubble in found["bubbles"]] == [[8.0, 15.0], [18.0, 25.0]]
    assert found["bubbles"][0][2] == [["rollout-0", pytest.approx(4 / 7)]]
    assert [step for step, _ in found["steps"]] == [1, 2, 3]
    numbers = client.get("/figures/numbers").json()
    assert numbers["step"] == [1, 2, 3]
    (run,) = numbers["runs"]
    assert run["values"]["success"] == pytest.approx([0.1, 0.2, 0.3]) and run["raw"] == {}
    trace = client.get("/trace.json")
    assert "attachment" in trace.headers["content-disposition"]
    assert sum(event["ph"] == "X" for event in json.loads(trace.text)["traceEvents"]) == 9


def test_a_collapse_is_shown_at_the_kind_and_at_the_turn_where_it_happens(client: TestClient) -> None:
    text = client.get("/where").text
    kinds, turns = (
        text[text.index('data-dimension="kind"') : text.index('data-dimension="turn"')],
        text.split('turn">')[-1],
    )
    assert re.findall(r'<b title="step (\d)">([^<]+)</b>', kinds) == [
        ("3", "0.1"),
        ("1", "0.3"),
        ("3", "0.5"),
        ("3", "0.3"),
    ], "MI, D of the last evaluation of the probe, kept share and success"
    assert "best 0.3 at step 1" in kinds and kinds.count("<polyline") == 4
    assert re.findall(r'<th scope="row">([^<]+)</th>', turns) == [str(turn) for turn in range(1, 12)]
    assert turns.count("not measured") == 10, "D is measured at first turns"


def test_the_parts_of_a_hostile_run_are_bounded_and_a_long_run_is_thinned() -> None:
    parts = Parts()
    for step in range(1, 400):
        parts.take(
            {
                "step": step,
                **{f"kinds/kept/{HOSTILE[:5]}{number}": 0.5 for number in range(40)},
                "turns/kept/1": step / 400,
            }
        )
    assert len(parts.rows("kind")) == MOST_PARTS
    (row,) = parts.rows("turn")
    assert row.cells[2] is not None and len(row.cells[2].line.split()) == MOST_POINTS
    assert row.cells[2].best_step == row.cells[2].newest_step == 399 and row.cells[0] is None


def test_the_figures_have_what_a_trainer_is_watched_by(client: TestClient) -> None:
    text = client.get("/figures").text
    for key in ("entropy", "kl", "loss", "grad_norm", "clip_fraction_low", "clip_fraction_high"):
        assert f'data-key="learner/{key}"' in text
    assert "--compare RUN" in text


def test_the_curves_of_a_second_run_stand_on_the_same_steps_and_can_be_smoothed(tmp_path: Path, finished: Path) -> None:
    others = [RunFolder(small_run(tmp_path / name, 5)) for name in ("longer", "<b>third")]
    access = Access(frozenset({"testserver"}), 80)
    both = TestClient(application(RunFolder(finished), access, now=lambda: 2000.0, others=others))
    found = both.get("/figures/numbers?smooth=5").json()
    own, other = found["runs"]
    assert found["step"] == [1, 2, 3, 4, 5] and (own["name"], other["name"]) == ("small", "longer")
    assert own["raw"]["success"] == pytest.approx([0.1, 0.2, 0.3, None, None])
    assert own["values"]["success"] == pytest.approx([0.1, 0.15, 0.2, None, None])
    assert other["values"]["success"] == pytest.approx([0.1, 0.15, 0.2, 0.25, 0.3])
    assert "first_turn/mi_est" not in own["raw"], "its interval says how noisy it is"
    assert len(both.get("/figures/numbers?with=-").json()["runs"]) == 1
    text = both.get("/figures?with=%3Cb%3Ethird&smooth=20").text
    assert '<option value="&lt;b&gt;third" selected>' in text and "<b>third" not in text
    assert "figures/numbers?smooth=20&amp;with=%3Cb%3Ethird" in text


def test_search_finds_what_was_written_with_its_surroundings_and_not_what_was_fed(client: TestClient) -> None:
    text = client.get("/search?text=GOAL+at+3").text
    assert text.count("<mark>goal at 3</mark>") == 27 and "group?step=1&amp;group=000001-000#t0" in text
    assert "Nothing in these steps" in client.get("/search?text=reward+0").text, "the observation is fed"
    assert "<mark>&lt;script&gt;</mark>" in client.get("/search?text=%3Cscript%3E").text


def test_a_search_that_has_used_its_time_says_where_to_go_on(finished: Path) -> None:
    folder, pieces = RunFolder(finished), Pieces(tokenizer().encode(), "here")
    late = itertools.count(step=10.0)
    found = search(folder, pieces, "goal", clock=lambda: next(late))
    assert (found.first, found.last, found.rest, len(found.hits)) == (3, 3, 2, 9)
    rest = search(folder, pieces, "goal", newest=found.rest)
    assert (rest.first, rest.last, rest.rest, len(rest.hits)) == (1, 2, None, 18)


@pytest.mark.parametrize("path", [*PAGES, "/none"])
def test_no_page_has_an_address_that_would_leave_the_prefix_of_a_proxy(client: TestClient, path: str) -> None:
    text = client.get(path).text
    led = re.findall(r'(?:href|src|action|hx-get|data-(?:lanes|heat|cell|page|boards|charts))="([^"]+)"', text)
    assert led or path == "/status-line"
    assert not [one for one in led if one.startswith(("/", "http", ".."))]
    assert "<!doctype" not in text or "/" not in path[1:].partition("?")[0], "a link's base is the folder of its page"


def test_a_page_that_does_not_exist_says_so_at_any_level(client: TestClient) -> None:
    for path in ("/none", "/groups/1/000001-000"):
        answer = client.get(path)
        assert answer.status_code == 404 and f"there is no page {path}" in answer.text


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/group?step=1&group=none", "holds no group"),
        ("/group?step=77&group=000077-000", "step-000077.parquet"),
        ("/compare?a=1&b=2", "`a` is"),
        ("/compare?a=1:000001-000&b=x:y", "`b` is"),
        ("/scores?step=2", "step-000002.parquet"),
        ("/scores?step=two", "`step` is"),
        ("/scores?show=all", "`show` is"),
        ("/scores?row=1&column=99", "3 columns"),
        ("/templates?prompt=9", "`prompt` is"),
        ("/figures?smooth=7", "`smooth` is"),
        ("/figures/numbers?with=..%2Fother", "`with` is"),
        ("/timeline?step=99", "step 99 is not recorded"),
        ("/timeline/spans?from=nan&to=1", "`from` is"),
        ("/timeline/spans?from=5&to=1", "the smaller one"),
        ("/groups?page=%3Cscript%3E", "`page` is"),
        (f"/group?step={'9' * 5000}&group=000001-000", "`step` is"),
        ("/group?step=%3Cscript%3E&group=000001-000", "`step` is"),
    ],
)
def test_a_wrong_address_is_answered_in_words(client: TestClient, path: str, said: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 422 and said in answer.text.replace("&#39;", "'") and "<script>w" not in answer.text


def test_a_step_that_a_metric_describes_and_that_has_no_line_of_its_own_is_not_recorded(
    tmp_path: Path, open_run: Opener
) -> None:
    folder = small_run(tmp_path / "probed", 0)
    archive = Archive(folder)
    add_step(archive, 1)
    archive.metrics(2, {"success": 0.5, "probe/step": 0.0, "probe/mi": 0.4}, at=1029.0)
    archive.close()
    live = open_run(folder)
    answer = live.get("/timeline?step=0")
    assert answer.status_code == 422 and "step 0 is not recorded; the newest recorded step is 2" in answer.text
    spans = live.get("/timeline/spans?from=0&to=100").json()
    assert [step for step, _ in spans["steps"]] == [1, 2]
    assert live.get("/timeline?step=1").status_code == 200


def test_an_unknown_page_and_a_path_out_of_the_static_folder_are_404(client: TestClient) -> None:
    assert client.get("/nothing").status_code == 404
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd"):
        assert client.get(path).status_code == 404


def test_a_live_run_is_asked_about_and_a_change_is_answered(
    tmp_path: Path, open_run: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squelch.cluster.inspector.groups.FRESH_S", 0.0)
    folder = small_run(tmp_path / "live", 1)
    live = open_run(folder)
    page = live.get("/groups").text
    seen = page.split("status-line?seen=")[1].split('"')[0]
    assert live.get(f"/status-line?seen={seen}").status_code == 204
    add_step(Archive(folder), 2)
    answer = live.get(f"/status-line?seen={seen}")
    assert answer.status_code == 200 and answer.headers["HX-Trigger"] == "run-changed" and "<b>2</b>" in answer.text


def test_a_run_before_its_first_step_says_so(tmp_path: Path, open_run: Opener) -> None:
    folder = small_run(tmp_path / "new", 0)
    (folder / "scores" / "step-000001.parquet").unlink()
    new = open_run(folder)
    assert "No step is archived yet" in new.get("/groups").text
    assert "No step has a score matrix yet" in new.get("/scores").text and "No step has" in new.get("/templates").text
    assert "No actor has worked" in new.get("/timeline").text and new.get("/figures").status_code == 200


def test_without_a_tokenizer_ids_are_shown(tmp_path: Path, open_run: Opener) -> None:
    folder = small_run(tmp_path / "bare", 1)
    (folder / "tokenizer.json").unlink()
    assert "⟨103⟩" in open_run(folder).get("/group?step=1&group=000001-000").text


@pytest.mark.parametrize(
    ("name", "data", "path"),
    [
        ("groups/step-000001.parquet", b"PAR1 half a part", "/group?step=1&group=000001-000"),
        ("scores/step-000001.parquet", b"PAR1 half a matrix", "/scores"),
        ("tokenizer.json", b'{"model": {}}', "/group?step=1&group=000001-000"),
        ("events.jsonl", b'{"actor": 3}\n', "/timeline"),
    ],
)
def test_a_damaged_file_is_named_and_the_other_pages_go_on(
    tmp_path: Path, open_run: Opener, name: str, data: bytes, path: str
) -> None:
    folder = small_run(tmp_path / "bad", 1)
    browser = open_run(folder)
    (folder / name).write_bytes(data)
    answer = browser.get(path)
    assert answer.status_code == 422 and (name in answer.text or "tokenizer" in answer.text)
    if name != "events.jsonl":
        for other in ("/", "/groups", "/figures"):
            assert browser.get(other).status_code == 200
        assert (name in browser.get("/").text) == name.startswith("scores/"), "the first page shows the rest"


def test_a_line_with_its_cause_says_where_a_segment_begins_and_the_turn_shows_what_that_segment_did(
    tmp_path: Path, open_run: Opener
) -> None:
    folder, cut = small_run(tmp_path / "cut", 0), group(1, 0, (0.0, 1.0))
    one = cut.trajectories[1]
    one.segments = (Segment(one.turns[0].sample_end + len("reward 0\n"), f"history rewritten {HOSTILE}"),)
    archive = Archive(folder)
    write_step(archive, 1, [cut])
    archive.close()
    text = open_run(folder).get("/group?step=1&group=000001-000").text
    line = 'class="segment" title="A new segment: the policy saw nothing of what stands above">history rewritten &lt;'
    assert text.count('class="segment"') == text.count(line) == 1 and "<script>window" not in text
    assert text.count("2 turns in 2 segments") == 1 and text.count("2 turns ·") == 1
    before, after = text.split('class="segment"')
    assert "reward 0" in before and "reward 0" not in after, "what stands before the segment is not shown in it"
    assert after.count('class="board"') == 1 and after.count("<summary>prompt</summary>") == 1


def test_a_rewarded_failure_and_untrained_conversations_are_named_on_the_page(tmp_path: Path, open_run: Opener) -> None:
    folder, played = small_run(tmp_path / "agents", 0), group(1, 0, (0.0, 1.0))
    one = played.trajectories[0]
    one.failure_rewarded = f"the agent's command ended with exit code 1 {HOSTILE}"
    ids, flags = np.arange(3, dtype=np.int32), np.array([False, True, True])
    one.untrained = (Untrained("no tools", ids, flags, np.where(flags, -1, 0).astype(np.float32), 0, 0),) * 2
    archive = Archive(folder)
    write_step(archive, 1, [played])
    archive.close()
    text = open_run(folder).get("/group?step=1&group=000001-000").text
    assert text.count("<b>rewarded</b> the agent&#39;s command ended with exit code 1 &lt;") == 1
    assert text.count("2 untrained conversations") == text.count("untrained") == 1 and "<script>window" not in text


def test_a_group_of_another_schema_is_refused_with_the_version(tmp_path: Path, open_run: Opener) -> None:
    import pyarrow.parquet as pq

    folder = small_run(tmp_path / "newer", 1)
    path = folder / "groups" / "step-000001.parquet"
    browser = open_run(folder)
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"squelch.schema": "7"}), path)
    answer = browser.get("/group?step=1&group=000001-000")
    assert answer.status_code == 422 and "schema 7" in answer.text
