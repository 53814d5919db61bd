"""A recipe of Squelch from a GRPOTrainer that is ready to train: in its own process every value is known."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from squelch.kit.importing.recipe import Imported, imported
from squelch.kit.importing.sources import TRL, Source
from squelch.kit.importing.values import Unknown


def recipe(trainer: Any, file: str | Path, given: Mapping[str, Any] | None = None) -> None:
    """Writes the recipe, beside it as Parquet the data sets that it uses, and prints what became of each key.

    Args:
        given: settings of Squelch by dotted key, which win.

    Raises:
        UserError: a value without which there is no recipe is unknown, or a file exists. Nothing is written then.
    """
    out = Path(file)
    files = _files(trainer, out)
    made = from_trainer(trainer, out.stem, files, given)
    data = made.settings.get("environment.options.data")
    used = data if isinstance(data, list) else [data]
    beside = {path: partial(_write, rows) for path, rows in files.items() if str(path) in used}
    made.write(out, "as given={{'{}': VALUE}}", beside)


def _write(rows: Any, path: Path) -> None:
    rows.to_parquet(str(path))


def from_trainer(
    trainer: Any, name: str, files: Mapping[Path, Any], given: Mapping[str, Any] | None = None
) -> Imported:
    """The recipe of a trainer, of this name. `files`: its data sets by the path to which each is to be written."""
    arguments = dict(trainer.args.to_dict())
    arguments |= {
        "model": trainer.model.config._name_or_path or Unknown("the script makes the model; save it, and name it"),
        "reward_funcs": _names(trainer.reward_funcs),
        "reward_weights": _weights(trainer),
        "train_dataset": _paths(files),
        "max_steps": _optimizer_steps(trainer),
        "world_size": None if trainer.args.device.type == "cpu" else trainer.args.world_size,
    }
    if adapters := getattr(trainer.model, "peft_config", None):
        own = next(iter(adapters.values()))
        arguments |= {"peft_config.r": own.r, "peft_config.lora_alpha": own.lora_alpha}
    return imported(Source(TRL, name, arguments, True), given)


def _optimizer_steps(trainer: Any) -> int:
    """TRL's own number, or that of the epochs, each of which samples every prompt once."""
    arguments = trainer.args
    if arguments.max_steps > 0:
        return arguments.max_steps
    prompts = arguments.generation_batch_size / arguments.num_generations
    steps = math.ceil(arguments.num_train_epochs * len(trainer.train_dataset) / prompts)
    return steps * arguments.steps_per_generation // arguments.gradient_accumulation_steps


def _names(functions: list[Any]) -> list[str] | Unknown:
    """The functions as `environment.options.reward` names them."""
    return _all_known(map(_name, functions))


def _name(function: Callable[..., Any]) -> str | Unknown:
    name = getattr(function, "__qualname__", "")
    if not name.isidentifier():
        return Unknown(f"{name or type(function).__name__} is no function of a module: give one in a file")
    if function.__module__ != "__main__":
        return f"{function.__module__}:{name}"
    script = getattr(sys.modules["__main__"], "__file__", None)
    return f"{Path(script).resolve()}:{name}" if script else Unknown(f"{name} was typed in; put it into a file")


def _weights(trainer: Any) -> list[float] | None:
    """Their weights; None if all are 1."""
    weights = [float(one) for one in trainer.reward_weights]
    return None if set(weights) == {1.0} else weights


def _files(trainer: Any, out: Path) -> dict[Path, Any]:
    """The data sets by the path to which each is written, by whose name the split is known."""
    sets = {"train": trainer.train_dataset, "validation": trainer.eval_dataset}
    folder = out.resolve()
    return {folder.with_name(f"{out.stem}-{split}.parquet"): one for split, one in sets.items() if one is not None}


def _paths(files: Mapping[Path, Any]) -> list[str] | Unknown:
    several = Unknown("several data sets in one argument; write each to a file")
    return _all_known(several if isinstance(one, Mapping) else str(path) for path, one in files.items())


def _all_known(found: Iterable[str | Unknown]) -> list[str] | Unknown:
    """The texts, or the first that is unknown."""
    known = list(found)
    return next((one for one in known if isinstance(one, Unknown)), None) or [str(one) for one in known]
