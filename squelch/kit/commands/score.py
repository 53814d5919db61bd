"""`squelch score`: measures whether reasoning depends on its input, for prompts and reasonings of any trainer.

The command reads the file (`score_files.py`), scores every reasoning under every prompt with one model
(`squelch.kit.api.scoring`), prints the metrics of `squelch mi` with their intervals, and lists the reasonings that
fit every prompt. It runs in one process, without Ray or vLLM. Bad input raises a `UserError` that names the file and
the row.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from squelch.kit.base.disk import whole_file
from squelch.kit.base.errors import UserError, as_user_error, bad_files_are_the_users
from squelch.kit.base.package import require_scoring
from squelch.kit.commands.arguments import add_compat, add_file, add_format, natural, positive
from squelch.kit.commands.score_evidence import OF_THE_POLICY, SCORER_HELP, refuse_with_scorer, say_evidence
from squelch.kit.process.terminal import aligned, say, say_json
from squelch.kit.text.answer_start import COMPLETION, MARKED, Reasoning
from squelch.kit.untrusted.files import MIB, Unreadable, is_folder, read_bytes, reason, require_output
from squelch.kit.untrusted.text import parse_json

if TYPE_CHECKING:
    import numpy as np

    from squelch.kit.api.completions import Where
    from squelch.kit.api.samples import Reasonings, Row
    from squelch.kit.api.scoring import ScoreResult
    from squelch.kit.models.adapter_folder import Checkpoint
    from squelch.kit.pictures.geometry import Vision
    from squelch.kit.scoring.cross_scoring import CrossScorer

MAX_TOOLS = 16 * MIB

SCORE_HELP = """\
Does the reasoning in a trainer's samples depend on its input? Scores every reasoning under every prompt with a model,
prints the mutual-information proxies of RAGEN-2 (Eq. 1, Table 1) with intervals, names the regime, and lists the
reasonings that fit every prompt (templates). If rows have answers, it also says whether they follow from the reasoning.

FILE is what TRL, verl, verifiers, prime-rl, NeMo-RL, AReaL, slime or SkyRL wrote, recognised by its columns
(docs/guide/use-with-other-trainers.md), or a folder of such files; or a .jsonl (also .gz, .zst), .json or .parquet of
your own with one reasoning per row, all of one training step:
  as text   `prompt` (or `input`; text up to where the answer begins, or a list of messages), with
            `reasoning`, or `completion` (or `output`, `response`) that closes its reasoning with </think>
  as ids    `prompt_ids`, up to and including the opening of the reasoning, with `reasoning_ids`
            (and `answer_ids`, from the closing of the reasoning to the end of the answer)
  optional  `prompt_id` (or `group_id`): rows of one id must have one prompt; `step`: see --step;
            `images` (or `image`): the pictures that the prompt shows, for a model with a vision tower
Other columns are ignored. More prompts, and several reasonings of each, narrow the intervals."""

SCORE_EPILOG = """\
how to read it: see `squelch mi --help`; docs/guide/reasoning.md
  gap: log p(z|own prompt) - log mean p(z|other prompts), in nats; a reasoning with a gap of 0 or less fits any prompt

examples:
  squelch score completions_00100.parquet --model checkpoint-99
  squelch score rollouts/100.jsonl --model policy/ --out scores.npz --json"""


class NotRead(UserError):
    """A file of samples or the model cannot be read; where both are of a training, perhaps they are being written."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description, parser.epilog = SCORE_HELP, SCORE_EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_file(parser)
    by = parser.add_mutually_exclusive_group(required=True)
    by.add_argument("--model", type=Path, metavar="DIR", help="Hugging Face folder of the policy that sampled them")
    by.add_argument("--scorer", type=Path, metavar="DIR", help=SCORER_HELP)
    parser.add_argument("--out", type=Path, metavar="NPZ", help="also write the score matrix, for `squelch mi`")
    parser.add_argument("--step", type=int, help="score only the rows of this step")
    parser.add_argument(
        "--force", action="store_true", help="print the result even if the model cannot have written the reasonings"
    )
    parser.add_argument("--max-prompts", type=positive(int), metavar="N", help="score a random sample of N prompts")
    parser.add_argument(
        "--templates", type=natural, default=5, metavar="N", help="list N reasonings that fit every prompt (default: 5)"
    )
    parser.add_argument("--half-width", type=positive(float), default=0.05, metavar="NATS", help="see `squelch mi`")
    add_scoring(parser)
    add_compat(parser, "the marginal is normalised by length before the mixture instead of after it")
    parser.set_defaults(defaults={name: parser.get_default(name) for name in OF_THE_POLICY})


