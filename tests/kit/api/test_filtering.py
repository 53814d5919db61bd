"""`squelch.filter` decides as the command does, on arrays, tensors and rows in any order."""

import numpy as np
import pytest
import torch

import squelch
from squelch.kit.filter.settings import FilterConfig

NAN = float("nan")
REWARDS = [[0, 0, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1], [NAN, NAN, NAN, 1]]


def test_groups_without_a_difference_are_dropped_and_failed_ones_refused() -> None:
    found = squelch.filter(REWARDS)
    assert found.kept.tolist() == [False, True, False, True, False]
    assert found.kept_rows.shape == (5, 4) and (found.kept_rows == found.kept[:, None]).all()
    assert found.codes == ("zero", "selected", "zero", "selected", "refused")
    assert found.variances[:4] == pytest.approx([0, 1 / 3, 0, 1 / 4]) and np.isnan(found.variances[4])
    assert (found.kept_mass, found.kept_fraction, found.num_zero, found.rejection) == (1.0, 0.4, 2, "")
    assert found.settings == FilterConfig().describe()


def test_the_defaults_are_those_of_a_run() -> None:
    fields, own = FilterConfig.model_fields, squelch.filter.__kwdefaults__
    settings = [name for name in own if name in fields]
    assert len(settings) == 9 and all(own[name] == fields[name].default for name in settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_tensors_of_any_dtype_are_arrays(dtype: torch.dtype) -> None:
    rewards = torch.tensor([[0, 1], [1, 1]]).to(dtype)
    assert squelch.filter(rewards).kept.tolist() == [True, False]


def test_rows_with_the_label_of_their_group_come_in_any_order_and_number() -> None:
    uids = ["b", "a", "b", "c", "a", "b", "c"]
    found = squelch.filter([1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0], uids)
    assert found.group_ids == ("b", "a", "c") and found.kept.tolist() == [True, False, True]
    assert np.flatnonzero(found.kept_rows).tolist() == [0, 2, 3, 5, 6]
    unscored = squelch.filter([1.0, None, 0.0], ["x", "x", "x"])
    assert unscored.kept.tolist() == [True] and unscored.means.tolist() == [0.5]


def test_all_rewards_equal_keeps_nothing_and_says_why() -> None:
    found = squelch.filter(np.ones((3, 4)))
    assert not found.kept.any() and found.kept_mass is None and "every score is zero" in found.rejection


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rewards": [1.0, 0.0]}, r"`rewards` has shape \(2,\); it must be \(num_groups, group_size\)"),
        ({"rewards": [[1.0], [0.0, 1.0]]}, "`rewards` must be a rectangular array of numbers"),
        ({"rewards": [["a", "b"]]}, "`rewards` must be a rectangular array of numbers"),
        ({"rewards": [[0], [1]]}, "every group has one trajectory, and reward_variance compares"),
        ({"rewards": [1.0, 0.0], "group_ids": ["a"]}, "`group_ids` \\(1,\\); with `group_ids` both must be"),
        ({"rewards": [1.0, 0.0], "group_ids": [["a"]]}, "`group_ids` must be one label for each row"),
        ({"rewards": REWARDS, "rho": 2.0}, r"^rho is 2.0; it must be in \(0, 1\]"),
        ({"rewards": REWARDS, "rule": "top_q"}, "rule is 'top_q'"),
        ({"rewards": REWARDS, "statistic": "length"}, "statistic length needs `lengths`"),
        ({"rewards": REWARDS, "lengths": [[1]]}, r"`lengths` has shape \(1, 1\); it must be that of `rewards`"),
    ],
)
def test_bad_input_is_named(given: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        squelch.filter(**given)


def test_one_completion_of_each_prompt_can_still_be_ranked_by_what_needs_no_second() -> None:
    assert squelch.filter([[1.0], [2.0]], statistic="reward_sum", rule="top_k", rho=0.5).kept.tolist() == [False, True]
    assert squelch.filter([[1.0], [2.0]], rule="none").kept.all()
