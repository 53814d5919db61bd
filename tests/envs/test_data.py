"""Readers of published data: layouts, splits, lazy access, the held-out part, and what bad files get."""

import json
import re
import threading
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from squelch.envs.data import rows as data
from squelch.envs.data.files import CONVERTED, UnknownSplitError, pick_files, place_of
from squelch.envs.data.rows import read_rows, split_rows


class Context(BaseModel):
    title: list[str]


class Question(BaseModel):
    query: str
    score: float = 1.0
    context: Context | None = Field(None, alias="Context")


UNTYPED = st.text(max_size=5).filter(lambda name: name not in {"query", "score", "Context"})  # columns Question lacks


def rows_of(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"query": f'q{i} [\\"{{é', "score": i / 2, "Context": {"title": [f"t{i}"]}, "unused": i}
        for i in range(start, start + count)
    ]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=4)
    elif path.suffix == ".jsonl":
        path.write_text("\n\n".join(json.dumps(row) for row in rows) + "\n")
    else:
        path.write_text(json.dumps(rows, indent=1, ensure_ascii=False))
    return path


def refused(source: Any, split: str = "train", subset: str | None = None) -> str:
    """The complaint about the first row that is wrong, or about the data set."""
    with pytest.raises(ValueError) as caught:
        list(read_rows(source, split, Question, subset))
    return str(caught.value)


@pytest.mark.parametrize("suffix", ["parquet", "json", "jsonl"])
def test_each_format_gives_the_same_rows_in_order(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"train.{suffix}", rows_of(11))
    rows = read_rows(path, "train", Question)
    assert len(rows) == 11
    assert [row.query for row in rows] == [row["query"] for row in rows_of(11)]
    assert rows[-1].score == 5.0 and rows[-1].context == Context(title=["t10"])
    assert [row.score for row in rows[2:5]] == [1.0, 1.5, 2.0]
    with pytest.raises(IndexError):
        rows[11]


def test_several_files_follow_one_another_and_a_mixed_list_reads_parquet_only(tmp_path: Path) -> None:
    first = write(tmp_path / "a" / "train-00000-of-00002.parquet", rows_of(3))
    second = write(tmp_path / "a" / "train-00001-of-00002.parquet", rows_of(3, start=3))
    assert [row.score for row in read_rows([second, first], "train", Question)] == [0, 0.5, 1, 1.5, 2, 2.5]
    same_name = write(tmp_path / "b" / "train-00000-of-00002.parquet", rows_of(2, start=9))
    assert len(read_rows([first, same_name], "train", Question)) == 5


@pytest.mark.parametrize(
    ("name", "subset", "split"),
    [
        ("MetaMathQA-395K.json", "default", "train"),
        ("data/train-00000-of-00001.parquet", "default", "train"),
        ("data/random-00000-of-00003.parquet", "default", "random"),
        ("distractor/validation-00000-of-00001.parquet", "distractor", "validation"),
        ("default/test/0000.parquet", "default", "test"),
        ("taco/train-00000-of-00004-1a2b.parquet", "taco", "train"),
        ("hotpot_dev_distractor_v1.json", "default", "validation"),
        ("test-file.jsonl", "default", "test"),
        ("latest.jsonl", "default", "train"),
    ],
)
def test_a_name_says_subset_and_split_as_on_the_hub(name: str, subset: str, split: str) -> None:
    place = place_of(name)
    assert place is not None and (place.subset, place.split) == (subset, split)


def test_what_is_not_data_is_passed_over() -> None:
    assert [place_of(name) for name in ("README.md", "dataset_infos.json", "data/train.csv")] == [None] * 3
    assert pick_files(["a/train.json", "a/train.parquet", "README.md"], "train", None, "x") == ["a/train.parquet"]


