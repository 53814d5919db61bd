"""`squelch export`: a checkpoint as a folder for other programs, with a model card made from the run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from squelch.cluster.commands.arguments import run_folder
from squelch.kit.base.errors import UserError, as_user_error
from squelch.kit.process.terminal import say

CARD = "README.md"
TOLD = (
    *("model.path", "environment.name", "environment.options", "loop.prompts", "sampling.group_size"),
    *("sampling.max_tokens_per_turn", "learner.algorithm", "learner.minibatches", "learner.optimizer.learning_rate"),
    *("learner.lora.rank", "filter.rule", "filter.rho", "seed"),
)
"""Settings that the card lists; of a block, those below it."""


def run(options: argparse.Namespace) -> int:
    """Writes the folder."""
    from squelch.cluster.loop.evaluation import weights_of
    from squelch.cluster.runs.folder import RunFolder
    from squelch.kit.models.copied import copy_model

    if options.target.exists():
        raise UserError(f"{options.target} exists; give another folder, or remove it")
    folder = RunFolder(run_folder(options.run_dir))
    source, step = weights_of(folder.config(), options.run_dir, options.checkpoint, say, lambda key: None)
    with as_user_error():
        copy_model(source, options.target, options.dtype, {CARD: card(folder, step)})
    name = options.target.name
    say(
        f"{options.target}: {options.run_dir.name} at {step}, with {CARD}\n"
        f"to upload it: hf upload OWNER/{name} {options.target}"
    )
    return 0


def card(folder: Any, step: str) -> str:
    """The model card of a run's checkpoint, `initial` or `step N`."""
    from squelch.cluster.runs.status import regime_of
    from squelch.cluster.setting_keys import environment_name

    settings, lines = folder.settings(), folder.metrics()
    model = str(settings.get("model.path", ""))
    base = f"base_model: {model}\n" if model.count("/") == 1 and not model.startswith(("/", ".")) else ""
    until = 0 if step == "initial" else int(step.removeprefix("step "))
    regime = next((found for line in reversed(lines) if line["step"] <= until and (found := regime_of(line))), None)
    parts = [
        f"---\nlibrary_name: transformers\npipeline_tag: text-generation\n{base}tags: [squelch]\n---",
        f"# {folder.name}, {step}",
        f"The policy at {step} of a run of Squelch on {environment_name(settings)}.",
        "## Success\n\n" + "\n".join(_success(lines, until)),
        "## Reasoning\n\n" + (f"Regime at the last scored step: `{regime}`." if regime else "It was not scored."),
        "## Settings\n\n```yaml\n" + "\n".join(_told(settings)) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _success(lines: list[dict[str, Any]], until: int) -> Iterator[str]:
    """The first validation and the last one until a step, each with its interval."""
    found = {int(line["validation/step"]): line for line in lines if line.get("validation/success") is not None}
    own = [at for at in sorted(found) if at <= until]
    if not own:
        yield "It was not validated."
    for at in dict.fromkeys((own[0], own[-1]) if own else ()):
        low, high = (found[at][f"validation/success_{end}"] for end in ("low", "high"))
        yield f"- step {at}: {found[at]['validation/success']:.3f}, 95% [{low:.3f}, {high:.3f}]"


def _told(settings: Mapping[str, Any]) -> Iterator[str]:
    for key, value in settings.items():
        if any(key == one or key.startswith(f"{one}.") for one in TOLD) and value is not None:
            yield f"{key}: {json.dumps(value)}"