def add_scoring(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments by which rows are read and scored, which `squelch monitor` has too."""
    parser.add_argument("--base", type=Path, metavar="DIR", help="folder of the base model of a LoRA adapter")
    add_format(parser)
    parser.add_argument(
        "--temperature", type=positive(float), default=1.0, help="temperature of the sampling (default: %(default)s)"
    )
    parser.add_argument(
        "--reasoning",
        choices=get_args(Reasoning),
        default=MARKED,
        help="where the reasoning lies in a completion: marked, between markers; before_answer, from its begin to that "
        "of the answer; completion, not known (default: %(default)s)",
    )
    parser.add_argument(
        "--answer",
        default="",
        metavar="TEXT",
        help="with before_answer: what answers begin with, such as '\\boxed{', '####' or 'Answer:', or re: with an "
        "expression of RE2",
    )
    parser.add_argument(
        "--markers",
        nargs=2,
        default=("<think>", "</think>"),
        metavar=("OPEN", "CLOSE"),
        help="markers around the reasoning in a completion (default: <think> </think>)",
    )
    parser.add_argument(
        "--turns",
        choices=("first", "all"),
        default="first",
        help="which turns of a rollout are scored, each under its own prompt; the first of a conversation in a file of "
        "chats is its last (default: first)",
    )
    parser.add_argument(
        "--tools",
        type=Path,
        metavar="JSON",
        help="file with the list of JSON schemas that the chat template shows, for rows without a column `tools`",
    )
    parser.add_argument(
        "--pictures", type=Path, metavar="DIR", help="folder of the paths of pictures (default: the file's own)"
    )
    parser.add_argument(
        "--resize", action="store_true", help="resize pictures whose sides do not fit, as the model's processor does"
    )
    parser.add_argument("--whole", dest="reasoning", action="store_const", const=COMPLETION, help=argparse.SUPPRESS)
    parser.add_argument(
        "--no-links", dest="links", action="store_false", help="do not score the answers that follow the reasonings"
    )
    parser.add_argument("--device", help="cpu, cuda, cuda:1, … (default: cuda if available)")
    parser.add_argument(
        "--token-budget", type=positive(int), default=16384, help="tokens forwarded at once (default: %(default)s)"
    )
    parser.add_argument("--seed", type=natural, default=0, help="seed of the resampling and of --max-prompts")


def run(args: argparse.Namespace) -> int:
    """Prints the metrics; returns 0, or raises UserError for bad input."""
    where(args)
    if args.out is not None:
        _check_output(args.out, args.file)
    if args.scorer is not None:
        refuse_with_scorer(args)
        args.model = args.scorer
    require_scoring()  # before a large file is read
    from squelch.kit.readers.score_files import notes_on_file, read_samples

    file = read_samples(args.file, args.step, args.format, args.pictures, args.turns)
    found, engine = load(args, file.rows, "--model" if args.scorer is None else "--scorer")
    if args.scorer is not None:
        return say_evidence(engine, found, file.notes, args)
    from squelch.kit.api.scoring import CannotHaveWritten, scored

    try:
        how: dict[str, Any] = {"compat": args.compat, "links": args.links, "seed": args.seed, "force": args.force}
        result = scored(engine, found, **how, modality=True)
    except CannotHaveWritten as error:
        instead = f"give its model; without its weights, --scorer {args.model}; or --force"
        raise UserError(f"{args.file} under {args.model}: {error}; {instead}") from error
    result = replace(result, notes=(*result.notes, *notes_on_file(file, args.file, args.model)))
    if args.out is not None:
        write_npz(args.out, result.matrix, found, result.modality or {})
    if args.json:
        say_json(score_json(result, args))
    else:
        say(score_text(result, args))
    return 0


def where(args: argparse.Namespace) -> Where:
    """Where the reasonings lie. UserError for arguments that do not fit together."""
    from squelch.kit.api.completions import where_of

    if not all(args.markers):
        raise UserError(
            "--markers: both need text; the opening may be missing from completions. --reasoning is for completions "
            "without any marker"
        )
    with as_user_error(about="--reasoning"):
        return where_of(args.reasoning, (args.markers[0], args.markers[1]), args.answer)


def _check_output(path: Path, read: Path) -> None:
    with bad_files_are_the_users():
        require_output(path)
        folder_exists = is_folder(path.parent)
    if not folder_exists:
        raise UserError(f"--out {path}: its folder does not exist")
    if path.resolve() == read.resolve():
        raise UserError(f"--out {path} is the file that is read, and would replace it; give another name")


def load(
    args: argparse.Namespace, rows: Sequence[tuple[int, Row]], flag: str = "--model"
) -> tuple[Reasonings, CrossScorer]:
    """The reasonings in the rows, and the model that scores them; rows are converted before the model is loaded.
    `flag`: the one that gave the model, as errors name it. NotRead, if the model cannot be used."""
    from squelch.kit.api.samples import at_most, within_context
    from squelch.kit.api.scoring import require_two_prompts
    from squelch.kit.models.adapter_folder import checkpoint_of
    from squelch.kit.models.model_folder import check_model_folder, model_config
    from squelch.kit.readers.score_files import Reader
    from squelch.kit.scoring.models import refuse_other_attention

    tools = None if args.tools is None else read_tools(args.tools)
    with as_user_error(ValueError, OSError, about=f"{flag} {args.model}", into=NotRead):
        checkpoint = checkpoint_of(args.model, args.base)
        refuse_other_attention(check_model_folder(checkpoint.model))  # before rows are read and weights loaded
        # it knows defaults, and other names such as n_positions
        config: Any = model_config(checkpoint.model).get_text_config()
        if not hasattr(config, "max_position_embeddings"):
            raise NotRead(f"{flag} {args.model}: config.json states no max_position_embeddings, the model's context")
        vision = _vision(args, checkpoint, rows)
        reader = Reader(
            args.file, checkpoint.tokenizer, config.vocab_size, where(args), args.turns, tools, vision, args.resize
        )
        found = reader.read(rows)
        found = at_most(within_context(found, config.max_position_embeddings), args.max_prompts, args.seed)
    with as_user_error(about=args.file):
        require_two_prompts(found, "--{} {}")
    with as_user_error(ValueError, OSError, about=f"{flag} {args.model}", into=NotRead):
        return found, _engine(args, checkpoint, vision)


def _vision(args: argparse.Namespace, checkpoint: Checkpoint, rows: Sequence[tuple[int, Row]]) -> Vision | None:
    """How the model is shown pictures; None if it cannot be, which is an error if rows have some."""
    from squelch.kit.pictures.geometry import PROVEN, vision_of

    shown = next((row["pictures"][0] for _, row in rows if row.get("pictures")), None)
    try:
        found = vision_of(checkpoint.model)
    except Unreadable:
        if shown is not None:
            raise
        return None
    if found is None and shown is not None:
        raise UserError(
            f"{shown.where}: the model in {args.model} has no vision tower, so it was shown no pictures; give the "
            f"model that sampled the rows, of {', '.join(PROVEN)}"
        )
    return found


def read_tools(path: Path) -> list[Any]:
    """The JSON schemas of a file: a list, or an object with the list `tools`. UserError if it holds none."""
    from squelch.kit.api.messages import is_tools

    with bad_files_are_the_users():
        found = parse_json(read_bytes(path, MAX_TOOLS), str(path))
    found = found.get("tools") if isinstance(found, dict) else found
    if not found or not is_tools(found):
        raise UserError(f"--tools {path}: a list of JSON schemas is needed, as the chat template shows them")
    return found


def _engine(args: argparse.Namespace, checkpoint: Checkpoint, vision: Vision | None) -> CrossScorer:
    import torch

    from squelch.kit.models.adapter_folder import load_checkpoint
    from squelch.kit.scoring.cross_scoring import CrossScorer

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    model: Any = load_checkpoint(checkpoint, torch.float32)
    try:
        model = model.to(device)
    except (RuntimeError, AssertionError) as error:  # the latter: a torch without CUDA
        raise UserError(f"--device {device}: {str(error).splitlines()[0]}") from error
    return CrossScorer(model, args.token_budget, args.temperature, vision=vision)


def write_npz(path: Path, matrix: np.ndarray, found: Reasonings, modality: Mapping[str, float]) -> None:
    """Writes the file that `squelch mi` reads: `log_likelihood` (N, K, N); `lengths` (N, K), 0 if a prompt has fewer
    than K reasonings; `prompt_id` (N,); and `rows` (N, K), the row's number in the file, 0 if there is none. Of prompts
    with pictures also the metrics by `modality`, each a number."""
    import numpy as np

    num = len(found.prompts)
    order = np.argsort(found.source, kind="stable")
    prompt = found.source[order]
    place = np.arange(len(order)) - np.searchsorted(prompt, prompt)
    shape = (num, int(place.max()) + 1)
    filled, lengths, rows = np.zeros((*shape, num)), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    filled[prompt, place] = matrix[order]
    lengths[prompt, place] = [len(found.ids[s]) for s in order]
    rows[prompt, place] = found.rows[order]
    try:
        with whole_file(path) as file:
            also: dict[str, Any] = {f"modality_{key}": value for key, value in modality.items()}
            np.savez(file, log_likelihood=filled, lengths=lengths, prompt_id=np.arange(num), rows=rows, **also)
    except OSError as error:
        raise UserError(f"--out {path} cannot be written: {reason(error)}; the scores are lost") from error


def score_json(found: ScoreResult, args: argparse.Namespace) -> dict[str, Any]:
    """The output of `--json`: the keys of `squelch mi`, and facts about the file, the model and the templates."""
    from squelch.kit.api.findings import findings_of
    from squelch.kit.commands.mi import mi_json
    from squelch.kit.commands.score_answers import answers_json, with_nulls
    from squelch.kit.findings.words import plain

    facts = {"file": str(args.file), "model": str(args.model), "temperature": args.temperature, "step": args.step}
    return {
        **facts,
        "turns": dict(+found.samples.turns),
        "control_tokens": dict(found.samples.control_tokens.most_common()),
        **(
            mi_json(found.proxies, found.uncertainty, args.half_width)
            if found.completion is None
            else {"excluded": found.proxies.excluded, "completion": with_nulls(found.completion)}
        ),
        "fits_any_prompt": found.fits_any,
        "links": answers_json(found.answers),
        "answers_excluded": dict(+found.answers.excluded) if found.answers else {},
        "regime": found.regime or None,
        "regime_reason": found.regime_reason,
        **({} if found.modality is None else {"modality": with_nulls(found.modality)}),
        "templates": [asdict(template) for template in found.templates[: args.templates]],
        "findings": [plain(one) for one in findings_of(found, args.half_width)],
        "notes": list(found.notes),
    }


def score_text(found: ScoreResult, args: argparse.Namespace) -> str:
    """The report as text: the table of `squelch mi`, the regime, the links of the answers, the templates, and then the
    findings."""
    from squelch.kit.api.findings import findings_of
    from squelch.kit.commands.mi import mi_table
    from squelch.kit.commands.score_answers import answers_text, completion_text, modality_text, regime_text
    from squelch.kit.findings.words import paragraph

    head = f"{args.file} under {args.model}, temperature {args.temperature:g}"
    if found.completion is None:
        lines = [mi_table(found.proxies, found.uncertainty, args.half_width, head), *found.notes]
    else:
        lines = [head, *completion_text(found.completion), *found.notes]
    lines += ["", regime_text(found)]
    if found.answers is not None:
        lines += answers_text(found.answers)
    if found.modality is not None:
        lines += modality_text(found.modality)
    total, what = found.proxies.num_samples, "reasoning" if found.completion is None else "completion"
    lines += ["", f"{found.fits_any} of {total} {what}s fit the other prompts as well as their own or better"]
    rows = [("gap", "times", "prompts", "row", what)]
    for each in found.templates[: args.templates]:
        rows.append((f"{each.gap:.3f}", str(each.count), str(each.num_prompts), str(each.rows[0]), _line(each.text)))
    lines += aligned(rows) if len(rows) > 1 else []
    for one in findings_of(found, args.half_width):
        lines += ["", *paragraph(one)]
    return "\n".join(lines)


def _line(text: str, width: int = 160) -> str:
    """The text on one line, cut to `width` characters; --json has the complete text."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"
