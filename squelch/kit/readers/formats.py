"""The files that trainers write, as one table of formats, `formats.yaml`: how a file is recognised, what a record
holds, and which weights sampled it.

`rows.py` reads files by this table, for every command.

A row is one completion of the policy: its prompt, as text, messages or ids, and what it says, with the keys

    prompt, completion, reasoning        text or messages
    prompt_ids, completion_ids, …        token ids, which are exact
    tools                                schemas of the tools that its prompt shows, as OpenAI nests them
    step, turn                           the step as the format counts it; 0 for the turn that is scored alone: the
                                         first of a rollout, or the last of a conversation
    group                                what the rows of one prompt share; not compared with prompts
    of_turns                             whether a completion as text has several turns
    rollout                              what the turns of one rollout share
    sampler                              the name of the model that sampled it, if the format says so
    run                                  which run of the program wrote it
    rewards                              by name; None for a reward function that did not score the row
    content                              instead of prompt and completion, and of what is said of each token: a function
                                         that gives them, for the turns of a long rollout, whose prompts together grow
                                         with the square of their number
    shown                                with `content`: how many ids its prompt has, about
    untold                               instead of prompt and completion: why they are missing, in words, though the
                                         rollout's reward counts

and, where the format says so (a missing key and None are the same; values of tokens are not checked),

    logprobs                             log p of each token of the completion as it was drawn, in nats; None for one
                                         that was not sampled or has none. As long as `completion_ids`
    advantage                            a number, or one for each token of the completion, None as in `logprobs`
    versions                             [first, last]: which weights sampled the first and the last token of the
                                         rollout, as the format counts them; None for one that is not known
    ended                                whether the turn ended by itself, by its engine: no limit cut it
    messages                             beside ids: what the template rendered as the prompt
    sizes                                of a completion as text: how many ids its prompt and itself are
    truncated                            whether a limit of tokens, turns or time ended the rollout; it still counts
    task                                 what rows of one task share in any step, where it is not the prompt
    learned                              of a rollout's first row: a function that gives what is said of all its tokens
                                         before they are cut into turns: `ids`; `mask`: which are under the loss;
                                         `sampled`: which the policy sampled, None if only the mask says; `logprobs`;
                                         `trained`: the trainer's own; each a list as long as `ids`, or None; `said`:
                                         (start, end, text) of ids and what the trainer has as their text; `messages`,
                                         `tools`: what the template rendered as the ids before `start`; None if unknown
    evaluation                           why the row trains nothing, in words: it is of an evaluation, and one row
                                         stands for its rollout
    failed                               why the rollout does not count, in words: it has no reward and is no sample,
                                         and its prompt and completion may be missing

Invariants:

- A format is recognised by its columns, and where two match, or none, the user says which with `--format`.
- A record may be several rows (turns, agents), or none: then the format says why, and the reason is counted.
- Pure: no torch, no Ray. A new trainer is one entry of `formats.yaml`, which has its traits, and its function in a
  module beside `format_rows.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from squelch.kit.base.errors import UserError, did_you_mean
from squelch.kit.readers import (
    agent_rows,
    chat_rows,
    format_rows,
    harbor_trials,
    inspect_log,
    message_graph,
    trajectory_rows,
)
from squelch.kit.readers.format import Format, Origin, Traits
from squelch.kit.readers.records import SUFFIXES, columns_of
from squelch.kit.readers.weights import WeightsRule
from squelch.kit.untrusted.files import is_file, is_folder, shortened
from squelch.kit.untrusted.text import own_yaml

SAVED_TO_DISK = ("dataset_dict.json", "dataset_info.json")
"""Files of a folder that `save_to_disk` wrote."""
PATH = Path(__file__).with_suffix(".yaml")
MODULES = {
    one.__name__.rpartition(".")[2]: one
    for one in (agent_rows, chat_rows, format_rows, harbor_trials, inspect_log, message_graph, trajectory_rows)
}
"""By the name that `formats.yaml` has for them."""


def _named(name: str) -> Any:
    """What a module of this folder calls so, e.g. `format_rows.trl`."""
    module, _, own = name.partition(".")
    return getattr(MODULES[module], own)


def _columns(written: str | list[str]) -> frozenset[str]:
    return _named(written) if isinstance(written, str) else frozenset(written)


def _weights(written: Mapping[str, Any] | None) -> WeightsRule | None:
    return None if written is None else WeightsRule(**written)


def _traits(written: Mapping[str, Any]) -> Traits:
    fields: dict[str, Any] = {**written, "checkpoints": _weights(written.get("checkpoints"))}
    return Traits(**fields | {"holds": frozenset(written.get("holds", ()))})


_READ: Mapping[str, Callable[[Any], Any]] = {
    "rows": _named,
    "needs": lambda sets: tuple(map(frozenset, sets)),
    "weights": _weights,
    "step_in_path": re.compile,
    "evaluation": re.compile,
    "columns": _columns,
    "origin": lambda written: Origin(**written),
    "beside": _named,
    "layout": tuple,
    "without": frozenset,
    "traits": _traits,
}
"""How a field of `Format` is written, unless as it is."""


def _format(name: str, written: Mapping[str, Any]) -> Format:
    fields = {key: _READ[key](value) if key in _READ else value for key, value in written.items()}
    return Format(name, **fields)


FORMATS = {name: _format(name, written) for name, written in own_yaml(PATH).items()}
"""By name, in the file's order."""


