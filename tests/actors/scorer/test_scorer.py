"""The scorer's metrics, its one-version rule, and its state."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from squelch.actors.config import ScorerConfig
from squelch.actors.scorer.scorer import SCOPES, Followed, Scorer
from squelch.cluster.metrics import REGISTRY
from squelch.kit.diagnosis.metrics import COMPLETION_KEYS, REGIMES
from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import Trajectory, Turn
from squelch.kit.scoring.token_trees import Path
from tests.kit.scoring.windows import CONFIG, trajectory, window
from tests.pictures import placed

PROXY_KEYS = (
    *("retrieval_accuracy", "retrieval_chance", "recall@2", "recall@4", "recall@8", "mi_est", "mi_seq_est"),
    *("mi_zscore", "mi_zscore_ema", "conditional_entropy", "marginal_entropy", "upper_bound"),
    *("num_prompts", "num_samples", "num_excluded", "version_mismatch"),
)


class Oracle:
    """Reasonings whose first id names their prompt's first id: depends on the input as far as `strength` says."""

    context_length = 100

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def matrix(
        self,
        prompts: list[np.ndarray],
        reasonings: list[np.ndarray],
        wanted: np.ndarray | None = None,
        pictures: list[tuple] | None = None,
    ) -> np.ndarray:
        own = np.array([[z[0] == x[0] for x in prompts] for z in reasonings])
        found = -1.0 * np.array([[len(z)] for z in reasonings]) - self.strength * ~own
        return found if wanted is None else np.where(wanted, found, np.nan)

    def path_sums(
        self, prompts: list[np.ndarray], rows: list[list[list[Path]]], pictures: list[tuple] | None = None
    ) -> list[list[np.ndarray]]:
        return [
            [np.array([self.matrix([x], [path.ids])[0, 0] for path in row]) for row in own]
            for x, own in zip(prompts, rows, strict=True)
        ]


def test_every_key_is_there_and_known_to_the_registry() -> None:
    metrics = Scorer(Oracle(5.0), CONFIG, seed=1).score(1, 0, window())
    assert {f"{scope}/{key}" for scope in SCOPES for key in PROXY_KEYS} <= metrics.keys()
    assert all(isinstance(value, float) for value in metrics.values())
    known = {key for spec in REGISTRY.specs.values() for key in spec.flat_keys()}
    assert metrics.keys() <= known


def test_reasoning_that_names_its_input_is_retrieved_and_a_template_is_not() -> None:
    grounded = Scorer(Oracle(50.0), CONFIG, seed=1).score(1, 0, window())
    template = Scorer(Oracle(0.0), CONFIG, seed=1).score(1, 0, window())
    for scope in SCOPES:
        num = grounded[f"{scope}/num_prompts"]
        assert grounded[f"{scope}/retrieval_accuracy"] == 1.0
        assert template[f"{scope}/retrieval_accuracy"] == pytest.approx(1 / num)
        assert template[f"{scope}/retrieval_chance"] == pytest.approx(1 / num)
        assert template[f"{scope}/mi_est"] == pytest.approx(0.0, abs=1e-12)
    assert grounded["first_turn/mi_seq_est"] == pytest.approx(np.log(8))
    assert grounded["first_turn/num_prompts"] == 8 and grounded["first_turn/num_samples"] == 16
    certain = [grounded[f"first_turn/recall@8{end}"] for end in ("", "_low", "_high")]
    assert all(map(math.isnan, certain)), "of 8 prompts all are among the first 8"
    assert grounded["first_turn/recall@4"] == 1.0


