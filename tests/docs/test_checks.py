"""The pages of checks say what the catalogue says, and the catalogue names formats and checks that exist."""

from docs.writers import checks as writer
from docs.writers.checks import formats_of, words_of
from squelch.kit.checks.catalogue import checks
from squelch.kit.checks.run import CHECKS, check
from squelch.kit.readers.format import HOLDS
from squelch.kit.readers.formats import FORMATS
from tests.kit.checks.bank import run, verl


def test_the_pages_are_what_the_catalogue_says() -> None:
    guide = writer.GUIDE.read_text(encoding="utf-8")
    assert writer.PAGE.read_text(encoding="utf-8") == writer.page(), "run: python -m docs.writers.checks"
    assert writer.with_table(guide) == guide, "run: python -m docs.writers.checks"


def test_each_entry_needs_what_some_format_holds_and_each_format_holds_what_is_explained() -> None:
    words = {word for one in FORMATS.values() for word in words_of(one)}
    for one in checks().values():
        assert {*one.holds, *one.options.values()} <= words, one.name
        assert bool(formats_of(one)) == bool(one.holds), one.name
    held = [one.traits.holds for one in FORMATS.values()]
    assert set().union(*held) == set(HOLDS)


def test_every_check_has_an_entry_and_every_result_is_one_of_them(tmp_path) -> None:
    found = [one.name for one in check(verl(tmp_path, run())).results]
    assert set(CHECKS) <= set(found) <= set(checks()) and len(set(found)) == len(found)
