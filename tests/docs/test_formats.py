"""The table of other trainers' files says what their readers say."""

from docs.writers import formats
from squelch.kit.readers.formats import FORMATS


def test_the_pages_table_is_made_from_the_readers() -> None:
    text = formats.PAGE.read_text(encoding="utf-8")
    assert formats.with_table(text) == text, "run: python -m docs.writers.formats"
    written = formats.with_table("<!-- begin formats: here -->\nstale\n<!-- end formats -->\n")
    assert all(f"| `{one.name}` |" in written for one in FORMATS.values() if one.origin is not None)
    assert "stale" not in written and "| `checkpoint-(N-1)` |" in written and "| `iter_(N-1)` |" in written