def test_turns_that_mark_no_reasoning_are_unmarked_until_some_do_and_those_that_fall_silent_are_mute() -> None:
    def bare(at: int) -> dict[str, list[Trajectory]]:
        """A window whose turns have an empty reasoning `at` that place of the turn."""
        found = window()
        for one in (one for ones in found.values() for one in ones):
            one.turns = [replace(turn, reasoning_start=3 + at, reasoning_end=3 + at) for turn in one.turns]
        return found

    def regime(scorer: Scorer, step: int, groups: dict[str, list[Trajectory]]) -> str:
        found = scorer.score(step, 0, groups)
        return next(name for name in REGIMES if found[f"first_turn/regime/{name}"] == 1.0)

    own, opened = (Scorer(Oracle(50.0), CONFIG, 1, opens=lambda fed, opens=opens: opens) for opens in (False, True))
    assert regime(own, 1, bare(0)) == "unmarked" and regime(opened, 1, bare(0)) == "mute", "the prompt marks it"
    assert regime(own, 2, window()) != "unmarked"
    again = Scorer(Oracle(50.0), CONFIG, 1, opens=lambda fed: False)
    again.restore(json.loads(json.dumps(own.state())))
    assert regime(again, 3, bare(0)) == "mute", "the run did mark reasonings"
    assert regime(Scorer(Oracle(50.0), CONFIG, 1, opens=lambda fed: False), 1, bare(1)) == "mute", "an empty one"
    assert regime(Scorer(Oracle(50.0), CONFIG, 1), 1, bare(0)) == "mute", "Squelch's turns are always marked"


def test_of_turns_that_are_not_divided_only_the_completions_dependence_is_known() -> None:
    """With the keys of every step beside them, so that no series ends; within the budget of pairs."""
    every = Scorer(Oracle(5.0), CONFIG, seed=1).score(1, 0, window())
    scorer = Scorer(Oracle(5.0), CONFIG, 1, whole=True)
    found = scorer.score(1, 0, window())
    own = {key for key in found if key.startswith("completion/")}
    assert own == {f"completion/{key}" for key in COMPLETION_KEYS} and not scorer.matrices
    assert {key for key in every if not key.startswith("turn/")} == found.keys() - own
    assert found["completion/dependence"] > 1 and found["completion/num_prompts"] == 8
    for scope in SCOPES:
        assert not any(found[f"{scope}/regime/{name}"] for name in REGIMES)
        assert all(math.isnan(found[f"{scope}/{key}"]) for key in ("mi_est", "mi_seq_est", "reasoned"))
    few = Scorer(Oracle(5.0), CONFIG.model_copy(update={"max_pairs": 64}), 1, whole=True).score(1, 0, window())
    assert few["completion/num_prompts"] * few["completion/num_samples"] <= 64


def test_marginal_and_conditional_entropy_differ_by_the_estimate() -> None:
    metrics = Scorer(Oracle(0.7), CONFIG, seed=1).score(1, 0, window())
    for scope in SCOPES:
        difference = metrics[f"{scope}/marginal_entropy"] - metrics[f"{scope}/conditional_entropy"]
        assert difference == pytest.approx(metrics[f"{scope}/mi_est"])


def test_the_authors_normalisation_is_an_option_that_changes_what_it_says_and_nothing_else() -> None:
    paper, ragen = (
        Scorer(Oracle(3.0), CONFIG.model_copy(update={"compat": compat}), seed=1).score(1, 0, window())
        for compat in ("paper", "ragen")
    )
    assert ragen["first_turn/mi_est"] > paper["first_turn/mi_est"] + 0.01
    assert ragen["first_turn/mi_est_low"] <= ragen["first_turn/mi_est"] <= ragen["first_turn/mi_est_high"]
    same = ("retrieval_accuracy", "mi_seq_est", "mi_seq_est_low", "conditional_entropy", "mi_seq_est_p_value")
    assert all(paper[f"first_turn/{key}"] == ragen[f"first_turn/{key}"] for key in same)


