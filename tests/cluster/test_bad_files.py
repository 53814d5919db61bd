"""Each command refuses what it cannot read or write in one paragraph with code 2, at once and in little memory."""

import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squelch.cluster.cli import main
from squelch.cluster.config import load
from squelch.cluster.report.page import Report, write_report
from squelch.cluster.sweep.plan import grid_arms, make_plan, read_grid, read_seeds
from squelch.kit.archive.schema import ARCHIVE_SCHEMA
from squelch.kit.archive.writer import Archive
from squelch.kit.base.disk import write_whole
from squelch.kit.base.errors import UserError
from squelch.kit.commands.filter import read_windows
from squelch.kit.readers.score_files import read_rows
from squelch.kit.untrusted.files import Unreadable
from tests.kit.archive.small_groups import archive_step
from tests.kit.untrusted.kinds import KINDS, called
from tests.kit.untrusted.test_text import BOMB


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.strip().count("\n") == 0 and len(shown.err) < 5_000
    return shown.err


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["config"], "x.yaml"),
        (["filter"], "x.npz"),
        (["filter"], "x.parquet"),
        (["mi"], "x.npz"),
    ],
)
def test_another_kind_of_file_is_named_at_once(tmp_path: Path, capsys, words: list[str], name: str, kind: str) -> None:
    if kind == "a folder" and name == "x.parquet" and words == ["filter"]:
        pytest.skip("a folder may be a run")
    KINDS[kind](tmp_path / name)
    path = str(tmp_path / name)
    assert f"{path} is {called(kind)}" in refusal(capsys, words[0], path, *words[1:])


@pytest.mark.timeout(10)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_samples_are_read_from_no_other_kind_of_file(tmp_path: Path, name: str, kind: str) -> None:
    KINDS[kind](tmp_path / name)
    with pytest.raises(UserError, match=f"{name} is {called(kind)}"):
        read_rows(tmp_path / name, None)


@pytest.mark.parametrize(
    ("command", "name", "read"),
    [
        ("filter", "x.csv", "an .npz with `rewards`, a run's folder, or a .jsonl, .json or .parquet"),
        ("mi", "x.json", "an .npz with"),
        ("score", "x.npz", "one of .jsonl, .jsonl.gz"),
        ("score", "x.CSV", "one of .jsonl, .jsonl.gz"),
    ],
)
def test_the_suffixes_that_are_read_are_named(tmp_path: Path, capsys, command: str, name: str, read: str) -> None:
    (tmp_path / name).write_bytes(b"\x1f\x8b")
    words = [command, str(tmp_path / name), *(["--model", str(tmp_path)] if command == "score" else [])]
    assert f"files are not read here; give {read}" in refusal(capsys, *words)


def test_suffixes_are_read_in_either_case(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", rewards=np.array([[0.0, 1.0]]))
    (tmp_path / "x.npz").rename(tmp_path / "x.NPZ")
    assert len(read_windows(tmp_path / "x.NPZ")[0].groups) == 1
    row = {"prompt": "p", "reasoning": "r"}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "x.PARQUET")
    (tmp_path / "x.JSONL").write_text(json.dumps(row))
    assert read_rows(tmp_path / "x.PARQUET", None) == read_rows(tmp_path / "x.JSONL", None)


@pytest.mark.parametrize("wrong", [5, ["x"], {"text": "x"}])
def test_a_message_whose_reasoning_is_no_text_is_named(tmp_path: Path, wrong: object) -> None:
    message = {"role": "assistant", "content": "x", "reasoning_content": wrong}
    (tmp_path / "x.jsonl").write_text(json.dumps({"prompt": "p", "completion": [message]}))
    with pytest.raises(UserError, match=r"x\.jsonl, row 1: `completion`"):
        read_rows(tmp_path / "x.jsonl", None)


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_that_is_no_regular_file_is_refused_and_left(tmp_path: Path, capsys, kind: str) -> None:
    KINDS[kind](tmp_path / "out.npz")
    message = refusal(capsys, "score", "x.jsonl", "--model", "nowhere", "--out", str(tmp_path / "out.npz"))
    assert f"out.npz is {called(kind)}" in message
    with pytest.raises(Unreadable, match=called(kind)):
        write_whole(tmp_path / "out.npz", "text")
    assert not (tmp_path / "out.npz").is_file()


@pytest.mark.parametrize("name", ["events.jsonl", "log", "log/driver.log", "checkpoints", ".driver", "config.yaml"])
def test_a_run_with_a_link_that_leads_out_is_not_resumed(tmp_path: Path, capsys, name: str) -> None:
    (run := tmp_path / "run").mkdir()
    (run / "metrics.jsonl").write_text("")
    (run / "config.yaml").write_text("")
    (precious := tmp_path / "precious").write_text("kept without a line end")
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(precious)
    message = refusal(capsys, "train", "frozenlake", f"runs_dir={tmp_path}", "name=run", "--resume")
    assert f"{run / name} is a link that leads out of {run}, to {precious}" in message
    assert precious.read_text() == "kept without a line end"


