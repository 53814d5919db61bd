"""The scorer's interval and pairs are counted from the work of a step, and stay within the stated share."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.actors.config import ScorerConfig
from squelch.actors.scorer.share import (
    COST,
    FEWEST_PAIRS,
    OFTEN,
    PART,
    SELDOM,
    StepWork,
    as_chosen,
    chosen,
    in_words,
    probe_passes,
    scope_pairs,
    scoring_passes,
)
from squelch.kit.scoring.settings import ProbeConfig

COUNTDOWN = StepWork(prompts=8, group_size=8, opening=120, turn=48, turns=1, passes=4)
WORK = st.builds(
    StepWork,
    prompts=st.integers(1, 128),
    group_size=st.integers(2, 32),
    opening=st.integers(8, 2000),
    turn=st.integers(8, 2000),
    turns=st.integers(1, 20),
    pictures=st.booleans(),
    texts_differ=st.booleans(),
    passes=st.integers(3, 5),
    generation=st.sampled_from(sorted(COST)),
    training=st.sampled_from(sorted(COST)),
    scoring=st.sampled_from(sorted(COST)),
)


@given(work=WORK, share=st.floats(0.01, 1.0))
def test_a_scorer_step_takes_at_most_its_share_of_the_passes_between_two(work: StepWork, share: float) -> None:
    found = chosen(work, ScorerConfig(share=share))
    used = scoring_passes(work, found, found.max_pairs) / (found.interval * work.token_passes)
    left = share - probe_passes(work, found.probe) / (found.probe.every * work.token_passes)
    assert used <= max(left, (1 - PART) * share) * (1 + 1e-9)
    assert found.interval >= OFTEN and (found.max_pairs is None or found.max_pairs >= FEWEST_PAIRS)
    if found.interval > SELDOM:
        assert found.max_pairs == FEWEST_PAIRS, "pairs are dropped before a scorer step becomes rare"
    if found.max_pairs is not None and found.max_pairs > FEWEST_PAIRS:
        more = scoring_passes(work, found, found.max_pairs + 1)
        assert found.interval <= SELDOM and more >= scoring_passes(work, found, found.max_pairs)


@given(work=WORK)
def test_a_larger_share_never_scores_less(work: StepWork) -> None:
    less, more = (chosen(work, ScorerConfig(share=share)) for share in (0.05, 0.2))
    assert more.interval <= less.interval or more.max_pairs != less.max_pairs
    assert (more.max_pairs or 10**9) >= (less.max_pairs or 10**9)


def test_a_language_model_on_countdown_is_scored_every_tenth_step_with_a_part_of_the_pairs() -> None:
    found = chosen(COUNTDOWN, ScorerConfig())
    assert found.interval >= SELDOM and FEWEST_PAIRS <= (found.max_pairs or 0) < 256
    pairs = max(scope_pairs(COUNTDOWN, found, found.max_pairs))
    assert pairs == 64 * 3, "two other prompts for each of 64 reasonings, the fewest"
    assert in_words(COUNTDOWN, found).startswith(f"scoring every {found.interval} steps, at most {pairs} pairs")


@given(work=WORK, share=st.floats(0.01, 1.0))
def test_a_probe_evaluation_is_cut_before_it_takes_more_than_its_share(work: StepWork, share: float) -> None:
    whole, found = ScorerConfig(share=share).probe, chosen(work, ScorerConfig(share=share)).probe
    used = probe_passes(work, found) / (found.every * work.token_passes)
    assert used <= PART * share or (found.max_others == 7 and not found.links), "the least reading remains"
    settings = chosen(work, ScorerConfig(share=share))
    total = used + scoring_passes(work, settings, settings.max_pairs) / (settings.interval * work.token_passes)
    assert (total > 1.005 * share) == ("set scorer.probe.every higher" in in_words(work, settings))
    if probe_passes(work, whole) <= PART * share * whole.every * work.token_passes:
        assert found == whole.model_copy(update={"links": True})


def test_mi_by_modality_is_counted_where_pictures_are_shown() -> None:
    work = replace(COUNTDOWN, turns=5, group_size=16)
    seen, both = replace(work, pictures=True), replace(work, pictures=True, texts_differ=True)
    scorer = ScorerConfig(every=5)
    pairs = [scope_pairs(one, scorer, None) for one in (work, seen, both)]
    assert [own[1] - pairs[0][1] for own in pairs] == [0, 32 * 8, 32 * 8] and len({own[0] for own in pairs}) == 1
    assert scope_pairs(seen, scorer, 600)[1] <= 600 < pairs[1][1], "it counts in max_pairs too"
    passes = [scoring_passes(one, scorer, None) for one in (work, seen, both)]
    assert passes[0] < passes[1] == passes[2]
    assert probe_passes(work, scorer.probe) < probe_passes(seen, scorer.probe) < probe_passes(both, scorer.probe)
    once = replace(COUNTDOWN, pictures=True)
    assert scope_pairs(once, scorer, None) == scope_pairs(COUNTDOWN, scorer, None), "the matrix has them"


def test_a_scorer_in_float32_beside_a_learner_in_bfloat16_scores_half_as_much() -> None:
    """Found by an audit: steps with a scorer step took 1.6 times as long in such runs."""
    half = {"generation": "bfloat16", "training": "bfloat16"}
    scorer = ScorerConfig(every=5, max_pairs=128)
    mixed, whole, same = (replace(COUNTDOWN, **words) for words in (half, {}, half | {"scoring": "bfloat16"}))
    shares = [scoring_passes(work, scorer, 128) / work.token_passes for work in (mixed, whole, same)]
    assert shares[0] == pytest.approx(2 * shares[1]) and shares[2] == pytest.approx(shares[1])
    found = [chosen(work, ScorerConfig()) for work in (mixed, whole, same)]
    assert found[1] == found[2]
    rates = [scoring_passes(COUNTDOWN, one, one.max_pairs) / one.interval for one in found]
    assert 0.3 < rates[0] / rates[1] < 0.7


SMOLLM2 = replace(COUNTDOWN, opening=246, turn=80)
"""A step of the recipe smollm2-countdown, in the natural prompts' tokens."""