def test_exclusions_are_counted_and_a_window_without_reasoning_leaves_the_average_alone() -> None:
    groups = window()
    groups["g0"][0].failure = Failure(FailureCause.STEP_TIMEOUT)
    for trajectories in groups.values():
        trajectories[1].turns[0].reasoning_end = trajectories[1].turns[0].reasoning_start
    cut = groups["g1"][2].turns[0]
    cut.reasoning_start = cut.reasoning_end = cut.sample_end
    scorer = Scorer(Oracle(1.0), CONFIG, seed=1)
    metrics = scorer.score(1, 0, groups)
    assert metrics["first_turn/excluded/failed"] == metrics["first_turn/excluded/unclosed"] == 1
    assert metrics["first_turn/excluded/empty"] == 8 and metrics["first_turn/num_excluded"] == 10
    state = scorer.state()
    for t in (t for trajectories in groups.values() for t in trajectories):
        t.turns[0].reasoning_end = t.turns[0].reasoning_start
    empty = scorer.score(2, 0, groups)
    assert empty["first_turn/num_samples"] == 0 and math.isnan(empty["first_turn/mi_est"])
    assert empty["first_turn/regime/mute"] == 1.0 and empty.keys() == metrics.keys()
    moving = ("ema", "regime", "parts")
    assert [scorer.state()[key] for key in moving] == [state[key] for key in moving]


def test_weights_further_than_the_staleness_bound_are_refused_with_both_versions() -> None:
    with pytest.raises(ValueError, match=r"newest tokens have version 4 .* version 6, .* more than max_staleness=1"):
        Scorer(Oracle(1.0), CONFIG, seed=1, max_staleness=1).score(7, 6, window(4))
    metrics = Scorer(Oracle(1.0), CONFIG, seed=1, max_staleness=1).score(7, 5, window(4))
    assert metrics["scorer/version"] == 5 and metrics["first_turn/version_mismatch"] == 1.0


def test_turns_older_than_the_bound_are_left_out_and_counted() -> None:
    groups = window(5) | {"old": [trajectory(i, 99, version=2) for i in range(4)]}
    metrics = Scorer(Oracle(1.0), CONFIG, seed=1, max_staleness=1).score(6, 5, groups)
    assert metrics["first_turn/excluded/stale"] == 4
    assert metrics["first_turn/num_prompts"] == 8 and metrics["first_turn/version_mismatch"] == 0.0


def test_a_restored_scorer_continues_its_averages_exactly() -> None:
    def run(scorer: Scorer, steps: range) -> list[float]:
        return [scorer.score(s, 0, window(num_groups=2 + s))["first_turn/mi_zscore_ema"] for s in steps]

    whole = run(Scorer(Oracle(2.0), CONFIG, seed=1), range(1, 7))
    first, second = Scorer(Oracle(2.0), CONFIG, seed=1), Scorer(Oracle(2.0), CONFIG, seed=1)
    head = run(first, range(1, 4))
    second.restore(json.loads(json.dumps(first.state())))
    assert head + run(second, range(4, 7)) == whole
    assert run(Scorer(Oracle(2.0), CONFIG, seed=1), range(4, 7)) != whole[3:]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_step_that_is_scored_again_is_scored_as_if_for_the_first_time(restarted: bool) -> None:
    def stated(scorer: Scorer, step: int, lost: bool = False, replaces: bool = False) -> tuple[str, dict]:
        groups = window(num_groups=2 + step + lost)
        metrics = scorer.score(step, 0, groups, replaces=replaces)
        return repr({k: v for k, v in metrics.items() if "seconds" not in k}), scorer.state()

    whole, scorer = Scorer(Oracle(2.0), CONFIG, seed=1), Scorer(Oracle(2.0), CONFIG, seed=1)
    expected = [stated(whole, step) for step in (1, 2, 3)]
    assert stated(scorer, 1) == expected[0]
    assert stated(scorer, 2, lost=True) != expected[1], "other groups, which were lost afterwards"
    if restarted:
        state, scorer = json.loads(json.dumps(scorer.state())), Scorer(Oracle(2.0), CONFIG, seed=1)
        scorer.restore(state)
    with pytest.raises(ValueError, match=r"^step 2 was scored before; replaces=True says"):
        stated(scorer, 2)
    assert stated(scorer, 2, replaces=True) == expected[1]
    assert stated(scorer, 3, replaces=True) == expected[2], "nothing is left of a step that is not the last"


