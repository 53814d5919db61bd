"""The list of groups: filters, order, pages, and what a live run adds."""

from pathlib import Path

import pytest

from squelch.cluster.inspector import groups
from squelch.cluster.inspector.groups import GroupIndex, Query
from squelch.cluster.inspector.template_filters import strip_of
from squelch.kit.archive.store import LocalStore
from squelch.kit.archive.writer import Archive
from squelch.kit.base.errors import UserError
from tests.cluster.inspector.small_run import add_step, small_run


@pytest.fixture(scope="module")
def index(finished: Path) -> GroupIndex:
    found = GroupIndex(LocalStore(finished))
    found.refresh()
    return found


def listed(index: GroupIndex, **params: str) -> list[str]:
    return [row["group_id"] for row in index.select(Query.of(params)).page()]


def test_newest_first_and_every_filter_narrows(index: GroupIndex) -> None:
    everything = listed(index)
    assert len(everything) == 12 and everything[0].startswith("000003") and everything[-1].startswith("000001")
    assert listed(index, first="2", last="2") == [f"000002-00{n}" for n in range(4)]
    assert listed(index, decision="dropped", last="1") == ["000001-002"]
    assert listed(index, signal="zero", last="1") == ["000001-002"]
    assert len(listed(index, signal="some")) == 9
    assert listed(index, task="task1", sort="step", descending="0") == ["000001-001", "000002-001", "000003-001"]
    assert listed(index, failed="1", last="1") == ["000001-003"]
    assert listed(index, environment="Sokoban") == []


def test_search_finds_ids_reasons_and_failures_in_any_case_and_knows_no_patterns(index: GroupIndex) -> None:
    assert listed(index, q="000002-003") == ["000002-003"]
    assert len(listed(index, q="ZERO VAR")) == 3
    assert len(listed(index, q="step_timeout")) == 3
    assert listed(index, q=".*") == [] and listed(index, q="%") == []


def test_sorts_put_groups_without_a_value_last(index: GroupIndex) -> None:
    rows = index.select(Query.of({"sort": "mean"})).page()
    assert [row["mean_return"] for row in rows] == sorted((row["mean_return"] for row in rows), reverse=True)
    up = index.select(Query.of({"sort": "success", "descending": "0"})).page()
    assert [row["success"] for row in up] == sorted(row["success"] for row in up)


def test_pages_cover_every_group_once_and_a_page_beyond_is_the_last(
    index: GroupIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "PAGE_SIZE", 5)
    pages = [listed(index, page=str(number)) for number in (1, 2, 3)]
    whole = [name for page in pages for name in page]
    assert [len(page) for page in pages] == [5, 5, 2] and len(set(whole)) == 12
    assert listed(index, page="99") == pages[2]


def test_neighbours_are_those_of_the_filtered_list(index: GroupIndex) -> None:
    kept = index.select(Query.of({"decision": "kept", "descending": "0"}))
    before, after, place = kept.beside(1, "000001-003")
    assert (before["group_id"], after["group_id"], place) == ("000001-001", "000002-000", 3)
    assert kept.beside(1, "000001-002") == (None, None, 0), "a dropped group is not in the list of kept ones"
    assert kept.beside(9, "nothing") == (None, None, 0)


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"first": "-1"}, "first"),
        ({"page": "9" * 30}, "page"),
        ({"sort": "reward; drop"}, "sort.*variance"),
        ({"decision": "maybe"}, "decision.*kept"),
        ({"signal": "none"}, "signal.*zero"),
    ],
)
def test_a_wrong_parameter_is_named_with_what_is_allowed(params: dict[str, str], named: str) -> None:
    with pytest.raises(UserError, match=named):
        Query.of(params)


def test_a_query_goes_into_an_address_and_back() -> None:
    query = Query.of({"q": "a b", "first": "3", "decision": "kept", "failed": "1", "page": "4", "other": "x"})
    assert Query.of(query.params()) == query and "other" not in query.params() and "sort" not in query.params()


def test_a_live_run_shows_new_steps_and_forgets_those_that_a_resume_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "FRESH_S", 0.0)
    folder = small_run(tmp_path / "live", 2)
    index, archive = GroupIndex(LocalStore(folder)), Archive(folder)
    index.refresh()
    before = index.version
    index.refresh()
    assert index.version == before, "nothing has changed"
    add_step(archive, 3)
    index.refresh()
    assert index.version > before and listed(index, first="3") == [f"000003-00{n}" for n in range(4)]
    archive.truncate_after(1)
    index.refresh()
    assert len(listed(index)) == 4


def test_a_step_that_is_in_no_index_is_read_from_its_part(finished: Path, tmp_path: Path, index: GroupIndex) -> None:
    folder = small_run(tmp_path / "old")
    for path in folder.glob("groups/index-*"):
        path.unlink()
    found = GroupIndex(LocalStore(folder))
    found.refresh()
    assert found.table.equals(index.table)


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "bad", 1)
    (folder / "groups" / "index-000000.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(UserError, match=r"index-000000\.parquet"):
        GroupIndex(LocalStore(folder)).refresh()


def test_the_strip_counts_every_group_once(index: GroupIndex) -> None:
    chosen = index.select(Query.of({"decision": "kept"}))
    bars = strip_of(index.table, chosen.rows)
    assert [(bar.first, bar.last, bar.num_groups) for bar in bars] == [(1, 1, 4), (2, 2, 4), (3, 3, 4)]
    assert all((bar.kept, bar.dropped, bar.zero, bar.selected) == (0.75, 0.0, 0.25, 0.75) for bar in bars)