def test_the_probe_of_a_language_model_on_countdown_reads_seven_other_prompts_and_the_answers_of_eight_tasks() -> None:
    settings = chosen(SMOLLM2, ScorerConfig(probe=ProbeConfig(every=30, samples=2)))
    found = settings.probe
    assert found.max_others == 7 and found.links and found.answer_tasks == 8
    assert "with links to answers of 8 tasks: 10% of the model's passes" in in_words(SMOLLM2, settings)
    less = chosen(SMOLLM2, ScorerConfig(share=0.07, probe=ProbeConfig(every=30, samples=2))).probe
    assert less.max_others == 7 and less.links is False


def test_fewer_trajectories_a_task_come_before_the_loss_of_the_links() -> None:
    """Found by a reviewer: by default a model on a task of one turn had no links, so that no regime beyond template
    could ever be recognized."""
    work = StepWork(prompts=8, group_size=16, opening=200, turn=200, turns=1, passes=3)
    found = chosen(work, ScorerConfig())
    assert (found.probe.samples, found.probe.answer_tasks, found.probe.scores_answers) == (2, 8, True)
    assert "with 2 trajectories a task under 7 other prompts, with links to answers of 8" in in_words(work, found)
    asked = chosen(work, ScorerConfig(probe=ProbeConfig(samples=4)))
    assert (asked.probe.samples, asked.probe.scores_answers) == (4, False)
    assert "so that only the regimes mute and template are recognized" in in_words(work, asked)


def test_a_continued_run_keeps_the_trajectories_a_task_that_were_chosen_unless_they_are_set() -> None:
    work = StepWork(prompts=8, group_size=16, opening=200, turn=200, turns=1, passes=3)
    before = chosen(work, ScorerConfig())
    assert as_chosen(ScorerConfig(), before).probe.samples == 2
    assert as_chosen(ScorerConfig(probe=ProbeConfig(samples=8)), before).probe.samples == 8