def two_turns(index: int, prompt: int) -> Trajectory:
    """A first turn that names its prompt and a second that never does."""
    first = trajectory(index, prompt)
    ids = np.concatenate([first.token_ids, [90 + prompt, 8, 8, 8, 2, 3]]).astype(np.int32)
    second = Turn(11, 14, 11, 13, 0.0, 0.0, True, False, 1, 0, 0)
    flat = np.zeros(14, dtype=np.float32)
    return Trajectory(index, ids, np.arange(14) >= 3, flat, [*first.turns, second], False, False)


def test_the_turn_profile_says_which_turns_stopped_reacting() -> None:
    groups = {f"g{g}": [two_turns(i, 10 + g) for i in range(4)] for g in range(8)}
    scorer = Scorer(Oracle(30.0), CONFIG.model_copy(update={"trajectory_draws": 64}), seed=1)
    metrics = scorer.score(1, 0, groups)
    assert metrics["turn/1/retrieval_accuracy"] == 1.0 and metrics["turn/1/mi_est_p_value"] <= 0.002
    assert metrics["turn/2/mi_est"] == pytest.approx(0.0, abs=1e-12) and metrics["turn/2/mi_est_p_value"] == 1.0
    assert metrics["turn/1/num_samples"] + metrics["turn/2/num_samples"] == metrics["trajectory/num_samples"]
    assert metrics["turn/2/retrieval_accuracy"] == pytest.approx(1 / metrics["turn/2/num_prompts"])
    assert all(REGISTRY.series_of(key) for key in metrics)
    later = scorer.score(2, 0, window())
    assert later["turn/2/num_samples"] == 0 and math.isnan(later["turn/2/mi_est"]), "no stale gauge"


def many_turns(index: int, prompt: int, turns: int) -> Trajectory:
    """Turns that each name their prompt."""
    first = trajectory(index, prompt)
    ids = np.concatenate([first.token_ids[:3], *[[prompt, 8, 8, 2, 3]] * turns]).astype(np.int32)
    taken = [Turn(s, s + 3, s, s + 2, 0.0, 0.0, True, False, 1, 0, 0) for s in range(3, 3 + 5 * turns, 5)]
    return Trajectory(index, ids, np.arange(len(ids)) >= 3, np.zeros(len(ids), np.float32), taken, False, False)


def test_late_turns_are_one_part_so_that_an_agent_of_hundreds_of_calls_adds_few_series() -> None:
    groups = {f"g{g}": [many_turns(i, 10 + g, 50) for i in range(4)] for g in range(8)}
    oracle = Oracle(30.0)
    oracle.context_length = 1000
    metrics = Scorer(oracle, CONFIG.model_copy(update={"trajectory_draws": 400}), seed=1).score(1, 0, groups)
    parts = {key.split("/")[1] for key in metrics if key.startswith("turn/")}
    assert parts == {*map(str, range(1, 21)), "21+"}
    assert sum(metrics[f"turn/{part}/num_samples"] for part in parts) == metrics["trajectory/num_samples"] == 400
    assert metrics["turn/21+/num_samples"] > 200 and metrics["turn/21+/mi_est_low"] > 0
    pattern = REGISTRY.specs["squelch_turn_reasoning"].pattern()
    assert pattern is not None and pattern.fullmatch("turn/21+/mi_est")


def test_a_mixed_window_is_split_by_environment_and_a_plain_one_is_not() -> None:
    class OneSided(Oracle):
        """Prompts from 14 on leave no trace in their reasonings."""

        def matrix(self, prompts, reasonings, wanted=None, pictures=None) -> np.ndarray:
            blind = np.array([z[0] >= 14 for z in reasonings])
            return np.where(blind[:, None], -3.0, super().matrix(prompts, reasonings))

    names = {f"g{g}": "FrozenLake" if g < 4 else "Sokoban" for g in range(8)}
    metrics = Scorer(OneSided(40.0), CONFIG, seed=1).score(1, 0, window(), names)
    assert metrics["environment/FrozenLake/retrieval_accuracy"] == 1.0
    assert metrics["environment/FrozenLake/num_prompts"] == metrics["environment/Sokoban/num_prompts"] == 4
    assert metrics["environment/Sokoban/mi_est"] == pytest.approx(0.0, abs=1e-12)
    assert metrics["environment/Sokoban/retrieval_accuracy"] == pytest.approx(1 / 4)
    plain = Scorer(OneSided(40.0), CONFIG, seed=1).score(1, 0, window(), dict.fromkeys(names, "Sokoban"))
    assert not any(key.startswith("environment/") for key in plain)


