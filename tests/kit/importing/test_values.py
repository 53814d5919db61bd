"""How a trainer's value becomes a setting's."""

from typing import Any

import pytest

from squelch.kit.importing.tables import Row
from squelch.kit.importing.values import NOTHING, Lost, Unknown, converted

KEYS: dict[str, Any] = {"batch": 512, "group": 8, "on": True, "loggers": ["console", "wandb"], "none": None, "b2": 0.99}


def value_of(given: Any, clauses: str, **more: Any) -> Any:
    row = Row("verl", "key", (), "", "some.setting", clauses, "")
    return converted(row, given, lambda key: {**KEYS, **more}.get(key))


@pytest.mark.parametrize(
    ("given", "clauses", "found"),
    [
        (5, "", 5),
        (None, "", NOTHING),
        (512, "divide group", 64),
        (128, "of batch group", 32),
        (512, "plus batch", 1024),
        (3, "times group", 24),
        (2, "minus 1", 1),
        (0.3, "times group; whole", 2),
        (0, "positive", NOTHING),
        (16, "positive", 16),
        (-1, "swap -1=0", 0),
        (10, "swap -1=0", 10),
        ("low_var_kl", "map kl=k1 low_var_kl=k3", "k3"),
        ("constant", "map constant= cosine=cosine", NOTHING),
        (True, "when on=true; map true=loss false=", "loss"),
        (1, "when on=false", NOTHING),
        (1, "when loggers=wandb", 1),
        (1, "unless none=null", NOTHING),
        (1, "unless group=7 group=8", NOTHING),
        (0.9, "pair b2", [0.9, 0.99]),
        ([0.2, 0.28], "item 1", 0.28),
        ([0.2, 0.28], "last", 0.28),
        (2, "last", 2),
        ([3, 4, 5], "count", 3),
        ("a.parquet, b.parquet", "list", ["a.parquet", "b.parquet"]),
        (["a.parquet"], "list", "a.parquet"),
        (["console", "wandb"], "pick wandb tensorboard", ["wandb"]),
        ("wandb", "pick wandb tensorboard", ["wandb"]),
        (True, "pick wandb tensorboard", NOTHING),
        ("project", "give [wandb]", ["wandb"]),
        (None, "give [wandb]", NOTHING),
        ("my run/3", "name", "my-run-3"),
        (False, "any", NOTHING),
    ],
)
def test_a_clause_gives_its_value(given: Any, clauses: str, found: Any) -> None:
    assert value_of(given, clauses) == found


def test_a_value_that_no_setting_has_is_lost_with_those_that_have_one() -> None:
    found = value_of("rloo", "map grpo=grpo gae=ppo null=")
    assert isinstance(found, Lost) and "grpo, gae" in found.why and "null" not in found.why


@pytest.mark.parametrize(
    ("given", "clauses"),
    [
        (513, "divide group"),
        (Unknown("a script computes it"), "divide group"),
        (512, "divide absent"),
        (512, "when computed=true"),
        ("many", "times group"),
        ("0,1", "count"),
        (3, "unknown a product"),
    ],
)
def test_what_cannot_be_known_is_unknown_and_never_a_number(given: Any, clauses: str) -> None:
    found = value_of(given, clauses, computed=Unknown("a script computes it"))
    assert isinstance(found, Unknown) and found.why