def test_a_report_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "report-data").symlink_to("elsewhere")
    with pytest.raises(Unreadable, match="report-data is a link"):
        write_report(tmp_path / "report.html", Report("", {"success.csv": "text"}, (), ()))
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_link_in_the_place_of_the_partial_file_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / ".x.partial").symlink_to("precious")
    write_whole(tmp_path / "x", "new")
    assert (tmp_path / "precious").read_text() == "kept" and (tmp_path / "x").read_text() == "new"


@pytest.mark.parametrize(
    "text",
    [BOMB, "[" * 100_000, "a: &a [*a]", "filter: {rho: 0x" + "f" * 5_000 + "}", "x" * 2**21, "\x00", "loop: !!set {a}"],
)
def test_a_hostile_recipe_is_refused_in_a_short_paragraph(tmp_path: Path, capsys, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    assert "x.yaml" in refusal(capsys, "config", str(tmp_path / "x.yaml"))


@pytest.mark.parametrize(
    "override",
    [
        "filter.rho=" + "9" * 5_000,
        "filter.rho=" + "[" * 3_000,
        "name=" + "x" * 100_000,
        "filter=" + BOMB.replace("\n", ", "),
        "=1",
        "a..b=1",
        "filter.rho=\x1b[31m",
        "filter.rho=\udcff",
        "environment.name=.x:Y",
        "environment.name=os:path",
        "environment.options={1: 2}",
        "learner.optimizer.betas={a: 1}",
        "x" * 5_000 + "=1",
        "environment.options" + ".a" * 2_000 + "=1",
    ],
)
def test_a_hostile_override_is_refused_in_a_short_paragraph(capsys, override: str) -> None:
    refusal(capsys, "config", "frozenlake", override)


def test_recipes_that_extend_each_other_without_end_are_refused(tmp_path: Path, capsys) -> None:
    for number in range(50):
        (tmp_path / f"{number}.yaml").write_text(f"extends: {number + 1}.yaml")
    assert "more than 16 recipes" in refusal(capsys, "config", str(tmp_path / "0.yaml"))


def test_a_recipe_that_extends_what_cannot_be_a_name_is_named(tmp_path: Path, capsys) -> None:
    (tmp_path / "mine.yaml").write_text(f"extends: {'x' * 5_000}")
    message = refusal(capsys, "config", str(tmp_path / "mine.yaml"))
    assert "mine.yaml extends" in message and "File name too long" in message and len(message) < 1_000


@pytest.mark.parametrize("name", ["x" * 300 + ".yaml", "a\x00b.yaml", "x.yaml/y.yaml"])
def test_a_name_that_cannot_be_a_file_is_said(tmp_path: Path, capsys, name: str) -> None:
    (tmp_path / "x.yaml").write_text("")
    refusal(capsys, "config", str(tmp_path / name))


def test_a_plan_without_end_is_refused() -> None:
    with pytest.raises(UserError, match="at most 1000 are planned"):
        grid_arms(read_grid([f"a{i}=" + ",".join(map(str, range(100))) for i in range(9)]))
    with pytest.raises(UserError, match="2000 cells"):
        make_plan("frozenlake", [], grid_arms(read_grid(["filter.rule=none,top_p"])), range(1000))
    for seeds in ("9" * 5_000, "٣", "1,,2"):
        with pytest.raises(UserError, match="--seeds"):
            read_seeds(seeds)
    for grid in ("a=" + "[" * 5_000, "a={[1]: 1}", "a=*x", "a=" + "9" * 5_000):
        with pytest.raises(UserError, match="--grid"):
            read_grid([grid])


ROW = {"prompt": "a", "reasoning": "b"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"prompt": ' + "[" * 100_000 + "]" * 100_000 + "}", "row 1: nested"),
        ("[" * 100_000, "the array does not end"),
        ("9" * 5_000, "row 1: not JSON"),
        (json.dumps(ROW | {"prompt": "\ud800"}), "row 1: text with the lone surrogate"),
        (json.dumps({"prompt_ids": [2**32 + 1], "reasoning_ids": [1]}), "`prompt_ids` must be a list of token ids"),
        (json.dumps({"prompt_ids": [True], "reasoning_ids": [1]}), "`prompt_ids` must be a list of token ids"),
        (json.dumps(ROW | {"prompt_id": [1]}), "`prompt_id` is [1]"),
        (json.dumps({"x" * 10**6: 1}), "row 1: holds"),
    ],
)
def test_a_hostile_row_of_samples_is_named(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "x.jsonl").write_text(line + "\n")
    with pytest.raises(UserError) as caught:
        read_rows(tmp_path / "x.jsonl", None)
    assert says in str(caught.value) and "x.jsonl" in str(caught.value) and len(str(caught.value)) < 1_000