def test_one_prompt_alone_is_no_estimate_but_a_counted_reason() -> None:
    metrics = Scorer(Oracle(5.0), CONFIG, seed=1).score(1, 0, window(num_groups=1))
    for scope, samples in (("first_turn", 2), ("trajectory", 12)):
        assert metrics[f"{scope}/excluded/one_prompt"] == metrics[f"{scope}/num_excluded"] == samples
        assert math.isnan(metrics[f"{scope}/mi_est"]) and metrics[f"{scope}/num_prompts"] == 1
        assert metrics[f"{scope}/regime/unknown"] == 1.0


def test_a_model_that_gives_nan_is_counted_and_enters_no_metric() -> None:
    class Broken(Oracle):
        def matrix(self, prompts, reasonings, wanted=None, pictures=None) -> np.ndarray:
            return np.full((len(reasonings), len(prompts)), np.nan)

    scorer = Scorer(Broken(1.0), CONFIG, seed=1)
    before = scorer.state()
    metrics = scorer.score(1, 0, window())
    assert metrics["first_turn/excluded/non_finite"] == 16 and metrics["first_turn/num_samples"] == 0
    assert math.isnan(metrics["first_turn/mi_est"]) and math.isnan(metrics["first_turn/mi_est_low"])
    assert scorer.state()["ema"] == before["ema"] and scorer.state()["regime"] == before["regime"]
    assert metrics.keys() == Scorer(Oracle(1.0), CONFIG, seed=1).score(1, 0, window()).keys()


def test_a_context_too_small_for_any_pair_leaves_counts_not_silence() -> None:
    oracle = Oracle(1.0)
    oracle.context_length = 5
    metrics = Scorer(oracle, CONFIG, seed=1).score(1, 0, window())
    assert metrics["first_turn/excluded/too_long"] == 16 and metrics["trajectory/excluded/too_long"] == 12
    assert math.isnan(metrics["first_turn/retrieval_accuracy"])


def test_the_regime_falls_with_the_dependence_and_what_the_probe_said_outlives_a_restart() -> None:
    scorer = Scorer(Oracle(30.0), CONFIG, seed=1)
    assert scorer.score(1, 0, window())["first_turn/regime/unknown"] == 1.0, "before the probe was read"
    scorer.followed = Followed(1.0, 2)
    assert scorer.score(2, 0, window())["first_turn/regime/used"] == 1.0
    template = Scorer(Oracle(0.0), CONFIG, seed=1)
    template.restore(json.loads(json.dumps(scorer.state())))
    fallen = template.score(4, 0, window())
    assert template.followed == Followed(1.0, 2)
    assert fallen["first_turn/regime/template"] == 1.0 and fallen["first_turn/regime/used"] == 0.0
    scorer.followed = Followed(0.0, 4)
    assert scorer.score(5, 0, window())["trajectory/regime/unused"] == 1.0
    last = 4 + 2 * CONFIG.probe.every
    assert scorer.score(last, 0, window())["trajectory/regime/unused"] == 1.0
    assert scorer.score(last + 1, 0, window())["trajectory/regime/unknown"] == 1.0, "what it said is too old"


def test_a_window_of_turns_without_reasoning_is_mute_and_cut_turns_count_for_nothing() -> None:
    groups = window()
    for trajectories in groups.values():
        for played in trajectories[:3]:
            played.turns[0].reasoning_end = played.turns[0].reasoning_start
    found = Scorer(Oracle(30.0), CONFIG, seed=1).score(1, 0, groups)
    assert found["first_turn/reasoned"] == 0.25 and found["first_turn/regime/mute"] == 1.0
    for trajectories in groups.values():
        for played in trajectories[:3]:
            turn = played.turns[0]
            turn.reasoning_start = turn.reasoning_end = turn.sample_end
    found = Scorer(Oracle(30.0), CONFIG, seed=1).score(1, 0, groups)
    assert found["first_turn/reasoned"] == 1.0 and found["first_turn/regime/mute"] == 0.0


