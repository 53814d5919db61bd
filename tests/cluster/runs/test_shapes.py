"""A run's files have the shape that their readers rely on, or are refused by name, whoever wrote them."""

import json
import os
from pathlib import Path

import pytest

from squelch.cluster.cli import main
from squelch.cluster.config import dump, load
from squelch.cluster.runs.ending import is_complete
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.sweep.table import cell_metrics
from squelch.kit.base.errors import UserError
from tests.kit.untrusted.kinds import KINDS, called

LINE = {"step": 1, "time": 1.0, "total_steps": 2.0, "success": 0.5}
EVENT = {"actor": "learner", "name": "train", "start": 1.0, "end": 2.0}


def run_with(folder: Path, **files: object) -> Path:
    (folder / "config.yaml").write_text(dump(load("frozenlake")))
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content) + "\n"
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def refusal(capsys: pytest.CaptureFixture[str], folder: Path) -> str:
    assert main(["status", str(folder)]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and "Traceback" not in shown.err
    return shown.err


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"metrics_jsonl": [LINE]}, "metrics.jsonl line 1: one JSON object is needed"),
        ({"metrics_jsonl": {"step": 1}}, "record 1: `time` is None; it must be a finite number"),
        ({"metrics_jsonl": LINE | {"step": "1"}}, "`step` is '1'; it must be a whole number"),
        ({"metrics_jsonl": LINE | {"step": 10**40}}, "`step`"),
        ({"metrics_jsonl": LINE | {"success": "high"}}, "`success` is 'high'; it must be a finite number"),
        ({"metrics_jsonl": LINE | {"success": float("inf")}}, "`success`"),
        ({"metrics_jsonl": LINE | {"success": [1]}}, "`success`"),
        ({"metrics_jsonl": '{"step": 1, "time": 1e999}\n'}, "`time`"),
        ({"metrics_jsonl": "[" * 100_000 + "\n"}, "nested in more than 64 levels"),
        ({"metrics_jsonl": LINE, "events_jsonl": EVENT | {"end": None}}, "`end` of a span is None"),
        ({"metrics_jsonl": LINE, "events_jsonl": EVENT | {"actor": 3}}, "`actor` of a span is 3"),
        ({"metrics_jsonl": LINE, "events_jsonl": [1]}, "events.jsonl last line"),
        ({"metrics_jsonl": LINE, "summary_json": {"finished": [1]}}, "summary.json: `finished`"),
        ({"metrics_jsonl": LINE, "summary_json": {"stopped": {"a": 1}}}, "summary.json: `stopped`"),
    ],
)
def test_a_file_of_another_shape_is_named(tmp_path: Path, capsys, files: dict[str, object], says: str) -> None:
    assert says in refusal(capsys, run_with(tmp_path, **files))


def test_escapes_in_a_runs_files_do_not_reach_the_terminal(tmp_path: Path, capsys) -> None:
    event = EVENT | {"actor": "\x1b]0;title\x07", "name": "a\nb"}
    run_with(tmp_path, metrics_jsonl=LINE, events_jsonl=event, summary_json={"stopped": "x\x1b[2J\ny"})
    os.utime(tmp_path / "metrics.jsonl", (1, 1))
    assert main(["status", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\\x1b[2J\\ny" in shown and "a\\nb took 1.0 s" in shown


def test_a_summary_of_an_older_release_may_lack_keys_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    run_with(tmp_path, summary_json={"finished": True, "ledger": {"balanced": True}})
    assert is_complete(RunFolder(tmp_path).summary()) and cell_metrics(tmp_path)["success"] is None
    for wrong in ({"end_cause": "who knows"}, {"success": {"after": 3}}, {"steps": -1}, {"ledger": []}):
        (tmp_path / "summary.json").write_text(json.dumps(wrong))
        with pytest.raises(UserError, match=rf"summary\.json: `{next(iter(wrong))}"):
            RunFolder(tmp_path).summary()


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "events.jsonl", "summary.json"])
@pytest.mark.parametrize("kind", KINDS)
def test_another_kind_of_file_in_a_runs_folder_is_named(tmp_path: Path, capsys, name: str, kind: str) -> None:
    run_with(tmp_path, metrics_jsonl=LINE)
    (tmp_path / name).unlink(missing_ok=True)
    KINDS[kind](tmp_path / name)
    if name != "metrics.jsonl":
        os.utime(tmp_path / "metrics.jsonl", (1, 1))  # else a summary is too old to be read
    if name == "config.yaml":
        with pytest.raises(UserError, match=f"config.yaml is {called(kind)}"):
            RunFolder(tmp_path).config()
    else:
        assert f"{name} is {called(kind)}" in refusal(capsys, tmp_path)


def test_links_that_lead_in_a_circle_end(tmp_path: Path) -> None:
    run_with(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-1").symlink_to("..")
    (tmp_path / "gradients").symlink_to(".")
    run = RunFolder(tmp_path)
    assert run.checkpoints() == {} and run.decompositions() == {}
