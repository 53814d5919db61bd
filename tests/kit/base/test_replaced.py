"""Members of others are what they were afterwards, also after an error."""

from types import SimpleNamespace

import pytest

from squelch.kit.base.replaced import replaced


def test_members_are_others_meanwhile_and_what_they_were_also_after_an_error() -> None:
    owner = SimpleNamespace(one=1, two=2, three=3)
    with replaced(owner, one="a", two="b"):
        assert vars(owner) == {"one": "a", "two": "b", "three": 3}
    with pytest.raises(RuntimeError), replaced(owner, three="c"):
        assert owner.three == "c"
        raise RuntimeError
    assert vars(owner) == {"one": 1, "two": 2, "three": 3}


def test_a_member_that_is_not_there_is_an_error_and_nothing_changes() -> None:
    owner = SimpleNamespace(one=1)
    with pytest.raises(AttributeError, match="two"), replaced(owner, one="a", two="b"):
        raise AssertionError
    assert vars(owner) == {"one": 1}
