"""A failure keeps its cause and its detail."""

import pytest

from squelch.kit.records.failures import Failure, FailureCause, failure_of


@pytest.mark.parametrize(
    ("cause", "detail", "failure"),
    [
        ("step_timeout", "", Failure(FailureCause.STEP_TIMEOUT)),
        ("environment_error", "KeyError: 'boom'", Failure(FailureCause.ENVIRONMENT_ERROR, "KeyError: 'boom'")),
        ("out of patience", "again", Failure(FailureCause.OTHER, "out of patience: again")),
        ("", "", Failure(FailureCause.OTHER, "")),
    ],
)
def test_a_cause_that_is_not_listed_becomes_the_detail(cause: str, detail: str, failure: Failure) -> None:
    assert failure_of(cause, detail) == failure


def test_an_error_with_a_lone_surrogate_is_told_in_text_that_files_take() -> None:
    failure = Failure(FailureCause.ENVIRONMENT_ERROR, "no \ud800")
    assert failure.detail.encode() == b"no \\ud800"


def test_only_failed_sampling_points_at_the_rollout_worker() -> None:
    assert [cause.value for cause in FailureCause if cause.in_generation] == ["generation_timeout", "generation_error"]
