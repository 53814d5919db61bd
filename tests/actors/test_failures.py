"""A failure keeps its cause and its detail, also through the text of version 0."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.actors.failures import Failure, FailureCause, failure_of_text


@given(st.sampled_from([c for c in FailureCause if c is not FailureCause.OTHER]), st.text())
def test_a_failure_is_found_again_in_its_text(cause: FailureCause, detail: str) -> None:
    assert failure_of_text(str(Failure(cause, detail))) == Failure(cause, detail)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("step_timeout", Failure(FailureCause.STEP_TIMEOUT)),
        ("environment_error: KeyError: 'boom'", Failure(FailureCause.ENVIRONMENT_ERROR, "KeyError: 'boom'")),
        ("out of patience: again", Failure(FailureCause.OTHER, "out of patience: again")),
        ("", Failure(FailureCause.OTHER, "")),
    ],
)
def test_a_text_of_version_0_is_split_at_its_first_colon(text: str, failure: Failure) -> None:
    assert failure_of_text(text) == failure


def test_only_failed_sampling_points_at_the_rollout_worker() -> None:
    assert [cause.value for cause in FailureCause if cause.in_generation] == ["generation_timeout", "generation_error"]
