"""What a reader types of a block: its commands, with placeholders bound and settings that shorten. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

SHORT = {
    "loop.steps": 1,
    "loop.prompts": 2,
    "sampling.group_size": 8,
    "validation.tasks": 4,
    "scorer.probe.tasks": 4,
    "scorer.probe.samples": 2,
}
"""Settings that make a run short. They are appended to the recipe, so a command's own settings win."""
SHORT_TINY = {"model.tiny_tokens": 100_000}
"""The same where the policy is the tiny one."""
SHORT_MODEL = {"sampling.group_size": 4, "environment.format.max_turns": 4}
"""The same where the command names a model, which is larger than the recipe's."""
SHORT_PROMPTS = {"sampling.group_size": 4, "sampling.max_tokens_per_turn": 24}
"""The same for the recipe of prompts, unless a reward function has to tell its texts apart."""
SHORT_WARMUP = {"model.warmup.demonstrations": 32, "model.warmup.tasks": 2, "model.warmup.samples": 2}
"""The same for recipes that warm a language model up."""
WITHOUT_WARMUP = {"model.warmup": "null"} | SHORT_PROMPTS
"""The same in a script, whose subject is not the warm-up, which starts everything twice."""
SHORT_TRL = "use_cpu=True, bf16=False, max_steps=1, max_completion_length=16, report_to='none', "
RESUMED_STEPS = 2
"""Steps of a run that is resumed: one more than it had."""
TRAINING = re.compile(r"(?:^|\s|/)squelch (?:train|submit|sweep|warmup \S+) (?P<recipe>[\w./-]+)")


def commands(text: str) -> list[tuple[int, str]]:
    """(line within the block from 0, command), with the lines that a backslash or an open quote joins; a script, which
    begins with #!, is one command."""
    if text.lstrip().startswith("#!"):
        return [(0, text)]
    found, gathered, start = list[tuple[int, str]](), "", 0
    for number, line in enumerate(text.splitlines()):
        if not gathered:
            start = number
        gathered += line + "\n"
        if _complete(gathered):
            if shlex.split(gathered, comments=True):
                found.append((start, gathered.rstrip()))
            gathered = ""
    if gathered.strip():
        raise ValueError(f"the command does not end: {gathered.strip()}")
    return found


def _complete(text: str) -> bool:
    if text.endswith("\\\n"):
        return False
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True


def bound(text: str, bindings: Mapping[str, str]) -> tuple[str, list[str]]:
    """The text with each placeholder replaced where it stands as a word, and the placeholders that it had. Longer ones
    come first."""
    used = list[str]()
    for name in sorted(bindings, key=len, reverse=True):
        pattern = rf"(?<![\w.]){re.escape(name)}(?![\w.-])"
        text, count = re.subn(pattern, lambda _, value=bindings[name]: value, text)
        used += [name] * bool(count)
    return text, used


def shortened(command: str) -> str:
    """The command with settings that shorten."""

    def longer(match: re.Match[str]) -> str:
        if "squelch warmup" in match[0]:
            return f"{match[0]} {_words(SHORT_WARMUP)}"
        settings = SHORT | _of_model(match["recipe"], command)
        if "wandb" in command:
            settings["recorder.wandb_mode"] = "offline"  # a walk has no account
        if "--resume" in command:
            settings["loop.steps"] = RESUMED_STEPS
        if not command.startswith("#!") and in_background(command):
            del settings["loop.steps"]  # the page ends it
        return f"{match[0]} {_words(settings)}"

    if re.match(r"make train\b", command):
        recipe = re.search(r"RECIPE=(\S+)", command)
        return f"{_code(command)} ARGS='{_words(SHORT | _of_model(recipe[1] if recipe else '', command))}'"
    if "GRPOConfig(" in command:
        return command.replace("GRPOConfig(", f"GRPOConfig({SHORT_TRL}")
    return TRAINING.sub(longer, command)


def _of_model(recipe: str, command: str) -> dict[str, int | str]:
    """Settings that shorten the work of the recipe's model, or its warm-up."""
    if "model.path=" in command:
        return SHORT_MODEL
    if recipe == "prompts":
        return {} if "reward" in command else SHORT_PROMPTS
    if not recipe.startswith("smollm2"):
        return {} if "pictures" in recipe else SHORT_TINY  # which would not learn to see
    return WITHOUT_WARMUP if command.startswith("#!") else SHORT_WARMUP


def _words(settings: Mapping[str, int | str]) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items())


def _code(command: str) -> str:
    """The command without a comment at its end."""
    return re.sub(r"\s+#\s.*$", "", command)


def left_out(command: str, not_run: Mapping[str, str]) -> str | None:
    """Why the command is not run; None if it is."""
    return next((reason for start, reason in not_run.items() if command.startswith(start)), None)


def in_background(command: str) -> bool:
    """Whether the shell goes on while the command runs."""
    return shlex.split(command, comments=True)[-1:] == ["&"]
