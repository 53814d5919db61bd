"""The files that trainers write, as one table of formats: how a file is recognised, what a record holds, and which
weights sampled it.

`rows.py` reads files by this table, for every command.

A row is one completion of the policy: its prompt, as text, messages or ids, and what it says, with the keys

    prompt, completion, reasoning        text or messages
    prompt_ids, completion_ids, …        token ids, which are exact
    tools                                schemas of the tools that its prompt shows, as OpenAI nests them
    step, turn                           the step as the format counts it; 0 for the turn that is scored alone: the
                                         first of a rollout, or the last of a conversation
    group                                what the rows of one prompt share; not compared with prompts
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
- Pure: no torch, no Ray. A new trainer is one entry of `FORMATS`, which has its traits, and its function in a module
  beside `format_rows.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path

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
from squelch.kit.readers.format import OF_IDS, Format, Origin, Traits
from squelch.kit.readers.records import SUFFIXES, columns_of
from squelch.kit.readers.weights import WeightsRule
from squelch.kit.untrusted.files import is_file, is_folder, shortened

SAVED_TO_DISK = ("dataset_dict.json", "dataset_info.json")
"""Files of a folder that `save_to_disk` wrote."""
_NUMBER = r"(\d{1,18})"
FORMATS = {
    one.name: one
    for one in (
        Format(
            "trl",
            (frozenset({"step", "prompt", "completion", "advantage"}),),
            format_rows.trl,
            WeightsRule("checkpoint-{}", -1),
            re.compile(rf"^completions_{_NUMBER}\."),
            "**/completions_*.parquet",
            origin=Origin(
                "TRL 1.16.0",
                "`log_completions=True`",
                "`completions/completions_N.parquet`",
                "text or messages with tool calls, each reward, advantage; no ids, no tool schemas",
                by_hand=False,
            ),
            traits=Traits(
                frozenset({"rewards", "answers", "advantages", "prompts"}),
                groups="whole",
                names_groups=False,
                scores_each=True,
                last_rows=True,
                may_leave_unscored=True,
                rules_are_known=True,
                raw_prompts=True,
            ),
        ),
        Format(
            "verl",
            (frozenset({"input", "output", "score", "step"}),),
            format_rows.verl,
            WeightsRule("global_step_{}", -1),
            re.compile(rf"^{_NUMBER}\.jsonl"),
            "*.jsonl",
            origin=Origin(
                "verl 0.9.1",
                "`trainer.rollout_data_dir`",
                "`N.jsonl`",
                "text without special tokens, all turns in one; score",
            ),
            traits=Traits(
                frozenset({"rewards", "answers", "prompts", "tokens"}),
                groups="whole",
                one_prompt=True,
                drops_groups=True,
                scores_each=True,
            ),
        ),
        Format(
            "verl_validation",
            (),
            format_rows.verl,
            WeightsRule("global_step_{}", 0),
            re.compile(rf"^{_NUMBER}\.jsonl"),
            "*.jsonl",
            origin=Origin(
                "verl 0.9.1",
                "`trainer.validation_data_dir`",
                "`N.jsonl`, with the same columns: say `--format`",
                "as above",
            ),
            traits=Traits(scores_each=True),
        ),
        Format(
            "verifiers",
            (frozenset({"traces", "task", "env"}), frozenset({"nodes", "task"})),
            message_graph.episode,
            WeightsRule("step_{}", 0),
            files="**/*.jsonl*",
            origin=Origin(
                "verifiers 0.4.0, prime-rl (048a6e23)",
                "its evaluations; prime-rl's file monitor",
                "`traces.jsonl`; `monitors/file/traces/stream/`",
                "ids with log-probabilities, else messages; turns, tools, each reward, group, versions, failures",
                remark=" (N: the policy's version)",
                by_hand=False,
            ),
            traits=Traits(
                OF_IDS | {"advantages", "tasks", "evaluations", "text of ids", "messages of ids"},
                groups="streamed",
                scores_each=True,
                versions_are_checkpoints=True,
            ),
        ),
        Format(
            "nemo_rl",
            (frozenset({"token_ids", "token_loss_mask"}), frozenset({"content", "rewards", "idx"})),
            format_rows.nemo_rl,
            WeightsRule("step_{}", -1),
            re.compile(rf"^(?:train|val)_data_step{_NUMBER}\."),
            "**/train_data_step*.jsonl",
            re.compile(r"^val_data_step"),
            origin=Origin(
                "NeMo-RL (0275e758)",
                "always, without NeMo Gym",
                "`train_data_stepN.jsonl`",
                "ids with log-probabilities and advantages, turns; reward; no group",
                remark="; `val_data_stepN`: `step_N`",
            ),
            traits=Traits(
                OF_IDS | {"advantages", "evaluations", "trained logprobs"},
                groups="whole",
                names_groups=False,
                tasks_are_texts=True,
                drops_groups=True,
                scores_each=True,
            ),
        ),
        Format(
            "areal",
            (frozenset({"task_id", "sample_idx", "head_version", "tail_version", "prompt", "completion"}),),
            format_rows.areal,
            WeightsRule("globalstep{}", -1, 0),
            re.compile(rf"^{_NUMBER}$"),
            "**/*.jsonl",
            origin=Origin(
                "AReaL 1.0.4",
                "`rollout.dump_to_file=true`, `rollout.tokenizer_path`",
                "`rollout/N/TASK.jsonl`: give the folder",
                "text with special tokens, one turn, reward, group, versions",
            ),
            traits=Traits(
                frozenset({"rewards", "answers", "prompts", "tokens", "rendered prompts"}),
                drops_groups=True,
                scores_each=True,
                shows_ends=True,
                versions_are_checkpoints=True,
            ),
        ),
        Format(
            "slime",
            (frozenset({"tokens", "response", "response_length", "prompt"}),),
            format_rows.slime,
            WeightsRule("iter_{:07d}", -1, 0),
            re.compile(rf"^(?:eval_)?(?:\D*_)?{_NUMBER}\.jsonl"),
            "**/*.jsonl*",
            re.compile(r"^eval_|_eval_"),
            origin=Origin(
                "slime (0d234f3e)",
                "`--save-debug-rollout-data`",
                "a pickle, which is not read: convert it (below)",
                "ids with log-probabilities, turns, reward, group, versions, failures",
            ),
            traits=Traits(
                OF_IDS | {"evaluations", "text of ids"},
                groups="whole",
                one_prompt=True,
                drops_groups=True,
                scores_each=True,
                staleness=1,
            ),
        ),
        Format(
            "skyrl",
            (frozenset({"input_prompt", "output_response", "score"}),),
            format_rows.skyrl,
            WeightsRule("global_step_{}", 0),
            re.compile(rf"^global_step_{_NUMBER}_evals$"),
            "**/*.jsonl",
            origin=Origin(
                "SkyRL 0.4.0",
                "`trainer.dump_eval_results` (the default)",
                "`dumped_evals/global_step_N_evals/`: evaluations only",
                "text with special tokens, score",
            ),
            traits=Traits(frozenset({"rewards", "answers", "rendered prompts"}), scores_each=True, shows_ends=True),
        ),
        Format(
            "chat",
            tuple(frozenset({name}) for name in chat_rows.COLUMNS),
            chat_rows.chat,
            origin=Origin(
                "OpenAI's `messages`, ShareGPT's `conversations`",
                "",
                "a conversation a line",
                "messages with `reasoning_content`, `tool_calls` and `tools`: the last of the assistant, or each "
                "(`--turns all`); columns of numbers as rewards; group: `prompt_id`, or the same beginning",
            ),
            is_general=True,
            traits=Traits(frozenset({"answers", "prompts"})),
        ),
        Format(
            "atif",
            (frozenset({"schema_version", "agent", "steps"}),),
            trajectory_rows.atif,
            files="**/trajectory.[cj]*",
            origin=Origin(
                "ATIF 1.8.0",
                "",
                "`trajectory.json`, or one a line",
                "each step of an agent: ids with log-probabilities, else messages; tools; no reward",
                by_hand=False,
            ),
            traits=Traits(frozenset({"logprobs", "prompts of turns"})),
        ),
        Format(
            "harbor",
            (frozenset({"trial_name", "task_name", "agent_info"}), frozenset({"n_total_trials", "stats"})),
            trajectory_rows.harbor,
            files="**/result.json",
            origin=Origin(
                "Harbor 0.26.0",
                "for ids: the agent's `collect_rollout_details`",
                "the folder of a job or a trial",
                "as `atif`, with each reward, group by task, failures",
                by_hand=False,
            ),
            beside=harbor_trials.trajectories_beside,
            layout=("trial.log", "*/trial.log"),
            without=frozenset({"agent", "artifacts", "steps", "user-agent", "verifier"}),
            traits=Traits(frozenset({"rewards", "logprobs", "prompts of turns"})),
        ),
        Format(
            "squelch",
            (frozenset({"token_ids", "loss_mask", "turns", "episode_return"}),),
            format_rows.archive,
            step_in_path=re.compile(rf"^step-{_NUMBER}\.parquet$"),
            files="**/step*.parquet",
            columns=frozenset(
                {"step", "group_id", "trajectory", "split", "episode_return", "truncated", "failure_cause"}
                | {"token_ids", "log_probs", "turns", "segments"}
            ),
            origin=Origin(
                "Squelch",
                "always",
                "`groups/step-N.parquet`",
                "ids with log-probabilities, turns, return, group, versions, failures",
                by_hand=False,
            ),
            traits=Traits(
                OF_IDS | {"tasks"},  # validation is not archived
                groups="whole",
                scores_each=True,
                learns_all=True,
                tempered=True,
                checkpoints=WeightsRule("step-{}", -1),
            ),
        ),
        Format(
            "inspect_ai",
            (frozenset({"eval", "samples"}),),
            inspect_log.log,
            files="**/*.eval",
            origin=Origin(
                "inspect_ai 0.3.285",
                "always",
                "`NAME.eval`, or `.json`",
                "messages, tools, turns, epochs as a group, each score, limits, failures; no ids or pictures",
                by_hand=False,
            ),
            traits=Traits(frozenset({"rewards"})),
        ),
        Format(
            "art",
            (
                frozenset({"trajectory_json", "group_json"}),
                frozenset({"group_index", "group_logs", "messages"}),
                frozenset({"trajectories"}),
                frozenset({"messages_and_choices"}),
            ),
            agent_rows.art,
            step_in_path=re.compile(rf"^{_NUMBER}\.(?:parquet|jsonl)$"),
            files="**/train/[0-9]*.parquet",
            origin=Origin(
                "ART 0.5.23",
                "always",
                "`trajectories/SPLIT/N.parquet`; older: `N.jsonl`",
                "ids with log-probabilities if its server gave them, else messages; tools, turns, reward, group, "
                "versions, failures",
                by_hand=False,
            ),
            traits=Traits(
                frozenset({"rewards", "answers", "rendered prompts", "logprobs", "prompts of turns"})
                | {"prompts", "prompt ids"},
                groups="whole",
                scores_each=True,
            ),
        ),
        Format(
            "nemo_gym",
            (
                frozenset({"responses_create_params", "response", "reward"}),
                frozenset({"_ng_failure_class", "_ng_task_index"}),
            ),
            agent_rows.nemo_gym,
            origin=Origin(
                "NeMo Gym 0.7.0",
                "always",
                "`output_jsonl_fpath`",
                "as `art`, without versions",
            ),
            traits=Traits(frozenset({"rewards", "answers", "rendered prompts", "logprobs", "prompts of turns"})),
        ),
        Format(
            "swe_agent",
            (frozenset({"trajectory", "history", "info"}), frozenset({"attempts"})),
            agent_rows.swe_agent,
            files="**/*.traj",
            layout=("*/*.traj",),
            origin=Origin(
                "SWE-agent (04ab2352)",
                "always",
                "`INSTANCE.traj`",
                "messages, turns, group, limits, failures; no ids, tool schemas or reward",
            ),
        ),
        Format(
            "langfuse",
            (frozenset({"traceId", "type", "input", "output"}), frozenset({"trace_id", "type", "input", "output"})),
            agent_rows.langfuse,
            files="**/*.jsonl*",
            origin=Origin(
                "Langfuse (03347058)",
                "an export of observations as JSON",
                "any",
                "each call alone: text or messages, tools, failures; scores if its page exported it; no ids",
            ),
        ),
        Format(
            "columns",
            (),
            format_rows.columns,
            columns=format_rows.KNOWN_COLUMNS,
            traits=Traits(
                frozenset({"answers", "prompts", "tokens", "ids", "rendered prompts", "prompts of turns"}),
                one_prompt=True,
                raw_prompts=True,
                checkpoints=WeightsRule("checkpoint-{}", 0),
            ),
        ),
    )
}
"""By name. `columns` are the ones of docs/guide/use-with-other-trainers.md, in a file of any origin."""


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
