"""An ending keeps its cause and its detail, also through the text of older summaries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.runs.ending import EndCause, Ending, ending_of, ending_of_text, is_complete

ENDINGS = {
    "early stop: reward variance below 10% of its baseline 0.2 for 5 steps": EndCause.EARLY_STOP,
    "no signal: filter.on_no_signal=abort, or filter.no_signal_limit was reached": EndCause.NO_SIGNAL,
    "3 steps in a row refused (learner.max_bad_steps); last: non-finite gradient": EndCause.REFUSED_STEPS,
    "stopped by SIGTERM": EndCause.SIGNAL,
}


@pytest.mark.parametrize(("text", "cause"), ENDINGS.items())
def test_the_text_of_an_older_summary_gives_the_cause_and_is_reproduced(text: str, cause: EndCause) -> None:
    ending = ending_of_text(text)
    assert ending.cause is cause and ending.text == text
    assert ending.complete is (cause is EndCause.EARLY_STOP)
    assert ending.final is (cause in (EndCause.EARLY_STOP, EndCause.NO_SIGNAL))


@given(st.sampled_from([c for c in EndCause if c is not EndCause.REFUSED_STEPS]), st.text())
def test_an_ending_is_found_again_in_its_text(cause: EndCause, detail: str) -> None:
    assert ending_of_text(Ending(cause, detail).text) == Ending(cause, detail)


def test_a_detail_stays_out_of_the_cause() -> None:
    ending = Ending(EndCause.SIGNAL, "SIGINT")
    assert (ending.text, ending.cause.value) == ("stopped by SIGINT", "signal")


@given(st.sampled_from(EndCause), st.text(min_size=1))
def test_a_summary_gives_back_the_ending_that_it_was_written_with(cause: EndCause, detail: str) -> None:
    ending = Ending(cause, detail)
    assert ending_of({"stopped": ending.text, "end_cause": ending.cause}) == ending


def test_a_run_is_complete_if_its_settings_would_end_it_again_and_its_ledger_balances() -> None:
    balanced, early = {"ledger": {"balanced": True}}, Ending(EndCause.EARLY_STOP, "collapsed").text
    assert is_complete(balanced | {"finished": True, "stopped": None})
    assert is_complete(balanced | {"finished": False, "stopped": early})
    assert is_complete(balanced | {"finished": False, "stopped": Ending(EndCause.NO_SIGNAL, "5 steps").text})
    assert not is_complete(balanced | {"finished": False, "stopped": "stopped by SIGINT"})
    assert not is_complete({"ledger": {"balanced": False}, "finished": True, "stopped": None})
    assert not is_complete(None) and ending_of({"stopped": None}) is None
