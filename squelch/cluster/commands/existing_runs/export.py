"""`squelch export`: a checkpoint as a folder for other programs, with a model card made from the run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from squelch.cluster.commands.arguments import run_folder
from squelch.kit.base.errors import UserError, as_user_error
from squelch.kit.process.terminal import say

if TYPE_CHECKING:
    from squelch.cluster.loop.evaluation import Weights
    from squelch.cluster.runs.folder import RunFolder

CARD = "README.md"
TOLD = (
    *("model.path", "environment.name", "environment.options", "loop.prompts", "sampling.group_size"),
    *("sampling.max_tokens_per_turn", "learner.algorithm", "learner.minibatches", "learner.optimizer.learning_rate"),
    *("learner.lora.rank", "filter.rule", "filter.rho", "seed"),
)
"""Settings that the card lists; of a block, those below it."""

OPENED = (
    "The chat template ends a prompt with `<think>`, so a reply begins inside the reasoning: thoughts, `</think>`, the "
    "answer. In later turns give the whole reply back as it came, without a reasoning parser of the server."
)
PLAIN = "Prompts are those of the chat template."


def run(options: argparse.Namespace) -> int:
    """Writes the folder."""
    from squelch.actors.formats.served import as_played
    from squelch.cluster.loop.evaluation import saved_weights
    from squelch.cluster.runs.folder import RunFolder
    from squelch.envs.registry import plays_whole_turns
    from squelch.kit.models.copied import copy_model

    if options.target.exists():
        raise UserError(f"{options.target} exists; give another folder, or remove it")
    folder = RunFolder(run_folder(options.run_dir))
    config = folder.config()
    weights = saved_weights(config, options.run_dir, options.checkpoint, say)
    with as_user_error():
        opens = not any(plays_whole_turns(entry.environment) for entry in config.mixture.entries)
        files = as_played(weights.folder, opens, config.sampling.temperature)
        copy_model(weights.folder, options.target, options.dtype, files | {CARD: card(folder, weights, opens)})
    name = options.target.name
    say(
        f"{options.target}: {options.run_dir.name} at {weights.name}, with {CARD}\n"
        f"to upload it: hf upload OWNER/{name} {options.target}"
    )
    return 0


def card(folder: RunFolder, weights: Weights, opens: bool) -> str:
    """The model card of a run's checkpoint. `opens`: whether the chat template opens the reasoning of a turn."""
    from squelch.cluster.setting_keys import environment_name

    settings, lines, step = folder.settings(), folder.metrics(), weights.step or 0
    model = str(settings.get("model.path", ""))
    base = f"base_model: {model}\n" if model.count("/") == 1 and not model.startswith(("/", ".")) else ""
    regime = _regime(lines, step)
    parts = [
        f"---\nlibrary_name: transformers\npipeline_tag: text-generation\n{base}tags: [squelch]\n---",
        f"# {folder.name}, {weights.name}",
        f"The policy of a run of Squelch on {environment_name(settings)}, {_moment(step)}.",
        "## Success\n\n" + "\n".join(_success(lines, step)),
        "## Reasoning\n\n" + (f"Regime at the last scored step: `{regime}`." if regime else "It was not scored."),
        f"## Chat\n\n{OPENED if opens else PLAIN}",
        "## Settings\n\n```yaml\n" + "\n".join(_told(settings)) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _moment(step: int) -> str:
    return f"after step {step}" if step else "before its first step"


def _regime(lines: Sequence[Mapping[str, Any]], until: int) -> str | None:
    """The regime of the last step up to this one that was scored; its line may be a later one."""
    from squelch.cluster.runs.series import described
    from squelch.cluster.runs.status import regime_of

    found = {described(line, "first_turn/"): regime for line in lines if (regime := regime_of(line)) is not None}
    return found[max(known)] if (known := [step for step in found if step <= until]) else None


def _success(lines: Sequence[Mapping[str, Any]], until: int) -> Iterator[str]:
    """The first validation and the last one until a step, each with its interval."""
    from squelch.cluster.runs.series import series

    success, low, high = (series(lines, f"validation/success{end}") for end in ("", "_low", "_high"))
    own = [step for step in success if step <= until]
    if not own:
        yield "It was not validated."
    for step in dict.fromkeys((own[0], own[-1]) if own else ()):
        yield f"- step {step}: {success[step]:.3f}, 95% [{low[step]:.3f}, {high[step]:.3f}]"


def _told(settings: Mapping[str, Any]) -> Iterator[str]:
    from squelch.cluster.setting_keys import below

    for key, value in settings.items():
        if below(key, TOLD) and value is not None:
            yield f"{key}: {json.dumps(value)}"
