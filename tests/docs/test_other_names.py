"""The names of other trainers lead to settings that exist; the page is what the table says."""

import re
from collections import Counter
from pathlib import Path

from docs.writers.other_names import PAGE, page
from squelch.cluster.commands import train
from squelch.cluster.other_names import rows
from squelch.cluster.settings_reference import of_run


def test_every_name_of_ours_is_a_setting_or_a_flag_of_train() -> None:
    known = {one.key for block in of_run() for one in block.settings}
    flags = set(re.findall(r'"(--[\w-]+)"', Path(train.__file__).read_text()))
    named = {name for row in rows() for name in row.here}
    assert named <= known | flags, named - known - flags


def test_every_row_says_something_of_another_trainer_and_what_to_do_instead() -> None:
    for row in rows():
        assert row.trl or row.verl or row.prime_rl, row
        assert row.here or row.note, f"{row.thing}: what does a user do instead?"
    things = Counter(row.thing for row in rows())
    assert things.most_common(1)[0][1] == 1


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m docs.writers.other_names"
