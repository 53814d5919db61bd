import gc

import pytest

from squelch.actors.process.imports import importing


def test_the_collector_is_paused_while_modules_are_imported_and_goes_on_also_after_an_error() -> None:
    with pytest.raises(ImportError), importing():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with importing():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