def test_samples_in_parquet_are_read_in_order_over_row_groups(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{i}", "reasoning": "r", "more": i} for i in range(10)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet", row_group_size=3)
    found = read_rows(tmp_path / "x.parquet", None)
    assert [(number, row["prompt"]) for number, row in found] == [(i + 1, f"p{i}") for i in range(10)]


def archived(tmp_path: Path, **columns: list) -> Path:
    """One archived step, of which some columns have other values."""
    archive = Archive(tmp_path / "run")
    archive_step(archive, 1, 1)
    archive.close()
    path = tmp_path / "run" / "groups" / "step-000001.parquet"
    table = pq.read_table(path)
    for name, values in columns.items():
        field = ARCHIVE_SCHEMA.field(name)
        table = table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))
    pq.write_table(table, path)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"group_id": [None, "a", "a"]}, "the column `group_id` holds nulls"),
        ({"log_probs": [[0.0], [0.0], [0.0]]}, "`loss_mask` and `log_probs` differ in length"),
        ({"loss_mask": [[None] * 5] * 3}, "the column `loss_mask` holds nulls"),
        ({"loss_mask": [None] * 3}, "the column `loss_mask` holds nulls"),
    ],
)
def test_an_archive_with_impossible_values_is_named(tmp_path: Path, capsys, columns, says: str) -> None:
    assert says in refusal(capsys, "filter", str(archived(tmp_path, **columns)))


def test_turns_outside_of_their_tokens_and_nulls_within_them_are_named(tmp_path: Path) -> None:
    from squelch.cluster.runs.folder import RunFolder

    path = archived(tmp_path)
    turns = pq.read_table(path / "groups" / "step-000001.parquet")["turns"].to_pylist()
    for changed, says in (({"sample_end": 99}, "a turn's positions"), ({"reward": None}, "`turns.reward` holds nulls")):
        archived(tmp_path, turns=[[turn | changed for turn in row] for row in turns])
        with pytest.raises(UserError, match=rf"step-000001\.parquet: .*{says}"):
            RunFolder(path).groups()


def test_the_filter_reads_groups_of_many_row_groups_as_of_one(tmp_path: Path, capsys) -> None:
    archive = Archive(tmp_path / "run")
    archive_step(archive, 1, 5)
    archive.close()
    path = tmp_path / "run" / "groups" / "step-000001.parquet"
    printed = []
    for size in (100, 2):
        pq.write_table(pq.read_table(path), path, row_group_size=size)
        assert main(["filter", str(path), "--json"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_a_long_group_id_takes_its_own_length_alone(tmp_path: Path) -> None:
    """An array of texts of fixed width would take the longest one's length for each row: 400 MiB here."""
    path = archived(tmp_path, group_id=["a" * 2**18, "b", "c"])
    part = path / "groups" / "step-000001.parquet"
    pq.write_table(pa.concat_tables([pq.read_table(part), *[pq.read_table(part).slice(1)] * 200]), part)
    tracemalloc.start()
    (window,) = read_windows(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(window.groups) == 3 and peak < 50 * 2**20


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl"])
def test_an_archive_is_not_opened_on_a_pipe(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=f"{name} is a named pipe"):
        Archive(tmp_path)


def test_a_line_that_a_crash_tore_is_found_from_the_end(tmp_path: Path) -> None:
    whole = b'{"step": 1, "time": 1}\n'
    (tmp_path / "metrics.jsonl").write_bytes(whole + b"x" * 200_000)
    Archive(tmp_path).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole
    (tmp_path / "metrics.jsonl").write_bytes(b"x" * 200_000)
    Archive(tmp_path).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


@pytest.mark.parametrize("kind", ["c16", "M8[s]", "V4"])
def test_prompt_ids_that_are_no_numbers_or_texts_are_named(tmp_path: Path, capsys, kind: str) -> None:
    arrays = {"log_likelihood": np.zeros((2, 1, 2)), "lengths": np.ones((2, 1)), "prompt_id": np.zeros(2, kind)}
    np.savez(tmp_path / "m.npz", **arrays)
    assert "`prompt_id` holds" in refusal(capsys, "mi", str(tmp_path / "m.npz"))


def test_the_password_of_a_retriever_is_in_no_error_of_the_configuration() -> None:
    from squelch.kit.process.terminal import visible

    with pytest.raises(UserError) as caught:
        load("frozenlake", ["environment.options={retriever_url: 'http://u:hunter22@h/'}"])
    assert "hunter22" not in visible(str(caught.value))
