"""`squelch warmup`: supervised fine-tuning of a model before RL, on demonstrations or on a file of conversations."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from squelch.kit.base.errors import UserError
from squelch.kit.process.terminal import say

if TYPE_CHECKING:
    from squelch.cluster.config import RunConfig

NATURAL = ("environment.prompt=natural", "sampling.max_tokens_per_turn=160", "rollout.max_model_len=2048")
"""Settings if no recipe is given: prompts for a language model, and room for the demonstrations of each of the seven
environments. In SmolLM2's tokens the longest turn is DeepCoder's (129), the longest episode WebShop's (1,195).
"""


def run(options: argparse.Namespace) -> int:
    """Warms the model up; returns the exit code."""
    if not (options.env or options.data or options.recipe):
        raise UserError("give --env NAME, --data FILE, or --recipe RECIPE: without them there is nothing to learn from")
    if options.model == "tiny":
        raise UserError("tiny: the tiny policy has a warm-up of its own, `squelch tiny OUT --env NAME`")
    if options.out.exists():
        raise UserError(f"{options.out} exists; give a new folder")
    from squelch.cluster.config import read_recipe, validated

    tree: dict[str, Any] = read_recipe(options.recipe) if options.recipe else {}
    config = validated(tree, _overrides(options, tree), options.recipe or "of the warm-up")
    from squelch.cluster.fleet.bootstrap import check_model
    from squelch.cluster.loop.initial_policy import check_source, find_model, warmed_up
    from squelch.cluster.runs.logs import quiet
    from squelch.kit.process.signals import listening

    warmup = config.model.warmup
    if warmup is None:
        raise UserError("model.warmup=null: there is nothing to warm up by; leave the override out")
    check_source(config, warmup)
    plays = bool(options.env or options.recipe)
    if warmup.may_stop_early and not plays:
        raise UserError(
            "model.warmup.format_validity and true_reasonings are found by play, for which --data names no "
            "environment: give --env NAME too, or leave them out"
        )
    with listening() as signals, quiet() as output:
        aloud = output.aloud(say)
        signals.last_words = lambda number: aloud(f"stopped by {number.name}, at once; repeat the command to continue")
        folder = find_model(config, aloud)
        check_model(folder, config, aloud)
        warmed_up(config, warmup, folder, options.out, plays, aloud)
    say(f"done: {options.out}; train it with {' '.join([f'model.path={options.out}', *prompts_of(config)])}")
    return 0


def prompts_of(config: RunConfig) -> list[str]:
    """The settings with which a run without a warm-up of its own shows the prompts of the demonstrations."""
    if config.model.warmup is not None and config.model.warmup.data:
        return []
    forms = {entry.key: entry.environment.format for entry in config.mixture.entries}
    return [f"{key}.format.worked_turn=true" for key, form in forms.items() if form.worked_turn]


def _overrides(options: argparse.Namespace, tree: dict[str, Any]) -> list[str]:
    """The command line as overrides of the recipe's tree."""
    found = [f"model.path={json.dumps(str(options.model), ensure_ascii=False)}"]
    model = tree.get("model")
    if options.data is not None:
        found.append(f"model.warmup.data={json.dumps(str(options.data), ensure_ascii=False)}")
    elif not isinstance(model, dict) or model.get("warmup") is None:
        found.append("model.warmup={}")
    if options.recipe is None:
        found += NATURAL
    if options.env:
        found.append(f"environment.name={json.dumps(options.env)}")
        environment = tree.get("environment")
        if isinstance(environment, dict) and environment.get("name", options.env) != options.env:
            found.append("environment.options={}")  # the recipe's are another environment's
    if options.address:
        found.append(f"cluster.address={json.dumps(options.address)}")
    return [*found, *options.overrides]