def test_the_judge_reads_the_very_reasonings_that_are_scored() -> None:
    grid = {10 + g: "\n".join(("P _ _", "_ G _", "_ _ O")) if g % 2 else "_ _ G\n_ P _\n_ _ _" for g in range(8)}

    def text(ids: np.ndarray) -> str:
        return grid[int(ids[0])] if len(ids) == 3 and ids[1] == 3 and ids[2] == 4 else "i am at 0 0 so left"

    names = dict.fromkeys(window(), "FrozenLake")
    metrics = Scorer(Oracle(1.0), CONFIG, seed=1, text=text).score(1, 0, window(), names)
    assert metrics["judge/names"] == 1.0 and metrics["judge/right"] == 0.5
    assert 0.4 < metrics["judge/right_elsewhere"] < 0.6
    assert metrics["judge/untrue"] == 0.0
    other = Scorer(Oracle(1.0), CONFIG, seed=1, text=text).score(1, 0, window(), dict.fromkeys(window(), "Countdown"))
    assert math.isnan(other["judge/right"]), "no grid world, nothing to judge"


def test_reasoning_that_became_untrue_is_reported_and_stays_so_while_it_states_nothing() -> None:
    board = "P _ _\n_ G _\n_ _ O"

    def scored(scorer: Scorer, step: int, said: str) -> dict[str, float]:
        scorer._text = lambda ids: board if len(ids) == 3 and ids[1] == 3 and ids[2] == 4 else said
        return scorer.score(step, 0, window(), dict.fromkeys(window(), "FrozenLake"))

    scorer = Scorer(Oracle(1.0), CONFIG, seed=1, text=str)
    said = ["i am at 0 0", "i am at 0 0", "i am at 2 2", "i am at 2 2", "so left", "i am at 2 2"]
    found = [scored(scorer, step, text) for step, text in enumerate(said, start=1)]
    untrue, share, least = (
        [metrics[f"judge/{key}"] for metrics in found] for key in ("untrue", "true_share", "least_true")
    )
    assert untrue == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert share == [1.0, 1.0, 0.5, 0.0, 0.0, 0.0] and least == [0.5] * 6


def test_over_budget_a_part_of_the_pairs_is_scored_visibly_and_no_key_is_missing() -> None:
    groups = window(num_groups=32)
    whole = Scorer(Oracle(5.0), CONFIG, seed=1).score(1, 0, groups)
    config = CONFIG.model_copy(update={"max_pairs": 64 * 8})
    scorer = Scorer(Oracle(5.0), config, seed=1)
    found = scorer.score(1, 0, groups)
    assert found.keys() == whole.keys()
    assert (whole["first_turn/pairs_ratio"], found["first_turn/pairs_ratio"]) == (1.0, 0.25)
    assert found["trajectory/pairs_ratio"] == 1.0, "a scope within the budget is scored whole"
    assert found["first_turn/mi_est_low"] <= whole["first_turn/mi_est"] <= found["first_turn/mi_est_high"]
    assert found["first_turn/conditional_entropy"] == whole["first_turn/conditional_entropy"]
    assert found["first_turn/retrieval_chance"] == 1 / 8
    assert found["first_turn/retrieval_accuracy"] == 1.0
    assert found["first_turn/mi_est_p_value"] == 0.001 and math.isnan(found["first_turn/recall@2"])
    assert scorer.state()["ema"]["first_turn"]["value"] is not None


