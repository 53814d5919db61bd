"""`squelch report`, and the report that every run writes when it ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from squelch.cluster.cli import main
from squelch.cluster.commands.existing_runs import report
from squelch.kit.base.errors import UserError
from tests.cluster.report.synthetic import Made, write_run


def test_it_writes_into_the_run_and_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path, Made("a", steps=5))
    assert main(["report", str(folder)]) == 0
    said = capsys.readouterr().out
    assert f"{folder / 'report.html'}: " in said and (folder / "report-data" / "dynamics.csv").is_file()
    assert "not drawn: Noise of the environment (paper, Figure 9); needs validated runs of FrozenLake" in said


def test_a_run_that_was_stopped_before_its_first_step_says_why_it_has_no_figures(tmp_path: Path, capsys) -> None:
    folder = write_run(tmp_path, Made("stopped", steps=5))
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text(lines[0])
    assert main(["report", str(folder)]) == 0
    said, why = capsys.readouterr().out, "has no figures: no training step of it is recorded"
    assert f"report.html: 0 figures; data in {folder / 'report-data'}\n{folder} {why}" in said
    assert why in (folder / "report.html").read_text()
    (folder / "metrics.jsonl").write_text("".join(lines[:2]))
    assert main(["report", str(folder)]) == 0 and why not in capsys.readouterr().out


def test_the_papers_tables_are_printed_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(write_run(tmp_path, Made(rule, rule=rule, steps=20))) for rule in ("none", "top_p")]
    before = sorted(tmp_path.rglob("*"))
    assert main(["report", "--tables", *folders]) == 0
    said = capsys.readouterr().out
    assert "Table 4: peak success" in said and "Table 5: where success peaks" in said
    assert sorted(tmp_path.rglob("*")) == before
    assert main(["report", "--tables", *folders, "--out", "x.html"]) == 2


def test_several_runs_give_one_page_here_or_where_it_is_asked_for(tmp_path: Path) -> None:
    runs = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert report.page_of(runs[:1], None) == tmp_path / "a" / "report.html"
    assert report.page_of(runs, None) == Path("report.html")
    assert report.page_of(runs, tmp_path / "x.html") == tmp_path / "x.html"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["run", "--out", "page.pdf"], "give the path of an HTML file"),
        (["empty"], "holds no run"),
        (["fresh"], "no step has been recorded yet"),
        (["run", "--out", "taken.html"], "taken.html"),
    ],
)
def test_bad_input_is_refused_by_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path, Made("run", steps=2))
    write_run(tmp_path, Made("fresh", steps=2)).joinpath("metrics.jsonl").write_text("")
    for name in ("empty", "taken.html"):
        (tmp_path / name).mkdir()
    assert main(["report", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("*/report.html"))


def test_a_run_that_ended_says_where_its_report_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    calls: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    report.after_the_run(tmp_path / "a", said.append)
    assert said == [f"report: {tmp_path / 'a' / 'report.html'}"]
    assert calls[0][0] == sys.executable and calls[0][-2:] == ["report", str(tmp_path / "a")]


def test_a_report_that_fails_is_said_and_nothing_is_raised(tmp_path: Path) -> None:
    said: list[str] = []
    report.after_the_run(tmp_path / "nowhere", said.append)
    assert len(said) == 1 and said[0].startswith("no report: squelch: ") and "does not exist" in said[0]
    assert said[0].endswith(f"write it with squelch report {tmp_path / 'nowhere'}")


def test_a_report_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    said: list[str] = []
    report.after_the_run(write_run(tmp_path, Made("a", steps=2)), said.append, timeout_s=0.01)
    assert "not ready after 0.01 s" in said[0] and not (tmp_path / "a" / "report.html").exists()


def test_a_run_whose_disk_is_full_keeps_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(subprocess, "run", full)
    said: list[str] = []
    report.after_the_run(tmp_path, said.append)
    assert "No space left on device" in said[0]


def test_the_page_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"page\.txt"):
        report.page_of([str(tmp_path)], tmp_path / "page.txt")