def test_a_folder_is_read_as_published_and_unknown_names_list_those_that_exist(tmp_path: Path) -> None:
    for subset, split in (("taco", "train"), ("taco", "test"), ("codeforces", "test")):
        write(tmp_path / subset / f"{split}-00000-of-00001.parquet", rows_of(2))
    write(tmp_path / ".cache" / "train.parquet", rows_of(2))
    assert len(read_rows(tmp_path, "test", Question, "taco")) == 2
    assert "it has the subsets codeforces, taco; say which" in refused(tmp_path)
    assert "no subset 'tako'; it has codeforces, taco" in refused(tmp_path, "train", "tako")
    assert "no split 'train'; it has test" in refused(tmp_path, "train", "codeforces")
    with pytest.raises(UnknownSplitError):
        read_rows(tmp_path, "validation", Question, "taco")


def test_a_folder_that_lacks_some_of_a_splits_files_is_refused_unless_they_are_named(tmp_path: Path) -> None:
    first = write(tmp_path / "train-00000-of-00002.parquet", rows_of(3))
    write(tmp_path / "validation-00000-of-00001.parquet", rows_of(2))
    assert "only 1 of the 2 files are there; fetch the others, or name the files" in refused(tmp_path)
    assert len(read_rows(first, "train", Question)) == 3 and len(read_rows(tmp_path, "validation", Question)) == 2
    write(tmp_path / "train-00001-of-00002.parquet", rows_of(3, start=3))
    assert len(read_rows(tmp_path, "train", Question)) == 6


def test_only_the_row_group_that_is_asked_for_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[int] = []
    read = data.ParquetShard._read

    def noted(shard: data.ParquetShard, group: int, columns: list[str]) -> pa.Table:
        groups.append(group)
        assert "unused" not in columns
        return read(shard, group, columns)

    monkeypatch.setattr(data.ParquetShard, "_read", noted)
    rows = read_rows(write(tmp_path / "train.parquet", rows_of(40)), "train", Question)
    assert groups == []
    assert rows[17].score == 8.5 and rows[18].score == 9.0
    assert groups == [4]


def test_the_cache_forgets_the_longest_unused_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = data._GroupCache()
    monkeypatch.setattr(data, "_CACHE", cache)
    rows = read_rows(write(tmp_path / "train.parquet", rows_of(40)), "train", Question)
    rows[0]
    monkeypatch.setattr(data, "CACHE_BYTES", 3 * cache._bytes)
    for row in rows:
        assert row.query
    assert 1 <= len(cache._tables) <= 3 and (rows.shards[0]._number, 9) in cache._tables
    assert cache._bytes == sum(table.nbytes for table in cache._tables.values()) <= data.CACHE_BYTES