@pytest.mark.parametrize("max_pairs", [None, 64])
def test_perfect_dependence_is_saturated_although_draws_repeat_their_contexts(max_pairs: int | None) -> None:
    config = CONFIG.model_copy(update={"trajectory_draws": 32, "max_pairs": max_pairs})
    found = Scorer(Oracle(50.0), config, seed=1).score(1, 0, window(num_groups=16))
    assert found["trajectory/num_samples"] == 32 and found["trajectory/num_prompts"] <= 16
    assert found["trajectory/upper_bound"] <= math.log(16) + 1e-9
    assert found["trajectory/mi_seq_est"] == pytest.approx(found["trajectory/upper_bound"])
    assert found["trajectory/mi_saturated"] == found["first_turn/mi_saturated"] == 1.0
    template = Scorer(Oracle(0.0), config, seed=1).score(1, 0, window(num_groups=16))
    assert template["trajectory/mi_saturated"] == 0.0


def test_under_a_budget_a_reasoning_the_model_gives_nan_is_counted_and_left_out() -> None:
    class Broken(Oracle):
        def matrix(self, prompts, reasonings, wanted=None, pictures=None) -> np.ndarray:
            found = super().matrix(prompts, reasonings, wanted)
            found[0, np.flatnonzero(wanted[0])[0]] = np.nan
            return found

    config = CONFIG.model_copy(update={"max_pairs": 64, "trajectory_draws": 40})
    found = Scorer(Broken(5.0), config, seed=1).score(1, 0, window(num_groups=32))
    for scope in SCOPES:
        assert found[f"{scope}/excluded/non_finite"] == 1.0
        assert math.isfinite(found[f"{scope}/mi_est"])


def test_a_budget_is_refused_where_its_estimator_does_not_apply() -> None:
    with pytest.raises(ValueError, match="max_pairs estimates Eq"):
        ScorerConfig(max_pairs=100, compat="ragen")


def test_the_matrices_of_a_scorer_step_name_the_turn_of_every_reasoning_and_prompt() -> None:
    scorer, groups = Scorer(Oracle(5.0), CONFIG, seed=1), window()
    scorer.score(1, 0, groups)
    assert set(scorer.matrices) == {"first_turn", "trajectory"}
    for matrix in scorer.matrices.values():
        assert matrix.values.shape == (len(matrix.samples), len(matrix.prompts))
        for place, column in zip(matrix.samples, matrix.source, strict=True):
            assert matrix.prompts[column].group == place.group and place.turn == 0
            assert any(trajectory.index == place.trajectory for trajectory in groups[place.group])


class DeafToSome(Oracle):
    """Reasonings of prompts from `first` on are a template; the others name their prompt."""

    first = 14

    def matrix(self, prompts, reasonings, wanted=None, pictures=None) -> np.ndarray:
        found = super().matrix(prompts, reasonings)
        deaf = np.array([z[0] >= self.first for z in reasonings])
        found[deaf] = -1.0 * np.array([[len(z)] for z in reasonings])[deaf]
        return found if wanted is None else np.where(wanted, found, np.nan)


@pytest.mark.parametrize("pairs", [None, 60])
def test_a_kind_whose_reasoning_has_become_a_template_shows_beside_one_that_has_not(pairs: int | None) -> None:
    kinds = {f"g{g}": "easy" if g < 4 else "hard/one" for g in range(7)}
    config = CONFIG.model_copy(update={"max_pairs": pairs})
    scorer = Scorer(DeafToSome(50.0), config, seed=1)
    found = scorer.score(1, 0, window(), kinds=kinds)
    hard = next(key for key in found if key.startswith("kind/hard_one-"))
    assert found["kind/easy/mi_est"] == pytest.approx(np.log(8) / 3, abs=0.06 if pairs else 1e-9)
    assert found[hard] == pytest.approx(0.0, abs=1e-9) and len([key for key in found if key.startswith("kind/")]) == 2
    open_keys = [pattern for spec in REGISTRY.specs.values() if (pattern := spec.pattern()) is not None]
    assert any(pattern.fullmatch(hard) for pattern in open_keys)
    again = scorer.score(2, 0, window(), kinds={"g0": "new"})
    assert math.isnan(again[hard]) and again["kind/new/mi_est"] > 0.5, "a kind that the window lacks is not known"
    many = scorer.score(3, 0, window(num_groups=40), kinds={f"g{g}": f"kind {g}" for g in range(40)})
    assert len([key for key in many if key.startswith("kind/")]) <= 24


