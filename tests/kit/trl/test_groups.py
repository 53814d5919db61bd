"""The filter's settings and masks in TRL's terms; no TRL here."""

import math

import numpy as np
import pytest
import torch

from squelch.kit.trl.groups import filter_metrics, total_rewards
from squelch.kit.trl.releases import require_proven
from squelch.trl import GroupFilter


def test_settings_are_those_of_the_filter_and_are_refused_at_once() -> None:
    assert GroupFilter(rule="top_k", rho=0.25).description.startswith("top_k ")
    for wrong, text in (
        ({"rho": 2.0}, "rho is 2.0"),
        ({"statistic": "length"}, "lengths"),
        ({"normalizer": "some"}, "must be 'kept' or 'all'"),
    ):
        with pytest.raises(ValueError, match=text):
            GroupFilter(**wrong)


def test_a_normaliser_that_a_loss_cannot_have_is_refused_by_name() -> None:
    GroupFilter().require("dapo", beta=0.1)
    GroupFilter(normalizer="all").require("grpo", beta=0.1)
    with pytest.raises(ValueError, match=r"'grpo' divides by rows.*normalizer='all', or loss_type='dapo'"):
        GroupFilter().require("grpo", beta=0.1)
    with pytest.raises(ValueError, match="'bnpo' always divides by the tokens that are kept"):
        GroupFilter(normalizer="all").require("bnpo", beta=0.0)
    with pytest.raises(ValueError, match="'newpo' is unknown"):
        GroupFilter().require("newpo", beta=0.0)


def test_what_the_loss_is_divided_by_is_said() -> None:
    assert GroupFilter().says("dapo").endswith("the dapo loss is divided by the tokens of kept groups")
    assert GroupFilter(normalizer="all").says("grpo").endswith("the grpo loss is divided by the rows of all groups")


def test_a_dropped_group_has_no_mask_anywhere_and_shapes_stay() -> None:
    kept = torch.tensor([True, True, False, False])
    batch = {
        "completion_mask": torch.ones(4, 3, dtype=torch.long),
        "tool_mask": torch.tensor([[1, 0, 1]] * 4),
        "advantages": torch.tensor([1.0, -1.0, 1.0, -1.0]),
        "num_items_in_batch": torch.tensor(8),
    }
    GroupFilter().mask(batch, kept, 0.5, "dapo", lambda one: one)
    assert batch["completion_mask"].tolist() == [[1, 1, 1]] * 2 + [[0, 0, 0]] * 2
    assert batch["tool_mask"].tolist() == [[1, 0, 1]] * 2 + [[0, 0, 0]] * 2
    assert batch["advantages"].tolist() == [1.0, -1.0, 0.0, 0.0]
    assert int(batch["num_items_in_batch"]) == 4, "a tool's output is none of the model's tokens"


def test_a_step_without_signal_keeps_nothing_and_divides_by_nothing_strange() -> None:
    chosen = GroupFilter()
    found = chosen.select(np.ones((3, 2)))
    batch = {"completion_mask": torch.ones(6, 2), "advantages": torch.zeros(6), "num_items_in_batch": torch.tensor(12)}
    chosen.mask(batch, torch.from_numpy(found.kept_rows.ravel()), found.kept_fraction, "grpo", lambda one: one)
    assert not batch["completion_mask"].any() and not batch["advantages"].any()
    assert filter_metrics(found, 1)["kept_groups"] == 0 and filter_metrics(found, 1)["zero_variance_groups"] == 3


def test_rewards_are_weighted_sums_and_a_row_that_nobody_scored_has_none() -> None:
    total = total_rewards([[1.0, math.nan, math.nan], [2.0, 3.0, math.nan]], [1.0, 0.5])
    assert total[:2].tolist() == [2.0, 1.5] and math.isnan(total[2])


def test_a_group_with_one_scored_row_is_refused_and_said_so() -> None:
    found = GroupFilter().select(np.array([[0.0, 1.0], [math.nan, 1.0]]))
    assert filter_metrics(found, 0) | {"kept_groups": 1.0, "refused_groups": 1.0} == filter_metrics(found, 0)


class Proven:
    def _generate_and_score_completions(self, inputs: list) -> dict:
        return {}


class Changed:
    def _generate_and_score_completions(self, inputs: list, mode: str) -> dict:
        return {}


def test_a_release_that_it_was_not_tried_on_is_refused_by_name() -> None:
    require_proven("1.16.3", Proven)
    for version, trainer, text in (
        ("1.17.0", Proven, r"tried on TRL 1\.16; this is TRL 1\.17\.0.*trl==1\.16\.\*, or observe without filter"),
        ("1.16.1", Changed, r"_generate_and_score_completions takes \['self', 'inputs', 'mode'\]"),
        ("0.9.0", object, "it has no _generate_and_score_completions"),
    ):
        with pytest.raises(ImportError, match=text):
            require_proven(version, trainer)
