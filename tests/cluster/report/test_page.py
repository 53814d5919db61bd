"""The report as files: self-contained, escaped, whole, small, with the data beside it."""

import csv
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from squelch.cluster.report.figures import FIGURES
from squelch.cluster.report.page import arm_rows, data_folder_of, make_report, write_report
from squelch.cluster.report.runs import find_runs, read_run, study_of
from squelch.kit.findings.finder import Evidence, Finding
from tests.cluster.report.synthetic import Made, write_run
from tests.cluster.report.test_figures import study

FIVE_MB = 5_000_000


class Page(HTMLParser):
    """Collects tags, ids and addresses of a page, and checks that tags are closed in order."""

    VOID = ("meta", "link", "br", "img", "input")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "action")]
        assert not any(name.startswith("on") or name == "style" for name, _ in attrs)
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag


@pytest.mark.slow
def test_a_report_of_long_runs_draws_every_figure_in_a_small_self_contained_file(tmp_path: Path) -> None:
    for seed in range(2):
        for rule in ("none", "top_p"):
            for slip in (0.02, 0.5):
                write_run(
                    tmp_path, Made(f"{rule}-{slip}-{seed}", seed, rule, slip=slip, steps=400, gradients_every=100)
                )
    report = make_report(study_of(find_runs([tmp_path])), "report-data")
    assert report.drawn == FIGURES and len(report.html.encode()) < FIVE_MB
    page = Page(report.html)
    assert page.tags.count("svg") == len(FIGURES) and {"script", "img", "link", "iframe"}.isdisjoint(page.tags)
    assert all(address.startswith(("#", "report-data/")) for address in page.addresses)
    assert {a for a in page.addresses if a.startswith("report-data/")} == {
        f"report-data/{name}" for name in report.data
    }
    ids = re.findall(r'\sid="([^"]*)"', report.html)
    assert len(set(ids)) == len(ids)


def test_the_data_beside_the_page_is_what_is_drawn(tmp_path: Path) -> None:
    own = study(Made("a", steps=9))
    write_report(tmp_path / "one.html", make_report(own, data_folder_of(tmp_path / "one.html")))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "one-data" / "length.csv").read_text())))
    assert [float(row["step"]) for row in rows] == list(range(1, 10))
    assert [float(row["mean"]) for row in rows] == list(own.runs[0].series("reasoning_length").values())
    assert {path.name for path in tmp_path.iterdir()} == {"one.html", "one-data"}


def test_the_table_of_arms_counts_their_seeds_and_names_them() -> None:
    runs = study(Made("a", steps=3), Made("b", seed=4, steps=3), Made("c", rule="top_k", steps=3))
    html = make_report(runs, "d").html
    assert "2 seeds: 0, 4" in html and "1 seed: 0" in html


def test_data_of_a_figure_that_is_no_longer_drawn_goes_and_other_files_stay(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    (tmp_path / "report-data").mkdir()
    for name in ("noise.csv", "mine.csv"):
        (tmp_path / "report-data" / name).write_text("old")
    write_report(page, make_report(study(Made("a", steps=3)), data_folder_of(page)))
    left = {path.name for path in (tmp_path / "report-data").iterdir()}
    assert "mine.csv" in left and "noise.csv" not in left and "arms.csv" in left


def test_names_and_values_of_a_hostile_run_stay_text() -> None:
    evil = '<script>alert(1)</script>\x1b[31m\u202e" onload="x'
    runs = study(Made("a", environment=evil, steps=3), Made("b", rule=evil, environment=evil, steps=3))
    page = Page(make_report(runs, "d").html)
    assert "script" not in page.tags


def test_equal_runs_give_an_equal_report() -> None:
    assert make_report(study(Made("a", steps=4)), "d") == make_report(study(Made("a", steps=4)), "d")


def test_the_page_forbids_scripts_and_connections() -> None:
    html = make_report(study(Made("a", steps=2)), "d").html
    assert "default-src 'none'; style-src 'unsafe-inline'" in html and "prefers-color-scheme:dark" in html


def test_an_arm_of_several_environments_has_a_row_of_each_at_the_end(tmp_path: Path) -> None:
    folder = write_run(tmp_path, Made("mixed"))
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    lake = settings.pop("environment")
    settings["environments"] = [lake | {"label": "lake", "weight": 3}, {"name": "Sokoban", "train_seed": 5}]
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[-1] |= {"environment/validation/lake": 0.75, "environment/validation/Sokoban": 0.25}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = study_of([read_run(folder)])
    assert found.arms[0].environment == "lake + Sokoban" and "train_seed" not in str(found.arms[0].settings)
    rows = {(row["environment"], row["figure"]): row["mean"] for row in arm_rows(found)}
    assert rows["lake + Sokoban: lake", "validation/success"] == 0.75
    assert rows["lake + Sokoban: Sokoban", "validation/success"] == 0.25
    assert rows["lake + Sokoban: lake", "first_turn/mi_est"] is None
    assert "lake + Sokoban: lake" in make_report(found, "data").html


def test_the_first_section_says_what_is_wrong_and_how_to_mend_it(tmp_path: Path) -> None:
    found = Finding("kl_high", "critical", 7, 9, "The policy is far <b>", (Evidence("learner/kl", 12.5),))
    write_run(tmp_path, Made("run", steps=12))
    (run,) = find_runs([tmp_path])
    page = make_report(study_of([replace(run, findings=[(found, "squelch train again")])]), "data").html
    Page(page)
    assert page.index('id="findings"') < page.index('id="arms"')
    assert "CRITICAL <code>kl_high</code>, since step 7" in page and "The policy is far &lt;b&gt;." in page
    assert "Evidence: learner/kl 12.5." in page and "<code>squelch train again</code>" in page
    assert "Nothing was found." in make_report(study_of([replace(run, findings=[])]), "data").html