class Reader(Oracle):
    """Reasonings that are likely under the picture, or the text, of the prompt that they name."""

    def __init__(self, part: str) -> None:
        super().__init__(40.0)
        self.part, self.asked = part, []

    def matrix(self, prompts, reasonings, wanted=None, pictures=None) -> np.ndarray:
        self.asked.append(len(prompts) * len(reasonings) if wanted is None else int(wanted.sum()))
        seen = [SHOWN.get(shown[0].digest) for shown in pictures] if pictures and pictures[0] else []
        named = seen if self.part == "picture" else [x[0] for x in prompts]
        right = np.array([[z[0] == one for one in named] for z in reasonings])
        return np.where(right | (wanted is None) | (wanted == True), np.where(right, -3.0, -43.0), np.nan)  # noqa: E712


SHOWN = {placed(1, bytes([g])).digest: 10 + g for g in range(8)}


def shown_window(one_text: bool = False) -> dict[str, list[Trajectory]]:
    """As `window`, with a picture in every prompt; `one_text`: beside the same text."""
    groups = window()
    for g, trajectories in enumerate(groups.values()):
        for one in trajectories:
            one.pictures = (placed(1, bytes([g])),)
            if one_text:
                one.token_ids[0] = 9
    return groups


@pytest.mark.parametrize("part", ["text", "picture"])
def test_what_trajectories_read_is_told_by_part_and_reasoning_that_does_without_pictures_is_blind(part: str) -> None:
    scorer = Scorer(Reader(part), CONFIG, seed=1)
    scorer.followed = Followed(1.0, 1, float(part == "text"))
    scorer.restore(json.loads(json.dumps(scorer.state())))
    found = scorer.score(1, 0, shown_window())
    for name in ("text", "picture"):
        assert (found[f"trajectory/modality/{name}"] > 30, found[f"trajectory/modality/{name}_depends"]) == (
            (True, 1.0) if name == part else (False, 0.0)
        )
        assert found[f"trajectory/modality/{name}_surprise"] > 2 and found[f"trajectory/modality/{name}_p_value"] > 0
    for scope in SCOPES:
        assert found[f"{scope}/regime/{'blind' if part == 'text' else 'used'}"] == 1.0
    late = scorer.score(2 * CONFIG.probe.every + 2, 0, shown_window())
    assert late["first_turn/regime/unknown"] == 1.0, "what the probe said is too old"


def test_pairs_of_trajectories_that_are_scored_anyway_are_not_scored_again() -> None:
    engine = Reader("picture")
    found = Scorer(engine, CONFIG, seed=1).score(1, 0, shown_window(one_text=True))
    assert len(engine.asked) == 2 and found["trajectory/modality/picture_depends"] == 1.0
    assert math.isnan(found["trajectory/modality/text"]) and math.isnan(found["trajectory/modality/text_alone"])


def test_mi_by_modality_counts_in_the_pairs_of_its_scope_and_a_run_of_text_has_none() -> None:
    engine, config = Reader("text"), CONFIG.model_copy(update={"max_pairs": 132})
    found = Scorer(engine, config, seed=1).score(1, 0, shown_window())
    first, matrix, swapped = engine.asked
    assert first == 16 * 8 and (matrix, swapped) == (12 * 3, 12 * 8) and found["trajectory/pairs_ratio"] < 1
    engine = Reader("text")
    plain = Scorer(engine, config, seed=1).score(1, 0, window())
    assert len(engine.asked) == 2 and plain["trajectory/pairs_ratio"] == 1 and plain.keys() == found.keys()
    assert all(math.isnan(value) for key, value in plain.items() if key.startswith("trajectory/modality/"))


def test_fewer_than_four_contexts_of_a_layout_have_no_mi_by_modality() -> None:
    groups = dict(list(shown_window().items())[:3])
    found = Scorer(Reader("text"), CONFIG, seed=1).score(1, 0, groups)
    assert found["trajectory/num_prompts"] == 3 and found["trajectory/regime/blind"] == 0.0
    assert all(math.isnan(value) for key, value in found.items() if key.startswith("trajectory/modality/"))
