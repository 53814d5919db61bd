"""The learner's benchmark says why a step with fewer tokens is off the line through the origin."""

import pytest

from benchmarks.learner.step import off_the_line


def test_what_is_off_the_line_is_less_sharing_and_time_a_token():
    """A quarter of the tokens, three tenths of those fed, two fifths of the time."""
    found = off_the_line(seconds=0.4, tokens=0.25, fed=0.3)
    assert found["off_the_line"] == pytest.approx(0.6)
    assert found["by_less_sharing"] == pytest.approx(0.2)
    assert found["by_time_a_token_fed"] == pytest.approx(0.4)


def test_half_the_tokens_in_half_the_time_are_on_the_line():
    assert off_the_line(0.5, 0.5, 0.5) == pytest.approx(dict.fromkeys(off_the_line(1, 1, 1), 0.0))
