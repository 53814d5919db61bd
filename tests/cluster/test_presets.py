"""`preset=paper` and `preset=published`: what they set, in which order layers win, and that `published` computes on
small windows what the authors' code computes."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from squelch.cluster.cli import main
from squelch.cluster.config import RunConfig, load, read_recipe, recipe_names
from squelch.cluster.presets import DEFAULTS, PICTURES, PRESETS, blocks, from_preset, layered, preset_names
from squelch.cluster.setting_keys import flat
from squelch.cluster.sweep.plan import grid_arms, make_plan, read_grid
from squelch.envs.registry import environment_class
from squelch.kit.base.errors import UserError
from squelch.kit.filter.measure import GroupStatistics, measure
from squelch.kit.filter.selection import select
from squelch.learner.objective.algorithms import ALGORITHMS
from squelch.learner.objective.components import StepSize
from squelch.learner.objective.gae import gae
from squelch.learner.objective.losses import token_weights

OPTIONAL = {"reasoning-gym", "textarena"}
PUBLISHED = "preset=published"
OWN_TO_A_RUN = re.compile(
    r"model\.|loop\.steps|.*learning_rate|learner\.optimizer\.(warmup|decay|final)|.*\.(num_gpus|num_cpus|dtype|ranks)$"
    r"|rollout\.|cluster\.|recorder\.|name$|seed$"
)


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_sets_neither_model_nor_rate_nor_devices_nor_steps(preset: str) -> None:
    keys = [key for _, settings in blocks(preset) for key in flat(dict(settings))]
    assert keys and [key for key in keys if OWN_TO_A_RUN.match(key)] == []


@pytest.mark.parametrize("preset", preset_names())
def test_every_line_of_a_preset_names_its_source(preset: str) -> None:
    lines = (PRESETS / f"{preset}.yaml").read_text().splitlines()
    values = [line for line in lines if re.match(r"\s+\w+: *[^\s#]", line) and "where:" not in line]
    assert values and [line for line in values if not re.search(r"  # \w.*", line)] == []


@pytest.mark.parametrize("preset", preset_names())
def test_conditions_name_settings_whose_defaults_are_known(preset: str) -> None:
    assert {key for where, _ in blocks(preset) for key in where} <= {*DEFAULTS, PICTURES}
    defaults = flat(RunConfig().model_dump(mode="json"))
    assert all(defaults[key] == value for key, value in DEFAULTS.items())


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_goes_beside_every_recipe_and_reaches_the_run(preset: str) -> None:
    for recipe in recipe_names():
        run = RunConfig.model_validate(layered(read_recipe(recipe), [f"preset={preset}"]))
        values, (_, its) = flat(run.model_dump(mode="json")), from_preset(read_recipe(recipe), [f"preset={preset}"])
        assert {key: values[key] for key in its} == its and "preset" not in values, recipe
        if recipe not in OPTIONAL:
            environment_class(run.environment.name).Options.model_validate(run.environment.options)


def test_the_command_line_wins_over_the_preset_and_the_preset_over_the_recipe() -> None:
    assert load("quartile-1").filter.rule == "band"
    assert load("quartile-1", ["preset=paper"]).filter.rule == "top_p"
    assert load("quartile-1", ["filter.rule=top_k", "preset=paper"]).filter.rule == "top_k"
    own = load("sokoban", ["preset=paper"])
    assert own.learner.optimizer.decay_steps == 180 and own.loop.steps == 45, "the rate and the steps are the recipe's"
    assert (own.filter.epsilon, own.filter.epsilon_unit) == (0.01, "absolute")


def test_what_a_preset_sets_follows_the_command_line() -> None:
    lake = load("sokoban", [PUBLISHED, "environment.name=FrozenLake", "environment.options={}"])
    assert lake.environment.options == {}, "the command line's own options win"
    assert load("frozenlake", [PUBLISHED]).environment.options["slip_rate"] == 0
    assert load("frozenlake", ["preset=paper"]).environment.options["slip_rate"] == 0.02
    sokoban = load("paper-sokoban-3b", [PUBLISHED]).environment
    assert (sokoban.format.worked_turn, sokoban.format.response_length) == (False, 120)
    assert sokoban.options["observation_format"] == "grid_coord"
    assert "observation_format" not in load("sokoban", [PUBLISHED]).environment.options


def test_each_of_several_environments_gets_its_own_settings() -> None:
    entries = [{"name": "Sokoban", "weight": 2.0}, {"name": "FrozenLake", "options": {"size": 5}}]
    run = RunConfig.model_validate(layered({"environments": entries}, [PUBLISHED]))
    sokoban, lake = run.environments
    assert (sokoban.weight, sokoban.options) == (2, {"size": 6, "boxes": 1})
    assert lake.options == {"size": 5, "slip_rate": 0.0} and run.filter.rule == "top_p_softmax"


def test_a_list_of_environments_on_the_command_line_has_the_last_word_over_a_preset() -> None:
    listed = "environments=[{name: Sokoban, options: {size: 7}}, {name: FrozenLake}]"
    own = ["environment=null", listed, "environments[1].weight=3", PUBLISHED]
    sokoban, lake = RunConfig.model_validate(layered(read_recipe("frozenlake"), own)).environments
    assert sokoban.options == {"size": 7, "boxes": 1} and lake.options["slip_rate"] == 0 and lake.weight == 3


def test_a_setting_is_the_presets_only_if_the_run_has_it_from_there(tmp_path: Path) -> None:
    one = from_preset(read_recipe("sokoban"), [PUBLISHED, "environment.name=FrozenLake", "environment.options={}"])[1]
    assert "environment.options.slip_rate" not in one and one["filter.rule"] == "top_p_softmax"
    path = tmp_path / "both.yaml"
    path.write_text("extends: frozenlake\nenvironment: null\nenvironments: [{name: FrozenLake}, {name: Sokoban}]\n")
    both = from_preset(read_recipe(str(path)), [PUBLISHED, "environments[0].weight=2"])[1]
    assert both["environments[0].options.slip_rate"] == 0
    assert not {"environments[0].name", "environments[0].weight"} & both.keys()


OF_PICTURES = [name for name in recipe_names() if "pictures" in name or "-vl-" in name]


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("recipe", OF_PICTURES)
def test_a_run_of_pictures_stays_one(recipe: str, preset: str) -> None:
    assert len(OF_PICTURES) == 3
    plain, found = load(recipe).environment, load(recipe, [f"preset={preset}"]).environment
    assert plain.options["observation_format"] == found.options["observation_format"] == "picture"
    both = load(recipe, [f"preset={preset}", "environment.options.observation_format=both"]).environment
    assert both.options["observation_format"] == "both"
    assert (found.format.response_length, found.format.worked_turn) == (
        plain.format.response_length,
        plain.format.worked_turn,
    )


@pytest.mark.parametrize("recipe", [name for name in OF_PICTURES if "-vl-" in name])
def test_published_leaves_a_run_of_pictures_what_the_script_for_pictures_sets(recipe: str) -> None:
    plain, found = load(recipe), load(recipe, [PUBLISHED])
    for config in (plain, found):
        assert (config.loop.prompts, config.sampling.group_size, config.sampling.max_tokens_per_turn) == (32, 8, 512)
        assert (config.environment.format.max_turns, config.environment.format.max_actions_per_turn) == (5, 5)
        objective = config.learner.objective
        assert (objective.clip_low, objective.clip_high, objective.entropy_coefficient) == (0.2, 0.2, 0)
    assert (found.learner.objective.aggregation, found.learner.minibatches) == ("token_mean", 1)
    assert (found.filter.rule, found.filter.compat, found.filter.epsilon) == ("top_p", "paper", 0)


def test_published_compares_and_optimises_as_the_authors() -> None:
    math_qa = load("metamathqa", [PUBLISHED])
    assert math_qa.environment.options["compare"] == "text"
    assert load("metamathqa", ["preset=paper"]).environment.options["compare"] == "exact"
    objective, optimizer = math_qa.learner.objective, math_qa.learner.optimizer
    assert (objective.anchor, objective.mismatch_cap, optimizer.weight_decay) == ("recomputed", 0, 0.01)
    shop = layered(read_recipe("paper-sokoban-3b"), [PUBLISHED, "environment.name=WebShop"])["environment"]
    assert (shop["format"]["response_length"], shop["format"]["max_turns"], shop["options"]["reward"]) == (
        200,
        9,
        "binary",
    )


@pytest.mark.parametrize(("algorithm", "bound"), [("ppo", 3), ("dapo", 3), ("grpo", 3), ("dr_grpo", 3), ("gspo", None)])
def test_published_bounds_the_loss_of_negative_advantages_as_verl(algorithm: str, bound: float | None) -> None:
    assert load("sokoban", [PUBLISHED, f"learner.algorithm={algorithm}"]).learner.objective.dual_clip == bound


def test_the_papers_text_has_no_stop_for_empty_selections() -> None:
    config = load("sokoban", ["preset=paper"])
    assert config.filter.no_signal_limit > 1000 * config.loop.steps


@pytest.mark.parametrize("overrides", [["preset=paper", PUBLISHED], ["filter.rho=0.5", PUBLISHED, "preset=paper"]])
def test_two_presets_are_refused(overrides: list[str]) -> None:
    with pytest.raises(UserError, match="a run has one preset"):
        load("sokoban", overrides)
    assert load("sokoban", [PUBLISHED, PUBLISHED]) == load("sokoban", [PUBLISHED])


def test_a_preset_without_a_name_is_told_the_form() -> None:
    with pytest.raises(UserError, match=r"not of the form preset=NAME.*paper, published"):
        load("sokoban", ["preset"])


@pytest.mark.parametrize(("given", "says"), [("papper", "Did you mean 'paper'?"), ("", "paper, published")])
def test_an_unknown_preset_names_those_that_exist(given: str, says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        load("sokoban", [f"preset={given}"])


def test_a_preset_in_a_recipe_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: sokoban\npreset: paper\n")
    with pytest.raises(UserError, match="named beside a recipe"):
        load(str(path))


def test_config_shows_which_settings_came_from_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "sokoban", "preset=paper", "filter.rho=0.5"]) == 0
    said = capsys.readouterr().out
    assert '#   filter.epsilon_unit="absolute"' in said and "#   filter.rho=" not in said
    assert main(["config", "sokoban", "preset=paper", "--explain", "epsilon_unit", "filter.rho"]) == 0
    said = capsys.readouterr().out
    assert 'filter.epsilon_unit = "absolute", of preset=paper' in said and "filter.rho = 0.9, of preset=paper" in said


def test_a_printed_configuration_is_a_recipe_of_the_same_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "frozenlake-ppo", PUBLISHED]) == 0
    path = tmp_path / "config.yaml"
    path.write_text(capsys.readouterr().out)
    assert load(str(path)) == load("frozenlake-ppo", [PUBLISHED])


def test_a_sweep_takes_presets_as_arms(tmp_path: Path) -> None:
    arms = grid_arms(read_grid(["preset=paper,published"]))
    plan = make_plan("sokoban", [f"runs_dir={tmp_path}"], arms, [0])
    assert [cell.config.filter.compat for cell in plan.cells] == ["paper", "ragen"]


# --- what the authors' code computes ---


def test_published_ppo_gives_each_token_the_whole_reward_of_the_episode() -> None:
    objective = load("frozenlake-ppo", [PUBLISHED]).learner.objective
    assert (objective.reward, objective.needs_critic) == ("episode", True)
    rewards = np.array([0.0, 11.0])  # rewards 1 and 10 of two turns of one token each, on the last token
    found, _ = gae(rewards, np.zeros(2), np.array([2]), np.zeros(1), objective.gae.gamma, objective.gae.lam)
    assert found.tolist() == [11, 11]


@pytest.mark.parametrize(
    ("algorithm", "weights"),
    [
        ("ppo", [1 / 4, 1 / 4]),
        ("dapo", [1 / 4, 1 / 4]),
        ("grpo", [1 / 2, 1 / 6]),
        ("dr_grpo", [1 / 2, 1 / 2]),
    ],
)
def test_published_aggregation_is_that_of_the_authors_script(algorithm: str, weights: list[float]) -> None:
    """Two sequences of 1 and 3 tokens: the weight of a token of each."""
    objective = load("sokoban", [PUBLISHED, f"learner.algorithm={algorithm}"]).learner.objective
    step = StepSize(2, 4, objective.normaliser_tokens)
    found = token_weights(torch.tensor([1, 3]), objective.aggregation, step)
    assert [found[0].item(), found[1].item()] == pytest.approx(weights)
    assert objective.loss_scale == "none" and objective.kl.coefficient == 0


def test_published_dapo_is_published_ppo() -> None:
    ppo, dapo = (load("sokoban", [PUBLISHED, f"learner.algorithm={name}"]) for name in ("ppo", "dapo"))
    assert dapo.learner.objective == ppo.learner.objective and dapo.filter == ppo.filter
    assert dapo.learner.critic == ppo.learner.critic


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_keeps_what_another_algorithm_needs(preset: str) -> None:
    objective = load("frozenlake-gspo", [f"preset={preset}"]).learner.objective
    own = ALGORITHMS["gspo"].settings
    assert (objective.ratio, objective.clip_low) == ("sequence", own["objective.clip_low"])


def window(successes: list[int], size: int = 16) -> np.ndarray:
    """Scores under `preset=published` of groups with so many rewards of 1 among `size`."""
    cfg = load("sokoban", [PUBLISHED]).filter
    rows = [[1.0] * count + [0.0] * (size - count) for count in successes]
    groups = [GroupStatistics.from_row(str(i), 0, np.array(row)) for i, row in enumerate(rows)]
    return measure(groups, cfg.statistic, cfg.compat).scores


def test_published_top_p_takes_softmax_mass_of_standard_deviations_and_keeps_zeros() -> None:
    cfg, successes = load("sokoban", [PUBLISHED]).filter, [8, 4, 2, 1, 0, 0, 16, 0]
    stds = window(successes)
    assert stds == pytest.approx([math.sqrt(n * (16 - n) / 16 / 15) for n in successes])
    mass, taken = sum(math.exp(value) for value in stds), 0
    while sum(math.exp(value) for value in sorted(stds, reverse=True)[:taken]) / mass < 0.9:
        taken += 1
    kept = select(stds, None, cfg).kept
    assert len(kept) == taken == 8 and stds[list(kept)].min() == 0, "on rewards of 0 and 1 it drops nearly nothing"
    linear = load("sokoban", ["preset=paper"]).filter
    assert len(select(stds**2, None, linear).kept) == 3


def test_published_top_p_hardly_filters_random_windows_of_zeros_and_ones() -> None:
    """The authors' code keeps 7.35 of 8 groups on average."""
    cfg, draws = load("sokoban", [PUBLISHED]).filter, np.random.default_rng(0)
    kept = [len(select(window(draws.binomial(16, draws.uniform(size=8)).tolist()), None, cfg).kept) for _ in range(50)]
    assert np.mean(kept) == pytest.approx(7.35, abs=0.3)


def test_published_scores_count_the_format_penalty_and_the_paper_does_not() -> None:
    rewards, penalties = np.ones(4), np.array([-0.1, 0, 0, -0.1])
    group = [GroupStatistics.from_row("g", 0, rewards, penalties=penalties)]
    scores = {}
    for preset in preset_names():
        cfg = load("sokoban", [f"preset={preset}"]).filter
        scores[preset] = measure(group, cfg.statistic, cfg.compat).scores[0]
    assert scores == pytest.approx({"paper": 0, "published": np.std([0.9, 1, 1, 0.9], ddof=1)}, abs=1e-12)