def test_readers_can_be_shared_between_threads(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path / "train.parquet", rows_of(200)), "train", Question)
    found: list[list[float]] = []

    def work(step: int) -> None:
        found.append([rows[(step * i) % 200].score for i in range(400)])

    threads = [threading.Thread(target=work, args=(step,)) for step in (1, 3, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    expected = [[((step * i) % 200) / 2 for i in range(400)] for step in (1, 3, 7, 11)]
    assert sorted(found) == sorted(expected)


@given(st.lists(st.dictionaries(UNTYPED, st.text(max_size=8)), max_size=6), st.sampled_from([None, 1]))
def test_rows_of_a_json_array_are_found_whatever_text_they_hold(
    tmp_path_factory: pytest.TempPathFactory, extras: list[dict[str, str]], indent: int | None
) -> None:
    rows = [{**extra, "query": json.dumps(extra)} for extra in extras]
    path = tmp_path_factory.getbasetemp() / "train.json"
    path.write_text(json.dumps([*rows, {"query": "last"}], indent=indent, ensure_ascii=False), "utf-8")
    assert [row.query for row in read_rows(path, "train", Question)] == [row["query"] for row in rows] + ["last"]


def test_the_held_out_part_shares_no_group_with_training_and_is_the_same_every_time(tmp_path: Path) -> None:
    rows = [{"query": f"rephrasing {i}", "original": f"question {i % 300}"} for i in range(900)]
    path = write(tmp_path / "MetaMathQA-395K.json", rows)

    class Rephrased(BaseModel):
        query: str
        original: str

    parts = {split: list(split_rows(path, split, Rephrased, "original")) for split in ("train", "validation")}
    groups = {split: {row.original for row in part} for split, part in parts.items()}
    assert not groups["train"] & groups["validation"] and len(groups["train"] | groups["validation"]) == 300
    assert len(parts["train"]) + len(parts["validation"]) == 900
    assert 15 <= len(groups["validation"]) <= 65  # one in eight of 300
    shouted = [{**row, "original": f" {row['original'].upper()}\n"} for row in rows]  # the same questions all the same
    held = split_rows(write(tmp_path / "shouted.json", shouted), "validation", Rephrased, "original")
    assert {row.original.strip().lower() for row in held} == groups["validation"]
    again = write(tmp_path / "other" / "train.parquet", rows[::-1])
    assert {row.original for row in split_rows(again, "validation", Rephrased, "original")} == groups["validation"]


def test_a_published_validation_split_is_used_and_never_trains(tmp_path: Path) -> None:
    write(tmp_path / "train-00000-of-00001.parquet", rows_of(8))
    write(tmp_path / "validation-00000-of-00001.parquet", rows_of(4, start=6))
    write(tmp_path / "test-00000-of-00001.parquet", rows_of(1, start=50))
    held = split_rows(tmp_path, "validation", Question, "query")
    trained = split_rows(tmp_path, "train", Question, "query")
    assert [row.score for row in held] == [3.0, 3.5, 4.0, 4.5]
    assert [row.score for row in trained] == [0, 0.5, 1, 1.5, 2, 2.5]
    assert trained.location(2).endswith("train-00000-of-00001.parquet, row 3")


def test_a_part_without_rows_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "train.json", [{"query": "q"}])
    with pytest.raises(ValueError, match=r"train\.json, column query: all rows are the same; at least two must differ"):
        split_rows(path, "validation", Question, "query"), split_rows(path, "train", Question, "query")


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("train.jsonl", b'{"query": "a"}\n\n{"query": 3}\n', r"train\.jsonl, line 3, column query: .*string \(got 3\)"),
        ("train.jsonl", b'{"query": "a"}\n{"query": "b"\n', r"train\.jsonl, line 2: not JSON"),
        ("train.jsonl", b'{"query": "a"}\n["b"]\n', r"line 2: one JSON object is needed, not a list"),
        ("train.jsonl", b'{"query": "\xff"}\n', r"line 1 cannot be read as text: it is not UTF-8"),
        ("train.jsonl", b'{"query": "a", "score": "high"}', r"line 1, column score: .*number.*\(got 'high'\)"),
        ("train.jsonl", b'{"query": "a", "Context": {"title": [1]}}', r"line 1, column Context\.title\.0: "),
        ("train.jsonl", b'{"score": 1}', r"line 1, column query: missing; every row needs it"),
        ("train.jsonl", b"\n \n", r"train\.jsonl: empty"),
        ("train.json", b"", r"train\.json: empty"),
        ("train.json", b"[]", r"train\.json: no rows in split 'train'"),
        ("train.json", b'[{"query": "a"}, {"query": null}]', r"train\.json, row 2, column query: .*\(got None\)"),
        ("train.json", b'[{"query": "a"}, {"query": "b"}', r"does not end \(cut short after row 2\?\)"),
        ("train.json", b'[{"query": "a"}, 7, {"query": "b"}]', r"row 2: an object of columns is needed \(got '7'\)"),
        ("train.json", b"[" * 100_000 + b"]" * 100_000, r"row 1: nested in more than 64 levels"),
        ("train.parquet", b"PAR1 not really", r"train\.parquet cannot be decoded as Parquet"),
        ("train.csv", b"query\na\n", r"train\.csv: not a data file; its name must end in \.parquet, \.jsonl, \.json"),
    ],
)
def test_a_malformed_file_is_named_with_row_and_column(
    tmp_path: Path, name: str, content: bytes, complaint: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert re.search(complaint, refused(tmp_path / name)), refused(tmp_path / name)


def test_a_parquet_file_without_the_column_names_those_it_has(tmp_path: Path) -> None:
    path = write(tmp_path / "train.parquet", [{"question": "a", "answer": "b"}])
    assert refused(path) == f"{path}: no column 'query'; it has question, answer"


def test_a_damaged_row_group_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "train.parquet", rows_of(40))
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)
    path.write_bytes(content)
    assert refused(path).startswith(f"{path}, rows 1 to 4 cannot be decoded as Parquet (")