@pytest.mark.parametrize("asked", [True, False])
def test_links_that_are_asked_for_or_not_wanted_stay_so_whatever_they_cost(asked: bool) -> None:
    for share in (0.001, 0.07, 1.0):
        settings = chosen(SMOLLM2, ScorerConfig(share=share, probe=ProbeConfig(every=30, samples=2, links=asked)))
        assert settings.probe.links is asked
        assert ("set scorer.probe.every higher" in in_words(SMOLLM2, settings)) == (
            share == 0.001 or (asked and share < 0.1)
        )


def test_without_a_probe_the_scorer_steps_have_the_whole_share() -> None:
    off = ProbeConfig(every=0)
    found = chosen(SMOLLM2, ScorerConfig(probe=off))
    used = scoring_passes(SMOLLM2, found, found.max_pairs) / (found.interval * SMOLLM2.token_passes)
    assert (1 - PART) * 0.1 < used <= 0.1


def test_what_the_user_has_set_stays() -> None:
    assert chosen(COUNTDOWN, ScorerConfig(every=3)) == ScorerConfig(every=3)
    assert chosen(COUNTDOWN, ScorerConfig(max_pairs=100)).max_pairs == 100
    rare = chosen(COUNTDOWN, ScorerConfig(compat="ragen"))
    assert rare.max_pairs is None and rare.interval > SELDOM, "the authors' mixture needs all pairs"


def test_the_smallest_of_everything_is_counted_too() -> None:
    """Found by a reviewer: one validation task, or a matrix smaller than the fewest pairs, ended the start."""
    one = replace(COUNTDOWN, tasks=1)
    assert probe_passes(one, ScorerConfig().probe) == 0 and "the probe" not in in_words(
        one, chosen(one, ScorerConfig())
    )
    little = ScorerConfig(share=0.02, max_prompts=4, samples_per_prompt=2, trajectory_draws=4)
    assert chosen(COUNTDOWN, little).max_pairs == FEWEST_PAIRS


def test_the_authors_mixture_needs_all_pairs_in_a_continued_run_too() -> None:
    before = chosen(COUNTDOWN, ScorerConfig())
    found = as_chosen(ScorerConfig(compat="ragen"), before)
    assert (found.every, found.max_pairs) == (before.every, None) and before.max_pairs
    assert ScorerConfig.model_validate(found.model_dump()) == found, "the run's config.yaml can be read again"


def test_an_interval_that_nobody_chose_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"scorer\.every is not chosen yet"):
        _ = ScorerConfig().interval
    assert ScorerConfig(enabled=False).interval == 1, "a scorer that is off needs none"


@given(work=WORK, share=st.floats(0.01, 1.0))
def test_hard_negatives_are_scored_where_there_is_room_and_change_no_other_choice(work: StepWork, share: float) -> None:
    twins = replace(work, twins=True)
    without = chosen(work, ScorerConfig(share=share)).probe
    found = chosen(twins, ScorerConfig(share=share)).probe
    assert found.model_copy(update={"hard": None}) == without and found.hard is not None
    allowed = PART * share * work.token_passes * found.every
    there, left_out = (probe_passes(twins, found.model_copy(update={"hard": hard})) for hard in (True, False))
    assert found.hard == (there <= allowed) and left_out == probe_passes(work, without)
    assert ("hard negatives" in in_words(twins, chosen(twins, ScorerConfig(share=share)))) == found.hard


@pytest.mark.parametrize("hard", [True, False])
def test_a_user_decides_on_hard_negatives_whatever_they_cost(hard: bool) -> None:
    probe = ProbeConfig(hard=hard)
    for twins in (True, False):
        work = replace(COUNTDOWN, twins=twins)
        assert chosen(work, ScorerConfig(share=0.01, probe=probe)).probe.hard is hard
        cost = probe_passes(work, probe) - probe_passes(work, ProbeConfig(hard=False))
        assert cost == (32 * 7 * (4 * 48 + 120) if hard else 0)
    assert as_chosen(ScorerConfig(), ScorerConfig(every=5, probe=probe)).probe.hard is hard