def format_named(name: str) -> Format:
    """The format of a name; UserError for an unknown one."""
    if name not in FORMATS:
        raise UserError(f"--format {name}: {did_you_mean(name, list(FORMATS))}formats: {', '.join(FORMATS)}")
    return FORMATS[name]


def trainers_format(path: Path, columns: tuple[str, ...]) -> Format | None:
    """The trainer's format that has these columns, None if none has them. UserError if several do."""
    found = [one for one in FORMATS.values() if one.matches(columns) and not one.is_general]
    if len(found) > 1:
        names = " and ".join(one.name for one in found)
        raise UserError(
            f"{path}: its columns fit the formats {names}; say which with --format. It holds {_shown(columns)}"
        )
    return found[0] if found else None


def recognised(
    path: Path, columns: tuple[str, ...], fits: Callable[[Collection[str]], bool] = format_rows.fits_columns
) -> Format:
    """The format of a file with these columns; `fits`: whether they are those of a table that is read as `columns`.
    UserError if several formats have them, or none."""
    if (found := trainers_format(path, columns)) is not None:
        return found
    general = next((one for one in FORMATS.values() if one.is_general and one.matches(columns)), None)
    if general is not None and not format_rows.fits_columns(columns):
        return general
    if not columns or fits(columns):  # the reader refuses an empty file
        return FORMATS["columns"]
    shown = _shown(columns)
    known = ", ".join(one.name for one in FORMATS.values() if one.needs)
    raise UserError(
        f"{path}, row 1: holds {shown}; it needs {format_rows.NEEDED}, or what one of these writes: {known} "
        "(docs/guide/use-with-other-trainers.md)"
    )


def _shown(columns: tuple[str, ...]) -> str:
    return shortened(", ".join(f"`{name}`" for name in columns) or "nothing", 300)


def format_of(path: Path, name: str | None = None) -> Format:
    """The format of a file: the named one, or the one that its columns show."""
    return recognised(path, columns_of(path)) if name is None else format_named(name)


def files_of(path: Path, found: Format | None) -> list[Path]:
    """The files of samples at a path: itself, or those in a folder, e.g. one step of a trainer that writes a file for
    each task."""
    if not is_folder(path) or path.name.lower().endswith(SUFFIXES):  # the latter is a mistake, which opening it names
        return [path]
    if any(is_file(path / name) for name in SAVED_TO_DISK):
        raise UserError(
            f"{path} is a data set as Hugging Face's `save_to_disk` writes it, in Arrow, which is not read here; write "
            "its rows as Parquet: datasets.load_from_disk(FOLDER)[SPLIT].to_parquet('rows.parquet'), without [SPLIT] "
            "if it has none"
        )
    names = names_in(path, found)
    if not names:
        raise UserError(f"{path}: no file of samples is in this folder; they end with {', '.join(SUFFIXES)}")
    return names


def names_in(folder: Path, found: Format | None) -> list[Path]:
    """The files of samples in a folder, in order; of a format, all that it writes there."""
    found = found or next((one for one in FORMATS.values() if one.laid_out_in(folder)), None)
    names = (one for one in folder.glob(found.files if found else "*") if one.name.lower().endswith(SUFFIXES))
    return sorted(one for one in names if not (found and found.without & set(one.relative_to(folder).parts[:-1])))