def test_a_column_of_another_type_is_no_group(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", rows_of(2))
    with pytest.raises(ValueError, match=r"line 1, column unused: text is needed \(got 0\)"):
        split_rows(path, "train", Question, "unused")
    with pytest.raises(ValueError, match=r"line 1: no column 'original'; it has query, score"):
        split_rows(path, "train", Question, "original")


def test_missing_paths_and_folders_without_data_are_named(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.parquet").startswith(f"{tmp_path / 'none.parquet'}: no such file or folder")
    (tmp_path / "README.md").write_text("nothing")
    assert "no data files there; need files that end in .parquet, .jsonl, .json" in refused(tmp_path)


class Hub:
    """Stands in for the hub: `files` by revision; every use of the network is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, files: dict[str, list[str]]) -> None:
        self.folder, self.files = folder, files
        self.fetched: list[tuple[str, str]] = []
        monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", self._list)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self._download)

    def _list(self, dataset: str, *, repo_type: str, revision: str = "main") -> list[str]:
        if revision not in self.files:
            response = httpx.Response(404, request=httpx.Request("GET", "https://hub"))
            raise huggingface_hub.errors.RevisionNotFoundError("404 no such revision", response=response)
        return self.files[revision]

    def _download(self, dataset: str, name: str, *, repo_type: str, revision: str) -> str:
        self.fetched.append((revision, name))
        return str(self.folder / name)


def test_a_hub_id_downloads_the_published_parquet_files_of_one_split_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "hub" / "default/train/0000.parquet", rows_of(5))
    names = ["default/train/0000.parquet", "default/test/0000.parquet"]
    hub = Hub(monkeypatch, tmp_path / "hub", {"main": ["MetaMathQA-395K.json"], CONVERTED: names})
    assert len(read_rows("meta-math/MetaMathQA", "train", Question)) == 5
    assert hub.fetched == [(CONVERTED, "default/train/0000.parquet")]
    assert "data set meta-math/MetaMathQA of the Hugging Face hub: no split 'dev'; it has test, train" in refused(
        "meta-math/MetaMathQA", "dev"
    )


def test_a_hub_id_without_parquet_files_downloads_its_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "hub" / "MetaMathQA-395K.json", rows_of(5))
    hub = Hub(monkeypatch, tmp_path / "hub", {"main": ["MetaMathQA-395K.json", "README.md"]})
    assert len(read_rows("meta-math/MetaMathQA", "train", Question)) == 5
    assert hub.fetched == [("main", "MetaMathQA-395K.json")]


def test_a_path_that_exists_is_never_looked_up_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "owner" / "name" / "train.parquet", rows_of(5))
    hub = Hub(monkeypatch, tmp_path, {})
    assert len(read_rows("owner/name", "train", Question)) == 5 and hub.fetched == []


def test_without_a_network_the_cache_is_read_or_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def offline(*_: Any, **__: Any) -> list[str]:
        raise huggingface_hub.errors.OfflineModeIsEnabled("offline mode is enabled")

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", offline)
    complaint = refused("owner/unknown-data-set")
    assert complaint.startswith(
        "data set owner/unknown-data-set of the Hugging Face hub is not in the local cache, and"
    )
    assert "offline mode is enabled" in complaint
    write(tmp_path / "snapshot" / "data" / "train.parquet", rows_of(5))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path / "snapshot"))
    assert len(read_rows("owner/name", "train", Question)) == 5
