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
from typing import TYPE_CHECKING, Any

from squelch.kit.base.disk import whole_file
from squelch.kit.base.errors import UserError, as_user_error, bad_files_are_the_users
from squelch.kit.base.package import require_scoring
from squelch.kit.commands.score_evidence import refuse_with_scorer, say_evidence
from squelch.kit.process.terminal import aligned, say, say_json
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


class NotRead(UserError):
    """A file of samples or the model cannot be read; where both are of a training, perhaps they are being written."""


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
