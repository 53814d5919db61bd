"""A run of the bank in the forms of other trainers, with checkpoints under these trainers' names.

The writers are those of `tests/kit/checks/bank.py`, made by hand after each trainer's own, except Squelch's archive.
What they are given is what TRL's trainer had: ids, the engine's and the trainer's log-probabilities, masks, rewards.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from research.check_bank.marks import ASSISTANT, END, SPECIAL
from squelch.kit.readers.formats import FORMATS
from tests.kit.checks import bank
from tests.kit.checks.bank import Rollout

FROM_ZERO = ("columns", "turns", "slime", "verifiers", "areal")
"""Forms that number TRL's step 1 as 0: by updates before, or from 0."""
SAMPLES = ("config.json", "generation_config.json", "model.safetensors", "adapter_config.json")
SAMPLES = (*SAMPLES, "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""Files of a checkpoint that say what sampled."""


def forms(folder: Path, out: Path, shared: Path) -> dict[str, Path]:
    """The files of a run in each form, by name: TRL's own, and those that are written to `out`."""
    found = {"trl": folder / "completions", "turns": folder / "turns", "columns": folder / "ids"}
    rollouts = read(folder / "rollouts.jsonl", shared) if (folder / "rollouts.jsonl").is_file() else []
    for name, write in bank.WRITERS.items():
        if rollouts and name not in found:
            found[name] = write(out / name, [one for each in rollouts if (one := _in_form(name, each)) is not None])
    return {name: path for name, path in found.items() if path.is_file() or any(path.iterdir())}


def checkpoints(name: str, folder: Path, out: Path) -> Path:
    """A folder with the run's checkpoints as this form's trainer names them."""
    rule = FORMATS[format_of(name)].checkpoints_rule
    assert rule is not None, "its trainer numbers checkpoints"
    for path in sorted(folder.glob("checkpoint-*")):
        number = step_in(name, int(path.name.partition("-")[2]) + 1) + rule.offset
        place = out / rule.name(number)
        place.mkdir(parents=True, exist_ok=True)
        for file in SAMPLES:
            if (path / file).is_file():
                shutil.copyfile(path / file, place / file)
    return out


def format_of(name: str) -> str:
    """The format as which `squelch check` reads a form."""
    return "columns" if name == "turns" else name


def step_in(name: str, step: int) -> int:
    """TRL's step as the form numbers it."""
    return step - 1 if name in FROM_ZERO else step


def read(path: Path, shared: Path) -> list[Rollout]:
    """The rollouts of a run's record."""
    decode = partial(Tokenizer.from_file(str(shared / "tokenizer.json")).decode, skip_special_tokens=False)
    return [_rollout(json.loads(line), decode) for line in path.open()]


def _rollout(one: dict[str, Any], decode: Callable[[Sequence[int]], str]) -> Rollout:
    """A row of the record. Its parts are what the calls sampled, and what stands between. TRL cuts the last call's at
    its limit of new tokens, which tools' answers count towards."""
    text, begin, at, past = one["prompt"][-1]["content"], one["prompt_ids"], 0, 0
    after, parts, drawn = one["completion_ids"], list[tuple[list[int], bool]](), list[float]()
    for call in one["calls"]:
        start = len(call["prompt_ids"]) - len(begin)
        past = start + len(call["completion_ids"])
        end = min(len(after), past)
        if start > at:
            parts.append((after[at:start], False))
        parts.append((after[start:end], True))
        drawn += [0.0] * (start - at) + (call["drawn"] + [0.0] * (end - start))[: end - start]
        at = end
    number = int(text.rstrip(".").split()[-1])
    return Rollout(
        one["step"],
        number,
        one["member"],
        f"g{number}",
        text,
        begin,
        parts,
        decode(after),
        one["reward"],
        one["advantage"],
        [bool(own) for own in one["mask"]],
        drawn,
        validation=one["evaluation"],
        trained=one["trained"],
        rendered=decode(begin),
        is_cut=past > len(after) or not one["calls"][-1].get("ended", decode(after).endswith(END)),
        end=END if decode(after).endswith(END) else "",
    )


def _in_form(name: str, one: Rollout) -> Rollout | None:
    """The rollout as a form has it; None if the form cannot express it."""
    text = one.text
    if name == "squelch" and one.validation:  # its archive holds no validation
        return None
    if name in ("areal", "skyrl"):
        text = text.removesuffix(END)
    if name == "verl":
        text = _bare(text)
    if name in ("verifiers", "art", "chat"):
        text = _bare(text.rpartition(ASSISTANT)[2])
    return replace(one, step=step_in(name, one.step), text=text)


def _bare(text: str) -> str:
    """Without control tokens, as a tokenizer decodes without them."""
    for mark in SPECIAL:
        text = text.replace(mark, "")
    return text
