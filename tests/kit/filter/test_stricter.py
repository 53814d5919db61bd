"""The stricter filter of each rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.kit.filter.rules import RULES, stricter
from squelch.kit.filter.selection import select
from squelch.kit.filter.settings import FilterConfig

SCORES = st.lists(st.sampled_from([0.0, 0.0, 0.0625, 0.125, 0.1875, 0.25, 0.25, 1.0]), min_size=1, max_size=12)
FILTERS = st.builds(
    FilterConfig,
    rule=st.sampled_from(list(RULES)),
    rho=st.sampled_from([0.01, 0.1, 0.125, 0.2, 0.25, 0.5, 0.9, 0.95, 1.0]),
    band=st.sampled_from([(0.0, 1.0), (0.0, 0.25), (0.25, 0.75), (0.75, 1.0), (0.99, 1.0)]),
    keep=st.sampled_from(["largest", "smallest"]),
    target=st.sampled_from(["groups", "regulariser", "task"]),
    compat=st.sampled_from(["paper", "ragen"]),
    include_zero=st.booleans(),
)


def with_stricter(config: FilterConfig, num_groups: int) -> FilterConfig:
    return FilterConfig(**(config.model_dump() | stricter(config, num_groups)))


def kept(scores: list[float], config: FilterConfig) -> set[int]:
    return set(select(np.array(scores), None, config).kept)


@given(scores=SCORES, config=FILTERS)
def test_a_stricter_filter_keeps_no_group_that_was_dropped(scores: list[float], config: FilterConfig) -> None:
    assert kept(scores, with_stricter(config, len(scores))) <= kept(scores, config)


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.filters])
def test_a_filter_that_is_made_stricter_again_and_again_drops_more_and_keeps_a_group(rule: str) -> None:
    scores, config, rounds = np.linspace(0.1, 1.0, 64).tolist(), FilterConfig(rule=rule, rho=0.5), 0
    while stricter(config, len(scores)):
        before, config, rounds = kept(scores, config), with_stricter(config, len(scores)), rounds + 1
        assert kept(scores, config) < before
    assert rounds >= 2 and kept(scores, config)


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.filters])
@pytest.mark.parametrize("harmful", [{"keep": "smallest"}, {"target": "task"}])
def test_no_stricter_filter_is_named_where_it_would_do_harm(rule: str, harmful: dict[str, str]) -> None:
    assert stricter(FilterConfig(rule=rule, rho=0.5), 64)
    assert not stricter(FilterConfig(rule=rule, rho=0.5, **harmful), 64)
