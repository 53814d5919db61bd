"""The tables of other trainers' keys say what `values` understands, of settings that exist."""

import re
from collections import Counter

import pytest

from squelch.cluster.settings_reference import of_run
from squelch.kit.importing.tables import RELEASES, SPECIAL, every_row, rows, rows_of
from squelch.kit.importing.values import CLAUSES

SETTINGS = {one.key for block in of_run() for one in block.settings}
OPTIONS = "environment.options"


@pytest.mark.parametrize("trainer", RELEASES)
def test_every_setting_of_a_table_exists(trainer: str) -> None:
    named = {setting for row in rows(trainer) for setting in row.settings if not setting.startswith(f"{OPTIONS}.")}
    assert named <= SETTINGS, named - SETTINGS


@pytest.mark.parametrize("trainer", RELEASES)
def test_every_clause_is_known_and_every_key_that_it_asks_for_is_in_the_table(trainer: str) -> None:
    known = {name for row in rows(trainer) for name in row.names}
    for row in rows(trainer):
        for clause in filter(None, (part.strip() for part in row.value.split(";"))):
            word, _, rest = clause.partition(" ")
            assert word in CLAUSES, row
            if word in ("when", "unless", "divide", "of", "times", "plus", "pair"):
                asked = {one.partition("=")[0] for one in rest.split()}
                assert asked <= known, (row.key, asked - known)


@pytest.mark.parametrize("trainer", RELEASES)
def test_a_key_has_one_spelling_of_a_row_and_no_default_but_its_own(trainer: str) -> None:
    spelled = Counter(name for key in {row.key for row in rows(trainer)} for name in _names(trainer, key))
    assert [name for name, count in spelled.items() if count > 1 and name != "-"] == []
    defaults = {(row.key, row.default) for row in rows(trainer) if row.key != "-"}
    assert len(defaults) == len({key for key, _ in defaults})


def _names(trainer: str, key: str) -> set[str]:
    return {name for row in rows(trainer) if row.key == key for name in row.names}


def test_a_key_without_a_counterpart_says_why_or_is_asked_for_by_another_row() -> None:
    asked = {re.split("[= ;]", one)[0] for row in every_row() for one in row.value.split()}
    quiet = {row.key for row in every_row() if not row.here and not row.note and not row.pattern}
    assert quiet - asked == {"algorithm._target_"}
    assert {row.here for row in every_row() if row.here.startswith("--")} <= set(SPECIAL)


def test_an_exact_key_comes_before_a_pattern() -> None:
    assert [row.here for row in rows_of("verl", "actor_rollout_ref.rollout.n")] == ["sampling.group_size"]
    (row,) = rows_of("verl", "actor_rollout_ref.rollout.profiler.tool")
    assert row.pattern and row.key == "actor_rollout_ref.rollout.*"
    assert rows_of("verl", "a_new_key") == []
