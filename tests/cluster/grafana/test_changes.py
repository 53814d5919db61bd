"""What a push may replace, and how two dashboards are compared."""

from copy import deepcopy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.grafana.boards import trees
from squelch.cluster.grafana.changes import MOST, Found, Verdict, differences, message, verdict

OURS = trees()["signal"]
LEAVES = st.none() | st.integers(0, 2) | st.lists(st.integers(0, 2), max_size=2)
BLOCKS = st.dictionaries(st.sampled_from(["title", "a"]), LEAVES, max_size=2)
VALUES = LEAVES | BLOCKS | st.lists(BLOCKS, max_size=3)


def found(board: Any, text: str = "", provisioned: bool = False) -> Found:
    return Found(board, 3, text, "squelch", provisioned)


def test_a_dashboard_is_ours_if_its_newest_version_has_the_message_of_a_push() -> None:
    older = {**OURS, "description": "older", "id": 4, "version": 3}
    assert verdict(OURS, None) is Verdict.MISSING
    assert verdict(OURS, found({**OURS, "id": 4, "version": 3})) is Verdict.SAME
    assert verdict(OURS, found(older, message(OURS))) is Verdict.SAME
    assert verdict(OURS, found(older, message(older))) is Verdict.OLDER
    assert verdict(OURS, found(older, "tidied up")) is Verdict.CHANGED
    assert verdict(OURS, found(older, message(older), provisioned=True)) is Verdict.PROVISIONED


def test_the_message_depends_on_the_content_alone() -> None:
    assert message(OURS) == message({**OURS, "id": 9, "version": 12})
    assert message(OURS) != message({**OURS, "refresh": "10s"})


@given(st.fixed_dictionaries({"x": VALUES}), st.fixed_dictionaries({"x": VALUES}))
def test_there_is_a_line_exactly_when_two_dashboards_differ(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert differences(left, deepcopy(left)) == []
    assert bool(differences(left, right)) == (left != right)
    assert len(differences(left, right)) <= MOST + 1


def test_a_list_of_panels_is_compared_by_title_so_that_a_new_panel_is_one_line() -> None:
    theirs = deepcopy(OURS)
    theirs["panels"].insert(1, {"title": "My own", "id": 99})
    assert differences(theirs, OURS) == ['panels["My own"]: a block on the server, nothing here']


def test_values_that_only_the_server_has_come_last() -> None:
    theirs = deepcopy(OURS) | {"refresh": "1m", "aDefault": 1}
    assert differences(theirs, OURS) == [
        "refresh: '1m' on the server, '5s' here",
        "aDefault: 1 on the server, nothing here",
    ]
