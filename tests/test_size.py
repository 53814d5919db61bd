"""Only what is code counts as code."""

from tests.size import python


def test_blank_lines_comments_and_docstrings_are_no_code() -> None:
    text = '"""Head."""\n\n# why\nX = 1  # unit\n"""What X is,\nin two lines."""\n\n\n'
    text += 'def f() -> None:\n    """Says."""\n    g(\n        X,\n    )\n'
    assert python(text) == {"code lines": 5, "statements": 3, "tokens": 15}


def test_a_string_that_is_used_is_code_however_many_lines_it_has() -> None:
    assert python('X = """a\n\nb"""\n') == {"code lines": 3, "statements": 1, "tokens": 3}
