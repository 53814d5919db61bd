"""An ending keeps its cause and its detail, also through the text of older summaries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.runs.ending import EndCause, Ending, ending_of_text

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


@given(st.sampled_from([c for c in EndCause if c is not EndCause.REFUSED_STEPS]), st.text())
def test_an_ending_is_found_again_in_its_text(cause: EndCause, detail: str) -> None:
    assert ending_of_text(Ending(cause, detail).text) == Ending(cause, detail)


def test_a_detail_stays_out_of_the_cause() -> None:
    ending = Ending(EndCause.SIGNAL, "SIGINT")
    assert (ending.text, ending.cause.value) == ("stopped by SIGINT", "signal")
